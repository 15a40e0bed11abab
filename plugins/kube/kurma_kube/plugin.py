"""``kurma kube``: runs, removes and writes pods of Kubernetes files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.command import CommandSession
from kurma_core.hookspecs.driver import Driver, DriverContext

if TYPE_CHECKING:
    from kurma_core.api.operations import Api

HELP = "Run pods of Kubernetes files, and write such files."
_FILE = typer.Argument(
    metavar="FILE", help="The file of Kubernetes objects; an https:// address; - is standard input."
)
_FORCE = typer.Option("--force", help="With the pods, remove the volumes of the file's PersistentVolumeClaims.")


class Kube:
    """The command. :param context: unused."""

    def __init__(self, context: DriverContext) -> None:
        pass

    @hookimpl
    def application(self, session: CommandSession) -> typer.Typer:
        application = typer.Typer(add_completion=False, help=HELP)

        @application.command()
        def play(
            file: Annotated[str, _FILE],
            configmap: Annotated[
                list[str] | None,
                typer.Option("--configmap", metavar="FILE", help="Use the ConfigMaps of this file, too."),
            ] = None,
            net: Annotated[
                list[str] | None,
                typer.Option("--net", metavar="NETWORK", help="Join this network in place of the default ones."),
            ] = None,
            replace: Annotated[
                bool, typer.Option("--replace", help="Replace all pods of the file, also unchanged ones.")
            ] = False,
            down: Annotated[
                bool, typer.Option("--down", help="Remove the pods, as kurma kube down does.")
            ] = False,
            force: Annotated[bool, _FORCE] = False,
            grant: Annotated[
                list[str] | None,
                typer.Option("--grant", metavar="POWER", help="Give this power to the pods' containers."),
            ] = None,
            insecure: Annotated[
                list[str] | None,
                typer.Option("--insecure-options", metavar="OPTION,…", help="Relax checks of the images."),
            ] = None,
        ) -> None:
            """Make the pods of a Kubernetes file run as the file says.

            Starts pods that are missing or have ended, and replaces those that have changed. Prints a line on
            standard error for each field without a counterpart.
            """
            from kurma_kube import commands

            if down or force:
                self._down(session, file, force)
                return
            relaxed = frozenset(word for text in insecure or () for word in text.split(",") if word)
            wishes = commands.Wishes(
                configs=tuple(configmap or ()),
                networks=tuple(net or ()),
                replace=replace,
                grants=tuple(grant or ()),
                insecure=relaxed,
            )
            raise typer.Exit(commands.play(session, file, wishes))

        @application.command("down")
        def remove(file: Annotated[str, _FILE], force: Annotated[bool, _FORCE] = False) -> None:
            """Stop and remove the pods of a Kubernetes file, and its Secrets."""
            self._down(session, file, force)

        @application.command()
        def generate(
            pods: Annotated[list[str], typer.Argument(metavar="POD…", help="The pods.")],
        ) -> None:
            """Print pods, and the PersistentVolumeClaims of their named volumes, as Kubernetes objects.

            Prints a line on standard error for each setting without a counterpart.
            """
            from kurma_kube.generate import generated

            client: Api = session.client
            session.line(generated([client.pod(pod) for pod in pods], session.note).rstrip("\n"))

        return application

    def _down(self, session: CommandSession, file: str, force: bool) -> None:
        from kurma_kube import commands

        commands.down(session, file, force=force)


@hookimpl
def kurma_command() -> Driver:
    return Driver(Kube, help=HELP)
