"""Declares commands, their arguments and options, and parses the ordinary command line, without importing typer.

Importing typer costs more than most commands do. So a command is declared by plain values. The parser here reads
a command line completely, with the same result as typer, or not at all. Unusual and wrong command lines, and
requests for help, are left to a typer application, which is built from the same values
(:mod:`kurma_core.cli.typer_app`).
"""

from __future__ import annotations

import sys

from kurma_core.cli.commands import Alias, Entry, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
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
    :param template: a text that contains ``{{`` is allowed besides.
    :param default: the value if the option is not given.
    """

    __slots__ = ("choices", "default", "flags", "help", "many", "metavar", "name", "number", "template")

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
        template: bool = False,
        default: Any = None,
    ) -> None:
        self.name = name
        self.flags = tuple(flags.split())
        self.help = help
        self.metavar = metavar or ("|".join(choices) if choices else None)
        self.many = many
        self.number = number
        self.choices = choices
        self.template = template
        self.default = () if many else False if self.is_flag and default is None else default

    @property
    def is_flag(self) -> bool:
        return self.metavar is None


class Rest:
    """The words for a program in the pod, unparsed: the value is a tuple. They begin with the first plain word
    after all arguments, or after ``--``.
    """

    __slots__ = ("metavar", "name", "required")

    def __init__(self, name: str, metavar: str, *, required: bool = False) -> None:
        self.name = name
        self.metavar = metavar
        self.required = required


class Command:
    """A command: a function ``(session, **values) -> exit code or None``, and its arguments and options. Its
    docstring is its help; the first line of that is in :data:`kurma_core.cli.commands.TABLE`, too.

    :param root: only root may run it, unless a daemon does it for the caller.
    :param here: a daemon never does it; or the reason.
    :param makes: it makes the state directory if that is missing, or may do without one.
    :param example: a command line, which help shows.
    """

    __slots__ = ("arguments", "example", "function", "here", "makes", "options", "rest", "root")

    def __init__(
        self,
        function: Callable[..., int | None],
        parts: tuple[Any, ...],
        *,
        root: bool,
        here: bool | str = False,
        makes: bool = False,
        example: str = "",
    ) -> None:
        self.function = function
        self.arguments = tuple(part for part in parts if isinstance(part, Argument))
        self.options = tuple(part for part in parts if isinstance(part, Option))
        self.rest = next((part for part in parts if isinstance(part, Rest)), None)
        self.root = root
        self.here = here
        self.makes = makes
        self.example = example


def command(
    *parts: Argument | Option | Rest,
    root: bool = False,
    here: bool | str = False,
    makes: bool = False,
    example: str = "",
) -> Callable[[Callable[..., int | None]], Command]:
    """Makes a :class:`Command` of the function below it."""
    return lambda function: Command(function, parts, root=root, here=here, makes=makes, example=example)


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
        "Use the daemon at ADDR, or no daemon: local (KURMA_HOST; default: the running daemon, if any).",
        metavar="ADDR|local",
    ),
    Option("debug", "--debug", "Print the Python traceback of an error."),
    Option("version", "--version -v", "Print Kurma's version."),
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
    "Relax these checks: image, tls, http, pubkey.",
    metavar="WORD,…",
    many=True,
)
#: For every listing.
FORMAT = Option(
    "format",
    "--format",
    "Print in this format, or by a template such as '{{.name}}'.",
    metavar="table|json|yaml|TEMPLATE",
    choices=("table", "json", "yaml"),
    template=True,
    default="table",
)
#: For inspect, which prints no tables.
INSPECT_FORMAT = Option(
    "format",
    "--format -f",
    "Print in this format, or by a template such as '{{.name}}'.",
    metavar="json|yaml|TEMPLATE",
    choices=("json", "yaml"),
    template=True,
    default="json",
)
#: For listings of pods, images and networks.
FILTER = Option("filter", "--filter -f", "List only objects with this value.", metavar="KEY=VALUE", many=True)
NO_TRUNC = Option("no_trunc", "--no-trunc", "Print full IDs and all columns.")
NO_LEGEND = Option("no_legend", "--no-legend", "Omit the line of headings.")
#: For commands that change a pod that a program may manage.
MANAGED = Option("force", "--force", "Do it also if a program manages the pod.")
#: For every command that works on an app; :func:`kurma_core.cli.values.pod_and_app` reads both.
POD_OR_APP = Argument("pod", "POD[/APP]", "The pod, and its app; /APP is needed only if the pod has several.")
APP = Option("app", "--app", "Choose the app, like POD/APP.", metavar="APP")
#: For every command that stops pods.
TIMEOUT = Option("timeout", "--timeout --time -t", "Kill apps that still run after TIME.", metavar="TIME")
#: Options whose values the session has, as attributes: functions of commands do not get them.
SESSION_OPTIONS = (PASSPHRASE_FILE, FORMAT, INSPECT_FORMAT, NO_LEGEND, NO_TRUNC)


class Call:
    """A parsed command line.

    :param path: the command's words; those of the command itself if an alias was given.
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
        path, entry, preset, rest = _command(rest)
        command = load(entry)
        return Call(path, command, _values(command, preset, rest), globals)
    except _GivenUp:
        return None


def load(entry: Entry) -> Command:
    """Imports the command."""
    name = f"kurma_core.cli.commands.{entry.module}"
    __import__(name)  # importlib brings warnings along
    command: Command = getattr(sys.modules[name], entry.attribute)
    return command


def split_rest(command: Command, words: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """The words of the command, and the words for a program in the pod; see :class:`Rest`."""
    if command.rest is None:
        return words, ()
    known = {flag: option for option in command.options for flag in option.flags}
    free = len(command.arguments)
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return words[:at], tuple(words[at + 1 :])
        if not word.startswith("-") or word == "-":
            if not free:
                return words[:at], tuple(words[at:])
            free -= 1
        else:
            option, value = split_flags(word, known)[-1]
            if option is not None and not option.is_flag and value is None:
                at += 1
        at += 1
    return words, ()


def _command(words: list[str]) -> tuple[tuple[str, ...], Entry, dict[str, str], list[str]]:
    for depth in (1, 2):
        path = tuple(words[:depth])
        found = find(path) if len(path) == depth else None
        if isinstance(found, Alias):
            return found.path, found.entry, found.preset, words[depth:]
        if isinstance(found, Entry):
            return path, found, {}, words[depth:]
    raise _GivenUp


def _values(command: Command, preset: dict[str, str], words: Sequence[str]) -> dict[str, Any]:
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
        if command.rest.required and not after:
            raise _GivenUp
        values[command.rest.name] = after
    return with_preset(values, preset)


def with_preset(values: dict[str, Any], preset: dict[str, str]) -> dict[str, Any]:
    """The values, with those of an alias for options that were not given."""
    for name, value in preset.items():
        if values[name] is None:
            values[name] = value
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
        *before, (option, value) = split_flags(word, known)
        for flag, _ in before:
            if flag is not None:  # each of -it but the last
                values[flag.name] = True
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


def split_flags(word: str, known: Mapping[str, Option]) -> list[tuple[Option | None, str | None]]:
    """Options and values of ``--flag``, ``--flag=value``, ``-f``, ``-fvalue`` and ``-abfvalue``. The last option
    is None if it is unknown; all before it are flags."""
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        return [(known.get(flag), value if equals else None)]
    found: list[tuple[Option | None, str | None]] = []
    for at in range(1, len(word)):
        option = known.get(f"-{word[at]}")
        if option is None or not option.is_flag or at + 1 == len(word):
            found.append((option, word[at + 1 :] or None))
            break
        found.append((option, None))
    return found


def _converted(option: Option, value: str) -> Any:
    if option.choices and value not in option.choices and not (option.template and "{{" in value):
        raise _GivenUp
    if not option.number:
        return value
    try:
        return int(value)
    except ValueError:
        raise _GivenUp from None
