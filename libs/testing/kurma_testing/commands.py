"""The contract suite for commands (:class:`kurma_core.hookspecs.command.CommandHooks`), to be subclassed::

@pytest.mark.kurma_driver(my_module)
class TestMyCommand(CommandContract):
    def test_it_counts_pods(self, driver):
        assert self.run(driver, "--short", answers={"pods": []}).output == "0\\n"
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click
import typer
from click.testing import CliRunner, Result
from typer.main import get_command

from kurma_core.api.operations import Api
from kurma_core.errors import KurmaError
from kurma_core.hookspecs.command import CommandHooks
from kurma_testing.contract import HOSTILE, DriverContract
from kurma_testing.services import Answers


class TestSession:
    """A session without Kurma. :param answers: of its client: see :class:`.services.Answers`."""

    __test__ = False

    def __init__(self, answers: Mapping[str, Any] | None = None) -> None:
        self.transport = Answers(answers)
        self.client = Api(self.transport)

    def need_daemon(self) -> None:
        """Nothing: there is no kurmad."""

    def progress(self) -> None:
        """Nothing: there is no terminal."""

    def line(self, text: str) -> None:
        typer.echo(text)

    def json(self, value: object) -> None:
        typer.echo(json.dumps(value, indent=2))

    def note(self, text: str) -> None:
        typer.echo(text, err=True)


class CommandContract(DriverContract):
    """Subclasses have the mark ``kurma_driver``."""

    def run(self, driver: CommandHooks, *words: str, answers: Mapping[str, Any] | None = None) -> Result:
        """Runs the command with these words after its name."""
        command = get_command(driver.application(TestSession(answers)))
        return CliRunner().invoke(command, list(words), prog_name="kurma command")

    # -- the contract --

    def test_declaring_it_does_nothing(self, driver: CommandHooks) -> None:
        session = TestSession()
        assert driver.application(session) is not driver.application(session)
        assert session.transport.called == [], "it uses the client before it is called"

    def test_every_command_has_help(self, driver: CommandHooks) -> None:
        for path, command in _commands(get_command(driver.application(TestSession()))):
            done = self.run(driver, *path, "--help")
            assert done.exit_code == 0, done.output
            assert command.help, f"{' '.join(path) or 'the command'} has no docstring"

    def test_wrong_options_are_usage_errors(self, driver: CommandHooks) -> None:
        for path, _ in _commands(get_command(driver.application(TestSession()))):
            assert self.run(driver, *path, "--no-such-option").exit_code == 2

    def test_hostile_words_are_refused(self, driver: CommandHooks) -> None:
        """They work, or are usage errors, or errors of Kurma."""
        for path, _ in _commands(get_command(driver.application(TestSession()))):
            for text in HOSTILE:
                error = self.run(driver, *path, text).exception
                assert error is None or isinstance(error, SystemExit | KurmaError), (path, text[:20], error)


def _commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _commands(below, (*path, name))
