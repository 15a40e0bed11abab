"""The table of commands, the declarations and the functions say the same."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kurma_core.cli import suggestions
from kurma_core.cli.command_line import APP, GLOBAL_OPTIONS, SESSION_OPTIONS, Command, load, parse
from kurma_core.cli.commands import SECTIONS, TABLE, Alias, Entry, Group, find
from kurma_core.cli.main import main

WORDS: dict[str, Entry | Alias] = {}
for _name, _entry in TABLE.items():
    if isinstance(_entry, Group):
        WORDS.update({f"{_name} {word}": below for word, below in _entry.entries.items()})
    else:
        WORDS[_name] = _entry
COMMANDS = {name: entry for name, entry in WORDS.items() if isinstance(entry, Entry)}
ALIASES = {name: entry for name, entry in WORDS.items() if isinstance(entry, Alias)}


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


#: Words that begin no imperative sentence.
_NO_VERBS = frozenset(
    ("a", "all", "an", "by", "each", "every", "how", "if", "in", "it", "its", "no", "not", "of", "on", "only")
) | {"the", "their", "them", "this", "those", "to", "what", "when", "where", "which", "who", "whose", "without"}


def test_help_of_an_option_begins_with_its_verb(named: tuple[str, Command]) -> None:
    """19.2: help says what the option does."""
    _, command = named
    for option in command.options:
        first = option.help.split()[0]
        assert first[0].isupper(), option.flags
        assert first.lower().rstrip(":,") not in _NO_VERBS, option.flags
        assert option.help.endswith("."), option.flags


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
    assert f"Example:\n  {command.example}\n" in out.replace("\n  " + " " * 2, " ")
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
    parts = [out.split(f"{heading}:\n")[1].split("\n\n")[0] for heading in SECTIONS]
    rows = [line for part in parts for line in part.splitlines() if line[2] != " "]
    assert [word for row in rows for word in row.split("  ")[1].split(", ")] == [
        word for words in SECTIONS.values() for word in by_row(words)
    ]
    assert all(flag in out for option in GLOBAL_OPTIONS for flag in option.flags)


def by_row(words: dict[str, Any]) -> list[str]:
    """The words in the order of help, where other words for a command stand in its row."""
    paths = {word: entry.path if isinstance(entry, Alias) else (word,) for word, entry in words.items()}
    return sorted(words, key=lambda word: list(paths.values()).index(paths[word]))


def test_lines_of_help_are_short() -> None:
    assert not [(name, entry.help) for name, entry in (*WORDS.items(), *TABLE.items()) if len(entry.help) > 60]


@pytest.mark.parametrize("group", [name for name, entry in TABLE.items() if isinstance(entry, Group)])
def test_a_group_lists_its_commands(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = find((group,))
    assert isinstance(entry, Group)
    assert main([group, "--help"]) == 0
    out = capsys.readouterr().out
    listed = out.split("Commands:\n")[1].replace(",", " ").split()
    assert all(word in listed for word in entry.entries)


def test_an_example_is_a_command_line(named: tuple[str, Command]) -> None:
    name, command = named
    assert command.example.startswith(f"kurma {name}")
    call = parse(shlex.split(command.example)[1:])
    assert call is not None
    assert call.command is command


@pytest.mark.parametrize("name", ALIASES)
def test_another_word_is_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    alias = ALIASES[name]
    assert isinstance(find(alias.path), Entry)
    options = {option.name: option for option in load(alias.entry).options}
    assert all(value in options[key].choices for key, value in alias.preset.items())
    assert main([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: kurma {name} [OPTIONS]")
    assert f"The same as kurma {' '.join(alias.path)}" in out


def test_a_pod_and_its_app_are_written_alike_everywhere() -> None:
    for name, entry in COMMANDS.items():
        command = load(entry)
        metavars = [argument.metavar for argument in command.arguments]
        assert (APP in command.options) == ("POD[/APP]" in metavars), name
        if not name.startswith("app "):
            assert "APP" not in metavars, name


# -- suggestions --


@pytest.mark.parametrize("word", suggestions.ELSEWHERE)
def test_hints_name_command_lines_that_kurma_reads(word: str) -> None:
    hint = suggestions.ELSEWHERE[word]
    assert "kurma " not in re.sub("`[^`]*`", "", hint)
    for command in re.findall("`(kurma [^`]*)`", hint):
        assert command == "kurma --help" or parse(shlex.split(command)[1:]) is not None, command


def test_hints_are_for_words_that_are_not_commands() -> None:
    assert not set(suggestions.ELSEWHERE) & set(WORDS)
    assert not [word for word in suggestions.ELSEWHERE if word in TABLE]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("rum", "run"),
        ("rn", "run"),
        ("lsit", "list"),
        ("sotp", "stop"),
        ("imagse", "images"),
        ("rmm", "rm"),
        ("pus", "ps"),
        ("posh", None),
        ("loggout", "logout"),
        ("xyzzy", None),
    ],
)
def test_the_nearest_command_is_suggested(word: str, meant: str | None) -> None:
    assert suggestions.nearest_command(word, list(TABLE), harmful(TABLE)) == meant


def harmful(entries: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(word for word, entry in entries.items() if entry.harm)


def near_words(word: str) -> Iterator[str]:
    """All words at a distance of one edit."""
    letters = "abcdefghijklmnopqrstuvwxyz-"
    for at in range(len(word) + 1):
        before, after = word[:at], word[at:]
        yield from (before + letter + after for letter in letters)
        if after:
            yield before + after[1:]
            yield from (before + letter + after[1:] for letter in letters)
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]


@pytest.mark.parametrize("group", ["", *(name for name, entry in TABLE.items() if isinstance(entry, Group))])
def test_no_suggestion_leads_from_a_harmless_word_to_a_harmful_one(group: str) -> None:
    entry = TABLE.get(group)
    entries: Mapping[str, Any] = entry.entries if isinstance(entry, Group) else TABLE
    harm = harmful(entries)
    harmless = {*entries, *(suggestions.ELSEWHERE if not group else ())} - harm
    typed = {near for word in harmless for near in near_words(word)} - entries.keys()
    wrong = [
        (word, meant)
        for word in typed
        if (meant := suggestions.nearest_command(word, list(entries), harm)) in harm
    ]
    assert not wrong


def test_options_that_remove_something_are_not_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "--forc", "x"]) == 2
    assert "--force" not in capsys.readouterr().err
    assert main(["run", "--detahc", "x"]) == 2
    assert "; did you mean --detach?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("run --publsh 80:80 x", "no such option: --publsh; did you mean --publish?", "kurma run --help"),
        ("run --ip 10.0.0.2 x", "no such option: --ip", "--net NETWORK,ip=ADDRESS"),
        ("create --cap-add NET_ADMIN x", "no such option: --cap-add", "--caps-retain"),
        ("run --restart unless-stopped x", "'unless-stopped' is not one of", "write --restart always"),
        ("run --restart on-failure:3 x", "'on-failure:3' is not one of", "write --restart on-failure"),
        ("run --pull missing x", "'missing' is not one of", "write --pull new"),
        ("list --dir /x", "no such option: --dir", "it stands before the command: kurma --dir … list"),
        ("run -v .data:/data x", "'.data' is neither a path nor", "write ./.data"),
        ("run -p 80 x", "the pod's port is missing", "80:80"),
        ("run -m 512m x", "the suffix m means thousandths", "512M"),
        ("exec web", "missing argument 'COMMAND...'", "`kurma enter POD` opens a shell"),
        ("stop", "no pod is given", "--all"),
        ("rm --all web", "pods and --all are given", "--all"),
        ("events --since 10m", "'10m' is not an event number", "0 is the oldest"),
        ("imgae list", "no command 'imgae'; did you mean 'image'?", "kurma --help"),
        ("image lst", "no command 'lst'; did you mean 'list'?", "kurma image --help"),
        ("push x", "no command 'push'", "kurma image push"),
        ("save x", "no command 'save'", "kurma image save"),
        (
            "exec --health-cmd true web ls",
            "no such option: --health-cmd",
            "a health check is set when the pod is made",
        ),
        ("image build --from-rootfs / --name x:1", "x:1: the name of an image has no version", "x --version 1"),
        ("image build --from-rootfs / --name x --version=", "--version: the version is empty", "leave it out"),
        ("image build --from-rootfs / --name A..b", "'A..b' cannot be the name of an image", "lower-case letters"),
        (f"image build --from-rootfs / --name {'a' * 300}", "aaa'… cannot be the name of an image", "1 to 255"),
        ("image build --from-rootfs / --name h:5000/x:1", "'h:5000/x:1' cannot be the name", "1 to 255"),
        (
            "image build --from-rootfs / --name x --label k=a\x1bb",
            "label k has a character that cannot",
            "no line's end",
        ),
        ("exec --restart always web ls", "no such option: --restart", "`kurma run --restart always`"),
    ],
)
def test_what_is_mistyped_or_of_another_engine_has_a_hint(
    line: str, said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert said in first
    assert second.startswith("  hint: ")
    assert hint in second


@pytest.mark.parametrize("name", ["", "run", "image list", "network"])
@pytest.mark.parametrize(("columns", "widest"), [(80, 80), (200, 120)])
def test_help_fits_the_terminal(
    name: str, columns: int, widest: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= widest
    assert "\x1b" not in out


@pytest.mark.parametrize("words", [[], ["run"], ["image", "fetch"]])
def test_help_before_a_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", *words]) == 0
    out = capsys.readouterr().out
    assert main([*words, "--help"]) == 0
    assert capsys.readouterr().out == out
