"""The pod manifest: the apps of a pod, its volumes and its ports.

Implements the App Container Pods specification, Pod Manifest Schema, in its late form. People write templates
(:mod:`kurma_core.appc.template`); pods run from reified manifests (:mod:`kurma_core.appc.reify`).
"""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.appc import types
from kurma_core.appc.image import (
    AC_VERSION,
    MAX_ID,
    App,
    Isolator,
    NameValue,
    Port,
    decode,
    encode,
    lookup,
    read_annotations,
    read_isolators,
    read_kind,
    read_labels,
    read_port,
)
from kurma_core.appc.manifest_reader import Reader, put, refuse_repeats, whole
from kurma_core.errors import AppNotFoundError, ManifestError
from kurma_core.schema import SchemaError, describe, shape
from kurma_core.value import field, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc.manifest_reader import Json, Warn
    from kurma_core.appc.overrides import AppOverrides
    from kurma_core.appc.secrets import AppSecret

_OCTAL = frozenset("01234567")
_SEED = "kurma.io/seed"
_FULFILLS = "kurma.io/fulfills"
_IDMAP = "kurma.io/idmap"
_MEMORY = "kurma.io/memory"
_SIZE = "kurma.io/size"
_PROPAGATION = "kurma.io/propagation"
_CREATE = "kurma.io/create"
_RECURSIVE_READ_ONLY = "kurma.io/recursive-read-only"
_IMAGE = "kurma.io/image"
_SUB_PATH = "kurma.io/sub-path"
_OPTIONS = "kurma.io/options"
_NAMED = "kurma.io/volume"
#: Options of a volume's mount.
OPTIONS = ("noexec", "nosuid", "nodev")
#: Whether later mounts below a host volume propagate: not at all, to the app, in both directions.
PROPAGATIONS = ("private", "rslave", "rshared")
_KINDS = ("host", "empty", "image", "named")
_A_KIND = '"host", "empty", "image" or "named"'
_OF_HOST = ("source", "recursive", _IDMAP, _PROPAGATION, _CREATE, _RECURSIVE_READ_ONLY)
_OF_EMPTY = ("mode", "uid", "gid", _SEED, _MEMORY, _SIZE)
_OF_IMAGE = (_IMAGE, _SUB_PATH)
#: Keys that a volume of a kind must not have.
_FOREIGN = {
    "host": (*_OF_EMPTY, _IMAGE, "volume"),
    "empty": (*_OF_HOST, *_OF_IMAGE, _OPTIONS, "volume", _NAMED),
    "image": (*_OF_HOST, *_OF_EMPTY, "volume", _NAMED),
    "named": (*_OF_HOST, *_OF_EMPTY, _IMAGE, _NAMED),
}
_ISOLATORS = "kurma.io/isolators"
#: Keys of a template's app that change one value of the image's app: those of
#: :class:`kurma_core.appc.overrides.AppOverrides`.
OVERRIDES = (
    *("args", "exec", "user", "group", "supplementaryGIDs", "workingDirectory", "environment", "isolators"),
    *("ports", "mountPoints", "eventHandlers"),
)


@frozen
class RuntimeImage:
    """The image of an app.

    :param id: None only in a template; only there may it be an early document's (``sha256-…``).
    :param locator: a template's text in place of an image; never part of a manifest.
    """

    id: str | None
    name: str | None = None
    labels: tuple[NameValue, ...] = ()
    locator: str | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {}
        put(out, "id", self.id)
        put(out, "name", self.name)
        put(out, "labels", encode(self.labels), [])
        return {**out, **self.extra}


@frozen
class Volume:
    """A directory (or file) that apps mount.

    :param kind: ``host`` (``source`` on the host), ``empty`` (new, shared by the pod's apps, removed with the
        pod), ``image`` (the files of an image, read-only) or, only in a template, ``named`` (a directory that
        Kurma keeps until it is removed by its name; in a manifest it is a host volume with ``volume``).
    :param recursive: of a host volume: mounts below ``source`` are included.
    :param mode: of an empty volume: octal digits; ``uid`` and ``gid`` own it.
    :param seed: of an empty volume that Kurma added: (app, path) of the directory in that app's image whose
        content, owner and mode it starts with. Written as ``kurma.io/seed``.
    :param fulfills: only in a converted early document: the mount points, of every app, for which the volume is
        used, independent of its own name. Written as ``kurma.io/fulfills``.
    :param idmap: of a host volume: in a pod with a user namespace, files have the same owners inside and outside.
        Written as ``kurma.io/idmap``.
    :param memory: of an empty volume: it is kept in memory. Written as ``kurma.io/memory``.
    :param size: of a volume in memory: its largest size, a quantity of bytes as written; None: half of the
        host's memory. Written as ``kurma.io/size``.
    :param propagation: of a host volume: ``private``, ``rslave`` (later mounts of the host appear in the apps) or
        ``rshared`` (and the apps' mounts on the host). Written as ``kurma.io/propagation``.
    :param create: of a host volume: a missing source is made as a directory. Written as ``kurma.io/create``.
    :param recursive_read_only: of a read-only host volume: whether mounts below ``source`` are read-only, too.
        True is a demand, which excludes propagation; None: they are. Written as ``kurma.io/recursive-read-only``.
    :param options: of a host, image or named volume: some of ``noexec``, ``nosuid`` and ``nodev``. Written as
        ``kurma.io/options``.
    :param image: of an image volume: in a template a locator, in a manifest the image's ID. Written as
        ``kurma.io/image``.
    :param sub_path: of an image or named volume: the directory or file in it that is mounted; empty: its root.
        Written as ``kurma.io/sub-path``.
    :param volume: name of the named volume. Written as ``volume`` in a volume of kind ``named``, and as
        ``kurma.io/volume`` in the host volume that a manifest has in its place.
    """

    name: str
    kind: str
    source: str | None = None
    read_only: bool = False
    recursive: bool = True
    mode: str = "0755"
    uid: int = 0
    gid: int = 0
    seed: tuple[str, str] | None = None
    fulfills: tuple[str, ...] = ()
    idmap: bool = False
    memory: bool = False
    size: str | None = None
    propagation: str = "private"
    create: bool = False
    recursive_read_only: bool | None = None
    options: tuple[str, ...] = ()
    image: str | None = None
    sub_path: str = ""
    volume: str | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)

    @property
    def mode_bits(self) -> int:
        """``mode`` as a number."""
        return int(self.mode, 8)

    @classmethod
    def parse(cls, value: object, path: str, *, warn: Warn | None = None) -> Volume:
        """Read a volume; :raises ManifestError: it breaks the specification."""
        return _read_volume(Reader(value, path, warn))

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"name": self.name, "kind": self.kind}
        put(out, "source", self.source)
        put(out, "readOnly", self.read_only, False)
        put(out, "recursive", self.recursive, True)
        put(out, "mode", self.mode, "0755")
        put(out, "uid", self.uid, 0)
        put(out, "gid", self.gid, 0)
        if self.seed is not None:
            out[_SEED] = {"app": self.seed[0], "path": self.seed[1]}
        put(out, _FULFILLS, list(self.fulfills), [])
        put(out, _IDMAP, self.idmap, False)
        put(out, _MEMORY, self.memory, False)
        put(out, _SIZE, self.size)
        put(out, _PROPAGATION, self.propagation, "private")
        put(out, _CREATE, self.create, False)
        put(out, _RECURSIVE_READ_ONLY, self.recursive_read_only)
        put(out, _OPTIONS, list(self.options), [])
        put(out, _IMAGE, self.image)
        put(out, _SUB_PATH, self.sub_path, "")
        put(out, "volume" if self.kind == "named" else _NAMED, self.volume)
        return {**out, **self.extra}


@frozen
class Mount:
    """The mount of a volume in an app; ``app_volume`` is the app's own volume, which overrides ``volume``."""

    volume: str
    path: str
    app_volume: Volume | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"volume": self.volume, "path": self.path}
        put(out, "appVolume", None if self.app_volume is None else self.app_volume.to_json())
        return {**out, **self.extra}


@frozen
class ExposedPort:
    """A published port of an app, by name.

    :param host_ip: None: any address of the host.
    :param pod_port: overrides the port that an app's manifest gives for ``name``. None: that port.
    """

    name: str
    host_port: int
    host_ip: str | None = None
    pod_port: Port | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"name": self.name, "hostPort": self.host_port}
        put(out, "hostIP", self.host_ip)
        put(out, "podPort", None if self.pod_port is None else self.pod_port.to_json())
        return {**out, **self.extra}


@frozen
class PodApp:
    """One app of a pod; ``app`` replaces the image's ``app`` completely.

    :param isolators: only in a converted early document: they replace isolators of the same name in
        ``app``, or in the image. Written as ``kurma.io/isolators``.
    :param overrides: only in a template: changes of single values of ``app``, or of the image's. Each is written
        as a key of the app. None: there are none.
    :param secrets: names of secrets, and how the app gets their values.
    """

    name: str
    image: RuntimeImage
    app: App | None = None
    read_only_rootfs: bool = False
    mounts: tuple[Mount, ...] = ()
    annotations: tuple[NameValue, ...] = ()
    isolators: tuple[Isolator, ...] = ()
    overrides: AppOverrides | None = None
    secrets: tuple[AppSecret, ...] = ()
    extra: Mapping[str, Json] = field(default_factory=dict)

    def annotation(self, name: str) -> str | None:
        return lookup(self.annotations, name)

    @property
    def own_isolators(self) -> tuple[Isolator, ...]:
        """The isolators that the pod has for the app, without those of its image."""
        own = () if self.app is None else self.app.isolators
        changed = () if self.overrides is None else self.overrides.isolators
        return (*own, *self.isolators, *(Isolator(name, value) for name, value in changed))

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"name": self.name, "image": self.image.to_json()}
        put(out, "app", None if self.app is None else self.app.to_json())
        put(out, "readOnlyRootFS", self.read_only_rootfs, False)
        put(out, "mounts", encode(self.mounts), [])
        put(out, "annotations", encode(self.annotations), [])
        put(out, _ISOLATORS, encode(self.isolators), [])
        if self.overrides is not None:
            out.update(self.overrides.shortened())
        put(out, "secrets", encode(self.secrets), [])
        return {**out, **self.extra}


@frozen
class PodManifest:
    """A pod's manifest, late form. ``apps`` may be empty: apps can be added while the pod runs."""

    apps: tuple[PodApp, ...]
    volumes: tuple[Volume, ...] = ()
    isolators: tuple[Isolator, ...] = ()
    annotations: tuple[NameValue, ...] = ()
    ports: tuple[ExposedPort, ...] = ()
    user_annotations: Mapping[str, str] = field(default_factory=dict)
    user_labels: Mapping[str, str] = field(default_factory=dict)
    ac_version: str = AC_VERSION
    extra: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def parse(cls, document: object, *, warn: Warn | None = None) -> PodManifest:
        """Read a pod manifest, in which every image has its ID.

        :param document: the JSON text (bytes or str), or the decoded object.
        :param warn: called with one line for each unknown key.
        :raises ManifestError: it is malformed, or breaks the specification.
        """
        reader = Reader(decode(document, "the pod manifest"), "$", warn)
        read_kind(reader, "PodManifest")
        version = reader.string("acVersion", types.ac_version, "a semantic version (MAJOR.MINOR.PATCH)")
        return read_pod(reader, version, template=False)

    def app(self, name: str) -> PodApp:
        """The app of that name; :raises AppNotFoundError: there is none."""
        for app in self.apps:
            if app.name == name:
                return app
        names = ", ".join(app.name for app in self.apps)
        raise AppNotFoundError(
            f"the pod has no app {describe(name)}", hint=f"its apps: {names or 'none'}", app=name
        )

    @property
    def named_volumes(self) -> tuple[str, ...]:
        """The names of the named volumes that it uses, each once."""
        return tuple(dict.fromkeys([volume.volume for volume in self.volumes if volume.volume is not None]))

    def volume(self, name: str) -> Volume | None:
        return next((volume for volume in self.volumes if volume.name == name), None)

    def annotation(self, name: str) -> str | None:
        return lookup(self.annotations, name)

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {
            "acKind": "PodManifest",
            "acVersion": self.ac_version,
            "apps": encode(self.apps),
        }
        put(out, "volumes", encode(self.volumes), [])
        put(out, "isolators", encode(self.isolators), [])
        put(out, "annotations", encode(self.annotations), [])
        put(out, "ports", encode(self.ports), [])
        put(out, "userAnnotations", dict(self.user_annotations))
        put(out, "userLabels", dict(self.user_labels))
        return {**out, **self.extra}


def read_pod(reader: Reader, ac_version: str, *, template: bool) -> PodManifest:
    """Reads all of a pod manifest, or of a template, except kind and version.

    :param template: an image may lack its ID, or be a locator.
    """
    reader.need("apps", "a list of apps")
    apps = tuple(_read_app(item, template) for item in reader.objects("apps"))
    refuse_repeats([app.name for app in apps], reader.at("apps"))
    volumes = tuple(_read_volume(item) for item in reader.objects("volumes"))
    refuse_repeats([volume.name for volume in volumes], reader.at("volumes"))
    ports = tuple(_read_port(item) for item in reader.objects("ports"))
    refuse_repeats([port.name for port in ports], reader.at("ports"))
    return PodManifest(
        apps=apps,
        volumes=volumes,
        isolators=read_isolators(reader),
        annotations=read_annotations(reader),
        ports=ports,
        user_annotations=reader.string_map("userAnnotations"),
        user_labels=reader.string_map("userLabels"),
        ac_version=ac_version,
        extra=reader.extra(),
    )


def _read_app(reader: Reader, template: bool) -> PodApp:
    name = reader.string("name", types.ac_name, "the app's name")
    reader.need("image", "the app's image")
    app = reader.take("app")
    annotations = read_annotations(reader)
    if template and (health := reader.take("healthCheck")) is not None:
        from kurma_core.appc.health_check import annotation_of  # few apps have one
        from kurma_core.models.health import HEALTH_CHECK

        said = NameValue(HEALTH_CHECK, annotation_of(health, reader.at("healthCheck"), reader.warn))
        annotations = (*(one for one in annotations if one.name != HEALTH_CHECK), said)
    return PodApp(
        name=name,
        image=_read_image(reader, template),
        app=None if app is None else App.parse(app, reader.at("app"), warn=reader.warn),
        read_only_rootfs=reader.boolean("readOnlyRootFS", False),
        mounts=tuple(_read_mount(item) for item in reader.objects("mounts")),
        annotations=annotations,
        isolators=read_isolators(reader, _ISOLATORS),
        overrides=_read_overrides(reader) if template else None,
        secrets=_read_secrets(reader) if reader.take("secrets") else (),
        extra=reader.extra(),
    )


def _read_secrets(reader: Reader) -> tuple[AppSecret, ...]:
    from kurma_core.appc.secrets import read_secrets  # few apps have secrets

    return read_secrets(reader)


def _read_overrides(reader: Reader) -> AppOverrides | None:
    given = {key: value for key in OVERRIDES if (value := reader.take(key)) is not None}
    if not given:
        return None
    from kurma_core.appc.overrides import AppOverrides  # few templates have such keys

    try:
        found = AppOverrides.from_json(given, reader.path)
    except SchemaError as error:
        raise ManifestError(error.path, error.expected, error.found) from None
    shape(AppOverrides).find_unknown(given, reader.path, reader.warn_unknown)
    for key in ("environment", "isolators"):
        refuse_repeats([one["name"] for one in given.get(key, ())], reader.at(key))
    return found


def _read_image(app: Reader, template: bool) -> RuntimeImage:
    value = app.take("image")
    if template and isinstance(value, str):
        return RuntimeImage(None, locator=types.nonempty(value, app.at("image")))
    if template and not isinstance(value, Mapping):
        raise ManifestError(app.at("image"), "an image's locator, or an object", describe(value))
    reader = Reader(value, app.at("image"), app.warn)
    if template:
        identity = reader.optional("id", types.content_id)
    else:
        identity = reader.string("id", types.image_id, 'an image ID ("sha512-" and 128 hex digits)')
    name = reader.optional("name", types.ac_identifier)
    if identity is None and name is None:
        raise ManifestError(reader.path, "an id or a name", "neither")
    return RuntimeImage(identity, name, read_labels(reader), extra=reader.extra())


def _read_mount(reader: Reader) -> Mount:
    own = reader.nested("appVolume")
    return Mount(
        volume=reader.string("volume", types.ac_name, "a volume's name"),
        path=reader.string("path", types.inner_path, "an absolute path"),
        app_volume=None if own is None else _read_volume(own),
        extra=reader.extra(),
    )


def _read_volume(reader: Reader) -> Volume:
    name = reader.string("name", types.ac_name, "the volume's name")
    kind = reader.string("kind", types.text, _A_KIND)
    if kind not in _KINDS:
        raise ManifestError(reader.at("kind"), _A_KIND, describe(kind))
    for key in _FOREIGN[kind]:
        value = reader.take(key)
        if value is not None:
            raise ManifestError(reader.at(key), f"no {key} in a volume of kind {kind}", describe(value))
    read_only = reader.boolean("readOnly", kind == "image")
    fulfills = reader.strings(_FULFILLS, types.ac_name)
    if kind == "image":
        return _read_image_volume(reader, name, read_only, fulfills)
    if kind == "named":
        volume = reader.optional("volume", types.volume_name) or name
        options = reader.strings(_OPTIONS, _option)
        return Volume(
            *(name, kind),
            read_only=read_only,
            fulfills=fulfills,
            options=options,
            sub_path=reader.optional(_SUB_PATH, _sub_path) or "",
            volume=volume,
            extra=reader.extra(),
        )
    if kind == "host":
        propagation = _read_propagation(reader)
        stored = reader.optional(_NAMED, types.volume_name)
        sub_path = reader.optional(_SUB_PATH, _sub_path) or ""
        if sub_path and stored is None:
            raise ManifestError(
                reader.at(_SUB_PATH),
                "no sub path in a volume of kind host: it is a part of source",
                describe(sub_path),
            )
        return Volume(
            name,
            kind,
            source=reader.string("source", types.absolute_path, "an absolute path on the host"),
            read_only=read_only,
            recursive=reader.boolean("recursive", True),
            fulfills=fulfills,
            idmap=reader.boolean(_IDMAP, False),
            propagation=propagation,
            create=reader.boolean(_CREATE, False),
            recursive_read_only=_read_recursive_read_only(reader, read_only, propagation),
            options=reader.strings(_OPTIONS, _option),
            sub_path=sub_path,
            volume=stored,
            extra=reader.extra(),
        )
    memory = reader.boolean(_MEMORY, False)
    return Volume(
        name,
        kind,
        read_only=read_only,
        mode=reader.optional("mode", _mode) or "0755",
        uid=reader.integer("uid", 0, MAX_ID, 0),
        gid=reader.integer("gid", 0, MAX_ID, 0),
        seed=_read_seed(reader),
        fulfills=fulfills,
        memory=memory,
        size=_read_size(reader, memory),
        extra=reader.extra(),
    )


def _read_image_volume(reader: Reader, name: str, read_only: bool, fulfills: tuple[str, ...]) -> Volume:
    if not read_only:
        raise ManifestError(reader.at("readOnly"), "true: the files of an image are read-only", "false")
    return Volume(
        name,
        "image",
        read_only=True,
        fulfills=fulfills,
        image=reader.string(_IMAGE, types.nonempty, "the locator or the ID of an image"),
        sub_path=reader.optional(_SUB_PATH, _sub_path) or "",
        options=reader.strings(_OPTIONS, _option),
        extra=reader.extra(),
    )


def _option(value: object, path: str) -> str:
    word = types.text(value, path)
    if word not in OPTIONS:
        raise ManifestError(path, f"one of {', '.join(OPTIONS)}", describe(value))
    return word


def _sub_path(value: object, path: str) -> str:
    """A relative path without ``..``, normalized."""
    text = types.text(value, path)
    if text.startswith("/"):
        raise ManifestError(path, "a relative path", describe(value))
    if ".." in text.split("/"):
        raise ManifestError(path, "a relative path without ..", describe(value))
    return types.inner_path(f"/{text}", path).strip("/")


def _read_propagation(reader: Reader) -> str:
    word = reader.optional(_PROPAGATION, types.text) or "private"
    if word not in PROPAGATIONS:
        raise ManifestError(reader.at(_PROPAGATION), '"private", "rslave" or "rshared"', describe(word))
    return word


def _read_recursive_read_only(reader: Reader, read_only: bool, propagation: str) -> bool | None:
    value = reader.take(_RECURSIVE_READ_ONLY)
    if value is None:
        return None
    where = reader.at(_RECURSIVE_READ_ONLY)
    if not isinstance(value, bool):
        raise ManifestError(where, "true or false", describe(value))
    if value and not read_only:
        raise ManifestError(where, "a volume with readOnly true", "a writable one")
    if value and propagation != "private":
        raise ManifestError(where, f"a volume with {_PROPAGATION} private", describe(propagation))
    return value


def _read_size(reader: Reader, memory: bool) -> str | None:
    size = reader.optional(_SIZE, types.text)
    if size is None:
        return None
    if not memory:
        raise ManifestError(reader.at(_SIZE), f"no size where {_MEMORY} is not true", describe(size))
    from kurma_core.appc.quantity import parse_quantity  # imported here, since few volumes have a size

    if parse_quantity(size, reader.at(_SIZE)) == 0:
        raise ManifestError(reader.at(_SIZE), "more than 0 bytes", describe(size))
    return size


def _mode(value: object, path: str) -> str:
    mode = types.text(value, path)
    if not (mode and len(mode) <= 5 and _OCTAL.issuperset(mode) and int(mode, 8) <= 0o7777):
        raise ManifestError(path, 'a mode in octal digits ("0755")', describe(value))
    return mode


def _read_seed(reader: Reader) -> tuple[str, str] | None:
    seed = reader.nested(_SEED)
    if seed is None:
        return None
    return seed.string("app", types.ac_name), seed.string("path", types.inner_path)


def _read_port(reader: Reader) -> ExposedPort:
    return ExposedPort(
        name=reader.string("name", types.ac_name, "the name of an app's port"),
        host_port=whole(reader.need("hostPort", "an integer from 1 to 65535"), reader.at("hostPort"), 1, 65535),
        host_ip=reader.optional("hostIP", _ip),
        pod_port=_read_pod_port(reader),
        extra=reader.extra(),
    )


def _read_pod_port(reader: Reader) -> Port | None:
    value = reader.take("podPort")
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ManifestError(
            reader.at("podPort"),
            "an object, a port as in an image manifest",
            describe(value),
            hint='for instance {"name": "http", "protocol": "tcp", "port": 80}; '
            "leave podPort out to expose the port that the image has under the name",
        )
    return read_port(Reader(value, reader.at("podPort"), reader.warn))


def _ip(value: object, path: str) -> str:
    import ipaddress  # imported here, since it takes milliseconds and few pods name an address

    address = types.text(value, path)
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise ManifestError(path, "an IPv4 or IPv6 address", describe(value)) from None
    return address
