"""Reads the parts that early documents (0.1.0) of images and of pods share: names, annotations, isolators."""

from __future__ import annotations

from collections.abc import Mapping

from kurma_core.appc import types
from kurma_core.appc.image import Isolator, NameValue, check_annotation
from kurma_core.appc.manifest_reader import Reader
from kurma_core.appc.quantity import parse_quantity
from kurma_core.errors import ManifestError
from kurma_core.schema import describe
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kurma_core.appc.manifest_reader import Json, Warn


_DIGITS = frozenset("0123456789")
_VERSION = "a semantic version (MAJOR.MINOR.PATCH)"


def split_name(name: str) -> tuple[str, str | None]:
    """Splits an early name into the name and the version at its end.

    If several splits are possible, the longest semantic version counts, else the longest version of numbers with
    dots between them (``7.1``); a ``v`` before it is part of it. ``name + "-" + version`` is the original.
    """
    start = name.rfind("/") + 1
    dashes = [index for index in range(start + 1, len(name)) if name[index] == "-"]
    for good in (_is_semver, _is_dotted):
        for index in dashes:
            if name[index - 1].isalnum() and good(name[index + 1 :].removeprefix("v")):
                return name[:index], name[index + 1 :]
    return name, None


def _is_semver(tail: str) -> bool:
    return types.fits(types.semver, tail)


def _is_dotted(tail: str) -> bool:
    numbers = tail.split(".")
    return len(numbers) > 1 and all(number and _DIGITS.issuperset(number) for number in numbers)


@frozen
class EarlyName:
    """An early name, split into name and version."""

    name: str
    version: str | None

    @property
    def labels(self) -> tuple[NameValue, ...]:
        return () if self.version is None else (NameValue("version", self.version),)


def read_name(reader: Reader, key: str, expected: str) -> EarlyName:
    """Reads the required name of an image."""
    return EarlyName(*split_name(reader.string(key, types.ac_identifier, expected)))


def read_versions(reader: Reader, *kinds: str) -> None:
    """Checks that ``acKind`` is one of ``kinds``, and ``acVersion`` a 0.x version."""
    expected = " or ".join(f'"{kind}"' for kind in kinds)
    found = reader.need("acKind", expected)
    if found not in kinds:
        raise ManifestError(reader.at("acKind"), expected, describe(found))
    reader.string("acVersion", types.ac_version, _VERSION)


def refuse_late(reader: Reader, keys: tuple[str, ...]) -> None:
    """Refuses keys that have a meaning only in the late form: kept as unknown keys they would take effect
    there."""
    for key in keys:
        value = reader.take(key)
        if value is not None:
            raise ManifestError(
                reader.at(key),
                f"no {key} in an early document",
                describe(value),
                hint=f"{key} is of the late form, whose kinds are ImageManifest and PodManifest, and versions 0.2 "
                "and later",
            )


def read_annotation_map(reader: Reader) -> tuple[NameValue, ...]:
    """Reads ``annotations``, an object of strings; ``authors`` may be a list of strings."""
    inside = reader.nested("annotations")
    if inside is None:
        return ()
    found: list[NameValue] = []
    for name, value in reader.take("annotations").items():
        path = inside.at(name)
        types.ac_identifier(name, path)
        if name == "authors" and isinstance(value, (list, tuple)):
            value = ", ".join(types.text(one, f"{path}[{index}]") for index, one in enumerate(value))
        check_annotation(name, types.text(value, path), path)
        found.append(NameValue(name, value))
    return tuple(found)


class Names:
    """Converts the draft's names, which allow more characters, to ACNames.

    It refuses two names that would become the same ACName.
    """

    def __init__(self, warn: Warn | None) -> None:
        self._warn = warn
        self._written: dict[str, str] = {}

    def __call__(self, value: object, path: str) -> str:
        written = types.nonempty(value, path)
        try:
            name = types.sanitize_name(written)
        except ManifestError:
            raise ManifestError(path, "a name (with a letter or digit at least)", describe(value)) from None
        before = self._written.setdefault(name, written)
        if before != written:
            raise ManifestError(
                path, f"a name that differs from {describe(before)} as {name} does not", describe(written)
            )
        if name != written and self._warn is not None:
            self._warn(f"{path}: {describe(written)} is called {name}")
        return name


#: Late name of the isolator whose value has ``net``, which decides on the network namespace.
NAMESPACES = "os/linux/namespaces"
_CAPABILITY = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def read_early_isolators(reader: Reader) -> tuple[Isolator, ...]:
    """Reads ``isolators``, a list of {name, val}, or one object of name → value, as late isolators.

    An isolator that is not in the draft keeps its value, and its name with dashes.

    :raises ManifestError: a value is malformed, or an isolator is repeated.
    """
    found: list[Isolator] = []
    seen: set[str] = set()
    for name, name_path, value, path, extra in _items(reader):
        isolator = _late(name, name_path, value, path, extra)
        if isolator.name in seen:
            raise ManifestError(name_path, "each isolator once", f"{describe(name)} again")
        seen.add(isolator.name)
        found.append(isolator)
    return tuple(found)


def overriding(base: Iterable[Isolator], over: Iterable[Isolator]) -> tuple[Isolator, ...]:
    """Returns ``base`` with each isolator replaced by the one of the same name in ``over``, and the rest of
    ``over``."""
    merged = {isolator.name: isolator for isolator in base}
    merged.update({isolator.name: isolator for isolator in over})
    return tuple(merged.values())


def _items(reader: Reader) -> Iterable[tuple[str, str, Json, str, dict[str, Json]]]:
    """Yields for each isolator its name, the name's path, its value, the value's path, and other keys."""
    raw = reader.take("isolators")
    if isinstance(raw, Mapping):
        inside = Reader(raw, reader.at("isolators"), reader.warn)
        if "name" in raw and ("val" in raw or "value" in raw):
            raise ManifestError(
                inside.path,
                "a list of isolators, or one object of name → value",
                "a single isolator",
                hint="put it into a list: [{…}]",
            )
        for name, value in raw.items():
            yield name, inside.at(name), value, inside.at(name), {}
        return
    for item in reader.objects("isolators"):
        name = item.string("name", types.nonempty, "the isolator's name")
        if item.has("val") and item.has("value"):
            raise ManifestError(item.at("value"), "val or value", "both")
        key = "value" if item.has("value") else "val"
        if not item.has(key):
            raise ManifestError(item.at("val"), "the isolator's value", "nothing")
        yield name, item.at("name"), item.take(key), item.at(key), item.extra()


def _late(name: str, name_path: str, value: Json, path: str, extra: dict[str, Json]) -> Isolator:
    dashed = _dashed(name.rstrip("/"))
    known = _KNOWN.get(dashed)
    if known is None:
        try:
            return Isolator(types.ac_identifier(dashed, name_path), value, extra)
        except ManifestError as error:
            raise ManifestError(name_path, str(error.data["expected"]), describe(name)) from None
    late, convert = known
    return Isolator(late, convert(value, path), extra)


def _dashed(name: str) -> str:
    """Converts ``blockIO/readBandwidth`` to ``block-io/read-bandwidth``."""
    out: list[str] = []
    for index, character in enumerate(name):
        if character.isupper():
            before = name[index - 1] if index else "/"
            if before.islower() or before.isdigit():
                out.append("-")
            character = character.lower()
        out.append(character)
    return "".join(out)


# --- values ------------------------------------------------------------------------------------------------------


def _memory(value: Json, path: str) -> Json:
    return {"limit": _bytes(value, path, value)}


def _shares(value: Json, path: str) -> Json:
    written = types.text(value, path)
    if not (written and _DIGITS.issuperset(written)):
        raise ManifestError(path, 'a whole number, as a string ("1024")', describe(value))
    return parse_quantity(written, path, unit="count")


def _bandwidth(target: str) -> Callable[[Json, str], Json]:
    """Returns the converter of a bandwidth limit. :param target: ``path`` (a path on a block device), or
    ``device`` (a network interface)."""
    example = "/data 1K" if target == "path" else "eth0 100M"

    def read(value: Json, path: str) -> Json:
        expected = f'"{target.upper()} BYTES" ("{example}")'
        words = types.word(value, path).rsplit(None, 1)
        if len(words) != 2:
            raise ManifestError(path, expected, describe(value))
        what = words[0].strip()
        if target == "path":
            types.absolute_path(what, path)
        elif "/" in what or any(character.isspace() for character in what):
            raise ManifestError(path, expected, describe(value))
        return {target: what, "limit": _bytes(words[1], path, value)}

    return read


def _capabilities(value: Json, path: str) -> Json:
    words = types.text(value, path).split()
    if not words:
        raise ManifestError(path, "capabilities, separated by spaces", describe(value))
    for word in words:
        if not (word.startswith("CAP_") and len(word) > 4 and _CAPABILITY.issuperset(word)):
            raise ManifestError(path, "capabilities (CAP_…), separated by spaces", describe(word))
        if "CAP_" in word[4:]:
            apart = " ".join(f"CAP_{part}" for part in word.split("CAP_") if part)
            raise ManifestError(path, "capabilities separated by spaces", describe(word), hint=f'write "{apart}"')
    return {"set": list(dict.fromkeys(words))}


def _private_network(value: Json, path: str) -> Json:
    if value is True or value == "true":
        return {"net": "private"}
    if value is False or value == "false":
        return {"net": "host"}
    raise ManifestError(path, '"true" or "false"', describe(value))


def _bytes(value: Json, path: str, whole: Json) -> str:
    """Converts a quantity of the draft, whose K, M, G and T are powers of 1024, to the late form.

    :param whole: the isolator's value, for messages.
    """
    expected = 'bytes: a whole number, or one with K, M, G or T (powers of 1024), as a string ("1G")'
    written = types.text(value, path)
    suffix = written[-1:] if written[-1:] in ("K", "M", "G", "T") else ""
    digits = written.removesuffix(suffix)
    if not (digits and _DIGITS.issuperset(digits)):
        hint = f'this is the early form, in which "{written[:-1]}" means what "{written}" means in the late one'
        binary = written[-2:] in ("Ki", "Mi", "Gi", "Ti") and _DIGITS.issuperset(written[:-2])
        raise ManifestError(path, expected, describe(whole), hint=hint if binary else None)
    late = f"{digits.lstrip('0') or '0'}{suffix and suffix + 'i'}"
    try:
        parse_quantity(late, path)
    except ManifestError:
        raise ManifestError(path, "at most 2^63-1 bytes", describe(whole)) from None
    return late


_KNOWN: Mapping[str, tuple[str, Callable[[Json, str], Json]]] = {
    "cpu/shares": ("os/linux/cpu-shares", _shares),
    "memory/limit": ("resource/memory", _memory),
    "block-io/read-bandwidth": ("kurma.io/block-read-bandwidth", _bandwidth("path")),
    "block-io/write-bandwidth": ("kurma.io/block-write-bandwidth", _bandwidth("path")),
    "network-io/read-bandwidth": ("kurma.io/network-read-bandwidth", _bandwidth("device")),
    "network-io/write-bandwidth": ("kurma.io/network-write-bandwidth", _bandwidth("device")),
    "private-network": (NAMESPACES, _private_network),
    "capabilities/bounding-set": ("os/linux/capabilities-retain-set", _capabilities),
}
