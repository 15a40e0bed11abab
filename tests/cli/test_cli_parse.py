"""The small parser reads as typer does, or leaves it to typer."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kurma_testing.graphs import examples

from kurma_core.cli import typer_app
from kurma_core.cli.command_line import Call, Command, Option, load, parse
from kurma_core.cli.commands import TABLE, Alias, Entry, Group, find
from kurma_core.errors import UsageError

PATHS = [
    *((name,) for name, entry in TABLE.items() if not isinstance(entry, Group)),
    *((name, word) for name, entry in TABLE.items() if isinstance(entry, Group) for word in entry.entries),
]


def by_typer(words: list[str]) -> Call | None:
    """The call as typer reads it; None: it is wrong."""
    try:
        call = typer_app.read(words)
    except UsageError:
        return None
    return call if isinstance(call, Call) else None


def facts(call: Call | None) -> Any:
    return None if call is None else (call.path, call.values, call.globals, call.command)


def command_of(path: tuple[str, ...]) -> Command:
    entry = find(path)
    assert isinstance(entry, Entry | Alias)
    return load(entry.entry if isinstance(entry, Alias) else entry)


WORD = st.sampled_from(
    ["web", "a=b", "-", "--", "", "3", "-5", "--nope", "-x", "json", "stdout", "=", "K=V=W", "é"]
)
PLAIN = st.sampled_from(["web", "a=b", "-", "", "3", "é"])


def option_words(option: Option) -> st.SearchStrategy[list[str]]:
    """An option as people write it, its value right or nearly so."""
    flag = st.sampled_from(option.flags)
    if option.is_flag:
        more = st.sampled_from(["i", "t", "it", "eA", "e", "-tty", "x"])
        return st.one_of(
            st.builds(lambda f: [f], flag),
            st.builds(lambda f: [f"{f}=x"], flag),
            st.builds(lambda f, m: [f"{f}{m}"], flag, more),
        )
    good = st.sampled_from(option.choices or (("5",) if option.number else ("x", "K=V", "--y", "")))
    value = st.one_of(good, good, good, WORD)
    return st.one_of(
        st.builds(lambda f, v: [f, v], flag, value),
        st.builds(lambda f, v: [f"{f}={v}"], flag, value),
        st.builds(lambda f, v: [f"{f}{v}"], flag, value),
    )


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Every command with flags of its own and words, in any order, now and then a strange one."""
    path = draw(st.sampled_from(PATHS))
    command = command_of(path)
    pieces = [[draw(PLAIN)] for argument in command.arguments if argument.required or draw(st.booleans())]
    if command.options:
        options = draw(st.lists(st.sampled_from(command.options), max_size=3))
        pieces.extend(draw(option_words(option)) for option in options)
    if draw(st.integers(0, 4)) == 0:
        pieces.append([draw(WORD)])
    pieces = draw(st.permutations(pieces))
    if draw(st.integers(0, 3)) == 0:
        pieces += [["sh"], ["-c"], ["--nope"]]
    before = draw(st.sampled_from([[], [], ["--debug"], ["--dir=/d", "--config", "c"], ["--dir"]]))
    after = draw(st.sampled_from([[], [], ["--"], ["--", "ls", "--", "-l"]]))
    return [*before, *path, *(word for piece in pieces for word in piece), *after]


@settings(max_examples=examples(80), deadline=None)
@given(command_lines())
def test_what_the_small_parser_understands_typer_understands_alike(words: list[str]) -> None:
    call = parse(words)
    if call is not None:
        assert facts(call) == facts(by_typer(words))


@pytest.mark.parametrize(
    "line",
    [
        "version",
        "list",
        "list --format json --no-legend",
        "--dir /d --config=/c --debug list",
        "run docker://debian",
        "run --rm -i -e A=1 -eB=2 --env=C=3 -p 80:80 --net none img.aci -- sh -c 'exit 3' --rm",
        "run img.aci --rm",
        "prepare --pod -",
        "logs -ft -n 5 web/app",
        "logs --tail=5 --since 10m web",
        "enter web",
        "enter web/app -- ls -l --",
        "enter web ls -l",
        "exec web -- ls",
        "exec -it web/app ls -l --help",
        "exec --app app -eA=b -itu me web sh -c 'exit 3' -- x",
        "run -itd img.aci sh -c 'exit 3'",
        "run img.aci --rm ls --rm",
        "create img.aci",
        "ps -aq",
        "images -q",
        "pull x",
        "rmi x",
        "ls -a",
        "network inspect default",
        "inspect -t image x y",
        "stop a b c --timeout 10",
        "kill -s KILL web",
        "kill -sKILL web",
        "image fetch a b",
        "image build dir -o out.aci --compress gzip",
        "plugins list",
        "config show",
    ],
)
def test_ordinary_lines_need_no_typer_and_mean_the_same(line: str) -> None:
    words = shlex.split(line)
    call = parse(words)
    assert call is not None
    assert facts(call) == facts(by_typer(words))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--help",
        "list --help",
        "image",
        "image --help",
        "lst",
        "run --nope x",
        "logs",
        "logs a b c",
        "exec web",
        "exec web --",
        "-x",
        "-fi",
    ],
)
def test_everything_else_is_left_to_typer(line: str) -> None:
    assert parse(shlex.split(line)) is None


def test_what_stands_after_two_dashes_is_untouched() -> None:
    call = parse(["run", "img", "--", "--rm", "--", "-x", ""])
    assert call is not None
    assert call.values["arguments"] == ("--rm", "--", "-x", "")
    assert call.values["rm"] is False


@pytest.mark.parametrize(
    ("line", "path", "values"),
    [
        (
            "exec -it web/db ls -l --help",
            ("exec",),
            {"pod": "web/db", "words": ("ls", "-l", "--help"), "tty": True},
        ),
        ("exec web -- ls", ("exec",), {"pod": "web", "words": ("ls",)}),
        ("exec web ls -- x", ("exec",), {"words": ("ls", "--", "x")}),
        ("enter web", ("enter",), {"words": ()}),
        ("enter -u root web id -u", ("enter",), {"user": "root", "words": ("id", "-u")}),
        ("enter web -e A id", ("enter",), {"env": ("A",), "words": ("id",)}),
        ("run -e -- img --rm sh --rm", ("run",), {"env": ("--",), "rm": True, "arguments": ("sh", "--rm")}),
        ("app add web img sh -c x", ("app", "add"), {"image": "img", "arguments": ("sh", "-c", "x")}),
        ("images -q", ("image", "list"), {"quiet": True}),
        ("image inspect x", ("inspect",), {"names": ("x",), "type": "image"}),
        ("inspect x", ("inspect",), {"type": None}),
        ("create x", ("prepare",), {"image": "x"}),
        ("pull x", ("image", "fetch"), {"locators": ("x",)}),
        ("rmi x", ("image", "rm"), {}),
        ("ps -a", ("ps",), {"all": True}),
        ("list --all", ("list",), {"all": True}),
        ("images -a", ("image", "list"), {"all": True}),
        ("stop -t 5 web", ("stop",), {"timeout": "5", "pods": ("web",)}),
        ("stop -a", ("stop",), {"all": True, "pods": ()}),
        ("rm -af", ("rm",), {"all": True, "force": True}),
        ("restart -t 5 web", ("restart",), {"timeout": "5"}),
        ("start -ai web", ("start",), {"attach": True, "interactive": True}),
        ("run --network none -itd img sh", ("run",), {"net": ("none",), "tty": True, "detach": True}),
        ("run -u 1:2 -w /srv img", ("run",), {"user": "1:2", "workdir": "/srv"}),
        ("create -u 1 -w /srv -m 1Gi img", ("prepare",), {"user": "1", "workdir": "/srv", "memory": "1Gi"}),
        ("exec -u 1 -w /srv --app db web ls", ("exec",), {"user": "1", "workdir": "/srv", "app": "db"}),
        ("logs -ft shop/web", ("logs",), {"pod": "shop/web", "follow": True, "timestamps": True}),
        ("attach shop/web", ("attach",), {"pod": "shop/web"}),
        ("kill --app web -s HUP shop", ("kill",), {"app": "web"}),
    ],
)
def test_words_for_the_program_and_other_names_of_commands(
    line: str, path: tuple[str, ...], values: dict[str, Any]
) -> None:
    call = parse(shlex.split(line))
    assert call is not None
    assert call.path == path
    assert {name: call.values[name] for name in values} == values
