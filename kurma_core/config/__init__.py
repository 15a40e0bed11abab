"""Configuration: ``kurma.yml``, its drop-ins, the defaults and the command line, as one frozen :class:`Config`.

Kurma reads ``kurma.yml`` (or ``kurma.yaml``, ``kurma.json``) of the configuration directory, then the files of its
``kurma.d`` that end in ``.yml``, ``.yaml`` or ``.json``, in order of their names. A later file wins:

- mappings are merged key by key, at every depth;
- all other values, lists too, are replaced as a whole;
- ``container_networks`` is merged by name: an entry replaces the earlier one of its name in its position, a new
  name is added at the end. Entries of the default configuration come last;
- a key without a value has no effect.

:mod:`kurma_core.config.schema` describes the keys. All files are optional; yaml is imported only for a YAML file.
"""

from __future__ import annotations

import os
from _collections_abc import Mapping  # without collections
from types import MappingProxyType

from kurma_core.config.schema import ALL_DEFAULT, KINDS, OPT_IN, SCHEMA, Key, Where, checked, installing, kind_of
from kurma_core.errors import ConfigError, ManifestError
from kurma_core.schema import describe
from kurma_core.value import field, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any

CONFIG_DIR = "/etc/kurma"
_MAIN = ("kurma.yml", "kurma.yaml", "kurma.json")
_SUFFIXES = (".yml", ".yaml", ".json")


# --- values ----------------------------------------------------------------------------------------------------


@frozen
class PluginConfig:
    """The section for one plugin. ``config`` is checked against the plugin's options when it is loaded."""

    enabled: bool = True
    required: bool = False
    config: Mapping[str, Json] = field(default_factory=dict)


@frozen
class StagerConfig:
    """A named stager. ``driver`` None: an image that implements the Kurma Stager Specification.

    :param without_isolators: pods may run under it without the required isolators.
    """

    image: str | None = None
    config: Mapping[str, Json] = field(default_factory=dict)
    driver: str | None = None
    without_isolators: bool = False


@frozen
class NetworkConfig:
    """One entry of ``container_networks`` (Kurma Network Specification, Kurma Configuration).

    :param aci: or ``plugin``: exactly one is set.
    :param container_interface: name of the interface inside the pod, or a template of it.
    :param names: pods on it find each other by name.
    :param config: all other keys of the entry, unchanged, for the plugin.
    """

    name: str
    aci: str | None = None
    plugin: str | None = None
    container_interface: str | None = None
    default: bool = False
    optional: bool = False
    names: bool = True
    config: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """The entry as a file would have it."""
        named = {
            "name": self.name,
            "aci": self.aci,
            "plugin": self.plugin,
            "containerInterface": self.container_interface,
            "default": self.default,
            "optional": self.optional,
            "names": self.names,
        }
        return {name: value for name, value in named.items() if value is not None} | dict(self.config)


@frozen
class LogConfig:
    """``size`` in bytes at which a log file is rotated; ``count`` files are kept of each app's log."""

    size: int
    count: int


@frozen
class LimitsConfig:
    """Limits of an archive: bytes unpacked, number of entries, ratio of unpacked to packed size."""

    total_size: int
    entries: int
    ratio: float


@frozen
class UsernsPoolConfig:
    """``count`` ids of the host from ``first`` on; a pod gets ``size`` of them."""

    first: int
    count: int
    size: int


@frozen
class FetchersConfig:
    """Names of the fetchers of locators without a scheme: of paths, of names, and of files to save images in."""

    paths: str
    names: str
    saves: str


@frozen
class RegistriesConfig:
    """``insecure``: host[:port] of registries without TLS. ``mirrors``: registry name → mirrors, in order."""

    insecure: tuple[str, ...]
    mirrors: Mapping[str, tuple[str, ...]]

    def to_json(self) -> dict[str, Json]:
        return {"insecure": list(self.insecure), "mirrors": {name: list(m) for name, m in self.mirrors.items()}}


@frozen
class GrantConfig:
    """Allows images power over the host: the images of ``images``, if a key of ``signers`` (empty: any key that is
    trusted for the name) signed them; or those of ``digests``, signed or not."""

    images: tuple[str, ...]
    signers: tuple[str, ...]
    digests: tuple[str, ...]
    isolators: tuple[str, ...]


@frozen
class InitialPodConfig:
    """A pod that a daemon keeps running.

    :param name: name of the pod; None if the entry is a locator.
    :param key: identifies the entry: the name, or the locator.
    :param template: the form that :meth:`kurma_core.appc.template.PodTemplate.parse` reads.
    """

    name: str | None
    key: str
    template: Mapping[str, Json]


@frozen
class Config:
    """The effective configuration.

    :param config_files: the files that were read, in order.
    :param plugins: sections by kind (``networks``, without ``kurma.``), then by name; only those of the files.
    :param enable: plugins without a section that are enabled: ``all``, or none of them (``listed``).
    :param packages: the distribution that brings a plugin, by ``KIND/NAME``.
    :param short_names: the host of names without one, or ``SCHEME://HOST``; None: such names are discovered.
    :param userns: user namespace of pods that name none: ``none``, ``auto`` or ``UID:COUNT``.
    :param start_timeout: and ``stop_timeout``: seconds.
    :param trust: policy by source, defaults filled in: ``named``, ``https``, ``http``, ``registry``, ``file``.
    :param trustedkeys: directories, weakest first; new keys go to the last.
    :param host_image_digests: digest by locator.
    :param grants: by name.
    :param required_isolators: by isolator, whether every app must have it.
    :param isolator_plugins: by isolator, the plugin that the configuration chose for it.
    :param prestarted_stagers: the number of stagers that a daemon keeps prestarted.
    :param origins: the origin of each value, by dotted path: a file, ``default`` or ``command line``.
    :param values: the whole as JSON, in the form of a file; ``kurma config show`` prints it.
    """

    state_dir: str
    run_dir: str
    auth_dir: str
    trustedkeys: tuple[str, ...]
    config_files: tuple[str, ...]
    plugins: Mapping[str, Mapping[str, PluginConfig]]
    enable: str
    packages: Mapping[str, str]
    renderer: str
    stager: str
    stagers: Mapping[str, StagerConfig]
    container_networks: tuple[NetworkConfig, ...]
    base_networks: tuple[str, ...]
    default_networks: tuple[str, ...]
    trust: Mapping[str, str]
    trusted_host_keys: tuple[str, ...]
    host_image_digests: Mapping[str, str]
    grants: Mapping[str, GrantConfig]
    required_isolators: Mapping[str, bool]
    isolator_plugins: Mapping[str, str]
    initial_pods: tuple[InitialPodConfig, ...]
    prefetch_images: tuple[str, ...]
    prestarted_stagers: int
    fetchers: FetchersConfig
    short_names: str | None
    registries: RegistriesConfig
    limits: LimitsConfig
    userns: str
    userns_pool: UsernsPoolConfig
    start_timeout: float
    stop_timeout: float
    log: LogConfig
    origins: Mapping[str, str]
    values: Mapping[str, Json]

    def plugin(self, group: str, name: str) -> PluginConfig:
        """Returns the plugin's section, or defaults. ``group`` with or without ``kurma.``.

        Without a section, a plugin is disabled if ``enable`` is ``listed``, or if its kind is in :data:`OPT_IN`.
        """
        kind = kind_of(group)
        section = self.plugins.get(kind, {}).get(name)
        return PluginConfig(enabled=self.enable == "all" and kind not in OPT_IN) if section is None else section

    def install_hint(self, group: str, name: str = "") -> str | None:
        """The commands that install a missing plugin; None: the configuration names no package that brings it.

        :param group: with or without ``kurma.``. :param name: of the plugin; empty: any of the group.
        """
        for key, package in self.packages.items():
            kind, _, plugin = key.partition("/")
            if kind == kind_of(group) and name in ("", plugin):
                own = origin(f"plugins.packages.{key}", self.origins) == "default"
                hint = installing(package, own=own)
                return f"{hint}; all default plugins: {installing(ALL_DEFAULT, own=True)}" if own else hint
        return None

    @property
    def joined_by_default(self) -> tuple[str, ...]:
        """The networks of a pod that names none, without the base networks."""
        entries = [one for one in self.container_networks if one.default and one.name not in self.base_networks]
        return tuple([one.name for one in entries]) or self.default_networks

    @property
    def networks_in_use(self) -> tuple[NetworkConfig, ...]:
        """The entries of ``container_networks``, without those of the default configuration that pods join only by
        name."""
        joined = {*self.base_networks, *self.joined_by_default}
        return tuple(
            [one for one in self.container_networks if one.name in joined or not self.is_built_in(one.name)]
        )

    def is_built_in(self, network: str) -> bool:
        """Whether the entry of that name in ``container_networks`` is the default configuration's."""
        return self.origins.get(f"container_networks.{network}") == "default"

    def required_under(self, stager: str) -> frozenset[str]:
        """Returns the isolators that every app of a pod under that stager must have.

        :param stager: a value of ``--stager``; for ``DRIVER:IMAGE`` the section ``DRIVER`` counts.
        """
        section, driver = self.stagers.get(stager), stager.partition(":")[0]
        if section is None and driver in self.stagers and self.stagers[driver].driver == driver:
            section = self.stagers[driver]
        if section is not None and section.without_isolators:
            return frozenset()
        return frozenset(name for name, required in self.required_isolators.items() if required)

    def to_json(self) -> dict[str, Json]:
        return dict(self.values)

    def checksum(self) -> str:
        """A checksum of the values, by which a client knows whether kurmad has read the same ones. Values that
        follow from the state directory are left out: the two may have found it in different ways."""
        from zlib import crc32

        from kurma_core.formats.small_json import encode

        own = {"state_dir", "run_dir"}
        if self.origins.get("trustedkeys") not in self.config_files:
            own.add("trustedkeys")
        values = {key: value for key, value in self.values.items() if key not in own}
        return f"{crc32(encode(values).encode()):08x}"


# --- loading ---------------------------------------------------------------------------------------------------


def load(
    config_file: str | None = None,
    state_dir: str | None = None,
    *,
    state_dir_origin: str = "command line",
    draft: tuple[str, Json] | None = None,
) -> Config:
    """Reads the configuration.

    :param config_file: a single file, or a directory like ``/etc/kurma`` that holds one or ``kurma.d``; None:
        ``/etc/kurma``, which may be missing.
    :param state_dir: from the command line or the environment (``state_dir_origin`` says which). It overrides the
        files, and moves ``run_dir`` and, unless a file sets it, ``trustedkeys`` below it.
    :param draft: a file of ``kurma.d`` and its value, to be used in place of what is there.
    :raises ConfigError: a file is missing, unreadable or wrong; it names the file and the place.
    """
    directory, files = _files(config_file)
    if draft is not None:
        main = [file for file in files if os.path.dirname(file) == directory]
        files = (*main, *sorted({*files, draft[0]} - {*main}))
    values: dict[str, Json] = {}
    origins: dict[str, str] = {}
    for file in files:
        section = checked(draft[1] if draft is not None and file == draft[0] else _read(file), file)
        _merge(values, section, SCHEMA, origins, file)
    return _whole(values, origins, directory, files, state_dir, state_dir_origin)


def place(config_file: str | None = None, state_dir: str | None = None) -> Config:
    """Reads only the state directory and the run directory from a configuration that :func:`load` refuses.

    :raises ConfigError: these cannot be read either.
    """
    directory, files = _files(config_file)
    values: dict[str, Json] = {}
    origins: dict[str, str] = {}
    # A state directory of the command line overrides all that the files say of it.
    for file in files if state_dir is None else ():
        said = _read(file)
        if said is not None and not isinstance(said, dict):
            Where(file).fail(f"expected an object, found {describe(said)}")
        section = {key: value for key, value in (said or {}).items() if key in ("state_dir", "run_dir")}
        _merge(values, checked(section, file), SCHEMA, origins, file)
    return _whole(values, origins, directory, files, state_dir, "command line")


def _whole(
    values: dict[str, Json],
    origins: dict[str, str],
    directory: str,
    files: tuple[str, ...],
    state_dir: str | None,
    state_dir_origin: str,
) -> Config:
    if state_dir is not None:
        values["state_dir"] = os.path.abspath(state_dir)
        values["run_dir"] = os.path.join(values["state_dir"], "run")
        values.setdefault("trustedkeys", [os.path.join(values["state_dir"], "trustedkeys")])
        origins["state_dir"] = origins["run_dir"] = state_dir_origin
        origins.setdefault("trustedkeys", state_dir_origin)
    _derive(values, origins, directory)
    _fill(values, SCHEMA, origins)
    return _config(values, origins, files)


def origin(path: str, origins: Mapping[str, str]) -> str:
    """Returns the origin of the value at that dotted path, or else of the nearest value that contains it."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return "default"


def _files(config_file: str | None) -> tuple[str, tuple[str, ...]]:
    if config_file is None:
        return CONFIG_DIR, _directory_files(CONFIG_DIR)
    path = os.path.abspath(config_file)
    if os.path.isdir(path):
        files = _directory_files(path)
        if not files and path != CONFIG_DIR and not os.path.isdir(f"{path}/kurma.d"):
            raise ConfigError(
                f"{path} holds no kurma.yml and no kurma.d",
                hint="--config and KURMA_CONFIG name a file, or a directory like /etc/kurma",
                file=path,
                path="",
            )
        return path, files
    if not os.path.exists(path):
        raise ConfigError(
            f"no configuration file {path}",
            hint="--config and KURMA_CONFIG name a file, or a directory like /etc/kurma",
            file=path,
            path="",
        )
    return os.path.dirname(path), (path,)


def _directory_files(directory: str) -> tuple[str, ...]:
    main = [path for name in _MAIN if os.path.exists(path := os.path.join(directory, name))]
    if len(main) > 1:
        raise ConfigError(
            f"{directory} holds both {os.path.basename(main[0])} and {os.path.basename(main[1])}",
            hint="keep one of them",
            file=main[1],
            path="",
        )
    drop_ins = os.path.join(directory, "kurma.d")
    try:
        names = sorted(name for name in os.listdir(drop_ins) if name.endswith(_SUFFIXES) and name[0] != ".")
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise ConfigError(f"cannot read {drop_ins}: {error.strerror}", file=drop_ins, path="") from error
    return (*main, *(os.path.join(drop_ins, name) for name in names))


def _read(file: str) -> Json:
    from kurma_core.config.files import read

    return read(file)


def _derive(values: dict[str, Json], origins: dict[str, str], directory: str) -> None:
    """Sets defaults that depend on other values; their origin is the origin of those values."""
    state = values.get("state_dir")
    if state is not None and state != "/var/lib/kurma" and "run_dir" not in values:
        values["run_dir"] = os.path.join(state, "run")
        origins["run_dir"] = origins["state_dir"]
    if directory != CONFIG_DIR and "auth_dir" not in values:
        values["auth_dir"] = os.path.join(directory, "auth.d")
        origins["auth_dir"] = "beside the configuration"


# --- merging ---------------------------------------------------------------------------------------------------


def _merge(
    into: dict[str, Json],
    new: Mapping[str, Json],
    keys: tuple[Key, ...],
    origins: dict[str, str],
    file: str,
    prefix: str = "",
) -> None:
    """Merges a checked section over the values of earlier files, and records the origin of each value."""
    for key in keys:
        if key.name not in new:
            continue
        path, value = prefix + key.name, new[key.name]
        if key.shape == "section":
            _merge(into.setdefault(key.name, {}), value, key.keys, origins, file, path + ".")
        elif key.shape == "named":
            for name, item in value.items():
                section = into.setdefault(key.name, {}).setdefault(name, {})
                origins.setdefault(f"{path}.{name}", file)
                _merge(section, item, key.keys, origins, file, f"{path}.{name}.")
        elif key.shape == "list of named":
            _merge_named(into.setdefault(key.name, []), value, origins, file, path)
        elif isinstance(value, dict):
            _merge_free(into.setdefault(key.name, {}), value, origins, file, path)
        else:
            into[key.name] = value
            origins[path] = file


def _merge_named(into: list[Json], new: list[Json], origins: dict[str, str], file: str, path: str) -> None:
    places = {entry["name"]: index for index, entry in enumerate(into)}
    for entry in new:
        if entry["name"] in places:
            into[places[entry["name"]]] = entry
        else:
            into.append(entry)
        origins[f"{path}.{entry['name']}"] = file


def _merge_free(
    into: dict[str, Json], new: dict[str, Json], origins: dict[str, str], file: str, path: str
) -> None:
    origins.setdefault(path, file)
    for name, value in new.items():
        below = f"{path}.{name}"
        if isinstance(value, dict) and value:
            if not isinstance(into.get(name), dict):
                into[name] = {}
            _merge_free(into[name], value, origins, file, below)
        else:
            into[name] = value
            for stale in [key for key in origins if key.startswith(f"{below}.")]:
                del origins[stale]
            origins[below] = file


def _fill(values: dict[str, Json], keys: tuple[Key, ...], origins: dict[str, str], prefix: str = "") -> None:
    """Fills in the defaults, in the table's order."""
    given = dict(values)
    values.clear()
    for key in keys:
        path = prefix + key.name
        if key.shape == "section":
            values[key.name] = given.get(key.name, {})
            _fill(values[key.name], key.keys, origins, path + ".")
        elif key.shape == "named":
            values[key.name] = given.get(key.name, {})
            for name, section in values[key.name].items():
                _fill(section, key.keys, origins, f"{path}.{name}.")
        elif key.shape == "list of named":
            # Entries of the files come first; one of the same name takes a default's place.
            values[key.name] = list(given.get(key.name, ()))
            named = {entry["name"] for entry in values[key.name]}
            for entry in key.default:
                if entry["name"] not in named:
                    values[key.name].append(dict(entry))
                    origins[f"{path}.{entry['name']}"] = "default"
        else:
            if key.name not in given:
                origins[path] = "default"
            value: Json = given.get(key.name, key.default)
            if isinstance(key.default, dict) and key.default:
                # A file's mapping is merged over the default, like over an earlier file's.
                for name in key.default.keys() - value.keys():
                    origins[f"{path}.{name}"] = "default"
                value = {**key.default, **value}
            values[key.name] = value.copy() if isinstance(value, list | dict) else value


# --- the value -------------------------------------------------------------------------------------------------


def _config(values: dict[str, Json], origins: dict[str, str], files: tuple[str, ...]) -> Config:
    registries = values["registries"]
    plugins = {
        kind: MappingProxyType(
            {name: PluginConfig(**section) for name, section in values["plugins"][kind].items()}
        )
        for kind in KINDS
    }
    return Config(
        state_dir=values["state_dir"],
        run_dir=values["run_dir"],
        auth_dir=values["auth_dir"],
        trustedkeys=tuple(values["trustedkeys"]),
        config_files=files,
        plugins=MappingProxyType(plugins),
        enable=values["plugins"]["enable"],
        packages=MappingProxyType(values["plugins"]["packages"]),
        renderer=values["renderer"],
        stager=values["stager"],
        stagers=MappingProxyType({name: _stager(name, item, origins) for name, item in values["stagers"].items()}),
        container_networks=tuple(_network(entry, origins) for entry in values["container_networks"]),
        base_networks=_base_networks(values, origins),
        default_networks=tuple(values["default_networks"]),
        trust=MappingProxyType(values["trust"]),
        trusted_host_keys=tuple(values["trusted_host_keys"]),
        host_image_digests=MappingProxyType(values["host_image_digests"]),
        grants=MappingProxyType({name: _grant(name, item, origins) for name, item in values["grants"].items()}),
        required_isolators=MappingProxyType(values["required_isolators"]),
        isolator_plugins=MappingProxyType(values["isolator_plugins"]),
        initial_pods=_initial_pods(values["initial_pods"], origins),
        prefetch_images=_prefetched(values["prefetch_images"], origins),
        prestarted_stagers=values["daemon"]["prestarted_stagers"],
        fetchers=FetchersConfig(**values["fetchers"]),
        short_names=values["short_names"],
        registries=RegistriesConfig(
            insecure=tuple(registries["insecure"]),
            mirrors=MappingProxyType({name: tuple(hosts) for name, hosts in registries["mirrors"].items()}),
        ),
        limits=LimitsConfig(**values["limits"]),
        userns=values["userns"],
        userns_pool=_userns_pool(values["userns_pool"], origins),
        start_timeout=values["start_timeout"],
        stop_timeout=values["stop_timeout"],
        log=LogConfig(**values["log"]),
        origins=MappingProxyType(origins),
        values=MappingProxyType(values),
    )


def _userns_pool(section: dict[str, Json], origins: Mapping[str, str]) -> UsernsPoolConfig:
    pool = UsernsPoolConfig(**section)
    for key, wrong in (
        ("count", pool.first + pool.count > (1 << 32) - 1 and "it leads beyond the largest id, 4294967294"),
        ("size", pool.size > pool.count and f"it is more than the pool's {pool.count} ids"),
    ):
        if wrong:
            given = next(key for key in (key, "first", "count") if origins[f"userns_pool.{key}"] != "default")
            Where(origins[f"userns_pool.{given}"], f"userns_pool.{key}").fail(wrong)
    return pool


def _stager(name: str, section: dict[str, Json], origins: Mapping[str, str]) -> StagerConfig:
    if section["image"] is None and section["driver"] is None:
        Where(origins[f"stagers.{name}"], f"stagers.{name}").fail("it has neither `image` nor `driver`")
    _anywhere(section["image"], Where(origin(f"stagers.{name}.image", origins), f"stagers.{name}.image"))
    return StagerConfig(**section)


def _grant(name: str, section: dict[str, Json], origins: dict[str, str]) -> GrantConfig:
    where = Where(origins[f"grants.{name}"], f"grants.{name}")
    if not section["isolators"]:
        where.fail("it has no `isolators`, and so gives nothing")
    if bool(section["images"]) == bool(section["digests"]):
        have = "both `images` and `digests`" if section["images"] else "neither `images` nor `digests`"
        where.fail(f"it has {have}", hint="say one: signed images by their names, others by exact digest")
    if section["signers"] and not section["images"]:
        where.key("signers").fail("a digest needs no signer", hint="leave it out, or name `images` instead")
    return GrantConfig(**{key: tuple(section[key]) for key in ("images", "signers", "digests", "isolators")})


def _initial_pods(entries: list[Json], origins: Mapping[str, str]) -> tuple[InitialPodConfig, ...]:
    found: dict[str, InitialPodConfig] = {}
    for index, entry in enumerate(entries):
        where = Where(origins["initial_pods"], "initial_pods").item(index)
        pod = _initial_pod(entry, where)
        if pod.key in found:
            # A locator may have a password in it.
            where.fail(f"{pod.key if '@' not in pod.key else 'the same'} is given twice")
        found[pod.key] = pod
    return tuple(found.values())


def _initial_pod(entry: Json, where: Where) -> InitialPodConfig:
    from kurma_core.appc.manifest_reader import refuse_unknown
    from kurma_core.appc.template import PodTemplate, app_name
    from kurma_core.appc.types import sanitize_name

    if isinstance(entry, str):
        _anywhere(entry, where)
        return InitialPodConfig(None, entry, {"apps": [{"name": app_name(entry), "image": entry}]})
    template = dict(entry)
    name = template.pop("name")
    try:
        fits = sanitize_name(name) == name and len(name) <= 128 and name != "names"
    except ManifestError:
        fits = False
    if not fits:
        where.key("name").fail(f"{name!r} is not a valid pod name", hint="at most 128 of a-z, 0-9, and - inside")
    try:
        pod = PodTemplate.parse(_without_files(template, where), warn=refuse_unknown).pod
    except ManifestError as error:
        where.fail(error.message, hint=error.hint)
    for index, app in enumerate(pod.apps):
        if app.image.locator is not None:
            _anywhere(app.image.locator, where.key("apps").item(index).key("image"))
    return InitialPodConfig(name, name, template)


def _without_files(template: dict[str, Json], where: Where) -> dict[str, Json]:
    """The template without its files of variables, which kurmad reads when it makes the pod. Their paths must be
    absolute."""
    apps = template.get("apps")
    if not isinstance(apps, list):
        return template
    found = []
    for index, app in enumerate(apps):
        if isinstance(app, dict) and "environmentFiles" in app:
            files = app["environmentFiles"]
            paths = [] if files is None else files
            if not isinstance(paths, list) or not all(
                isinstance(one, str) and one.startswith("/") for one in paths
            ):
                where.key("apps").item(index).key("environmentFiles").fail(
                    "expected a list of absolute paths",
                    hint="write each path from /, for example /etc/kurma/web.env",
                )
            app = {key: value for key, value in app.items() if key != "environmentFiles"}
        found.append(app)
    return {**template, "apps": found}


def _prefetched(locators: list[str], origins: Mapping[str, str]) -> tuple[str, ...]:
    for index, locator in enumerate(locators):
        _anywhere(locator, Where(origins["prefetch_images"], "prefetch_images").item(index))
    return tuple(locators)


def _anywhere(locator: str | None, where: Where) -> None:
    """Refuses a relative path: each process that reads the configuration has its own working directory. The check
    of the configuration refuses ``SCHEME:PATH`` alike, where the fetcher of the scheme takes a path."""
    if locator is None:
        return
    bare = locator.endswith(".aci") and not any(sign in locator for sign in "/:,")
    if bare or locator in (".", "..") or locator.startswith(("./", "../")):
        where.fail(
            f"{locator!r} is a relative path, and a configuration is read from anywhere",
            hint=f"write all of it: /DIRECTORY/{locator.rpartition('/')[2].strip('.') or 'FILE'}",
        )


def _base_networks(values: dict[str, Json], origins: Mapping[str, str]) -> tuple[str, ...]:
    where, names = Where(origins["base_networks"], "base_networks"), tuple(values["base_networks"])
    if not names:
        where.fail("a pod with a network of its own joins one at least", hint="--net host gives a pod none")
    for index, name in enumerate(names):
        if all(entry["name"] != name for entry in values["container_networks"]):
            where.item(index).fail(f"container_networks has no entry {name!r}")
    return names


def _network(entry: dict[str, Json], origins: Mapping[str, str]) -> NetworkConfig:
    rest = dict(entry)
    key = f"container_networks.{entry['name']}"
    _anywhere(entry.get("aci"), Where(origin(key, origins), key).key("aci"))
    return NetworkConfig(
        name=rest.pop("name"),
        aci=rest.pop("aci", None),
        plugin=rest.pop("plugin", None),
        container_interface=rest.pop("containerInterface", None),
        default=rest.pop("default", False),
        optional=rest.pop("optional", False),
        names=rest.pop("names", True),
        config=rest,
    )
