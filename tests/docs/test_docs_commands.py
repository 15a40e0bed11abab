"""Every ``kurma …`` command that the documentation shows is one that the command line understands.

Nothing is run: the CLI's own parser reads the words.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from kurma_core.cli import typer_app
from kurma_core.cli.command_line import parse
from kurma_core.cli.commands import Group, find
from kurma_core.errors import UsageError

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "examples/**/*.md",
        "libs/*/README.md",
        "plugins/*/README.md",
        "bench/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_IN_TEXT = re.compile(r"`(kurma (?:[^`]+))`")
#: Blocks that show what is typed; the others show output, files or source.
_TYPED = ("console", "sh", "shell", "bash")
#: Before a command: the checkout's own way to call it, and variables.
_BEFORE = r"(?:\./dev )?(?:[A-Z_]+=\S+ )*"


def commands(path: Path) -> list[str]:
    """The commands that the document shows, in blocks and in the text."""
    text = path.read_text(encoding="utf-8")
    found = []
    for kind, block in _BLOCK.findall(text):
        if kind in _TYPED:
            lines = block.replace("\\\n", " ").splitlines()
            found += [line for line in lines if kind != "console" or line.startswith(("# ", "$ "))]
    found += [" ".join(words.split()) for words in _IN_TEXT.findall(_BLOCK.sub("", text))]
    return [command for line in found for command in _kurma_in(line)]


def _kurma_in(line: str) -> list[str]:
    """The ``kurma`` commands of a shell line: behind a prompt and variables, in pipelines and lists."""
    line = re.sub(r"^[#$] ", "", line.strip())
    # Words in quotes are one word of the command, whatever they hold.
    quoted = re.sub(r"'[^']*'|\"[^\"]*\"", lambda found: "q" * len(found[0]), line)
    cuts = [found.span() for found in re.finditer(r"\s(?:\||&&|\|\||>|2>)\s|;\s|\s+#\s|\s&$", quoted)]
    begins, ends = [0, *(end for _, end in cuts)], [*(begin for begin, _ in cuts), len(line)]
    parts = [line[begin:end].strip() for begin, end in zip(begins, ends, strict=True)]
    return [re.sub(f"^{_BEFORE}", "", part) for part in parts if re.match(rf"{_BEFORE}kurma ", part)]


CASES = [(path.relative_to(ROOT).as_posix(), command) for path in DOCUMENTS for command in commands(path)]


def understood(command: str) -> None:
    """A command's name alone is understood too, as a name.

    :raises UsageError: the command line would not take these words.
    """
    words = shlex.split(command.replace("[", "").replace("]", ""))[1:]
    if words[0] in OF_PLUGINS:
        return  # its own test runs it; an example is not even installed
    if (find(tuple(words)) is None or isinstance(find(tuple(words)), Group)) and parse(words) is None:
        typer_app.read(words)


#: Commands of plugins, and the one that the tutorial on plugins makes.
OF_PLUGINS = [
    "hello",
    *(
        name
        for pattern in ("examples/plugins/*/pyproject.toml", "plugins/*/pyproject.toml")
        for file in ROOT.glob(pattern)
        for name in tomllib.loads(file.read_text())["project"]["entry-points"].get("kurma.commands", ())
    ),
]


@pytest.mark.parametrize(("document", "command"), CASES)
def test_the_command_line_understands_it(document: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    understood(command)


def test_commands_are_found() -> None:
    assert {"README.md", "docs/reference/cli.md", "docs/howto/networking.md"} <= {
        document for document, _ in CASES
    }
    assert len(CASES) > 30


@pytest.mark.parametrize(
    "command", ["kurma runn x", "kurma run --nope x", "kurma rm --force=1 x", "kurma image x"]
)
def test_a_wrong_one_would_be_found(command: str) -> None:
    with pytest.raises(UsageError):
        understood(command)


def test_shell_lines_are_taken_apart() -> None:
    lines = ["# kurma list   # a word", "A=b kurma logs x | head", "./dev kurma gc; true", "echo kurma is here"]
    found = [command for line in lines for command in _kurma_in(line)]
    assert found == ["kurma list", "kurma logs x", "kurma gc"]
