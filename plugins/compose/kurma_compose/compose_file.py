"""Reads compose files: values of variables, files of variables, and the short forms of lists and objects."""

from __future__ import annotations

import os
import re
from math import isfinite
from typing import TYPE_CHECKING, Any

from kurma_compose import shapes
from kurma_core.api import pod_file
from kurma_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Json = Any
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PLAIN = re.compile(rf"\$(?:\$|({_NAME})|(\{{))")
_BRACED = re.compile(rf"({_NAME})(:?[-?+])?")


class Variables:
    """The variables of a compose file: those of the environment, then those of ``.env`` beside the file.

    :param values: by name. :param note: called once for each variable that is used and not set.
    """

    def __init__(self, values: Mapping[str, str], note: Callable[[str], None]) -> None:
        self.values = values
        self._note = note
        self._noted: set[str] = set()

    def replaced(self, value: Json) -> Json:
        """A value with all variables in its texts replaced. :raises UsageError: one is required, or malformed."""
        if isinstance(value, dict):
            return {key: self.replaced(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.replaced(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """A text with its variables replaced."""
        found, at = [], 0
        while match := _PLAIN.search(text, at):
            found.append(text[at : match.start()])
            at = match.end()
            if match[1]:
                found.append(self._value(match[1]))
            elif match[2]:
                end = _end(text, at)
                found.append(self._braced(text[at:end]))
                at = end + 1
            else:
                found.append("$")
        return "".join(found) + text[at:]

    def _braced(self, inner: str) -> str:
        match = _BRACED.match(inner)
        if match is None or (match[2] is None and match.end() != len(inner)):
            raise UsageError(f"malformed variable ${{{inner}}}", hint="write ${NAME} or ${NAME:-DEFAULT}")
        name, operator, other = match[1], match[2], inner[match.end() :]
        if operator is None:
            return self._value(name)
        value = self.values.get(name)
        there = value is not None and (value != "" or not operator.startswith(":"))
        if operator.endswith("+"):
            return self.text(other) if there else ""
        if there:
            return str(value)
        if operator.endswith("?"):
            raise UsageError(f"the variable {name} is not set: {self.text(other) or 'the file requires it'}")
        return self.text(other)

    def _value(self, name: str) -> str:
        if name not in self.values and name not in self._noted:
            self._noted.add(name)
            self._note(f"variable {name} is not set: it counts as empty")
        return self.values.get(name, "")


def _end(text: str, at: int) -> int:
    """The place of the brace that closes the one before ``at``."""
    depth = 1
    for place in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise UsageError(f"malformed variable ${{{text[at : at + 40]}", hint="close the brace")


def read(file: str, note: Callable[[str], None]) -> tuple[dict[str, Json], Variables]:
    """A compose file with its variables replaced, and these.

    :param note: called with one line for each variable that is not set.
    :raises KurmaError: it cannot be read, has no services, or a value has another type than its key needs.
    """
    value = pod_file.read_value(file)
    beside = os.path.join(directory_of(file), ".env")
    values = {**(variables_of(beside, {}) if os.path.exists(beside) else {}), **os.environ}
    variables = Variables(values, note)
    found = variables.replaced(value)
    if not isinstance(found, dict) or "services" not in found:
        raise UsageError(f"{file} is not a compose file: it has no services")
    try:
        return shapes.checked(found), variables
    except shapes.Malformed as error:
        raise UsageError(f"{file}: {error}") from None


def directory_of(file: str) -> str:
    """The directory of a file; of standard input: the working directory."""
    return os.getcwd() if file == "-" else os.path.realpath(os.path.dirname(file) or ".")


def variables_of(path: str, values: Mapping[str, str]) -> dict[str, str]:
    """The variables of a file in the form of ``.env``: with quotes, over several lines too, and ``export``.

    :param values: that the file's values may use.
    :raises KurmaError: it cannot be read, or has a line of another form.
    """
    found: dict[str, str] = {}
    whole = "\n".join(_lines(path))
    at, number = 0, 0
    while at < len(whole):
        begin, end = at, _line_end(whole, at)
        at, number = end + 1, number + 1
        text = whole[begin:end].strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        name, value = name.strip(), value.strip()
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
            raise UsageError(f"{path}, line {number}: {name!r} cannot be a variable's name")
        if not equals:
            if name in os.environ:
                found[name] = os.environ[name]
            continue
        known = Variables({**values, **found}, lambda _: None)
        if value[:1] in _QUOTED:
            place = f"{path}, line {number}: {name}"
            found[name], end = _quoted(whole, whole.index(value[0], begin), known, place)
            at, number = end + 1, number + whole.count("\n", begin, end)
        else:
            found[name] = known.text(re.split(r"\s#", value, maxsplit=1)[0].rstrip())
    return found


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found == -1 else found


def _quoted(text: str, at: int, known: Variables, place: str) -> tuple[str, int]:
    """A value in quotes, which may have several lines.

    :param at: the place of its quote.
    :returns: it, and the end of its last line.
    :raises UsageError: it is malformed.
    """
    quote = text[at]
    match = _QUOTED[quote].match(text, at)
    if match is None:
        raise UsageError(f"{place}: the value has no closing {quote}")
    end = _line_end(text, match.end())
    behind = text[match.end() : end].strip()
    if behind and not behind.startswith("#"):
        raise UsageError(f"{place}: {behind[:40]!r} follows the closing {quote}")
    value = match[1]
    return known.text(_ESCAPE.sub(lambda one: _ESCAPES[one[1]], value)) if quote == '"' else value, end


#: A value in quotes, by its quote: the text up to the closing one.
_QUOTED = {"'": re.compile(r"'([^']*)'"), '"': re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)}
_ESCAPE = re.compile(r'\\([nrt"\\$])')
#: A dollar sign that is doubled is not a variable's.
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$$"}


def is_literal(path: str) -> bool:
    """Whether each line of a file of variables means the same to a pod file, which knows no quotes."""
    return not any(
        set(line) & set("'\"$\\") or line.startswith("export ") or " #" in line for line in _lines(path)
    )


def _lines(path: str) -> list[str]:
    from kurma_core.named_files import content

    try:
        return content(path).decode().splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: cannot be read: not UTF-8") from None


# --- short forms -------------------------------------------------------------------------------------------------


def listed(value: Json) -> list[Json]:
    """A list, or a single value as one; null: an empty list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def pairs(value: Json, sign: str = "=") -> dict[str, str | None]:
    """An object, or a list of ``NAME=VALUE``, as an object of texts; None: a name without a value."""
    if isinstance(value, dict):
        return {str(name): None if one is None else scalar(one) for name, one in value.items()}
    found: dict[str, str | None] = {}
    for text in listed(value):
        name, equals, one = str(text).partition(sign)
        found[name] = one if equals else None
    return found


def note_others(note: Callable[[str, str], None], path: str, value: Mapping[str, Json], *known: str) -> None:
    """Notes the keys of an object that have no counterpart.

    :param note: called with a key's path and a text. :param path: the object's. :param known: keys that have one.
    """
    for key in value:
        if key not in known and not key.startswith("x-"):
            note(f"{path}.{key}", "no counterpart")


def scalar(value: Json) -> str:
    """A number, a truth value or a text, as a text."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def size(value: Json) -> int:
    """A number of bytes: ``512m``. :raises UsageError: it is malformed."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", str(value).strip().lower())
    if match is None:
        raise UsageError(f"{value!r} is not a size", hint="write 512m or 1g")
    found = float(match[1]) * 1024 ** " kmgt".index(match[2] or " ")
    if not isfinite(found):
        raise UsageError(f"{str(value)[:40]!r} is too large a size")
    return int(found)


def seconds(value: Json) -> float:
    """A duration: ``1m30s``, ``500ms``, or a number of seconds. :raises UsageError: it is malformed."""
    text = str(value)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        text += "s"
    if not re.fullmatch(r"(\d+(\.\d+)?(us|ms|s|m|h))+", text):
        raise UsageError(f"{value!r} is not a duration", hint="write 30s or 1m30s")
    units = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
    parts = re.findall(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)", text)
    found = float(sum(float(one) * units[unit] for one, unit in parts))
    if not isfinite(found):
        raise UsageError(f"{text[:40]!r} is too long a duration")
    return found


def mode(value: Json) -> str:
    """Permissions as octal digits. The YAML of compose reads ``0o440`` as a number, ours as a text.

    :raises UsageError: they are malformed.
    """
    found = f"{value:04o}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    found = found.removeprefix("0o")
    if not re.fullmatch(r"[0-7]{1,4}", found):
        raise UsageError(f"{value!r} is not a mode", hint="write 0440")
    return found.rjust(4, "0")


def whole(value: Json, what: str) -> int:
    """A whole number from 0. :param what: its name, for errors. :raises UsageError: it is another value."""
    if not re.fullmatch(r"[0-9]{1,10}", str(value)):
        raise UsageError(f"{what}: expected a whole number from 0, found {str(value)[:40]!r}")
    return int(value)
