"""What ``kurma.yml`` may hold: one table that the loader, ``kurma config check`` and the documentation share.

A :class:`Key` says a key's shape, its default and what it is for; :func:`checked` holds a value from a file
against it. Everything here is pure: files are read in :mod:`kurma_core.config`.
"""

from __future__ import annotations

from _collections_abc import Callable, Iterable, Mapping  # without collections

from kurma_core.errors import ConfigError, ManifestError
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Json = Any

#: The kinds of plugins as ``plugins:`` names them; an entry-point group is ``kurma.`` and one of these.
KINDS = ("fetchers", "renderers", "stagers", "networks", "isolators", "observers")


@frozen
class Where:
    """A place in a file: what an error about it is told with."""

    file: str
    path: str = ""

    def key(self, name: str) -> Where:
        return Where(self.file, f"{self.path}.{name}" if self.path else name)

    def item(self, index: int) -> Where:
        return Where(self.file, f"{self.path}[{index}]")

    def fail(self, what: str, *, hint: str | None = None) -> NoReturn:
        """:raises ConfigError: always; it names the file and the path."""
        place = f"{self.file}: {self.path}" if self.path else self.file
        raise ConfigError(f"{place}: {what}", hint=hint, file=self.file, path=self.path)


@frozen
class Key:
    """One key.

    :param shape: what a value must be: the name of a :data:`SHAPES` entry, ``section`` (``keys`` says its keys),
        ``named`` (a mapping of free names; ``keys`` says what each holds), ``list of named`` (a list of such, each
        with a ``name``) or ``word`` (one of ``words``).
    :param default: as the documentation and ``kurma config show`` print it.
    :param keys: the keys below it.
    :param words: the words allowed.
    :param extra: keys that are not listed are allowed too (they are somebody else's).
    """

    name: str
    shape: str
    default: Json
    help: str
    keys: tuple[Key, ...] = ()
    words: tuple[str, ...] = ()
    extra: bool = False


# --- scalars ---------------------------------------------------------------------------------------------------

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(value: Json) -> float:
    """Seconds, from a number of them or from text: ``30s``, ``500ms``, ``1h30m``.

    :raises ValueError: it is neither, or negative.
    """
    if isinstance(value, str):
        return _duration_text(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(value)
    return float(value)


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
    """Bytes, from a number of them or from text with a binary or decimal unit: ``10Mi``, ``1G``.

    :raises ValueError: it is neither, or negative.
    """
    if isinstance(value, str):
        from kurma_core.appc.quantity import parse_quantity

        try:
            return parse_quantity(value, "")
        except ManifestError as error:
            raise ValueError(value) from error
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _some_size(value: Json) -> int:
    found = size(value)
    if not found:
        raise ValueError(value)
    return found


def _text(value: Json) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(value)
    return value


def _path(value: Json) -> str:
    text = _text(value)
    if not text.startswith("/"):
        raise ValueError(value)
    return text.rstrip("/") or "/"


def _boolean(value: Json) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _count(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(value)
    return value


def _few(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100:
        raise ValueError(value)
    return value


def _ratio(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(value)
    return float(value)


class _ItemError(ValueError):
    """One item of a list or a mapping is wrong.

    :param way: keys and indices that lead to it.
    """

    def __init__(self, value: Json, called: str, way: tuple[str | int, ...]) -> None:
        super().__init__(value)
        self.value, self.called, self.way = value, called, way


def _item(key: str | int, value: Json, called: str, convert: Callable[[Json], Json]) -> Json:
    try:
        return convert(value)
    except _ItemError as error:
        raise _ItemError(error.value, error.called, (key, *error.way)) from None
    except ValueError:
        raise _ItemError(value, called, (key,)) from None


def _list_of(called: str, convert: Callable[[Json], Json]) -> Callable[[Json], Json]:
    """:param called: what an error calls an item."""

    def converted(value: Json) -> Json:
        if not isinstance(value, list):
            raise ValueError(value)
        return [_item(index, item, called, convert) for index, item in enumerate(value)]

    return converted


def _by_name(called: str, convert: Callable[[Json], Json], name: Callable[[Json], Json]) -> Callable[[Json], Json]:
    def converted(value: Json) -> Json:
        return {
            _item(str(key), key, "a name", name): _item(str(key), item, called, convert)
            for key, item in _mapping(value).items()
        }

    return converted


def _host(value: Json) -> str:
    """``host[:port]`` of a registry, in lower case."""
    import re

    text = _text(value).lower()
    found = re.fullmatch(r"(?:[a-z0-9_](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", text)
    if not found or not 0 < int(found[1] or 1) < 1 << 16:
        raise ValueError(value)
    return text


def _mapping(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError(value)
    return value


def _fingerprint(value: Json) -> str:
    plain = _text(value).replace(" ", "").upper()
    if len(plain) not in (40, 64) or plain.strip("0123456789ABCDEF"):
        raise ValueError(value)
    return plain


def _digest(value: Json) -> str:
    text = _text(value)
    algorithm, _, digits = text.partition(":" if ":" in text else "-")
    if {"sha256": 64, "sha512": 128}.get(algorithm) != len(digits) or digits.strip("0123456789abcdef"):
        raise ValueError(value)
    return text


def _image_name(value: Json) -> str:
    """An image's name, or the first labels of one."""
    from kurma_core.appc.types import ac_identifier

    text = _text(value)
    try:
        return ac_identifier(text.removesuffix("/"), "")
    except ManifestError:
        raise ValueError(value) from None


def _userns(value: Json) -> str:
    from kurma_core.models.userns import userns_word

    return userns_word(_text(value))


def _initial_pod(value: Json) -> Json:
    """A locator, or a pod template with a name; what the template says is looked at when it is known where it
    stands."""
    if isinstance(value, str):
        return _text(value)
    if not isinstance(_mapping(value).get("name"), str):
        raise ValueError(value)
    return value


_A_HOST = "host[:port], without https:// or a path"
_hosts = _list_of(_A_HOST, _host)
_texts = _list_of("text", _text)

#: Shape → (what an error calls it, how a value becomes what Kurma works with).
SHAPES: Mapping[str, tuple[str, Callable[[Json], Json]]] = {
    "text": ("text", _text),
    "path": ("an absolute path", _path),
    "paths": ("a list of absolute paths", _list_of("an absolute path", _path)),
    "boolean": ("true or false", _boolean),
    "count": ("a whole number from 1 on", _count),
    "few": ("a whole number from 0 to 100", _few),
    "ratio": ("a number above 0", _ratio),
    "duration": ("a time: seconds, or text such as 500ms, 30s, 1h30m", duration),
    "size": ("a size: bytes, or text such as 10Mi, 1G", size),
    "some size": ("a size above 0: bytes, or text such as 10Mi, 1G", _some_size),
    "texts": ("a list of texts", _texts),
    "text by name": ("a mapping of names to texts", _by_name("text", _text, _text)),
    "boolean by name": ("a mapping of names to true or false", _by_name("true or false", _boolean, _text)),
    "texts by name": ("a mapping of names to lists of texts", _by_name("a list of texts", _texts, _text)),
    "hosts": (f"a list of {_A_HOST}", _hosts),
    "hosts by name": (
        f"a mapping of registries to lists of {_A_HOST}",
        _by_name(f"a list of {_A_HOST}", _hosts, _host),
    ),
    "fingerprints": (
        "a list of key fingerprints (40 or 64 hexadecimal digits each)",
        _list_of("a key's fingerprint (40 or 64 hexadecimal digits)", _fingerprint),
    ),
    "digests": (
        "a mapping of locators to sha256:… or sha512-… digests in lower case",
        _by_name("a sha256:… or sha512-… digest in lower case", _digest, _text),
    ),
    "image names": (
        "a list of image names or beginnings of them, up to a /",
        _list_of("an image's name (example.com/app), or its beginning up to a /", _image_name),
    ),
    "image digests": (
        "a list of image IDs (sha512-…) or registry digests (sha256:…), whole and in lower case",
        _list_of("an image's whole ID (sha512-…) or registry digest (sha256:…) in lower case", _digest),
    ),
    "initial pods": (
        "a list of images' locators and pod templates",
        _list_of("an image's locator, or a pod template with a name", _initial_pod),
    ),
    "user namespace": ("none, auto, or UID:COUNT with a UID from 1 on", _userns),
    "mapping": ("a mapping", _mapping),
}


# --- the table -------------------------------------------------------------------------------------------------

#: Isolators that are required unless a file says otherwise.
REQUIRED_ISOLATORS = ("kurma.io/pids-limit", "kurma.io/seccomp-profile", "os/linux/capabilities-remove-set")
_POLICIES = ("signed", "digest", "any")

_PLUGIN = (
    Key("enabled", "boolean", True, "false: it is never loaded, and nothing can name it"),
    Key("required", "boolean", False, "true: Kurma refuses to start a pod when it is missing, skipped or broken"),
    Key("config", "mapping", {}, "its own options; `kurma plugins show` lists them"),
)

_STAGER = (
    Key("image", "text", None, "locator of the stager's image; always verified (`trusted_host_keys`)"),
    Key("driver", "text", None, "stager plugin that drives it; none: it speaks the Kurma Stager Specification"),
    Key("config", "mapping", {}, "handed to the stager"),
    Key(
        "without_isolators",
        "boolean",
        False,
        "true: pods may run under it without the isolators of `required_isolators`, which it does not apply",
    ),
)

_NETWORK = (
    Key("name", "text", None, "unique; what `--net` and a pod's list of networks say. Required"),
    Key("aci", "text", None, "a name that an installed plugin answers to, else the locator of a network image"),
    Key("plugin", "text", None, "name of the installed network plugin, instead of `aci`"),
    Key("containerInterface", "text", None, "the interface inside the pod, or a template such as `eth{{num}}`"),
    Key("default", "boolean", False, "true: joined by pods that name no network"),
    Key("optional", "boolean", False, "true: a pod starts without it when joining fails"),
    Key("names", "boolean", True, "false: pods on it do not find each other by name"),
)

_GRANT = (
    Key("images", "image names", [], "names of images, or beginnings of such up to a `/`; they must be signed"),
    Key("signers", "fingerprints", [], "whose signatures count; none: every key that is trusted for the name"),
    Key("digests", "image digests", [], "instead of `images`: just these, by image ID or a registry's digest"),
    Key(
        "isolators",
        "texts",
        [],
        "what they may ask for: names of isolators, or a part of one (`os/linux/namespaces=pid`). Required",
    ),
)

SCHEMA: tuple[Key, ...] = (
    Key("state_dir", "path", "/var/lib/kurma", "images, pods, network records, this machine's key"),
    Key("run_dir", "path", "/run/kurma", "sockets and locks; `run` under `state_dir` where that is another one"),
    Key("auth_dir", "path", "/etc/kurma/auth.d", "credentials for sources of images"),
    Key(
        "trustedkeys",
        "paths",
        ["/usr/lib/kurma/trustedkeys", "/etc/kurma/trustedkeys"],
        "keys trusted for images; a later directory masks an earlier one, and the last is written to",
    ),
    Key("renderer", "text", "overlay", "renderer plugin for pods that name none"),
    Key("stager", "text", "default", "stager for pods that name none: of `stagers`, else a stager plugin"),
    Key("stagers", "named", {}, "stagers by name", keys=_STAGER),
    Key("userns", "user namespace", "none", "user namespace of pods that name none: `none`, `auto`, `UID:COUNT`"),
    Key(
        "userns_pool",
        "section",
        {},
        "the host's ids that `auto` gives ranges of",
        keys=(
            Key("first", "count", 0x70000000, "the first id"),
            Key("count", "count", 0x0FFE0000, "how many ids from there on"),
            Key("size", "count", 65536, "how many of them each pod gets"),
        ),
    ),
    Key("start_timeout", "duration", 60.0, "how long a stager may take until its pod runs"),
    Key("stop_timeout", "duration", 10.0, "how long apps may take to end before they are killed"),
    Key(
        "log",
        "section",
        {},
        "logs of apps",
        keys=(
            Key("size", "some size", 10 << 20, "a log file is turned over at this size"),
            Key("count", "count", 5, "files kept of each app's log, the current one included"),
        ),
    ),
    Key(
        "limits",
        "section",
        {},
        "what an image archive may be at most",
        keys=(
            Key("total_size", "some size", 64 << 30, "unpacked, all files together"),
            Key("entries", "count", 2_000_000, "number of files, directories and links"),
            Key("ratio", "ratio", 1000.0, "unpacked size over packed size"),
        ),
    ),
    Key(
        "trust",
        "section",
        {},
        "what vouches for an image, by where it comes from: a trusted signature, a content digest, or nothing",
        keys=(
            Key("named", "word", "signed", "found by its name (discovery)", words=_POLICIES),
            Key("https", "word", "signed", "`https://…`", words=_POLICIES),
            Key("http", "word", "signed", "`http://…`", words=_POLICIES),
            Key(
                "docker",
                "word",
                "digest",
                "`docker://…`, `oci:…`, `oci-archive:…`, `docker-archive:…`",
                words=_POLICIES,
            ),
            Key("file", "word", "any", "a file of this machine", words=_POLICIES),
        ),
    ),
    Key(
        "trusted_host_keys",
        "fingerprints",
        [],
        "keys whose images may run as stagers; if any is listed, this machine's own counts only if it is, too",
    ),
    Key(
        "host_image_digests",
        "digests",
        {},
        "digests of images that may run with the host's power though they carry no signature, by locator",
    ),
    Key("grants", "named", {}, "which images may have power over the host, by a name of your own", keys=_GRANT),
    Key(
        "required_isolators",
        "boolean by name",
        dict.fromkeys(REQUIRED_ISOLATORS, True),
        "isolators without which no app runs, by their defaults or by what takes their place; false: an app may",
    ),
    Key(
        "isolator_plugins",
        "text by name",
        {},
        "isolator → the plugin that looks after it, where several plugins know it",
    ),
    Key(
        "registries",
        "section",
        {},
        "Docker and OCI registries",
        keys=(
            Key("insecure", "hosts", [], "host[:port] of each that is spoken to without TLS"),
            Key("mirrors", "hosts by name", {}, "registry name → host[:port] of mirrors, tried in order"),
        ),
    ),
    Key("container_networks", "list of named", [], "networks that pods may join", keys=_NETWORK, extra=True),
    Key(
        "initial_pods",
        "initial pods",
        [],
        "pods that kurmad keeps running: locators of images, and pod templates with a `name`",
    ),
    Key("prefetch_images", "texts", [], "locators of images that kurmad fetches, in the background"),
    Key(
        "daemon",
        "section",
        {},
        "kurmad",
        keys=(Key("waiting_stagers", "few", 2, "stagers that it keeps started, for pods to come; 0: none"),),
    ),
    Key(
        "plugins",
        "section",
        {},
        "plugins by kind and name",
        keys=tuple(Key(kind, "named", {}, f"`kurma.{kind}` plugins, by name", keys=_PLUGIN) for kind in KINDS),
    ),
)

#: Names of networks that are always there and mean what they say.
RESERVED_NETWORKS = ("host", "none")


# --- checking --------------------------------------------------------------------------------------------------


def unknown(where: Where, name: str, known: Iterable[str]) -> NoReturn:
    """:raises ConfigError: always: the key is not known; it names the nearest one that is."""
    import difflib

    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.0)
    nearest = f"; the nearest known one is {near[0]!r}" if near else "; there is none to be set here"
    where.key(name).fail(f"unknown key{nearest}", hint=f"known here: {', '.join(names)}" if names else None)


def checked(keys: tuple[Key, ...], value: Json, where: Where, *, extra: bool = False) -> dict[str, Json]:
    """The section's values in the form that Kurma works with: only keys that are there. A key without a value
    (``null``) says nothing.

    :raises ConfigError: an unknown key, or a value of another shape.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        where.fail(f"expected a mapping, found {shown(value)}")
    table = {key.name: key for key in keys}
    result: dict[str, Json] = {}
    for name, item in value.items():
        if name in table:
            if item is not None:
                result[name] = _value(table[name], item, where.key(name))
        elif extra:
            result[name] = item
        else:
            unknown(where, name, table)
    return result


def _value(key: Key, value: Json, where: Where) -> Json:
    if key.shape == "section":
        return checked(key.keys, value, where)
    if key.shape == "named":
        if not isinstance(value, dict):
            where.fail(f"expected a mapping of names, found {shown(value)}")
        return {name: checked(key.keys, item, where.key(name)) for name, item in value.items()}
    if key.shape == "list of named":
        return _list_of_named(key, value, where)
    if key.shape == "word":
        if value not in key.words:
            where.fail(f"expected one of {', '.join(key.words)}, found {shown(value)}")
        return value
    called, convert = SHAPES[key.shape]
    try:
        return convert(value)
    except _ItemError as error:
        for step in error.way:
            where = where.key(step) if isinstance(step, str) else where.item(step)
        where.fail(f"expected {error.called}, found {shown(error.value)}")
    except (ValueError, ArithmeticError):
        where.fail(f"expected {called}, found {shown(value)}")


def _list_of_named(key: Key, value: Json, where: Where) -> list[dict[str, Json]]:
    if not isinstance(value, list):
        where.fail(f"expected a list, found {shown(value)}")
    entries: dict[str, dict[str, Json]] = {}
    for index, item in enumerate(value):
        at = where.item(index)
        entry = checked(key.keys, item, at, extra=key.extra)
        name = entry.get("name")
        if name is None:
            at.fail("it has no `name`")
        if name in entries:
            at.key("name").fail(f"{name!r} is the name of an earlier entry too")
        check_network(entry, at)
        entries[name] = entry
    return list(entries.values())


def check_network(entry: Mapping[str, Json], where: Where) -> None:
    """Rules of one ``container_networks`` entry that its shape does not say (W1).

    :raises ConfigError: one is broken.
    """
    name = entry["name"]
    if name in RESERVED_NETWORKS:
        where.key("name").fail(f"{name!r} is always there, and cannot be configured")
    if any(char.isspace() or char in "/,:=" for char in name) or name.startswith((".", "-")):
        where.key("name").fail(f"{name!r} cannot be a network's name: no blanks, no / , : = and no leading . or -")
    if ("aci" in entry) == ("plugin" in entry):
        have = "both `aci` and `plugin`" if "aci" in entry else "neither `aci` nor `plugin`"
        where.fail(f"network {name!r} has {have}", hint="say one: `aci` names an image, `plugin` a Python plugin")


def shown(value: Json) -> str:
    """The value as an error shows it: short, with its kind where that is the point."""
    kinds = {bool: "", str: "", int: "the number ", float: "the number ", dict: "a mapping", list: "a list"}
    kind = kinds.get(type(value))
    if value is None:
        return "nothing"
    if kind is None:
        return f"{value!r} ({type(value).__name__})"
    if isinstance(value, dict | list):
        return kind
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return kind + (text if len(text) <= 60 else text[:57] + "…")
