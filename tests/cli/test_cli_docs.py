"""What ``docs/reference/cli.md`` says by hand: the commands that it names exist."""

from __future__ import annotations

import re

from kurma_core.cli.commands import TABLE, Group
from tests.docs.pages import find_page

DOCUMENT = find_page("cli.md")


def test_every_command_that_the_document_names_exists() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").partition("<!-- generated")[0]
    named = re.findall(r"^\s*(?:\$ |# )?kurma ([a-z-]+)(?: ([a-z-]+))?", text, re.MULTILINE)
    assert len(named) > 8
    for first, second in named:
        entry = TABLE[first]
        if isinstance(entry, Group):
            assert second in entry.entries
