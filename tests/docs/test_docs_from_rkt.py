"""``docs/from_rkt.md`` names every command of rkt, and commands and options that Kurma's command line has."""

import contextlib
import functools
import io
import re
from pathlib import Path

import pytest

from kurma_core.cli.commands import Group, find
from kurma_core.cli.main import main

TEXT = (Path(__file__).parents[2] / "docs/from_rkt.md").read_text(encoding="utf-8")
#: Of rkt 1.30.
RKT = (
    *(
        "fetch",
        "run",
        "prepare",
        "run-prepared",
        "enter",
        "attach",
        "list",
        "status",
        "stop",
        "rm",
        "gc",
        "config",
    ),
    *("cat-manifest", "export", "trust", "metadata-service", "api-service", "version", "completion", "help"),
    *(f"image {word}" for word in ("list", "rm", "export", "render", "extract", "cat-manifest", "verify", "gc")),
    *(f"app {word}" for word in ("sandbox", "add", "start", "stop", "rm", "list", "status")),
)
#: Its options of run, each of which somebody has in a script.
RUN = """
caps-remove caps-retain cpu dns dns-domain dns-opt dns-search environment exec group hosts-entry hostname
inherit-env interactive ipc mds-register memory mount name net no-overlay oom-score-adjust pod-manifest port
private-users pull-policy readonly-rootfs seccomp set-env set-env-file signature stage1-from-dir stage1-hash
stage1-name stage1-path stage1-url stdin stdout stderr supplementary-gids user user-annotation user-label
uuid-file-save volume working-dir
"""


def tables():
    """The head and the rows of each, cell by cell."""
    for block in re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        yield head, rows


def spans(cell):
    return re.findall(r"`([^`]+)`", cell)


ROWS = [(head, row) for head, rows in tables() for row in rows]


@functools.cache
def options(command):
    """What ``--help`` of that command lists."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*command.split()[1:], "--help"]) == 0
    return set(re.findall(r"(?<!\S)(-{1,2}[a-z][a-z-]*)", out.getvalue().partition("Options:")[2]))


def is_command(words):
    return not words or (find(tuple(words)) is not None and not isinstance(find(tuple(words)), Group))


@pytest.mark.parametrize(("head", "row"), ROWS, ids=lambda cells: cells[0])
def test_there_is_what_is_named(head, row):
    assert len(row) == 3, row
    own = [span for span in spans(row[1]) if span.startswith("kurma")]
    of = own or [span for span in spans(head[1]) if span.startswith("kurma")]
    for command in of:
        assert is_command(command.split()[1:]), f"there is no {command}"
    for span in set(spans(row[1])) - set(own):
        assert span.startswith("-"), span
        assert of, f"{span}: of which command?"
        assert all(span in options(command) for command in of), f"{of} have no {span}"
    assert not [span for span in spans(row[2]) if span.startswith("-")], "whose option is that?"


def test_every_command_of_rkts_is_there():
    named = {span for head, row in ROWS for cell in (head[0], row[0]) for span in spans(cell)}
    assert [command for command in RKT if f"rkt {command}" not in named] == []


def test_every_option_of_rkt_run_is_there():
    (rows,) = [rows for head, rows in tables() if "`rkt run`" in head[0]]
    named = {span.split()[0] for row in rows for span in spans(row[0])}
    assert [option for option in RUN.split() if f"--{option}" not in named] == []


def test_a_wrong_option_would_be_found():
    assert "--workdir" in options("kurma run")
    assert "--working-dir" not in options("kurma run")
    assert not is_command(["image", "verfy"])
