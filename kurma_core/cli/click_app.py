"""The command line as click reads it, built from the declarations: help, completion, and usage errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click
from click.exceptions import NoArgsIsHelpError

from kurma_core.cli.declare import GLOBAL_OPTIONS, Argument, Command, Option
from kurma_core.cli.parse import Call, load, split_rest
from kurma_core.cli.table import TABLE, Entry, Group
from kurma_core.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PROGRAM = "kurma"
COMPLETE_VARIABLE = "_KURMA_COMPLETE"
#: What other container engines call a command.
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
#: Options that people bring along from other engines, to commands that run something.
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


def read(words: Sequence[str]) -> Call | int:
    """Reads the command line, or prints help.

    :returns: the exit code, if help was printed.
    :raises UsageError: the words are wrong.
    """
    try:
        result: Call | int = root().main(
            list(words), prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, standalone_mode=False
        )
    except NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        raise _usage_error(error) from None
    except click.Abort:
        raise KeyboardInterrupt from None
    return result


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


def root() -> LazyGroup:
    """``kurma`` itself."""
    return LazyGroup(PROGRAM, _DESCRIPTION, TABLE, params=[_option(option) for option in GLOBAL_OPTIONS])


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called; its listing comes from the table."""

    def __init__(
        self,
        name: str,
        help: str,
        entries: Mapping[str, Entry | Group],
        path: tuple[str, ...] = (),
        params: Sequence[click.Parameter] = (),
    ) -> None:
        super().__init__(
            name=name,
            help=help,
            params=list(params),
            no_args_is_help=True,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self._entries = entries
        self._path = path

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        path = (*self._path, cmd_name)
        if isinstance(entry, Group):
            return LazyGroup(cmd_name, entry.help, entry.entries, path)
        return None if entry is None else DeclaredCommand(cmd_name, path, load(entry))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._entries and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            elsewhere = None if self._path else _CALLED_ELSEWHERE.get(args[0])
            near = [elsewhere] if elsewhere else get_close_matches(args[0], self._entries, n=1)
            ctx.fail(f"no command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=entry.help)
            for name, entry in self._entries.items()
            if name.startswith(incomplete)
        ]


class DeclaredCommand(click.Command):
    """A command as it was declared."""

    def __init__(self, name: str, path: tuple[str, ...], declared: Command) -> None:
        arguments = [
            click.Argument(
                [part.name],
                metavar=_word(part),
                required=part.required,
                nargs=-1 if part.many else 1,
            )
            for part in declared.arguments
        ]
        super().__init__(
            name,
            params=[*arguments, *(_option(option) for option in declared.options)],
            help=declared.function.__doc__,
        )
        self.declared = declared
        self._path = path

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, ctx.meta[_REST] = split_rest(self.declared, args)
        return super().parse_args(ctx, list(before))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        words = [(_word(part), part.required) for part in self.declared.arguments]
        pieces = ["[OPTIONS]", *(word if required else f"[{word}]" for word, required in words)]
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

    def invoke(self, ctx: click.Context) -> Call:
        values = dict(ctx.params)
        if self.declared.rest is not None:
            values[self.declared.rest.name] = ctx.meta[_REST]
        return Call(self._path, self.declared, values, dict(ctx.find_root().params))


def _word(part: Argument) -> str:
    return part.metavar + ("..." if part.many else "")


def _option(option: Option) -> click.Option:
    if option.is_flag:
        return click.Option([option.name, *option.flags], is_flag=True, default=False, help=option.help)
    return click.Option(
        [option.name, *option.flags],
        metavar=option.metavar,
        type=click.Choice(option.choices) if option.choices else int if option.number else str,
        multiple=option.many,
        default=None if option.many else option.default,
        show_default=option.default is not None and not option.many,
        help=option.help,
    )


def completion_script(shell: str) -> str:
    """The script that a shell evaluates to complete ``kurma``.

    :param shell: ``bash``, ``zsh`` or ``fish``.
    """
    from click.shell_completion import get_completion_class

    of_shell = get_completion_class(shell)
    assert of_shell is not None, shell
    return of_shell(click.Command(PROGRAM), {}, PROGRAM, COMPLETE_VARIABLE).source()


def complete(instruction: str) -> int:
    """Answers a shell that completes: its script calls ``kurma`` with :data:`COMPLETE_VARIABLE` set.

    :param instruction: the variable's value.
    """
    from click.shell_completion import shell_complete

    return shell_complete(root(), {}, PROGRAM, COMPLETE_VARIABLE, instruction)
