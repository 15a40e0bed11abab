"""Typer's command line, built from the declarations: help, completion, and the words for usage errors.

Only typer's core classes are used, with rich switched off: the listing is plain text, and importing rich would
double the time that ``--help`` takes. Typer brings its own copy of click; the version is pinned, for some of what
is needed here (the lazy group, the exceptions) is not among the names that it exports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from typer._click.core import Context
from typer._click.exceptions import Abort, ClickException, Exit, NoArgsIsHelpError, NoSuchOption
from typer._click.exceptions import UsageError as ClickUsageError
from typer._click.formatting import HelpFormatter
from typer._click.shell_completion import CompletionItem
from typer._types import TyperChoice
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from kurma_core.cli.declare import GLOBAL_OPTIONS, Command, Option
from kurma_core.cli.parse import Call, load, split_rest
from kurma_core.cli.table import TABLE, Entry, Group
from kurma_core.errors import UsageError

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

Run = Callable[[Call], int]


def main(words: Sequence[str], run: Run) -> int:
    """Reads the command line with typer and runs it, or prints help.

    :raises UsageError: the words are wrong.
    """
    try:
        result = root(run).main(
            list(words), prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, standalone_mode=False
        )
    except NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except ClickException as error:
        raise _usage_error(error) from None
    except Abort:
        return 130
    return result if isinstance(result, int) else 0


def _usage_error(error: ClickException) -> UsageError:
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    context = error.ctx if isinstance(error, ClickUsageError) else None
    if context is None:
        return UsageError(message)
    hint = f"see {context.command_path} --help"
    declared = getattr(context.command, "declared", None)
    if message.startswith("got unexpected extra") and declared is not None and declared.rest is not None:
        hint = f"{declared.rest.metavar} stands after --; {hint}"
    words = context.command_path.removeprefix(PROGRAM).strip()
    if isinstance(error, NoSuchOption) and words in _THAT_RUN:
        hint = _OPTIONS_ELSEWHERE.get(error.option_name, hint)
    return UsageError(f"{words}: {message}" if words else message, hint=hint)


def root(run: Run) -> LazyGroup:
    """``kurma`` itself."""
    params = [_option(option) for option in GLOBAL_OPTIONS]
    return LazyGroup(PROGRAM, _DESCRIPTION, TABLE, (), run, params)


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are called; its listing comes from the table."""

    def __init__(
        self,
        name: str,
        help: str,
        entries: dict[str, Entry | Group] | dict[str, Entry],
        path: tuple[str, ...],
        run: Run,
        params: list[Any],
    ) -> None:
        super().__init__(
            name=name,
            help=help,
            params=params,
            no_args_is_help=True,
            rich_markup_mode=None,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self._entries: dict[str, Any] = dict(entries)
        self._path = path
        self._run = run

    def list_commands(self, ctx: Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: Context, cmd_name: str) -> Any:
        entry = self._entries.get(cmd_name)
        path = (*self._path, cmd_name)
        if isinstance(entry, Group):
            return LazyGroup(cmd_name, entry.help, entry.entries, path, self._run, [])
        return None if entry is None else DeclaredCommand(cmd_name, path, load(entry), self._run)

    def resolve_command(self, ctx: Context, args: list[str]) -> Any:
        if args and args[0] not in self._entries and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            elsewhere = None if self._path else _CALLED_ELSEWHERE.get(args[0])
            near = [elsewhere] if elsewhere else get_close_matches(args[0], self._entries, n=1)
            ctx.fail(f"no command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._entries.items()])

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(name, help=entry.help)
            for name, entry in self._entries.items()
            if name.startswith(incomplete) and not incomplete.startswith("-")
        ] + (super(TyperGroup, self).shell_complete(ctx, incomplete) if incomplete.startswith("-") else [])


class DeclaredCommand(TyperCommand):
    """A command as it was declared."""

    def __init__(self, name: str, path: tuple[str, ...], declared: Command, run: Run) -> None:
        arguments = [
            TyperArgument(
                param_decls=[part.name],
                metavar=part.metavar + ("..." if part.many else ""),
                help=part.help,
                required=part.required,
                nargs=-1 if part.many else 1,
                show_default=False,
            )
            for part in declared.arguments
        ]
        super().__init__(
            name,
            params=[*arguments, *(_option(option) for option in declared.options)],
            help=declared.function.__doc__,
            callback=self._call,
            rich_markup_mode=None,
        )
        self.declared = declared
        self._path = path
        self._run = run

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        before, ctx.meta[_REST] = split_rest(self.declared, args)
        return super().parse_args(ctx, list(before))

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        pieces = ["[OPTIONS]"]
        for part in self.declared.arguments:
            word = part.metavar + ("..." if part.many else "")
            pieces.append(word if part.required else f"[{word}]")
        rest = self.declared.rest
        return pieces if rest is None else [*pieces, f"[-- {rest.metavar}]"]

    def invoke(self, ctx: Context) -> int:
        values = dict(ctx.params)
        for argument in self.declared.arguments:
            if argument.many:
                values[argument.name] = tuple(values[argument.name] or ())
        for option in self.declared.options:
            if option.many:
                values[option.name] = tuple(values[option.name] or ())
        if self.declared.rest is not None:
            values[self.declared.rest.name] = ctx.meta[_REST]
        return self._run(Call(self._path, self.declared, values, dict(ctx.find_root().params)))

    def _call(self, **_: Any) -> None:
        """Typer wants a callback; :meth:`invoke` does the work."""


def _option(option: Option) -> TyperOption:
    if option.is_flag:
        return TyperOption(param_decls=[option.name, *option.flags], is_flag=True, default=False, help=option.help)
    return TyperOption(
        param_decls=[option.name, *option.flags],
        metavar=option.metavar,
        type=TyperChoice(option.choices) if option.choices else int if option.number else str,
        multiple=option.many,
        default=None if option.many else option.default,
        show_default=option.default is not None and not option.many,
        help=option.help,
    )


def completion_script(shell: str) -> str:
    """What a shell evaluates to complete ``kurma``."""
    from typer._completion_shared import get_completion_script

    return get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell)


def complete(run: Run) -> int:
    """Answers a shell that completes: it calls ``kurma`` with :data:`COMPLETE_VARIABLE` set."""
    from typer._completion_classes import completion_init

    completion_init()
    try:
        root(run).main([], prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE)
    except (Exit, SystemExit) as end:
        code = end.exit_code if isinstance(end, Exit) else end.code
        return code if isinstance(code, int) else 0
    sys.exit("unreachable: no completion was asked for")
