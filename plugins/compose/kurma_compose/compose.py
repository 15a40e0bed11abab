"""``kurma compose convert``: turns a compose file into a pod file."""

from __future__ import annotations

import os
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.command import CommandSession
from kurma_core.hookspecs.driver import Driver, DriverContext

HELP = "Turn compose files into pod files."


#: Words of docker compose, and what to type instead.
_ELSEWHERE = {
    "up": "kurma compose convert COMPOSE-FILE -o pods.yml, then: kurma up pods.yml",
    "down": "kurma down FILE removes the pods of a pod file",
    "ps": "kurma list",
    "ls": "kurma list",
    "logs": "kurma logs POD: each service is a pod of its name",
    "exec": "kurma exec POD COMMAND: each service is a pod of its name",
    "start": "kurma start POD: each service is a pod of its name",
    "stop": "kurma stop POD: each service is a pod of its name",
    "restart": "kurma restart POD: each service is a pod of its name",
    "rm": "kurma down FILE removes the pods of a pod file",
    "pull": "kurma up --pull always FILE fetches the images of a pod file",
    "build": "kurma compose convert prints the command that builds each image",
    "config": "kurma compose convert COMPOSE-FILE prints the pods of a compose file",
}


class _Group(TyperGroup):
    """Refuses a command of docker compose, and names Kurma's command instead."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _ELSEWHERE and not ctx.resilient_parsing:
            from kurma_core.errors import UsageError

            raise UsageError(f"no command 'compose {args[0]}'", hint=_ELSEWHERE[args[0]])
        return super().resolve_command(ctx, args)


class Compose:
    """The command. :param context: unused."""

    def __init__(self, context: DriverContext) -> None:
        pass

    @hookimpl
    def application(self, session: CommandSession) -> typer.Typer:
        application = typer.Typer(cls=_Group, add_completion=False, help=HELP)

        @application.callback()
        def compose() -> None:
            pass

        compose.__doc__ = HELP

        @application.command()
        def convert(
            file: Annotated[
                str, typer.Argument(metavar="COMPOSE-FILE", help="The compose file; - is standard input.")
            ],
            output: Annotated[
                str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the pod file to FILE.")
            ] = None,
        ) -> None:
            """Print a compose file as a pod file, in which each service is a pod of its name.

            Prints a line on standard error for each key that has no counterpart. kurma up runs the pod file.
            """
            if output is None:
                session.line(converted(file, output, session).rstrip("\n"))
                return
            from kurma_core.named_files import writable, written

            writable(output, made_of=(file,))
            text = converted(file, output, session)
            with written(output) as out:
                out.write(text.encode())

        return application


def converted(file: str, output: str | None, session: CommandSession) -> str:
    """The pod file of a compose file, as YAML.

    :param output: path of the pod file; None: it will be beside the compose file.
    :raises KurmaError: the compose file cannot be read, or is malformed.
    """
    import yaml

    from kurma_compose import compose_file, services
    from kurma_compose.configs import CONFIGS
    from kurma_compose.whole_file import WholeFile
    from kurma_core.errors import UsageError

    directory = compose_file.directory_of(file)
    beside = output is None or os.path.realpath(os.path.dirname(output) or ".") == directory

    def place(path: str) -> str:
        if path.startswith(("/", "~")) or not beside:
            return os.path.normpath(os.path.join(directory, os.path.expanduser(path)))
        return path if path.startswith(("./", "../")) or path in (".", "..") else f"./{path}"

    try:
        value, variables = compose_file.read(file, session.note)
        whole = WholeFile(value, directory, variables, place, session.note)
        pods = services.pods(whole)
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise UsageError(f"{file} is not a compose file: a value has another form ({error})") from error

    class Dumper(yaml.SafeDumper):
        """Writes a value that several pods have in each of them."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    Dumper.add_representer(str, _written)
    own = {CONFIGS: whole.configs} if whole.configs else {}
    found = {"project": whole.project, **own, "pods": pods}
    return str(yaml.dump(found, Dumper=Dumper, sort_keys=False, allow_unicode=True))


def _written(dumper: Any, text: str) -> Any:
    """Writes a text of several lines as a block."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


@hookimpl
def kurma_command() -> Driver:
    return Driver(Compose, help=HELP)
