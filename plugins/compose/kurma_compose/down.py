"""``kurma down``: removes the pods of a file."""

from __future__ import annotations

from typing import Annotated

import typer

from kurma_compose import project
from kurma_compose.up import FILE, PROJECT, refused
from kurma_core.api import pod_file
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.command import CommandSession
from kurma_core.hookspecs.driver import Driver, DriverContext

HELP = "Stop and remove the pods of a file."


class Down:
    """The command. :param context: unused."""

    def __init__(self, context: DriverContext) -> None:
        pass

    @hookimpl
    def application(self, session: CommandSession) -> typer.Typer:
        application = typer.Typer(add_completion=False)

        @application.command(help=f"{HELP}\n\nAlso removes pods that an earlier version of the file had.")
        def down(
            file: Annotated[str, FILE],
            name: Annotated[str | None, PROJECT] = None,
            compose_file: Annotated[str | None, refused("down", "--file", "-f", hint="kurma down FILE")] = None,
            volumes: Annotated[
                bool,
                typer.Option(
                    "--volumes", "-v", help="Remove the named volumes of the file, too, if no other pod uses them."
                ),
            ] = False,
        ) -> None:
            its, pods, _ = project.pods_in(file, name, session.note)
            templates = (pod_file.request_of(pod, file, session.note).template for pod in pods if volumes)
            names = project.volumes_of(template.pod for template in templates)
            client = session.client.managing()
            project.down(session, client, its, [str(pod.get("name")) for pod in pods])
            project.remove_volumes(session, client, names)

        return application


@hookimpl
def kurma_command() -> Driver:
    return Driver(Down, help=HELP)
