"""``kurma dashboard``: prints the address of the page, with the token."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from kurma_core.errors import HostError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext

if TYPE_CHECKING:
    from kurma_core.hookspecs.command import CommandSession

_HINT = "enable it in kurma.yml: plugins: {services: {dashboard: {}}}; then start kurmad, or kurma daemon reload"


class Address:
    def __init__(self, context: DriverContext) -> None:
        # The directory of the service: it has a group and a name like every plugin's.
        self._directory = os.path.join(context.state_root, "plugins", "kurma.services", "dashboard")

    @hookimpl
    def application(self, session: CommandSession) -> typer.Typer:
        application = typer.Typer(add_completion=False)

        @application.command()
        def dashboard(
            viewer: bool = typer.Option(
                False, "--viewer", help="Print the address for people who may only look: without logs and actions."
            ),
        ) -> None:
            """Print the address of the dashboard, with the token for the first visit."""
            session.line(self._address(session, viewer))

        return application

    def _address(self, session: CommandSession, viewer: bool) -> str:
        """:raises HostError: the dashboard does not run, or the caller is not root."""
        from kurma_dashboard.access import ADMIN, VIEWER, read_token

        # Another program may listen where a dashboard was that has ended: it must not get the token.
        daemon = session.client.info().daemon
        found = [one for one in daemon.services if one.name == "dashboard"] if daemon is not None else []
        if not found or found[0].state != "running":
            reason = f": {found[0].reason}" if found and found[0].reason else ""
            raise HostError(f"the dashboard does not run{reason}", hint=_HINT if not found else None)
        try:
            with open(f"{self._directory}/address") as file:
                address = file.read().strip()
            token = read_token(self._directory, VIEWER if viewer else ADMIN)
        except FileNotFoundError:
            raise HostError("the dashboard does not run", hint=_HINT) from None
        except PermissionError:
            raise HostError("cannot read the token of the dashboard", hint="sudo kurma dashboard") from None
        return f"{address}login?token={token}"


@hookimpl
def kurma_command() -> Driver:
    return Driver(Address, help="Print the address of the dashboard.")
