"""The command line as typer reads it: help, completion and usage errors. The application is built from the
declarations, and only the commands that a command line names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import typer
from click.exceptions import NoArgsIsHelpError
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from kurma_core.cli.command_line import GLOBAL_OPTIONS, Argument, Call, Command, Option, load, split_rest
from kurma_core.cli.commands import TABLE, Entry, Group
from kurma_core.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem, ShellComplete

    from kurma_core.cli.plugin_commands import PluginCommands
    from kurma_core.cli.session import Session

PROGRAM = "kurma"
COMPLETE_VARIABLE = "_KURMA_COMPLETE"
#: Names that other container engines have for a command.
_CALLED_ELSEWHERE = {
    "ps": "list",
    "images": "image list",
    "pull": "image fetch",
    "inspect": "show",
    "rmi": "image rm",
    "build": "image build",
    "create": "prepare",
}
_DETACHED = "where kurmad runs, `kurma run -d` leaves a pod to it; so do run-prepared, start and restart"
#: Options of other engines, and what to write instead, for commands that run something.
_OPTIONS_ELSEWHERE = {
    "-d": _DETACHED,
    "--detach": _DETACHED,
    "-m": "--memory 512Mi",
    "--pids-limit": "--isolator 'kurma.io/pids-limit={\"limit\": 100}'",
    "--cpu-shares": "--isolator os/linux/cpu-shares=512",
    "--oom-score-adj": "--isolator os/linux/oom-score-adj=500",
    "--sysctl": '--isolator \'os/unix/sysctl={"net.core.somaxconn": "1024"}\'',
    "--privileged": "--isolator os/linux/privileged=true",
    "--cap-add": "--caps-retain names all that there are to be",
    "--cap-drop": "--caps-remove, or for all of them --isolator 'os/linux/capabilities-retain-set={\"set\": []}'",
    "--security-opt": "--isolator has names for what it does: kurma isolators list",
    "--entrypoint": "--exec PROGRAM, its arguments after --",
    "--restart": "--annotation kurma.io/restart=on-failure",
}
_THAT_RUN = ("run", "prepare", "app add", "run-prepared", "start", "restart", "enter", "exec")
_REST = "kurma.rest"
_DESCRIPTION = """A pluggable App Container executor.

POD is a pod's UUID, the beginning of it, or its name. Exit codes: the pod's own (128+N where signal N ended it),
125 when Kurma fails, 126 and 127 when a command cannot be executed or is not found, 2 for wrong usage.
"""


def read(words: Sequence[str], kurma: click.Group | None = None) -> Call | int:
    """Reads the command line, or prints help. Runs a command that is not of the table.

    :param kurma: the tree of commands; None: :func:`root`.
    :returns: the exit code, if help was printed or a command was run.
    :raises UsageError: the words are wrong.
    """
    try:
        result = (kurma or root()).main(list(words), prog_name=PROGRAM, standalone_mode=False)
    except NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        raise _usage_error(error) from None
    except click.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, Call | int) else 0


def _usage_error(error: click.ClickException) -> UsageError:
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return UsageError(message)
    hint = f"see {context.command_path} --help"
    declared = context.command.declared if isinstance(context.command, DeclaredCommand) else None
    if message.startswith("got unexpected extra") and declared is not None and declared.rest is not None:
        hint = f"{declared.rest.metavar} stands after --; {hint}"
    words = context.command_path.removeprefix(PROGRAM).strip()
    if isinstance(error, click.NoSuchOption):
        message = f"no such option: {error.option_name}"
        if error.possibilities:
            message += f" (Possible options: {', '.join(sorted(error.possibilities))})"
        if words in _THAT_RUN:
            hint = _OPTIONS_ELSEWHERE.get(error.option_name, hint)
    return UsageError(f"{words}: {message}" if words else message, hint=hint)


def root(session: Callable[[Mapping[str, Any]], Session] | None = None) -> TyperGroup:
    """``kurma`` itself.

    :param session: makes a session of the options before the command, for commands of plugins; None: without them.
    """
    group = _group(PROGRAM, _DESCRIPTION, TABLE, _signed(lambda **_: None, GLOBAL_OPTIONS))
    group.make_session = session
    return group


def _group(
    name: str, help: str, entries: Mapping[str, Entry | Group], callback: Callable[..., Any] | None = None
) -> TableGroup:
    application = typer.Typer(
        name=name,
        cls=TableGroup,
        help=help,
        callback=callback,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    group = get_group(application)
    assert isinstance(group, TableGroup)
    group.entries = entries
    return group


def _command(path: tuple[str, ...], declared: Command) -> click.Command:
    def call(context: typer.Context, **values: Any) -> Call:
        for part in parts:
            if part.many:
                values[part.name] = tuple(values[part.name] or ())
        if declared.rest is not None:
            values[declared.rest.name] = context.meta[_REST]
        return Call(path, declared, values, dict(context.find_root().params))

    parts: tuple[Argument | Option, ...] = (*declared.arguments, *declared.options)
    application = typer.Typer(add_completion=False, rich_markup_mode=None)
    application.command(path[-1], cls=DeclaredCommand, help=declared.function.__doc__)(_signed(call, parts))
    command = get_command(application)
    assert isinstance(command, DeclaredCommand)
    command.declared = declared
    return command


def _signed(function: Callable[..., Any], parts: Iterable[Argument | Option]) -> Callable[..., Any]:
    """Gives the function the parameters that typer makes arguments and options of."""
    own = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
    declared = [_argument(part) if isinstance(part, Argument) else _option(part) for part in parts]
    function.__signature__ = inspect.Signature([*own, *declared])  # type: ignore[attr-defined]
    return function


def _argument(part: Argument) -> inspect.Parameter:
    # Hidden from typer's listing, which puts optional arguments in brackets: DeclaredCommand lists them.
    info = typer.Argument(... if part.required else None, metavar=_word(part), hidden=True)
    kind = list[str] if part.many else str
    return inspect.Parameter(part.name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind)


def _option(option: Option) -> inspect.Parameter:
    info = typer.Option(
        None if option.many else option.default,
        *option.flags,
        metavar=option.metavar,
        is_eager=option in GLOBAL_OPTIONS,  # so that help knows those before it: it lists commands of plugins
        click_type=click.Choice(option.choices) if option.choices else None,
        show_default=not (option.is_flag or option.many or option.default is None),
        help=option.help,
    )
    one: type = bool if option.is_flag else int if option.number else str
    kind = list[one] if option.many else one  # type: ignore[valid-type]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind)


def _word(part: Argument) -> str:
    return part.metavar + ("..." if part.many else "")


class TableGroup(TyperGroup):
    """A group of :data:`~kurma_core.cli.commands.TABLE`, and commands of plugins. A command of the table is
    imported and built when it is called; the listing comes from the table."""

    entries: Mapping[str, Entry | Group]
    make_session: Callable[[Mapping[str, Any]], Session] | None = None
    _plugins: PluginCommands | None = None

    def _commands(self, ctx: click.Context) -> PluginCommands | None:
        """The commands of plugins; None: they are not below this group."""
        if self._plugins is None and self.make_session is not None:
            from kurma_core.cli.plugin_commands import PluginCommands

            self._plugins = PluginCommands(self.make_session, ctx.find_root().params)
        return self._plugins

    def list_commands(self, ctx: click.Context) -> list[str]:
        plugins = self._commands(ctx)
        return [*self.entries, *(plugins.names() if plugins is not None else ())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            plugins = self._commands(ctx)
            return plugins.get(cmd_name) if plugins is not None else None
        if isinstance(entry, Group):
            return _group(cmd_name, entry.help, entry.entries)
        return _command((*ctx.command_path.split()[1:], cmd_name), load(entry))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx) if args and args[0] not in self.entries else args
        if args and args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            from kurma_core.schema import nearest

            elsewhere = _CALLED_ELSEWHERE.get(args[0]) if ctx.parent is None else None
            near = elsewhere or nearest(args[0], names)
            if not near:
                self.get_command(ctx, args[0])  # raises why a plugin's command cannot be used
            ctx.fail(f"no command {args[0]!r}" + (f"; did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self._listing(ctx))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=help) for name, help in self._listing(ctx) if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def _listing(self, ctx: click.Context) -> list[tuple[str, str]]:
        """The names of the commands, and their lines in listings."""
        plugins = self._commands(ctx)
        own = [(name, entry.help) for name, entry in self.entries.items()]
        return own if plugins is None else own + plugins.listing()


class DeclaredCommand(TyperCommand):
    """A declared command, with words after ``--``."""

    declared: Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, ctx.meta[_REST] = split_rest(self.declared, args)
        return super().parse_args(ctx, list(before))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        rest = self.declared.rest
        return pieces if rest is None else [*pieces, f"[-- {rest.metavar}]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.declared.arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(
                    [
                        (_word(part), part.help + ("  [required]" if part.required else ""))
                        for part in self.declared.arguments
                    ]
                )
        super().format_options(ctx, formatter)


def completion_script(shell: str) -> str:
    """The script that a shell evaluates to complete ``kurma``.

    :param shell: ``bash``, ``zsh`` or ``fish``.
    """
    return _completions()[shell](click.Command(PROGRAM), {}, PROGRAM, COMPLETE_VARIABLE).source()


def complete(instruction: str, kurma: click.Group | None = None) -> int:
    """Answers a shell that completes: its script calls ``kurma`` with :data:`COMPLETE_VARIABLE` set.

    :param instruction: the variable's value, such as ``bash_complete``.
    :param kurma: the tree of commands; None: :func:`root`.
    """
    kind = _completions().get(instruction.removesuffix("_complete"))
    if kind is None:
        return 1
    print(kind(kurma or root(), {}, PROGRAM, COMPLETE_VARIABLE).complete())
    return 0


def _completions() -> dict[str, type[ShellComplete]]:
    """By shell. click's own, which its registry may no longer hold: typer replaces them there when it builds an
    application with ``add_completion``.
    """
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    return {kind.name: kind for kind in (BashComplete, FishComplete, ZshComplete)}
