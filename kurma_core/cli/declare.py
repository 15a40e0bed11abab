"""Declarations of commands, their arguments and options, as plain values that cost nothing to import.

Importing typer costs more than most commands do. So a command is declared by these values. The small parser
(:mod:`kurma_core.cli.parse`) reads the ordinary case from them. A typer application is built from the same values
only for help, completion and the words for a usage error (:mod:`kurma_core.cli.typer_app`).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
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
    """

    __slots__ = ("arguments", "function", "here", "options", "rest", "root")

    def __init__(
        self, function: Callable[..., int | None], parts: tuple[Any, ...], *, root: bool, here: bool | str = False
    ) -> None:
        self.function = function
        self.arguments = tuple(part for part in parts if isinstance(part, Argument))
        self.options = tuple(part for part in parts if isinstance(part, Option))
        self.rest = next((part for part in parts if isinstance(part, Rest)), None)
        self.root = root
        self.here = here


def command(
    *parts: Argument | Option | Rest, root: bool = False, here: bool | str = False
) -> Callable[[Callable[..., int | None]], Command]:
    """Makes a :class:`Command` of the function below it."""
    return lambda function: Command(function, parts, root=root, here=here)


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
#: For every listing.
FORMAT = Option("format", "--format", "How to print.", choices=("table", "json", "yaml"), default="table")
NO_LEGEND = Option("no_legend", "--no-legend", "Print no line of headings.")
