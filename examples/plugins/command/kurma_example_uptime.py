"""``kurma uptime``: prints for how long each running pod has run."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import typer

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.command import CommandSession
from kurma_core.hookspecs.driver import Driver, DriverContext, Option


class Uptime:
    def __init__(self, context: DriverContext) -> None:
        self._least = context.config["least"]

    @hookimpl
    def application(self, session: CommandSession) -> typer.Typer:
        application = typer.Typer(add_completion=False)

        @application.command()
        def uptime(
            json: bool = typer.Option(False, "--json", help="Print JSON."),
            least: int = typer.Option(self._least, help="Leave out pods that have run for fewer seconds."),
        ) -> None:
            """Print for how long each running pod has run, the longest first."""
            now = time.time()
            found = {
                pod.name: int(now - datetime.fromisoformat(pod.started_at).timestamp())
                for pod in session.client.pods()
                if pod.state == "running" and pod.started_at
            }
            shown = {name: seconds for name, seconds in found.items() if seconds >= least}
            if json:
                session.json(shown)
                return
            for name, seconds in sorted(shown.items(), key=lambda item: -item[1]):
                session.line(f"{timedelta(seconds=seconds)!s:>20}  {name}")

        return application


@hookimpl
def kurma_command() -> Driver:
    return Driver(
        Uptime,
        options=(Option("least", int, 0, "leave out pods that have run for fewer seconds", least=0),),
        help="Print for how long each running pod has run.",
    )
