"""The document of the ``run`` call-in: a command (Kurma Stager Specification, "run")."""

from __future__ import annotations

import os
import select
import time

from kurma_stager_default.inside import smalljson
from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_stager_default.inside.manifest import App

_DOCUMENT = 3
_DEADLINE = 10.0
_LIMIT = 1 << 20
_LARGEST_ID = 0xFFFFFFFE


def read_document() -> dict[str, Any]:
    """:raises SetupError: it is not whole within ten seconds, or is no such document."""
    end = time.monotonic() + _DEADLINE
    poll = select.poll()
    poll.register(_DOCUMENT, select.POLLIN)
    text = bytearray()
    while True:
        left = end - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise SetupError(f"the command was not given whole within {_DEADLINE:g} s")
        try:
            data = os.read(_DOCUMENT, 65536)
        except OSError as error:
            raise SetupError(f"the command cannot be read from descriptor 3: {error.strerror}") from None
        if not data:
            break
        text += data
        if len(text) > _LIMIT:
            raise SetupError(f"the command is too long: more than {_LIMIT >> 20} MiB")
    os.close(_DOCUMENT)
    try:
        value = smalljson.decode(text.decode())
    except ValueError as error:
        raise SetupError(f"the command is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise SetupError("the command is no JSON object")
    return value


class Command:
    """The document, as far as it is understood; what it leaves out is as the app has it.

    :raises SetupError: a part of it is none that a command can have.
    """

    __slots__ = ("argv", "directory", "environment", "group", "groups", "terminal", "user")

    def __init__(self, value: dict[str, Any], app: App) -> None:
        argv = value.get("exec")
        if argv is None or argv == []:
            raise SetupError("the command has no exec")
        if not isinstance(argv, list) or not all(map(_is_text, argv)):
            raise SetupError("the command's exec is no list of words")
        self.argv: list[str] = argv
        # Another user does not keep the app's group, unless it says so itself.
        own = value.get("user") is None
        self.user = app.user if own else _name(value, "user")
        if value.get("group") is None:
            self.group = app.group if own else ""
        else:
            self.group = _name(value, "group")
        groups = value.get("supplementaryGIDs")
        if groups is None:
            groups = app.groups if own else []
        if not isinstance(groups, list) or not all(map(_is_id, groups)):
            raise SetupError("the command's supplementaryGIDs are no list of group IDs")
        self.groups: list[int] = groups
        directory = value.get("workingDirectory") or app.working_directory
        if not _is_text(directory) or not directory.startswith("/"):
            raise SetupError("the command's workingDirectory is no absolute path")
        self.directory: str = directory
        self.environment = _environment(value.get("environment") or [])
        self.terminal: bool = value.get("tty") or False
        if self.terminal is not True and self.terminal is not False:
            raise SetupError("the command's tty is neither true nor false")


def _name(value: dict[str, Any], key: str) -> str:
    name = value[key]
    if not _is_text(name) or not name:
        raise SetupError(f"the command's {key} is no name, number or path")
    return str(name)


def _environment(pairs: Any) -> list[tuple[str, str]]:
    found = []
    if not isinstance(pairs, list):
        raise SetupError("the command's environment is no list")
    for pair in pairs:
        name, text = (pair.get("name"), pair.get("value")) if isinstance(pair, dict) else (None, None)
        if not _is_text(name) or not name or "=" in name or not _is_text(text):
            raise SetupError("the command's environment is no list of names and values")
        found.append((str(name), str(text)))
    return found


def _is_text(value: Any) -> bool:
    """A string that can be handed to a program."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False  # half of a character
    return True


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_ID
