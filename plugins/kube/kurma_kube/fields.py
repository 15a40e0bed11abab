"""Reads the fields of a Kubernetes object, and notes those that have no counterpart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = Any


class Fields:
    """The fields of one object. A field that is null counts as missing.

    :param value: of the object. :param place: of the object, for errors: ``Pod web: spec``.
    :param note: called with one line for each field that nothing has read when :meth:`done` is called.
    :raises UsageError: the value is not an object.
    """

    def __init__(self, value: Json, place: str, note: Callable[[str], None]) -> None:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise UsageError(f"{place}: expected an object, found {_kind(value)}")
        self.place = place
        self._value = {key: one for key, one in value.items() if one is not None}
        self._note = note

    def done(self) -> None:
        """Notes each field that was not read."""
        for key in self._value:
            self._note(f"{self._at(key)} has no counterpart, and is ignored")
        self._value = {}

    def _at(self, key: str) -> str:
        """The place of a field: ``Pod web: spec.hostname``."""
        return f"{self.place}.{key}" if ": " in self.place else f"{self.place}: {key}"

    def note(self, key: str, text: str) -> None:
        self._note(f"{self._at(key)}: {text}")

    def error(self, key: str, text: str, hint: str | None = None) -> UsageError:
        return UsageError(f"{self._at(key)}: {text}", hint=hint)

    def __contains__(self, key: str) -> bool:
        return key in self._value

    def unread(self) -> list[str]:
        """The fields that were not read."""
        return list(self._value)

    def skip(self, *keys: str) -> None:
        """Reads fields that mean nothing here."""
        for key in keys:
            self._value.pop(key, None)

    def take(self, key: str) -> Json:
        return self._value.pop(key, None)

    def text(self, key: str) -> str | None:
        found: str | None = self._typed(key, str, "a text")
        return found

    def required(self, key: str) -> str:
        found = self.text(key)
        if not found:
            raise UsageError(f"{self.place} has no {key}")
        return found

    def number(self, key: str, least: int = 0) -> int | None:
        value = self.take(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise self.error(key, f"expected a number from {least}, found {value!r}")
        return value

    def numbers(self, key: str) -> list[int]:
        found = self._typed(key, list, "a list of numbers") or []
        if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in found):
            raise self.error(key, "expected a list of numbers from 0")
        return list(found)

    def boolean(self, key: str) -> bool | None:
        found: bool | None = self._typed(key, bool, "true or false")
        return found

    def quantity(self, key: str) -> str | None:
        """A quantity, such as ``64Mi`` or ``2``."""
        value = self.take(key)
        if value is not None and (not isinstance(value, (str, int, float)) or isinstance(value, bool)):
            raise self.error(key, f"expected a quantity, found {value!r}")
        return None if value is None else str(value)

    def texts(self, key: str) -> list[str]:
        found: list[str] = self._typed(key, list, "a list of texts") or []
        if not all(isinstance(one, str) for one in found):
            raise self.error(key, "expected a list of texts")
        return found

    def text_by_name(self, key: str) -> dict[str, str]:
        found: dict[str, str] = self._typed(key, dict, "an object of texts") or {}
        for name, one in found.items():
            if not isinstance(name, str) or not isinstance(one, str):
                raise self.error(key, f"{name}: expected a text, found {_kind(one)}", hint="quote it")
        return found

    def child(self, key: str) -> Fields | None:
        value = self.take(key)
        return None if value is None else Fields(value, f"{self._at(key)}", self._note)

    def children(self, key: str) -> Iterator[Fields]:
        for index, one in enumerate(self._typed(key, list, "a list") or ()):
            yield Fields(one, f"{self._at(key)}[{index}]", self._note)

    def _typed(self, key: str, kind: type, expected: str) -> Any:
        value = self.take(key)
        if value is not None and not isinstance(value, kind):
            raise self.error(key, f"expected {expected}, found {_kind(value)}")
        return value


def _kind(value: Json) -> str:
    """Names the kind of a value. The value itself may be a secret."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number"}
    return "nothing" if value is None else names.get(type(value), f"a {type(value).__name__}")
