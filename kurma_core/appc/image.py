"""The image manifest: describes an image and how to run its app.

Implements the App Container Image specification, Image Manifest Schema. Values are frozen;
:func:`kurma_core.value.replace` makes changed copies. Each keeps unknown keys in ``extra``, and ``to_json`` leaves
    out
keys that have their default value.
"""

from __future__ import annotations

import os
from _collections_abc import Iterable, Mapping  # without collections

from kurma_core.appc import types
from kurma_core.appc.manifest_reader import Reader, put, refuse_repeats, whole
from kurma_core.errors import ManifestError
from kurma_core.schema import describe
from kurma_core.value import field, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc.manifest_reader import Check, Json, Warn

#: Version of the specification that manifests made by Kurma name.
AC_VERSION = "0.8.11"
#: Architectures by operating system, in the specification's spelling.
ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "linux": (
        "amd64",
        "i386",
        "aarch64",
        "aarch64_be",
        "armv6l",
        "armv7l",
        "armv7b",
        "ppc64",
        "ppc64le",
        "s390x",
    ),
    "freebsd": ("amd64", "i386", "arm"),
    "darwin": ("x86_64", "i386"),
}
#: Largest user or group ID: the one above it means "no change" to the kernel.
MAX_ID = 0xFFFFFFFE
_MAX_SIZE = (1 << 63) - 1
_ROOT = "kurma.io/root"
_ANNOTATION_CHECKS: Mapping[str, Check] = {
    "created": types.timestamp,
    "homepage": types.http_url,
    "documentation": types.http_url,
}


@frozen
class NameValue:
    """A label, an annotation, or a variable of the environment."""

    name: str
    value: str
    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {"name": self.name, "value": self.value, **self.extra}


Label = NameValue
Annotation = NameValue
EnvironmentVariable = NameValue


@frozen
class Isolator:
    """A constraint by name; only its plugin knows the form of ``value``."""

    name: str
    value: Json
    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {"name": self.name, "value": self.value, **self.extra}


@frozen
class EventHandler:
    """A command run before (``pre-start``) or after (``post-stop``) the app's own."""

    name: str
    exec: tuple[str, ...]
    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {"name": self.name, "exec": list(self.exec), **self.extra}


@frozen
class MountPoint:
    """A place where the app expects data from outside; ``path`` is absolute, inside the app's filesystem."""

    name: str
    path: str
    read_only: bool = False
    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"name": self.name, "path": self.path}
        put(out, "readOnly", self.read_only, False)
        return {**out, **self.extra}


@frozen
class Port:
    """``count`` ports from ``port`` up that the app listens on; ``protocol`` is ``tcp`` or ``udp`` as a rule."""

    name: str
    protocol: str
    port: int
    count: int = 1
    socket_activated: bool = False
    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"name": self.name, "protocol": self.protocol, "port": self.port}
        put(out, "count", self.count, 1)
        put(out, "socketActivated", self.socket_activated, False)
        return {**out, **self.extra}


@frozen
class App:
    """How to run the app.

    :param exec: command and arguments; the command is looked up in PATH inside the app's filesystem, and no
        shell expands it. Empty: there is none.
    :param user: a number, a name, or an absolute path, which stands for the file's owner; ``group`` likewise.
    :param environment: in the document's order.
    """

    user: str
    group: str
    exec: tuple[str, ...] = ()
    supplementary_gids: tuple[int, ...] = ()
    working_directory: str | None = None
    environment: tuple[NameValue, ...] = ()
    event_handlers: tuple[EventHandler, ...] = ()
    mount_points: tuple[MountPoint, ...] = ()
    ports: tuple[Port, ...] = ()
    isolators: tuple[Isolator, ...] = ()
    user_annotations: Mapping[str, str] = field(default_factory=dict)
    user_labels: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: object, path: str = "$.app", *, warn: Warn | None = None) -> App:
        """Read an ``app`` object; :raises ManifestError: it breaks the specification."""
        return _read_app(Reader(value, path, warn))

    def handler(self, name: str) -> tuple[str, ...]:
        """Command of the event handler ``pre-start`` or ``post-stop``; empty if there is none."""
        return next((handler.exec for handler in self.event_handlers if handler.name == name), ())

    def isolator(self, name: str) -> Isolator | None:
        return next((isolator for isolator in self.isolators if isolator.name == name), None)

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {}
        put(out, "exec", list(self.exec), [])
        out["user"] = self.user
        out["group"] = self.group
        put(out, "supplementaryGIDs", list(self.supplementary_gids), [])
        put(out, "workingDirectory", self.working_directory)
        put(out, "environment", encode(self.environment), [])
        put(out, "eventHandlers", encode(self.event_handlers), [])
        put(out, "mountPoints", encode(self.mount_points), [])
        put(out, "ports", encode(self.ports), [])
        put(out, "isolators", encode(self.isolators), [])
        put(out, "userAnnotations", dict(self.user_annotations))
        put(out, "userLabels", dict(self.user_labels))
        return {**out, **self.extra}


@frozen
class Dependency:
    """An image whose root filesystem is put below this one's. Its own ``app`` is ignored.

    :param image_id: the required ID of the dependency; None: any. An early document's is ``sha256-…``, and may
        be shortened.
    :param size: expected bytes of the archive as shipped.
    :param root: directory of this image's tree into which the dependency's root is put; other than "/" only in a
        converted early document. Written as ``kurma.io/root``.
    """

    image_name: str
    image_id: str | None = None
    labels: tuple[NameValue, ...] = ()
    size: int | None = None
    root: str = "/"
    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"imageName": self.image_name}
        put(out, "imageID", self.image_id)
        put(out, "labels", encode(self.labels), [])
        put(out, "size", self.size)
        put(out, _ROOT, self.root, "/")
        return {**out, **self.extra}


@frozen
class ImageManifest:
    """An image's manifest, late form.

    :param path_whitelist: the paths that are kept; empty: all.
    """

    name: str
    labels: tuple[NameValue, ...] = ()
    app: App | None = None
    dependencies: tuple[Dependency, ...] = ()
    path_whitelist: tuple[str, ...] = ()
    annotations: tuple[NameValue, ...] = ()
    ac_version: str = AC_VERSION
    extra: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def parse(cls, document: object, *, warn: Warn | None = None) -> ImageManifest:
        """Read an image manifest.

        :param document: the JSON text (bytes or str), or the decoded object.
        :param warn: called with one line for each unknown key.
        :raises ManifestError: it is malformed, or breaks the specification.
        """
        reader = Reader(decode(document, "the image manifest"), "$", warn)
        read_kind(reader, "ImageManifest")
        app = reader.nested("app")
        return cls(
            ac_version=reader.string("acVersion", types.ac_version, "a semantic version (MAJOR.MINOR.PATCH)"),
            name=reader.string("name", types.ac_identifier, "the image's name"),
            labels=read_labels(reader),
            app=None if app is None else _read_app(app),
            dependencies=tuple(_read_dependency(item) for item in reader.objects("dependencies")),
            path_whitelist=reader.strings("pathWhitelist", types.inner_path),
            annotations=read_annotations(reader),
            extra=reader.extra(),
        )

    @property
    def version(self) -> str | None:
        """The label ``version``."""
        return self.label("version")

    def label(self, name: str) -> str | None:
        return lookup(self.labels, name)

    def annotation(self, name: str) -> str | None:
        return lookup(self.annotations, name)

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"acKind": "ImageManifest", "acVersion": self.ac_version, "name": self.name}
        put(out, "labels", encode(self.labels), [])
        put(out, "app", None if self.app is None else self.app.to_json())
        put(out, "dependencies", encode(self.dependencies), [])
        put(out, "pathWhitelist", list(self.path_whitelist), [])
        put(out, "annotations", encode(self.annotations), [])
        return {**out, **self.extra}


# --- shared with the pod manifest --------------------------------------------------------------------------------


def decode(document: object, what: str) -> object:
    """Decodes a document from JSON text or bytes; returns a decoded value unchanged."""
    if isinstance(document, (str, bytes, bytearray, memoryview)):
        from kurma_core.json_text import read_document

        return read_document(document, what)
    return document


def encode(items: Iterable[Json]) -> list[Json]:
    return [item.to_json() for item in items]


def lookup(items: Iterable[NameValue], name: str) -> str | None:
    """Value of the item of that name."""
    return next((item.value for item in items if item.name == name), None)


def read_kind(reader: Reader, kind: str) -> None:
    """Checks that ``acKind`` is ``kind``."""
    expected = f'"{kind}"'
    found = reader.need("acKind", expected)
    if found != kind:
        raise ManifestError(reader.at("acKind"), expected, describe(found))


def read_name_values(reader: Reader, key: str, check: Check) -> tuple[NameValue, ...]:
    """Reads a list of {name, value}; the names must pass ``check`` and be unique."""
    items = tuple(
        NameValue(item.string("name", check), item.string("value", types.text), item.extra())
        for item in reader.objects(key)
    )
    refuse_repeats([item.name for item in items], reader.at(key))
    return items


def read_labels(reader: Reader) -> tuple[NameValue, ...]:
    """Reads ``labels``: unique, never "name"; if ``os`` and ``arch`` are given, they must fit."""
    labels = read_name_values(reader, "labels", types.ac_identifier)
    path = reader.at("labels")
    places = {label.name: index for index, label in enumerate(labels)}
    if "name" in places:
        raise ManifestError(f"{path}[{places['name']}].name", 'a label other than "name"', '"name"')
    if "os" in places:
        system = labels[places["os"]].value
        if system not in ARCHITECTURES:
            raise ManifestError(
                f"{path}[{places['os']}].value", f"one of {', '.join(ARCHITECTURES)}", describe(system)
            )
        arch = lookup(labels, "arch")
        if arch is not None and arch not in ARCHITECTURES[system]:
            raise ManifestError(
                f"{path}[{places['arch']}].value",
                f"an architecture of {system}: one of {', '.join(ARCHITECTURES[system])}",
                describe(arch),
            )
    return labels


def read_annotations(reader: Reader) -> tuple[NameValue, ...]:
    """Reads ``annotations``: unique; those that the specification defines are checked."""
    annotations = read_name_values(reader, "annotations", types.ac_identifier)
    for index, annotation in enumerate(annotations):
        check_annotation(annotation.name, annotation.value, f"{reader.at('annotations')}[{index}].value")
    return annotations


def check_annotation(name: str, value: str, path: str) -> None:
    """Checks the value of an annotation that the specification defines; accepts any value of others."""
    check = _ANNOTATION_CHECKS.get(name)
    if check is not None:
        check(value, path)


def read_isolators(reader: Reader, key: str = "isolators") -> tuple[Isolator, ...]:
    """Reads ``isolators``: names are identifiers; the plugins check the values."""
    isolators: list[Isolator] = []
    for item in reader.objects(key):
        name = item.string("name", types.ac_identifier)
        if not item.has("value"):
            raise ManifestError(item.at("value"), "the isolator's value", "nothing")
        isolators.append(Isolator(name, item.take("value"), item.extra()))
    return tuple(isolators)


# --- app and dependencies ----------------------------------------------------------------------------------------


def _read_app(reader: Reader) -> App:
    return App(
        exec=read_exec(reader),
        user=reader.string("user", types.nonempty, "a user (number, name, or absolute path)"),
        group=reader.string("group", types.nonempty, "a group (number, name, or absolute path)"),
        supplementary_gids=_read_gids(reader),
        working_directory=reader.optional("workingDirectory", _working_directory) or None,
        environment=_read_environment(reader),
        event_handlers=read_handlers(reader),
        mount_points=read_mount_points(reader),
        ports=read_ports(reader),
        isolators=read_isolators(reader),
        user_annotations=reader.string_map("userAnnotations"),
        user_labels=reader.string_map("userLabels"),
        extra=reader.extra(),
    )


def read_exec(reader: Reader) -> tuple[str, ...]:
    """Reads ``exec``: a command and its arguments; it may be absent or empty."""
    command = reader.strings("exec", types.word)
    if command and not command[0]:
        raise ManifestError(f"{reader.at('exec')}[0]", "a command", '""')
    return command


def _working_directory(value: object, path: str) -> str:
    # Other implementations write "" if there is none.
    return "" if value == "" else types.absolute_path(value, path)


def _read_gids(reader: Reader) -> tuple[int, ...]:
    usual, other = "supplementaryGIDs", "supplementaryGids"
    if reader.take(usual) is not None and reader.take(other) is not None:
        raise ManifestError(reader.at(other), f"{usual} or {other}", "both")
    key = other if reader.take(other) is not None else usual
    return tuple(whole(item, path, 0, MAX_ID) for item, path in reader.elements(key))


def _read_environment(reader: Reader) -> tuple[NameValue, ...]:
    environment = read_name_values(reader, "environment", types.environment_name)
    for index, variable in enumerate(environment):
        types.word(variable.value, f"{reader.at('environment')}[{index}].value")
    return environment


def read_mount_points(reader: Reader, name: Check = types.ac_name) -> tuple[MountPoint, ...]:
    """Reads ``mountPoints``. :param name: checks their names."""
    return tuple(
        MountPoint(
            item.string("name", name),
            item.string("path", types.inner_path, "an absolute path"),
            item.boolean("readOnly", False),
            item.extra(),
        )
        for item in reader.objects("mountPoints")
    )


def read_handlers(reader: Reader) -> tuple[EventHandler, ...]:
    """Reads ``eventHandlers``: each of the two at most once, with a command."""
    handlers: list[EventHandler] = []
    for item in reader.objects("eventHandlers"):
        name = item.string("name", types.text)
        if name not in ("pre-start", "post-stop"):
            raise ManifestError(item.at("name"), '"pre-start" or "post-stop"', describe(name))
        item.need("exec", "a command")
        command = read_exec(item)
        if not command:
            raise ManifestError(item.at("exec"), "a command", "an empty list")
        handlers.append(EventHandler(name, command, item.extra()))
    refuse_repeats([handler.name for handler in handlers], reader.at("eventHandlers"))
    return tuple(handlers)


def read_ports(reader: Reader, name: Check = types.ac_name) -> tuple[Port, ...]:
    """Reads ``ports`` of an app, each name once. :param name: checks their names."""
    ports = tuple(read_port(item, name) for item in reader.objects("ports"))
    refuse_repeats([port.name for port in ports], reader.at("ports"))
    return ports


def read_port(reader: Reader, name: Check = types.ac_name) -> Port:
    """Reads one port of an app, or of a pod's ``podPort``."""
    title = reader.string("name", name)
    protocol = reader.string("protocol", types.nonempty)
    port = whole(reader.need("port", "an integer from 1 to 65535"), reader.at("port"), 1, 65535)
    count = reader.integer("count", 1, 65535, 1)
    if port + count - 1 > 65535:
        raise ManifestError(reader.at("count"), f"at most {65536 - port} ports from {port} up", str(count))
    return Port(title, protocol, port, count, reader.boolean("socketActivated", False), reader.extra())


def _read_dependency(reader: Reader) -> Dependency:
    size = reader.take("size")
    return Dependency(
        image_name=reader.string("imageName", types.ac_identifier, "an image's name"),
        image_id=reader.optional("imageID", types.content_id),
        labels=read_labels(reader),
        size=None if size is None else whole(size, reader.at("size"), 0, _MAX_SIZE),
        root=reader.optional(_ROOT, types.inner_path) or "/",
        extra=reader.extra(),
    )


def host_platform() -> tuple[str, str]:
    """Returns this machine's os and arch, in the App Container specification's spelling."""
    machine = os.uname().machine
    arch = {"x86_64": "amd64", "i686": "i386", "i586": "i386", "armv8l": "armv7l"}.get(machine, machine)
    return "linux", arch
