"""The contract of commands: typer applications below ``kurma``. The entry point's name is the command."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kurma_core.hookspecs import Hooks, hookspec

if TYPE_CHECKING:
    from typer import Typer

    from kurma_core.api.operations import Api


class CommandSession(Protocol):
    """One run of a command, given by the core.

    ``client`` does Kurma's operations by kurmad or in this process, as the options before the command say; it is
    made when it is first used. ``line`` and ``json`` print on standard output, ``note`` prints a line on standard
    error; at a terminal they remove control characters.
    """

    @property
    def client(self) -> Api: ...
    def line(self, text: str) -> None: ...
    def json(self, value: object) -> None: ...
    def note(self, text: str) -> None: ...


_WHERE = {"Typer": "typer"}
#: Names of Kurma's own commands, and those for which it suggests one: a plugin cannot have them.
RESERVED = frozenset(
    (
        *("run", "prepare", "run-prepared", "start", "restart", "list", "show", "status", "wait", "cat-manifest"),
        *("logs", "stats", "top", "events", "enter", "exec", "attach", "cp", "stop", "kill", "rm", "gc", "app"),
        *("image", "trust", "pod", "stager", "network", "isolators", "plugins", "config", "daemon", "info"),
        *("version", "completion", "ps", "images", "pull", "inspect", "rmi", "build", "create"),
    )
)


class CommandHooks(Hooks):
    """A command. Its line in ``kurma --help`` is :attr:`.driver.Driver.help`."""

    @hookspec(required=True)
    def application(self, session: CommandSession) -> Typer:
        """Makes the command: a typer application of one command, or of a group of them.

        Called when the command is called, and for its help and its completion: it only declares.
        """
