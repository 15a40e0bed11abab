"""Commands of another typer application below ``kurma``."""

from __future__ import annotations

from typing import Annotated, Literal

import click
import pytest
import typer
from typer.main import get_command

from kurma_core.cli import typer_app
from kurma_core.cli.command_line import parse
from kurma_core.errors import UsageError

guests = typer.Typer(help="Receives guests.")


@guests.command()
def greet(
    name: Annotated[str, typer.Argument(help="The guest.")],
    tone: Annotated[Literal["warm", "cool"], typer.Option(help="How.")] = "warm",
    times: Annotated[int, typer.Option("--times", "-n")] = 1,
) -> None:
    """Greets a guest."""
    for _ in range(times):
        print(f"a {tone} welcome, {name}")


@guests.command()
def refuse() -> None:
    """Lets no guest in."""
    raise typer.Exit(3)


single = typer.Typer(add_completion=False, rich_markup_mode=None)


@single.command()
def leave(quietly: bool = False) -> None:
    """Leaves."""
    print("left quietly" if quietly else "left")


@pytest.fixture
def kurma() -> click.Group:
    """``kurma`` with a group and a command that the table does not have."""
    group = typer_app.root()
    group.add_command(get_command(guests), "guests")
    group.add_command(get_command(single), "leave")
    return group


def test_it_runs(kurma: click.Group, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--debug", "guests", "greet", "Ada", "--tone=cool", "-n2"]
    assert parse(words) is None
    assert typer_app.read(words, kurma) == 0
    assert capsys.readouterr().out == "a cool welcome, Ada\n" * 2
    assert typer_app.read(["guests", "refuse"], kurma) == 3
    assert typer_app.read(["leave", "--quietly"], kurma) == 0
    assert capsys.readouterr().out == "left quietly\n"


def test_it_is_helped(kurma: click.Group, capsys: pytest.CaptureFixture[str]) -> None:
    def help_of(*words: str) -> str:
        assert typer_app.read([*words, "--help"], kurma) == 0
        return capsys.readouterr().out

    listing = help_of().splitlines()
    assert "  guests        Receives guests." in listing
    assert "  leave         Leaves." in listing
    assert {"greet", "Greets a guest.", "refuse"} <= words_of(help_of("guests"), "Greets a guest.")
    assert {"The guest.", "--tone", "How."} <= words_of(help_of("guests", "greet"), "The guest.", "How.")
    assert help_of("leave").startswith("Usage: kurma leave [OPTIONS]\n\n  Leaves.\n")


def words_of(text: str, *sentences: str) -> set[str]:
    return {*text.split(), *(sentence for sentence in sentences if sentence in text)}


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("guests greet", "guests greet: missing argument 'NAME'", "see kurma guests greet --help"),
        ("guests greet Ada --tune", "guests greet: no such option: --tune", "see kurma guests greet --help"),
        ("guests gret", "guests: no such command 'gret'. Did you mean 'greet'?", "see kurma guests --help"),
        ("guest", "no command 'guest'; did you mean 'guests'?", "see kurma --help"),
    ],
)
def test_its_mistakes_are_usage_errors(kurma: click.Group, line: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        typer_app.read(line.split(), kurma)
    assert caught.value.message.startswith(message)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("kurma gu", ["guests"]),
        ("kurma guests g", ["greet"]),
        ("kurma guests greet Ada --tone ", ["warm", "cool"]),
        ("kurma leave --q", ["--quietly"]),
        ("kurma image l", ["list"]),
    ],
)
def test_it_is_completed(
    kurma: click.Group,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    completed: list[str],
) -> None:
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    assert typer_app.complete("bash_complete", kurma) == 0
    assert capsys.readouterr().out.split() == [f"plain,{word}" for word in completed]


def test_kurma_completes_for_shells_that_it_knows(kurma: click.Group) -> None:
    assert typer_app.complete("", kurma) == 1
    assert typer_app.complete("tcsh_complete", kurma) == 1
