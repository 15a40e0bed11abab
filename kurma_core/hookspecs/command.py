"""The contract of commands: typer applications below ``kurma``. The entry point's name is the command."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kurma_core.hookspecs import Hooks, hookspec

if TYPE_CHECKING:
    from typer import Typer

    from kurma_core.api.operations import Api, Progress


class CommandSession(Protocol):
    """One run of a command, given by the core.

    ``client`` does Kurma's operations by kurmad or in this process, as the options before the command say; it is
    made when it is first used. At a terminal, the other methods remove control characters.
    """

    @property
    def client(self) -> Api:
        """Has a typed method for each operation of the API (:mod:`kurma_core.api`).

        :raises KurmaError: the configuration is wrong, or kurmad refuses the caller.
        """
        ...

    def need_daemon(self) -> None:
        """Starts kurmad if none runs, for pods that outlive the command. ``client`` works by way of it from then
        on."""
        ...

    def progress(self) -> Progress | None:
        """A progress bar for operations that take one; None: standard error is not a terminal."""
        ...

    def line(self, text: str) -> None:
        """Prints a line. :param text: without a newline."""
        ...

    def json(self, value: object) -> None:
        """Prints JSON. :param value: made of what JSON has."""
        ...

    def note(self, text: str) -> None:
        """Prints a line on standard error. :param text: without a newline."""
        ...


_WHERE = {"Typer": "typer"}
#: Names of Kurma's own commands, with other words for them: a plugin cannot have them.
RESERVED = frozenset(
    (
        *("run", "prepare", "run-prepared", "start", "restart", "list", "show", "status", "wait"),
        *("cat-manifest", "logs", "stats", "top", "events", "enter", "exec", "attach", "cp", "stop"),
        *("kill", "rm", "gc", "app", "image", "trust", "pod", "stager", "network", "isolators"),
        *("annotate", "commit", "diff", "healthcheck", "secret", "volume"),
        *("plugins", "config", "daemon", "info", "system", "version", "completion", "ps", "ls"),
        *("images", "pull", "fetch", "inspect", "rmi", "create", "login", "logout"),
    )
)


class CommandHooks(Hooks):
    """A command. Its line in ``kurma --help`` is :attr:`.driver.Driver.help`."""

    @hookspec(required=True)
    def application(self, session: CommandSession) -> Typer:
        """Makes the command. It only declares; the functions in the application do the work.

        :called: when the command is, and for its help and its completion
        :param session: one run of the command; its methods work once the application runs.
        :returns: a typer application of one command, or of a group of them.
        :raises KurmaError: the command cannot be made. An error that a command raises is printed as Kurma's own,
            in one line with its hint; the exit code is the error's.
        """
