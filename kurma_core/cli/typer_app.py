"""The command line as typer reads it: help, usage errors, and completion inside the commands of plugins.

The application is built from the declarations, and only the commands that a command line names.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import typer
from click.exceptions import NoArgsIsHelpError
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from kurma_core.cli import suggestions
from kurma_core.cli.command_line import (
    GLOBAL_OPTIONS,
    Argument,
    Call,
    Command,
    Option,
    load,
    split_rest,
    with_preset,
)
from kurma_core.cli.commands import SECTIONS, TABLE, Alias, Entry, Group
from kurma_core.errors import UsageError

if TYPE_CHECKING:
    from kurma_core.cli.plugin_commands import PluginCommands
    from kurma_core.cli.session import Session

PROGRAM = "kurma"
#: Keys of a context's words: the command's own, and those for a program in the pod.
_OWN, _REST = "kurma.own", "kurma.rest"
#: Columns of help at most: longer lines are hard to read.
_WIDEST = 120
_DESCRIPTION = """Run pods on this machine: groups of containers ("apps") that share networks and volumes.

Images come from registries, web servers and files. Every concrete behaviour is a plugin.

POD is a pod's UUID, the start of it, or its name. Exit codes: the pod's (128+N if signal N ended it), 125 if Kurma
fails, 126 if a command cannot be executed, 127 if it is not found, 2 for wrong usage.
"""


def read(words: Sequence[str], kurma: click.Group | None = None) -> Call | int:
    """Reads the command line, or prints help. Runs a command that is not of the table.

    :param kurma: the tree of commands; None: :func:`root`.
    :returns: the exit code, if help was printed or a command was run.
    :raises UsageError: the words are wrong.
    """
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
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
    words = context.command_path.removeprefix(PROGRAM).strip()
    declared = context.command.declared if isinstance(context.command, DeclaredCommand) else None
    if isinstance(error, click.NoSuchOption):
        message = f"no such option: {error.option_name}"
        known = [flag for one in context.command.params for flag in one.opts]
        near = suggestions.nearest_option(error.option_name, known)
        elsewhere = suggestions.of_option(words, error.option_name)
        if near is not None and elsewhere is None:
            message += f"; did you mean {near}?"
        before = itertools.takewhile(
            lambda word: not word.startswith(error.option_name), context.meta.get(_OWN, ())
        )
        if declared is not None and declared.rest is not None and any(not word.startswith("-") for word in before):
            hint = f"an option of the program in the pod stands after the program or after --; {hint}"
        hint = elsewhere or hint
        if words and any(error.option_name in option.flags for option in GLOBAL_OPTIONS):
            hint = f"it stands before the command: {PROGRAM} {error.option_name} … {words}"
    elif isinstance(error, click.BadParameter) and error.param is not None and error.message.startswith("'"):
        # The message begins with the value, in quotes.
        hint = suggestions.of_value(error.param.opts[0], error.message.split("'")[1]) or hint
    return UsageError(f"{words}: {message}" if words else message, hint=hint)


def root(session: Callable[[Mapping[str, Any]], Session] | None = None) -> TyperGroup:
    """``kurma`` itself.

    :param session: makes a session of the options before the command, for commands of plugins; None: without them.
    """
    group = _group(PROGRAM, _DESCRIPTION, TABLE, _signed(lambda **_: None, GLOBAL_OPTIONS))
    group.sections = SECTIONS
    group.make_session = session
    return group


def _group(
    name: str, help: str, entries: Mapping[str, Entry | Alias | Group], callback: Callable[..., Any] | None = None
) -> TableGroup:
    application = typer.Typer(
        name=name,
        cls=TableGroup,
        help=help,
        callback=callback,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDEST},
    )
    group = get_group(application)
    assert isinstance(group, TableGroup)
    group.entries = entries
    group.sections = {"Commands": entries}
    return group


def _command(path: tuple[str, ...], declared: Command, alias: Alias | None = None) -> click.Command:
    def call(context: typer.Context, **values: Any) -> Call:
        for part in parts:
            if part.many:
                values[part.name] = tuple(values[part.name] or ())
        if declared.rest is not None:
            values[declared.rest.name] = context.meta[_REST]
        if alias is not None:
            with_preset(values, alias.preset)
        return Call(path, declared, values, dict(context.find_root().params))

    parts: tuple[Argument | Option, ...] = (*declared.arguments, *declared.options)
    application = typer.Typer(add_completion=False, rich_markup_mode=None)
    application.command(path[-1], cls=DeclaredCommand, help=declared.function.__doc__)(_signed(call, parts))
    command = get_command(application)
    assert isinstance(command, DeclaredCommand)
    command.declared = declared
    command.alias = alias
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
        click_type=(_Template if option.template else click.Choice)(option.choices) if option.choices else None,
        show_default=not (option.is_flag or option.many or option.default is None),
        help=option.help,
    )
    one: type = bool if option.is_flag else int if option.number else str
    kind = list[one] if option.many else one  # type: ignore[valid-type]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind)


class _Template(click.Choice):  # type: ignore[type-arg]
    """Words, or a text that contains ``{{``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "{{" in str(value) else super().convert(value, param, ctx)


def _word(part: Argument) -> str:
    return part.metavar + ("..." if part.many else "")


class TableGroup(TyperGroup):
    """A group of :data:`~kurma_core.cli.commands.TABLE`, and commands of plugins. A command of the table is
    imported and built when it is called; the listing comes from the table."""

    entries: Mapping[str, Entry | Alias | Group]
    sections: Mapping[str, Mapping[str, Entry | Alias | Group]]
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
        if isinstance(entry, Alias):
            return _command(entry.path, load(entry.entry), entry)
        return _command((*ctx.command_path.split()[1:], cmd_name), load(entry))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx) if args and args[0] not in self.entries else args
        if args and args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            path = " ".join((*ctx.command_path.split()[1:], args[0]))
            hint = suggestions.ELSEWHERE.get(path)
            near = None if hint else suggestions.nearest_command(args[0], names, self._harmful())
            if not near:
                self.get_command(ctx, args[0])  # raises why a plugin's command cannot be used
            if hint:
                raise UsageError(f"no command {path!r}", hint=hint)
            ctx.fail(f"no command {args[0]!r}" + (f"; did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def _harmful(self) -> frozenset[str]:
        return frozenset(word for word, entry in self.entries.items() if entry.harm)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        plugins = self._commands(ctx)
        sections = {heading: _rows(entries) for heading, entries in self.sections.items()}
        sections["Commands of plugins"] = plugins.listing() if plugins is not None else []
        width = max(len(words) for rows in sections.values() for words, _ in rows)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl([(words.ljust(width), help) for words, help in rows])

    def _listing(self, ctx: click.Context) -> list[tuple[str, str]]:
        """The names of the commands, and their lines in listings."""
        plugins = self._commands(ctx)
        own = [(name, entry.help) for name, entry in self.entries.items()]
        return own if plugins is None else own + plugins.listing()


def _rows(entries: Mapping[str, Entry | Alias | Group]) -> list[tuple[str, str]]:
    """Each command with its line of help; other words for a command stand in its row."""
    rows: dict[int | str, tuple[str, str]] = {}
    for word, entry in entries.items():
        same = word if isinstance(entry, Alias) and entry.preset else id(getattr(entry, "entry", entry))
        rows[same] = (f"{rows[same][0]}, {word}" if same in rows else word, entry.help)
    return list(rows.values())


class DeclaredCommand(TyperCommand):
    """A declared command, with the words for a program in the pod."""

    declared: Command
    alias: Alias | None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, after = split_rest(self.declared, args)
        ctx.meta[_OWN], ctx.meta[_REST] = before, after
        left = super().parse_args(ctx, list(before))
        rest = self.declared.rest
        if rest is not None and rest.required and not after and not ctx.resilient_parsing:
            raise UsageError(
                f"{' '.join(ctx.command_path.split()[1:])}: missing argument '{rest.metavar}'",
                hint=f"`{PROGRAM} enter POD` opens a shell; see {ctx.command_path} --help",
            )
        return left

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        rest = self.declared.rest
        return pieces if rest is None else [*pieces, rest.metavar if rest.required else f"[{rest.metavar}]"]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.alias is not None:
            formatter.write_paragraph()
            preset = [f"--{name} {value}" for name, value in self.alias.preset.items()]
            formatter.write_text(f"The same as {' '.join((PROGRAM, *self.alias.path, *preset))}.")
        with formatter.section("Example"):
            formatter.write_text(self.declared.example)

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


def completions(words: Sequence[str], current: str, kurma: click.Group) -> list[tuple[str, str]]:
    """Candidates for the word at the cursor, with their descriptions.

    :param words: before it. :param kurma: as of :func:`root`.
    """
    from click.shell_completion import ShellComplete

    found = ShellComplete(kurma, {}, PROGRAM, "").get_completions(list(words), current)
    return [(item.value, item.help or "") for item in found if item.type == "plain"]
