"""Commands of plugins below ``kurma``: imported when they are called, or when help first lists them."""

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from kurma_core.cli import completion
from kurma_core.cli.command_line import parse
from kurma_core.cli.commands import TABLE
from kurma_core.hookspecs.command import RESERVED
from tests.kit.waiting import until

GROUP = "kurma.commands"
GUESTS = """
from typing import Annotated, Literal
import typer
from kurma_core.errors import HostError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, Option

class Guests:
    def __init__(self, context):
        self._word = context.config["word"]

    @hookimpl
    def application(self, session):
        guests = typer.Typer(help="Receives guests.")

        @guests.command()
        def greet(
            name: Annotated[str, typer.Argument(help="The guest.")],
            tone: Annotated[Literal["warm", "cool"], typer.Option(help="How.")] = "warm",
            times: Annotated[int, typer.Option("--times", "-n")] = 1,
        ) -> None:
            "Greets a guest."
            for _ in range(times):
                session.line(f"a {tone} {self._word}, {name}")

        @guests.command()
        def refuse() -> None:
            "Lets no guest in."
            raise typer.Exit(3)

        @guests.command()
        def fail(how: str) -> None:
            if how == "known":
                raise HostError("the door is stuck", hint="push")
            raise KeyError("door")

        @guests.command()
        def version() -> None:
            session.json({"version": session.client.version().version})

        return guests

@hookimpl
def kurma_command():
    return Driver(Guests, options=(Option("word", str, "welcome", "any"),), help="Receive guests.")
"""
LEAVE = """
import typer
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver

class Leave:
    @hookimpl
    def application(self):
        leave = typer.Typer(add_completion=False, rich_markup_mode=None)

        @leave.command()
        def command(quietly: bool = False) -> None:
            "Leaves."
            print("left quietly" if quietly else "left")

        return leave

@hookimpl
def kurma_command():
    return Driver(lambda context: Leave(), help="Leave.")
"""


@pytest.fixture
def guests(install):
    install("kurma-guests", {"guests": GUESTS, "leave": LEAVE}, group=GROUP)


@pytest.fixture
def imported():
    """The plugins' modules that were imported since the test began."""
    before = set(sys.modules)
    return lambda: [name for name in set(sys.modules) - before if name.startswith("kurma_test_plugin")]


def test_names_of_kurmas_own_commands_are_reserved():
    assert set(TABLE) == RESERVED


def test_it_runs(run_kurma, config, guests):
    assert parse(["guests", "refuse"]) is None
    assert run_kurma("guests greet Ada --tone=cool -n2") == (0, "a cool welcome, Ada\n" * 2, "")
    assert run_kurma("guests refuse") == (3, "", "")
    assert run_kurma("leave --quietly") == (0, "left quietly\n", "")
    assert run_kurma("guests version")[1].startswith('{\n  "version":')
    config("plugins: {commands: {guests: {config: {word: farewell}}}}")
    assert run_kurma("guests greet Ada") == (0, "a warm farewell, Ada\n", "")


def test_it_is_helped(run_kurma, guests):
    def help_of(words):
        code, out, _ = run_kurma(f"{words} --help")
        assert code == 0
        return out

    listing = rows(help_of("").split("Commands of plugins:")[1])
    assert ["guests", "Receive guests."] in listing
    assert ["leave", "Leave."] in listing
    assert {"greet", "Greets a guest.", "refuse"} <= words_of(help_of("guests"), "Greets a guest.")
    assert {"The guest.", "--tone", "How."} <= words_of(help_of("guests greet"), "The guest.", "How.")
    assert help_of("leave").startswith("Usage: kurma leave [OPTIONS]\n\n  Leaves.\n")


def test_help_without_such_plugins_reads_no_configuration(tmp_path):
    """The index says that no distribution has a command."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "site").mkdir()
    site = Path(sysconfig.get_path("purelib"))
    with_commands = {entry.dist.metadata["Name"].replace("-", "_") for entry in entry_points(group=GROUP)}
    for file in site.iterdir():
        if file.name.partition("-")[0] not in with_commands:
            (tmp_path / "site" / file.name).symlink_to(file)
    script = """
import sys
sys.path[sys.path.index(sys.argv[2])] = sys.argv[3]
from kurma_core.plugins.index import PluginIndex
if len(sys.argv) == 5:
    sys.exit("kurma.commands" in PluginIndex(sys.argv[1]).find())
from kurma_core.cli.main import main
assert main(["--dir", sys.argv[1], "--help"]) == 0
print("loaded", "kurma_core.config" in sys.modules)
"""
    command = [sys.executable, "-c", script, *map(str, (tmp_path / "state", site, tmp_path / "site"))]
    subprocess.run([*command, "find"], check=True)
    assert (tmp_path / "state/plugins.json").exists()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded False\n")


def rows(text):
    """The words of each row of a listing, and its text."""
    return [line.split(maxsplit=1) for line in text.splitlines()]


def words_of(text, *sentences):
    return {*text.split(), *(sentence for sentence in sentences if sentence in text)}


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("guests greet", "guests greet: missing argument 'NAME'", "see kurma guests greet --help"),
        ("guests greet Ada --tune", "guests greet: no such option: --tune", "see kurma guests greet --help"),
        ("guests gret", "guests: no such command 'gret'. Did you mean 'greet'?", "see kurma guests --help"),
        ("guest", "no command 'guest'; did you mean 'guests'?", "see kurma --help"),
        ("elsewhere", "no command 'elsewhere'", "see kurma --help"),
    ],
)
def test_its_mistakes_are_usage_errors(run_kurma, guests, line, message, hint):
    code, _, told = run_kurma(line)
    assert code == 2
    assert told.startswith(f"kurma: {message}")
    assert told.endswith(f"  hint: {hint}\n")


def test_its_errors(run_kurma, guests):
    assert run_kurma("guests fail known") == (125, "", "kurma: the door is stuck\n  hint: push\n")
    code, _, told = run_kurma("guests fail other")
    assert code == 125
    assert told.startswith(
        "kurma: command plugin 'guests' of kurma-guests 1.0 failed in guests: KeyError: 'door'\n"
    )
    assert "kurma --debug" in told
    debugged = run_kurma("--debug guests fail other")[2]
    assert "kurma_test_plugin" in debugged, "the trace shows the plugin's file"
    assert "  in the plugin's call: guests\n" in debugged


def test_it_is_imported_when_it_is_called_or_first_listed(run_kurma, guests, imported, tmp_path):
    run_kurma("version")
    run_kurma("config show")
    run_kurma("list --help")
    assert run_kurma("list")[0] == 0
    run_kurma("nothing")
    assert imported() == []
    assert run_kurma("leave")[1] == "left\n"
    assert len(imported()) == 1
    run_kurma("--help")
    assert len(imported()) == 2


def test_listings_are_remembered(guests, run_kurma, tmp_path):
    """Its line of help is in the index: help imports it once."""
    program = "import sys; from kurma_core.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-P", "-c", program, "--dir", str(tmp_path / "state"), "--help"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}

    def imports():
        said = subprocess.check_output(command, env=environment, text=True)
        assert "Receive guests." in said
        return "kurma_test_plugin" in said.splitlines()[-1]

    assert imports()
    until(lambda: not imports(), "what has just changed is not remembered at once")


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("kurma gu", ["guests"]),
        ("kurma guests g", ["greet"]),
        ("kurma guests greet Ada --tone ", ["warm", "cool"]),
        ("kurma leave --q", ["--quietly"]),
        ("kurma image li", ["list"]),
    ],
)
def test_it_is_completed(run_kurma, guests, line, completed):
    _, *lines = completion.complete(line.split(" ")[1:]).splitlines()
    assert [one.partition("\t")[0] for one in lines] == completed


def test_a_name_of_kurmas_own(run_kurma, install, guests):
    install("kurma-run", {"list": LEAVE, "ps": LEAVE}, group=GROUP)
    assert "left" not in run_kurma("list --help")[1]
    assert "left" not in run_kurma("ps --help")[1]
    assert run_kurma("leave")[1] == "left\n"
    assert run_kurma("info")[0] == 0
    rows = run_kurma("plugins list")[1]
    why = "command plugin 'list' is claimed by kurma-run 1.0 and Kurma itself"
    assert why in rows
    assert why in run_kurma("config check")[2]


def test_two_of_one_name(run_kurma, install, guests):
    install("kurma-other", {"leave": LEAVE}, group=GROUP)
    code, _, told = run_kurma("leave")
    assert code == 125
    assert "command plugin 'leave' is claimed by" in told
    assert run_kurma("guests greet Ada")[0] == 0
    assert ["leave", "(does not work: see kurma plugins list)"] in rows(run_kurma("--help")[1])


def test_one_that_is_disabled(run_kurma, config, guests, imported):
    config("plugins: {commands: {guests: {enabled: false}}}")
    code, _, told = run_kurma("guests greet Ada")
    assert code == 125
    assert told.startswith("kurma: command plugin 'guests' is disabled in ")
    assert "guests" not in run_kurma("--help")[1]
    config("plugins: {enable: listed}")
    assert "guests" not in run_kurma("--help")[1]
    assert "  hint: enable it: kurma plugins enable commands guests\n" in run_kurma("guests refuse")[2]


def test_a_broken_one(run_kurma, install):
    install("kurma-broken", {"broken": "1/0"}, group=GROUP)
    code, _, told = run_kurma("broken")
    assert code == 125
    assert told.startswith("kurma: command plugin 'broken' of kurma-broken 1.0 is broken: ZeroDivisionError")
    assert ["broken", "(does not work: see kurma plugins list)"] in rows(run_kurma("--help")[1])


def test_an_application_without_a_command(run_kurma, install):
    """18."""
    source = LEAVE.replace("@leave.command()", "")
    install("kurma-empty", {"empty": source}, group=GROUP)
    code, _, told = run_kurma("empty")
    assert code == 125
    assert told.startswith(
        "kurma: command plugin 'empty' of kurma-empty 1.0 failed in application: RuntimeError: "
    )
    assert "this is a mistake in the plugin" in told


def test_a_wrong_configuration(run_kurma, config, guests):
    config("plugins: {nothing: 1}")
    assert "  list, ls " in run_kurma("--help")[1]
    assert "no command 'lisst'; did you mean 'list'?" in run_kurma("lisst")[2]
    assert "unknown key" in run_kurma("guests greet Ada")[2]


def test_a_plugin_may_have_a_word_that_only_has_a_hint(run_kurma, install, config):
    """19."""
    assert run_kurma("push")[2].startswith(
        "kurma: no command 'push'\n  hint: `kurma image push IMAGE DESTINATION`"
    )
    install("kurma-push", {"push": LEAVE}, group=GROUP)
    assert run_kurma("push") == (0, "left\n", "")
    config("plugins: {commands: {push: {enabled: false}}}")
    assert run_kurma("push")[2].startswith("kurma: command plugin 'push' is disabled in ")
