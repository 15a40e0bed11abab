"""Shared parts of the readers of early documents (0.1.0): names, annotations, kinds, and refused keys."""

from __future__ import annotations

from kurma_core.appc import types
from kurma_core.appc.image import NameValue, check_annotation
from kurma_core.appc.manifest_reader import Reader
from kurma_core.errors import ManifestError
from kurma_core.schema import describe
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc.manifest_reader import Warn

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
    try:
        types.semver(tail, "$")
    except ManifestError:
        return False
    return True


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
