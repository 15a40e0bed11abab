"""The keys of ``kurma.yml``: one table that the loader, ``kurma config check`` and the documentation share.

A :class:`Key` has the shape, the default and the help of a key; :func:`checked` checks a file's value by the
shapes of :mod:`kurma_core.schema`. This module reads no files: :mod:`kurma_core.config` does.
"""

from __future__ import annotations

from _collections_abc import Iterable, Mapping  # without collections

from kurma_core.errors import ConfigError, ManifestError
from kurma_core.schema import (
    MISSING,
    Flag,
    List,
    Made,
    Map,
    Number,
    Plain,
    SchemaError,
    Shape,
    Whole,
    Words,
    child,
    describe,
    fit,
    nearest,
)
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from kurma_core.schema import Unknown

    Json = Any

#: The kinds of plugins as ``plugins:`` names them; an entry-point group is ``kurma.`` and one of these.
KINDS = ("fetchers", "renderers", "stagers", "networks", "isolators", "observers", "services", "commands")
#: The distribution that requires every package of the default ``plugins.packages``.
ALL_DEFAULT = "kurma"
#: Installs Kurma's own packages from a clone: until their names are reserved on the index, others could take them.
#: The first release removes it (CONTRIBUTING.md).
_FROM_CLONE = "--no-index --find-links dist"
#: Kinds whose plugins are enabled only by a section of their own.
OPT_IN = ("services",)


def kind_of(group: str) -> str:
    """The kind of an entry-point group: ``networks`` of ``kurma.networks``."""
    return group.removeprefix("kurma.")


def singular(group: str) -> str:
    """The word for one plugin of a group, or of a kind: ``network``."""
    return kind_of(group).removesuffix("s")


def enabling(group: str, name: str, enabled: bool = True) -> str:
    """The line of ``kurma.yml`` that enables or disables a plugin. :param group: or a kind."""
    return f"plugins: {{{kind_of(group)}: {{{name}: {{enabled: {str(enabled).lower()}}}}}}}"


def installing(package: str, *, own: bool) -> str:
    """The command that installs a distribution beside this Kurma: by pip, pipx or ``uv tool``, as Kurma was.

    :param own: it is one of Kurma's own distributions.
    """
    import os
    import sys

    prefix = sys.prefix
    if os.path.exists(f"{prefix}/pipx_metadata.json"):
        arguments = f"--pip-args '{_FROM_CLONE}' " if own else ""
        return f"pipx inject {arguments}{os.path.basename(prefix)} {package}"
    options = f"{_FROM_CLONE} " if own else ""
    if os.path.exists(f"{prefix}/uv-receipt.toml"):
        return f"uv tool install {options}--with {package} {os.path.basename(prefix)}"
    # The pip of another environment would install it there.
    pip = f"{prefix}/bin/pip" if prefix != sys.base_prefix and os.path.exists(f"{prefix}/bin/pip") else "pip"
    return f"{pip} install {options}{package}"


#: Shape of an initial pod's template, as far as it is checked here.
_NAMED = {"name": str}


@frozen
class Where:
    """A place in a file, for errors."""

    file: str
    path: str = ""

    def key(self, name: str) -> Where:
        return Where(self.file, f"{self.path}.{name}" if self.path else name)

    def item(self, index: int) -> Where:
        return Where(self.file, f"{self.path}[{index}]")

    def at(self, path: str) -> Where:
        return Where(self.file, path.removeprefix("."))

    def fail(self, what: str, *, hint: str | None = None) -> NoReturn:
        """Raises an error about this place. :raises ConfigError: always; it names the file and the path."""
        place = f"{self.file}: {self.path}" if self.path else self.file
        raise ConfigError(f"{place}: {what}", hint=hint, file=self.file, path=self.path)


@frozen
class Key:
    """One key.

    :param shape: the shape of the value: the name of a :data:`SHAPES` entry, ``section`` (with the keys ``keys``),
        ``named`` (a mapping from free names to sections with the keys ``keys``), ``list of named`` (a list of such
        sections, each with a ``name``) or ``word`` (one of ``words``).
    :param default: in the form that the documentation and ``kurma config show`` print.
    :param keys: the keys below it.
    :param words: the words allowed.
    :param extra: further keys are allowed, too (a plugin defines them).
    """

    name: str
    shape: str
    default: Json
    help: str
    keys: tuple[Key, ...] = ()
    words: tuple[str, ...] = ()
    extra: bool = False


# --- shapes ----------------------------------------------------------------------------------------------------

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(value: Json) -> float:
    """Converts a number of seconds, or text such as ``30s``, ``500ms``, ``1h30m``, to seconds.

    :raises ValueError: the value is neither, or is negative.
    """
    if isinstance(value, str):
        return _duration_text(value.strip())
    return float(Number(0).read(value, ""))


def _duration_text(text: str) -> float:
    if not text:
        raise ValueError(text)
    total, rest = 0.0, text
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        letters = len(rest[digits:]) - len(rest[digits:].lstrip("abcdefghijklmnopqrstuvwxyz"))
        unit = rest[digits : digits + letters]
        if not digits or (unit and unit not in _UNITS) or (not unit and rest is not text):
            raise ValueError(text)
        total += float(rest[:digits]) * _UNITS[unit or "s"]
        rest = rest[digits + letters :]
    if total == float("inf"):
        raise ValueError(text)
    return total


def size(value: Json) -> int:
    """Converts a number of bytes, or text with a binary or decimal unit such as ``10Mi``, ``1G``, to bytes.

    :raises ValueError: the value is neither, or is negative.
    """
    if isinstance(value, str):
        from kurma_core.appc.quantity import parse_quantity

        try:
            return parse_quantity(value, "")
        except ManifestError as error:
            raise ValueError(value) from error
    return Whole(0).read(value, "")


def _needed(value: Json) -> Json:
    """Returns the value. :raises ValueError: it is 0 or empty."""
    if not value:
        raise ValueError(value)
    return value


def _text(value: str) -> str:
    if "\0" in value:
        raise ValueError(value)
    _needed(value)
    return value


def _path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(value)
    return value.rstrip("/") or "/"


def _host(value: str) -> str:
    """Returns ``host[:port]`` of a registry in lower case. :raises ValueError: it has another form."""
    import re

    text = value.lower()
    found = re.fullmatch(r"(?:[a-z0-9_](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", text)
    if not found or not 0 < int(found[1] or 1) < 1 << 16:
        raise ValueError(value)
    return text


def _fingerprint(value: str) -> str:
    plain = value.replace(" ", "").upper()
    if len(plain) not in (40, 64) or plain.strip("0123456789ABCDEF"):
        raise ValueError(value)
    return plain


def _digest(value: str) -> str:
    algorithm, _, digits = value.partition(":" if ":" in value else "-")
    if {"sha256": 64, "sha512": 128}.get(algorithm) != len(digits) or digits.strip("0123456789abcdef"):
        raise ValueError(value)
    return value


def _image_name(value: str) -> str:
    """Returns an image's name, or the beginning of one up to a ``/``."""
    from kurma_core.appc.types import ac_identifier

    try:
        return ac_identifier(value.removesuffix("/"), "")
    except ManifestError:
        raise ValueError(value) from None


def _userns(value: str) -> str:
    from kurma_core.models.isolator import userns_word

    return userns_word(value)


def _network_name(value: str) -> str:
    if value in RESERVED_NETWORKS:
        raise ValueError(value)
    return value


def _initial_pod(value: Json) -> Json:
    """Accepts a locator, or a pod template with a name; :mod:`kurma_core.config` checks the template itself, once
    it knows its place in the file."""
    if not isinstance(value, str):
        fit(value, _NAMED, "")
    return value


_TEXT = Made("text that is not empty", _text, str)
_PATH = Made("an absolute path", _path, _TEXT)
_HOST = Made("host[:port], without https:// or a path", _host, _TEXT)
_SIZE = Made("a size: bytes, or text such as 10Mi, 1G", size)
_FINGERPRINT = Made("a key's fingerprint (40 or 64 hexadecimal digits)", _fingerprint, _TEXT)
_DIGEST = Made("a sha256:… or sha512-… digest in lower case", _digest, _TEXT)
_IMAGE_NAME = Made("an image's name (example.com/app), or its beginning up to a /", _image_name, _TEXT)
_IMAGE_DIGEST = Made("an image's whole ID (sha512-…) or registry digest (sha256:…) in lower case", _digest, _TEXT)
_NETWORK_NAME = Made("a network's name, other than host and none", _network_name, _TEXT)
_INITIAL_POD = Made("an image's locator, or a pod template with a name", _initial_pod)

#: Shapes of values, by their names in the documentation.
SHAPES: Mapping[str, Shape] = {
    "text": _TEXT,
    "path": _PATH,
    "paths": List(_PATH),
    "boolean": Flag(),
    "count": Whole(1),
    "few": Whole(0, 100),
    "ratio": Made("a number above 0", lambda value: float(_needed(value)), Number(0)),
    "duration": Made("a time: seconds, or text such as 500ms, 30s, 1h30m", duration),
    "size": _SIZE,
    "some size": Made("a size above 0: bytes, or text such as 10Mi, 1G", _needed, _SIZE),
    "texts": List(_TEXT),
    "text by name": Map(_TEXT, _TEXT),
    "boolean by name": Map(Flag(), _TEXT),
    "texts by name": Map(List(_TEXT), _TEXT),
    "hosts": List(_HOST),
    "hosts by name": Map(List(_HOST), _HOST),
    "fingerprints": List(_FINGERPRINT),
    "digests": Map(_DIGEST, _TEXT),
    "image names": List(_IMAGE_NAME),
    "image digests": List(_IMAGE_DIGEST),
    "initial pods": List(_INITIAL_POD),
    "network names": List(_NETWORK_NAME),
    "user namespace": Made("none, auto, or UID:COUNT with a UID from 1 on", _userns, _TEXT),
    "mapping": Plain(dict),
}


class Section(Shape):
    """An object with some of these keys; keys whose value is null are left out, and defaults are not filled in.

    :param extra: keys that are not listed are kept.
    """

    __slots__ = ("extra", "keys")
    plain = False
    expected = "an object"

    def __init__(self, keys: tuple[Key, ...], extra: bool = False) -> None:
        self.keys = keys
        self.extra = extra

    def read(self, value: Json, path: str) -> dict[str, Json]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(value, path)
        table = {key.name: key for key in self.keys}
        found = {}
        for name, item in value.items():
            if name in table:
                if item is not None:
                    found[name] = _shape(table[name]).read(item, child(path, name))
            elif self.extra:
                found[name] = item
        return found

    def find_unknown(self, value: Json, path: str, tell: Unknown) -> None:
        table = {key.name: key for key in self.keys}
        for name, item in value.items() if isinstance(value, dict) else ():
            if name in table:
                _shape(table[name]).find_unknown(item, child(path, name), tell)
            elif not self.extra:
                tell(path, name, list(table))


class Networks(List):
    """``container_networks``, with the rules that concern a whole entry or several entries."""

    __slots__ = ()

    def read(self, value: Json, path: str) -> list[dict[str, Json]]:
        entries: list[dict[str, Json]] = super().read(value, path)
        for index, entry in enumerate(entries):
            self._check(entry, f"{path}[{index}]", [one.get("name") for one in entries[:index]])
        return entries

    @staticmethod
    def _check(entry: dict[str, Json], path: str, earlier: list[Json]) -> None:
        name, at = entry.get("name"), child(path, "name")
        if name is None:
            raise SchemaError(at, "the network's name", MISSING)
        if name in earlier:
            raise SchemaError(at, "each name once", f"{describe(name)} again")
        if name in RESERVED_NETWORKS:
            raise SchemaError(at, f"a name other than {' and '.join(RESERVED_NETWORKS)}", describe(name))
        if any(char.isspace() or char in "/,:=" for char in name) or name.startswith((".", "-")):
            raise SchemaError(at, "a name without blanks, / , : = and a leading . or -", describe(name))
        if ("aci" in entry) == ("plugin" in entry):
            have = "both" if "aci" in entry else "neither"
            raise SchemaError(path, "either `aci` (an image) or `plugin` (a Python plugin)", have)


def _shape(key: Key) -> Shape:
    if key.shape == "section":
        return Section(key.keys)
    if key.shape == "named":
        return Map(Section(key.keys))
    if key.shape == "list of named":
        return Networks(Section(key.keys, key.extra))
    return Words(*key.words) if key.shape == "word" else SHAPES[key.shape]


# --- the table -------------------------------------------------------------------------------------------------

#: Isolators that are required by default.
REQUIRED_ISOLATORS = ("kurma.io/pids-limit", "kurma.io/seccomp-profile", "os/linux/capabilities-remove-set")
_POLICIES = ("signed", "digest", "any")

_PLUGIN = (
    Key(
        "enabled",
        "boolean",
        True,
        "false: no new pod uses the plugin; Kurma loads it only to clean up after existing pods",
    ),
    Key("required", "boolean", False, "true: Kurma starts no pod while the plugin is missing, skipped or broken"),
    Key("config", "mapping", {}, "the plugin's options; `kurma plugins show` lists them"),
)

_STAGER = (
    Key(
        "image",
        "text",
        None,
        "locator of the stager's image; Kurma always verifies its signature (`trusted_host_keys`)",
    ),
    Key(
        "driver",
        "text",
        None,
        "stager plugin that drives the image; default: the image implements the Kurma Stager Specification",
    ),
    Key("config", "mapping", {}, "options for the stager"),
    Key(
        "without_isolators",
        "boolean",
        False,
        "true: pods may run under this stager although it does not apply `required_isolators`",
    ),
)

_NETWORK = (
    Key("name", "text", None, "unique name, for `--net` and for `networks` of a pod file. Required"),
    Key("aci", "text", None, "locator of a network image, or a name that an installed plugin handles"),
    Key("plugin", "text", None, "name of an installed network plugin, instead of `aci`"),
    Key(
        "containerInterface",
        "text",
        None,
        "name of the interface inside the pod, or a template such as `eth{{num}}`",
    ),
    Key("default", "boolean", False, "true: pods without a list of networks join this one"),
    Key("optional", "boolean", False, "true: a pod starts even if joining this network fails"),
    Key("names", "boolean", True, "false: pods of this network cannot resolve each other's names"),
)

_GRANT = (
    Key("images", "image names", [], "names of signed images, or prefixes that end at a `/`"),
    Key(
        "signers",
        "fingerprints",
        [],
        "keys whose signatures count; default: every key that is trusted for the name",
    ),
    Key("digests", "image digests", [], "instead of `images`: images by ID, or by a registry's digest"),
    Key(
        "isolators",
        "texts",
        [],
        "isolators that these images may request, or parts of them (`os/linux/namespaces=pid`). Required",
    ),
)

SCHEMA: tuple[Key, ...] = (
    Key(
        "state_dir", "path", "/var/lib/kurma", "directory of images, pods, network records and this machine's key"
    ),
    Key(
        "run_dir",
        "path",
        "/run/kurma",
        "directory of sockets and locks; with another `state_dir`, the default is `run` below it",
    ),
    Key("auth_dir", "path", "/etc/kurma/auth.d", "directory of credentials for registries and web servers"),
    Key(
        "trustedkeys",
        "paths",
        ["/usr/lib/kurma/trustedkeys", "/etc/kurma/trustedkeys"],
        "directories of trusted keys; a later directory masks an earlier one, and `kurma trust add` "
        "writes to the last",
    ),
    Key("renderer", "text", "overlay", "default renderer plugin of pods"),
    Key("stager", "text", "default", "default stager of pods: a name of `stagers`, else of a stager plugin"),
    Key("stagers", "named", {}, "stagers by name", keys=_STAGER),
    Key("userns", "user namespace", "none", "default user namespace of pods: `none`, `auto` or `UID:COUNT`"),
    Key(
        "userns_pool",
        "section",
        {},
        "the host's user and group IDs from which `auto` takes ranges",
        keys=(
            Key("first", "count", 0x70000000, "the first ID"),
            Key("count", "count", 0x0FFE0000, "number of IDs in the pool"),
            Key("size", "count", 65536, "number of IDs for each pod"),
        ),
    ),
    Key("start_timeout", "duration", 60.0, "time in which a stager must start a pod"),
    Key("stop_timeout", "duration", 10.0, "time in which apps must end before Kurma kills them"),
    Key(
        "log",
        "section",
        {},
        "logs of apps",
        keys=(
            Key("size", "some size", 10 << 20, "size at which a log file is rotated"),
            Key("count", "count", 5, "log files kept for each app, including the current one"),
        ),
    ),
    Key(
        "limits",
        "section",
        {},
        "upper limits of an image archive",
        keys=(
            Key("total_size", "some size", 64 << 30, "total size of the extracted files"),
            Key("entries", "count", 2_000_000, "number of files, directories and links"),
            Key("ratio", "ratio", 1000.0, "extracted size divided by compressed size"),
        ),
    ),
    Key(
        "trust",
        "section",
        {},
        "proof that an image needs, by its source: `signed` (a trusted signature), `digest` (also a "
        "content digest) or `any`",
        keys=(
            Key("named", "word", "signed", "images found by name (discovery)", words=_POLICIES),
            Key("https", "word", "signed", "other archives that came over TLS", words=_POLICIES),
            Key("http", "word", "signed", "other archives that came without TLS", words=_POLICIES),
            Key(
                "registry",
                "word",
                "digest",
                "images of a registry, or of a file in a registry's format",
                words=_POLICIES,
            ),
            Key("file", "word", "any", "other archives, from a file of this machine", words=_POLICIES),
        ),
    ),
    Key(
        "trusted_host_keys",
        "fingerprints",
        [],
        "keys whose images may run as stagers and network images; an empty list means this machine's key",
    ),
    Key(
        "host_image_digests",
        "digests",
        {},
        "digests of unsigned images that may run as stagers and network images, by locator",
    ),
    Key(
        "grants", "named", {}, "rules that give images power over the host, by a name of your choice", keys=_GRANT
    ),
    Key(
        "required_isolators",
        "boolean by name",
        dict.fromkeys(REQUIRED_ISOLATORS, True),
        "isolators that each app must have, by default or by its own value; false: apps may run without this one",
    ),
    Key(
        "isolator_plugins",
        "text by name",
        {},
        "isolator → the plugin that applies it, if several plugins implement it",
    ),
    Key(
        "fetchers",
        "section",
        {},
        "default fetchers of locators without a scheme",
        keys=(
            Key("paths", "text", "file", "fetcher of paths: `./app.aci`"),
            Key("names", "text", "appc", "fetcher of names: `example.com/app:1.0`"),
            Key("saves", "text", "docker-archive", "fetcher whose format `kurma image save IMAGE -o FILE` writes"),
        ),
    ),
    Key(
        "short_names",
        "text",
        None,
        "the registry of images that are named without one (`redis:7`): its host, or `SCHEME://HOST`",
    ),
    Key(
        "registries",
        "section",
        {},
        "image registries",
        keys=(
            Key("insecure", "hosts", [], "host[:port] of registries that Kurma uses without TLS"),
            Key("mirrors", "hosts by name", {}, "registry name → host[:port] of mirrors, tried in order"),
        ),
    ),
    Key(
        "container_networks",
        "list of named",
        [{"name": "lo", "plugin": "lo"}, {"name": "default", "plugin": "bridge"}],
        "networks that pods may join",
        keys=_NETWORK,
        extra=True,
    ),
    Key(
        "base_networks",
        "network names",
        ["lo"],
        "networks that every pod joins first; they must not give it an address",
    ),
    Key(
        "default_networks",
        "network names",
        ["default"],
        "networks of pods without a list of networks; ignored if entries of `container_networks` have "
        "`default: true`",
    ),
    Key(
        "initial_pods",
        "initial pods",
        [],
        "pods that kurmad keeps running: locators of images, and pod templates with a `name`",
    ),
    Key("prefetch_images", "texts", [], "locators of images that kurmad fetches in the background"),
    Key(
        "daemon",
        "section",
        {},
        "kurmad",
        keys=(
            Key("prestarted_stagers", "few", 2, "number of stagers that kurmad starts in advance for new pods"),
        ),
    ),
    Key(
        "plugins",
        "section",
        {},
        "plugins by kind and name",
        keys=(
            Key(
                "enable",
                "word",
                "all",
                "`all`: every installed plugin is enabled; `listed`: only plugins with a section here",
                words=("all", "listed"),
            ),
            Key(
                "packages",
                "text by name",
                {
                    "commands/build": "kurma-build",
                    "commands/dashboard": "kurma-dashboard",
                    "fetchers/appc": "kurma-fetch-http",
                    "commands/compose": "kurma-compose",
                    "commands/down": "kurma-compose",
                    "commands/kube": "kurma-kube",
                    "commands/up": "kurma-compose",
                    "fetchers/docker": "kurma-fetch-docker",
                    "fetchers/docker-archive": "kurma-fetch-docker",
                    "fetchers/file": "kurma-fetch-http",
                    "fetchers/http": "kurma-fetch-http",
                    "fetchers/https": "kurma-fetch-http",
                    "fetchers/oci": "kurma-fetch-docker",
                    "fetchers/oci-archive": "kurma-fetch-docker",
                    "isolators/linux": "kurma-isolators-linux",
                    "networks/aci": "kurma-net-aci",
                    "networks/bridge": "kurma-net-bridge",
                    "networks/cni": "kurma-net-cni",
                    "networks/lo": "kurma-net-lo",
                    "renderers/copy": "kurma-render-copy",
                    "renderers/overlay": "kurma-render-overlay",
                    "services/dashboard": "kurma-dashboard",
                    "stagers/default": "kurma-stager-default",
                    "stagers/rkt": "kurma-stager-rkt",
                },
                "package of each plugin, by `KIND/NAME`, for the error about a missing plugin",
            ),
            *(Key(kind, "named", {}, f"`kurma.{kind}` plugins, by name", keys=_PLUGIN) for kind in KINDS),
        ),
    ),
)

#: Names of built-in networks that the configuration cannot define.
RESERVED_NETWORKS = ("host", "none")


# --- checking --------------------------------------------------------------------------------------------------


def checked(value: Json, file: str) -> dict[str, Json]:
    """Checks and converts a file's values; the result has only the keys that the file has.

    :raises ConfigError: an unknown key, or a value of another shape.
    """
    found: dict[str, Json] = read(Section(SCHEMA), value, Where(file))
    return found


def read(shape: Shape, value: Json, where: Where) -> Json:
    """Reads the value at that place by the shape. :raises ConfigError: it does not fit."""
    try:
        shape.find_unknown(value, where.path, lambda path, name, known: unknown(where.at(path), name, known))
        return shape.read(value, where.path)
    except SchemaError as error:
        missing = error.found == MISSING
        where.at(error.path).fail(
            "it is missing" if missing else f"expected {error.expected}, found {error.found}"
        )


def unknown(where: Where, name: str, known: Iterable[str]) -> NoReturn:
    """Refuses an unknown key, and names the nearest known one. :raises ConfigError: always."""
    names = sorted(known)
    near = nearest(name.lower(), names)
    which = f"; the nearest known one is {near!r}" if near else ""
    if not names:
        which = "; there is none to be set here"
    where.key(name).fail(f"unknown key{which}", hint=f"known here: {', '.join(names)}" if names else None)
