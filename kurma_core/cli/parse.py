"""Parses the ordinary command line, without importing typer.

It parses a command line completely, with the same result as typer, or not at all. Unusual and wrong command lines,
and requests for help, are left to :mod:`kurma_core.cli.typer_app`.
"""

from __future__ import annotations

import sys

from kurma_core.cli.commands import Entry, find
from kurma_core.cli.declare import GLOBAL_OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kurma_core.cli.declare import Command, Option


class Call:
    """A command line, understood.

    :param path: the command's words.
    :param globals: values of :data:`~kurma_core.cli.declare.GLOBAL_OPTIONS`, by name.
    """

    __slots__ = ("command", "globals", "path", "values")

    def __init__(
        self, path: tuple[str, ...], command: Command, values: dict[str, Any], globals: dict[str, Any]
    ) -> None:
        self.path = path
        self.command = command
        self.values = values
        self.globals = globals


class _GivenUp(Exception):
    pass


def parse(words: Sequence[str]) -> Call | None:
    """None: ask typer.

    :param words: without the program's name.
    """
    try:
        globals, rest = _options(GLOBAL_OPTIONS, words, interspersed=False)
        if globals["version"]:
            rest = ["version"]
        path, entry, rest = _command(rest)
        command = load(entry)
        return Call(path, command, _values(command, rest), globals)
    except _GivenUp:
        return None


def load(entry: Entry) -> Command:
    """Imports the command."""
    name = f"kurma_core.cli.commands.{entry.module}"
    __import__(name)  # importlib brings warnings along
    command: Command = getattr(sys.modules[name], entry.attribute)
    return command


def split_rest(command: Command, words: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """The words before and after the first ``--``, for a command that takes the latter unparsed."""
    if command.rest is not None and "--" in words:
        at = list(words).index("--")
        return words[:at], tuple(words[at + 1 :])
    return words, ()


def _command(words: list[str]) -> tuple[tuple[str, ...], Entry, list[str]]:
    for depth in (1, 2):
        path = tuple(words[:depth])
        found = find(path) if len(path) == depth else None
        if isinstance(found, Entry):
            return path, found, words[depth:]
    raise _GivenUp


def _values(command: Command, words: Sequence[str]) -> dict[str, Any]:
    words, after = split_rest(command, words)
    values, plain = _options(command.options, words, interspersed=True)
    for argument in command.arguments:
        if argument.required and not plain:
            raise _GivenUp
        if argument.many:
            values[argument.name], plain = tuple(plain), []
        else:
            values[argument.name] = plain.pop(0) if plain else None
    if plain:
        raise _GivenUp
    if command.rest is not None:
        values[command.rest.name] = after
    return values


def _options(
    options: Sequence[Option], words: Sequence[str], *, interspersed: bool
) -> tuple[dict[str, Any], list[str]]:
    """The values of the options, and the other words.

    :param interspersed: options may follow words; else the first word ends them.
    """
    known = {flag: option for option in options for flag in option.flags}
    values: dict[str, Any] = {option.name: option.default for option in options}
    plain: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-") or word == "-":
            if not interspersed:
                return values, list(words[at - 1 :])
            plain.append(word)
            continue
        flag, value = _split(word)
        option = known.get(flag)
        if option is None or (option.is_flag and value is not None):
            raise _GivenUp
        if option.is_flag:
            values[option.name] = True
            continue
        if value is None:
            if at == len(words):
                raise _GivenUp
            value = words[at]
            at += 1
        converted = _converted(option, value)
        values[option.name] = (*values[option.name], converted) if option.many else converted
    return values, plain


def _split(word: str) -> tuple[str, str | None]:
    """Flag and value of ``--flag``, ``--flag=value``, ``-f``, ``-fvalue``."""
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        return flag, value if equals else None
    return word[:2], word[2:] or None


def _converted(option: Option, value: str) -> Any:
    if option.choices and value not in option.choices:
        raise _GivenUp
    if not option.number:
        return value
    try:
        return int(value)
    except ValueError:
        raise _GivenUp from None
