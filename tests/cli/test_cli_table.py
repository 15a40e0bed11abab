"""The table of commands, the declarations and the functions say the same."""

from __future__ import annotations

import inspect

import pytest

from kurma_core.cli.command_line import GLOBAL_OPTIONS, SESSION_OPTIONS, Command, load
from kurma_core.cli.commands import TABLE, Entry, Group, find
from kurma_core.cli.main import main

COMMANDS: dict[str, Entry] = {}
for _name, _entry in TABLE.items():
    if isinstance(_entry, Group):
        COMMANDS.update({f"{_name} {word}": below for word, below in _entry.entries.items()})
    else:
        COMMANDS[_name] = _entry


@pytest.fixture(params=COMMANDS)
def named(request: pytest.FixtureRequest) -> tuple[str, Command]:
    return request.param, load(COMMANDS[request.param])


def test_the_line_in_the_listing_is_the_first_of_the_docstring(named: tuple[str, Command]) -> None:
    name, command = named
    assert inspect.getdoc(command.function).splitlines()[0] == COMMANDS[name].help


def test_the_function_takes_exactly_what_is_declared(named: tuple[str, Command]) -> None:
    _, command = named
    declared = {part.name for part in (*command.arguments, *command.options)}
    declared |= {command.rest.name} if command.rest else set()
    declared -= {option.name for option in SESSION_OPTIONS if option in command.options}
    parameters = list(inspect.signature(command.function).parameters.values())
    assert parameters[0].name == "session"
    named_ones = {p.name for p in parameters[1:] if p.kind is p.KEYWORD_ONLY}
    assert named_ones <= declared
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        assert named_ones == declared


def test_flags_are_unique_and_only_the_last_argument_takes_many(named: tuple[str, Command]) -> None:
    _, command = named
    flags = [flag for option in command.options for flag in option.flags]
    assert len(flags) == len(set(flags))
    assert not {"-h", "--help"} & set(flags)
    assert not any(argument.many for argument in command.arguments[:-1])
    required = [argument.required for argument in command.arguments]
    assert required == sorted(required, reverse=True)


def test_help_tells_every_option_and_argument(
    named: tuple[str, Command], capsys: pytest.CaptureFixture[str]
) -> None:
    name, command = named
    assert main([*name.split(), "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert main([*name.split(), "-h"]) == 0
    assert capsys.readouterr().out == out
    assert out.startswith(f"Usage: kurma {name} [OPTIONS]")
    assert COMMANDS[name].help.split(".")[0].split()[0] in out
    for option in command.options:
        assert all(flag in out for flag in option.flags), option.flags
    for argument in command.arguments:
        assert argument.metavar in out


def test_listings_have_a_format_and_a_way_without_headings() -> None:
    for name, entry in COMMANDS.items():
        if name.split()[-1] == "list":
            flags = {flag for option in load(entry).options for flag in option.flags}
            assert {"--format", "--no-legend"} <= flags, name


def test_root_help_lists_all_commands_and_global_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    listed = [
        line.split()[0]
        for line in out.split("Commands:")[1].splitlines()
        if line.startswith("  ") and line[2] != " "
    ]
    assert listed == list(TABLE)
    assert all(flag in out for option in GLOBAL_OPTIONS for flag in option.flags)


@pytest.mark.parametrize("group", [name for name, entry in TABLE.items() if isinstance(entry, Group)])
def test_a_group_lists_its_commands(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = find((group,))
    assert isinstance(entry, Group)
    assert main([group, "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {word} " in out for word in entry.entries)


def test_exec_is_enter() -> None:
    assert load(COMMANDS["exec"]) is load(COMMANDS["enter"])
