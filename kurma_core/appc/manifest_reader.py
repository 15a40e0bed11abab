"""Reads a manifest's objects key by key, with the shapes of :mod:`kurma_core.schema`; unknown keys are kept."""

from __future__ import annotations

from _collections_abc import Callable, Iterable, Iterator, Mapping  # without collections

from kurma_core.errors import KurmaError, ManifestError
from kurma_core.schema import Any_, Flag, List, Map, SchemaError, Text, Whole, child, describe, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from kurma_core.schema import Shape

    #: A JSON value in the form of the json module.
    Json = Any
    #: Called with one line for people about a harmless deviation.
    Warn = Callable[[str], None]
    Check = Callable[[object, str], str]

_FLAG = Flag()
_LIST = List(Any_())
_TEXTS = Map(Text())
#: In the warning about an unknown key; the nearest known key follows.
_KEPT = " is kept and means nothing to Kurma"


class Reader:
    """Reads one JSON object at a known path. Every key that is read counts as known, present or not.

    ``null`` counts as absent if a key is optional: other implementations write it for an empty list.
    """

    __slots__ = ("_known", "_raw", "path", "warn")

    def __init__(self, value: object, path: str, warn: Warn | None) -> None:
        if not isinstance(value, Mapping):
            raise ManifestError(path, "an object", describe(value))
        for key in value:
            if not isinstance(key, str):  # possible in YAML
                raise ManifestError(path, "keys that are strings", f"key {describe(key)}")
        self._raw: Mapping[str, object] = value
        self.warn = warn
        self._known: set[str] = set()
        self.path = path

    def at(self, key: str) -> str:
        """Returns the JSON path of ``key``."""
        return child(self.path, key)

    def take(self, key: str) -> Json:
        """Returns the value unchecked; None if it is absent or null."""
        self._known.add(key)
        return self._raw.get(key)

    def has(self, key: str) -> bool:
        """Whether the key is present, also with null."""
        return key in self._raw

    def need(self, key: str, expected: str) -> Json:
        """Returns the value unchecked. :raises ManifestError: it is absent or null."""
        value = self.take(key)
        if value is None:
            raise ManifestError(self.at(key), expected, "null" if key in self._raw else "nothing")
        return value

    def string(self, key: str, check: Check, expected: str = "a string") -> str:
        """A required string."""
        return check(self.need(key, expected), self.at(key))

    def optional(self, key: str, check: Check) -> str | None:
        """A string that may be absent."""
        value = self.take(key)
        return None if value is None else check(value, self.at(key))

    def fitted(self, key: str, shape: Shape, default: Json = None) -> Json:
        """A value of that shape; the default if it is absent or null."""
        value = self.take(key)
        return default if value is None else fitted(value, shape, self.at(key))

    def boolean(self, key: str, default: bool) -> bool:
        found: bool = self.fitted(key, _FLAG, default)
        return found

    def integer(self, key: str, low: int, high: int, default: int) -> int:
        """An optional integer of ``low`` to ``high``."""
        found: int = self.fitted(key, Whole(low, high), default)
        return found

    def elements(self, key: str) -> Iterator[tuple[Json, str]]:
        """The elements of an optional list, each with its JSON path."""
        path = self.at(key)
        return ((item, f"{path}[{index}]") for index, item in enumerate(self.fitted(key, _LIST, ())))

    def objects(self, key: str) -> Iterator[Reader]:
        """The elements of an optional list of objects."""
        return (Reader(item, path, self.warn) for item, path in self.elements(key))

    def nested(self, key: str) -> Reader | None:
        """An optional object."""
        value = self.take(key)
        return None if value is None else Reader(value, self.at(key), self.warn)

    def strings(self, key: str, check: Check) -> tuple[str, ...]:
        """An optional list of strings."""
        return tuple(check(item, path) for item, path in self.elements(key))

    def string_map(self, key: str) -> dict[str, str]:
        """An optional object all of whose values are strings."""
        found: dict[str, str] = self.fitted(key, _TEXTS, {})
        return found

    def extra(self) -> dict[str, Json]:
        """Returns the keys that were not read, and warns about them. Call it last."""
        unknown = {key: value for key, value in self._raw.items() if key not in self._known}
        for key in unknown:
            self.warn_unknown(self.path, key, self._known)
        return unknown

    def warn_unknown(self, path: str, key: str, known: Iterable[str]) -> None:
        """Warns about an unknown key of the object at ``path``. :param known: the keys that it may have."""
        if self.warn is not None:
            near = nearest(key, known)
            meant = f"; did you mean {near}?" if near else ""
            self.warn(f"unknown key {child(path, key)}{_KEPT}{meant}")


def refuse_unknown(warning: str) -> NoReturn:
    """Passed as ``warn``, makes an unknown key an error: a mistyped key would lift a restriction."""
    raise _UnknownKeyError(warning.replace(_KEPT, ""))


class _UnknownKeyError(ManifestError):
    """A key that the form of the document does not have."""

    def __init__(self, message: str) -> None:
        hint = "docs/reference/pod_file.md lists the keys; userAnnotations holds values of your own"
        KurmaError.__init__(self, message, hint=hint)


def fitted(value: object, shape: Shape, path: str) -> Json:
    """Reads the value by a shape. :raises ManifestError: the value does not fit."""
    try:
        return shape.read(value, path)
    except SchemaError as error:
        raise ManifestError(error.path, error.expected, error.found) from None


def whole(value: object, path: str, low: int, high: int) -> int:
    """An integer of ``low`` to ``high``, both included."""
    found: int = fitted(value, Whole(low, high), path)
    return found


def refuse_repeats(names: list[str] | tuple[str, ...], path: str) -> None:
    """Raises an error if two elements of the list at ``path`` have the same name. :param names: their names."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise ManifestError(f"{path}[{index}].name", "each name once", f"{describe(name)} again")
        seen.add(name)


def put(into: dict[str, Json], key: str, value: Json, default: Json = None) -> None:
    """Write an optional key, unless it says what its absence would say."""
    if value != default and value not in ((), {}, None):
        into[key] = value
