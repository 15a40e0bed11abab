"""``kurma up``: makes the pods of a file run as the file says."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kurma_compose import project
from kurma_core.errors import UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.command import CommandSession
from kurma_core.hookspecs.driver import Driver, DriverContext

HELP = "Make the pods of a file run as the file says."
FILE = typer.Argument(metavar="FILE", help="The pod file; - is standard input.")
PROJECT = typer.Option(
    "--project", metavar="NAME", help="Name the file's pods as a whole; default: the file's path, or its project."
)
_PULLS = ("new", "always", "never")


def refused(command: str, *flags: str, hint: str) -> Any:
    """Refuses an option of docker compose, and names Kurma's command instead."""

    def refuse(context: typer.Context, value: object) -> None:
        if value and not context.resilient_parsing:
            raise UsageError(f"{command}: no such option: {flags[-1]}", hint=hint)

    return typer.Option(*flags, hidden=True, is_eager=True, callback=refuse)


class Up:
    """The command. :param context: unused."""

    def __init__(self, context: DriverContext) -> None:
        pass

    @hookimpl
    def application(self, session: CommandSession) -> typer.Typer:
        application = typer.Typer(add_completion=False)

        @application.command(help=f"{HELP}\n\n{_MORE}")
        def up(
            file: Annotated[str, FILE],
            name: Annotated[str | None, PROJECT] = None,
            pull: Annotated[
                str,
                typer.Option(
                    "--pull",
                    metavar="|".join(_PULLS),
                    help="Fetch images that the store lacks (new), all (always) or none (never).",
                ),
            ] = "new",
            grant: Annotated[
                list[str] | None,
                typer.Option("--grant", metavar="POWER", help="Give this power to the pods' apps."),
            ] = None,
            insecure: Annotated[
                list[str] | None,
                typer.Option("--insecure-options", metavar="OPTION,…", help="Relax checks of the images."),
            ] = None,
            wait: Annotated[
                bool,
                typer.Option("--wait", help="Wait until all pods run, and those with a health check are healthy."),
            ] = False,
            compose_file: Annotated[str | None, refused("up", "--file", "-f", hint="kurma up FILE")] = None,
            detach: Annotated[
                bool, refused("up", "--detach", "-d", hint="leave it out: the pods always run in the background")
            ] = False,
            build: Annotated[
                bool,
                refused("up", "--build", hint="build the images first: kurma compose convert prints the commands"),
            ] = False,
        ) -> None:
            if pull not in _PULLS:
                raise UsageError(f"--pull: {pull!r} is not one of {', '.join(_PULLS)}")
            relaxed = frozenset(word for text in insecure or () for word in text.split(",") if word)
            options = project.Options(pull, tuple(grant or ()), relaxed)
            wanted = project.read(file, name, options, session.note)
            session.need_daemon()
            code = project.run(session, session.client.managing(), wanted, options)
            if wait and not code:
                project.wait_for_all(session.client, wanted)
            raise typer.Exit(code)

        return application


_MORE = (
    "Starts pods that are missing or have ended, replaces those that have changed in the file or whose image has "
    "changed, and removes those that are gone from the file. Prints a line for each pod."
)


@hookimpl
def kurma_command() -> Driver:
    return Driver(Up, help=HELP)
