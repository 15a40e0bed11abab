"""Declares commands, their arguments and options, and parses the ordinary command line, without importing typer.

Importing typer costs more than most commands do. So a command is declared by plain values. The parser here reads
a command line completely, with the same result as typer, or not at all. Unusual and wrong command lines, and
requests for help, are left to a typer application, which is built from the same values
(:mod:`kurma_core.cli.typer_app`).
"""

from __future__ import annotations

import sys

from kurma_core.cli.commands import Entry, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


class Argument:
    """A positional argument.

    :param name: of the function's parameter.
    :param metavar: as help shows it.
    :param many: takes all remaining words; the value is then a tuple. Only the last argument may.
    """

    __slots__ = ("help", "many", "metavar", "name", "required")

    def __init__(self, name: str, metavar: str, help: str, *, required: bool = True, many: bool = False) -> None:
        self.name = name
        self.metavar = metavar
        self.help = help
        self.required = required
        self.many = many


class Option:
    """An option. Without ``metavar`` it is a flag: False unless it is given.

    :param flags: ``--timeout``, ``-t``.
    :param many: may be given several times; the value is a tuple.
    :param number: the value is a whole number.
    :param choices: the allowed values.
    :param default: the value if the option is not given.
    """

    __slots__ = ("choices", "default", "flags", "help", "many", "metavar", "name", "number")

    def __init__(
        self,
        name: str,
        flags: str,
        help: str,
        *,
        metavar: str | None = None,
        many: bool = False,
        number: bool = False,
        choices: tuple[str, ...] = (),
        default: Any = None,
    ) -> None:
        self.name = name
        self.flags = tuple(flags.split())
        self.help = help
        self.metavar = metavar or ("|".join(choices) if choices else None)
        self.many = many
        self.number = number
        self.choices = choices
        self.default = () if many else False if self.is_flag and default is None else default

    @property
    def is_flag(self) -> bool:
        return self.metavar is None


class Rest:
    """The words after ``--``, unparsed; the value is a tuple."""

    __slots__ = ("metavar", "name")

    def __init__(self, name: str, metavar: str) -> None:
        self.name = name
        self.metavar = metavar


class Command:
    """A command: a function ``(session, **values) -> exit code or None``, and its arguments and options. Its
    docstring is its help; the first line of that is in :data:`kurma_core.cli.commands.TABLE`, too.

    :param root: only root may run it, unless a daemon does it for the caller.
    :param here: a daemon never does it; or the reason.
    :param makes: it makes the state directory if that is missing, or may do without one.
    """

    __slots__ = ("arguments", "function", "here", "makes", "options", "rest", "root")

    def __init__(
        self,
        function: Callable[..., int | None],
        parts: tuple[Any, ...],
        *,
        root: bool,
        here: bool | str = False,
        makes: bool = False,
    ) -> None:
        self.function = function
        self.arguments = tuple(part for part in parts if isinstance(part, Argument))
        self.options = tuple(part for part in parts if isinstance(part, Option))
        self.rest = next((part for part in parts if isinstance(part, Rest)), None)
        self.root = root
        self.here = here
        self.makes = makes


def command(
    *parts: Argument | Option | Rest, root: bool = False, here: bool | str = False, makes: bool = False
) -> Callable[[Callable[..., int | None]], Command]:
    """Makes a :class:`Command` of the function below it."""
    return lambda function: Command(function, parts, root=root, here=here, makes=makes)


#: Options of ``kurma`` itself, before the command.
GLOBAL_OPTIONS = (
    Option("dir", "--dir", "Keep all state under DIR (KURMA_DIR; default /var/lib/kurma).", metavar="DIR"),
    Option(
        "config",
        "--config",
        "Read FILE, or a directory like /etc/kurma, instead of /etc/kurma (KURMA_CONFIG).",
        metavar="FILE",
    ),
    Option(
        "host",
        "--host",
        "Use the daemon at ADDR, or none: local (KURMA_HOST; default: the running daemon, if any).",
        metavar="ADDR|local",
    ),
    Option("debug", "--debug", "Show where an error came from."),
    Option("version", "--version", "Print Kurma's version."),
)

#: For every command that may read an archive from outside the store.
PASSPHRASE_FILE = Option(
    "passphrase_file",
    "--passphrase-file",
    "Read the passphrase of an encrypted archive from FILE's first line (else KURMA_PASSPHRASE, or a prompt).",
    metavar="FILE",
)
#: For every command that fetches images.
INSECURE_OPTIONS = Option(
    "insecure_options",
    "--insecure-options",
    "Checks to relax: image, tls, http, pubkey.",
    metavar="WORD,…",
    many=True,
)
#: For every listing.
FORMAT = Option("format", "--format", "How to print.", choices=("table", "json", "yaml"), default="table")
NO_LEGEND = Option("no_legend", "--no-legend", "Print no line of headings.")
#: Options whose values the session has, as attributes: functions of commands do not get them.
SESSION_OPTIONS = (PASSPHRASE_FILE, FORMAT, NO_LEGEND)


class Call:
    """A parsed command line.

    :param path: the command's words.
    :param globals: values of :data:`GLOBAL_OPTIONS`, by name.
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
    """Parses a command line.

    :param words: without the program's name.
    :returns: None: it is unusual or wrong, and typer must parse it.
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
