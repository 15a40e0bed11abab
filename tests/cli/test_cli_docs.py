"""``docs/cli.md`` is true: its reference is what ``--help`` prints, its columns are those of the listings.

``python tests/cli/test_cli_docs.py`` writes the reference anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

from kurma_core.cli.commands import TABLE, Group
from kurma_core.cli.main import main

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"
MARK = "<!-- from here on: what `--help` prints; written by tests/cli/test_cli_docs.py -->\n"


def help_of(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*words, "--help"]) == 0
    return out.getvalue().rstrip() + "\n"


def reference() -> str:
    """The help of everything, in the order of the table."""
    paths: list[tuple[str, ...]] = [()]
    for name, entry in TABLE.items():
        paths.append((name,))
        if isinstance(entry, Group):
            paths += [(name, word) for word in entry.entries]
    parts = []
    for path in paths:
        title = " ".join(("kurma", *path))
        parts.append(f"{'##' if len(path) < 2 else '###'} {title}\n\n```text\n{help_of(*path)}```\n")
    return "\n".join(parts)


def test_the_reference_is_what_help_prints() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert MARK in text
    assert text.split(MARK)[1].strip() == reference().strip(), f"run python {Path(__file__).name}"


def test_every_command_that_the_document_names_exists() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").split(MARK)[0]
    named = re.findall(r"^\s*(?:\$ |# )?kurma ([a-z-]+)(?: ([a-z-]+))?", text, re.MULTILINE)
    assert len(named) > 8
    for first, second in named:
        entry = TABLE[first]
        if isinstance(entry, Group):
            assert second in entry.entries


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    head = DOCUMENT.read_text(encoding="utf-8").split(MARK)[0]
    DOCUMENT.write_text(head + MARK + "\n" + reference(), encoding="utf-8")
