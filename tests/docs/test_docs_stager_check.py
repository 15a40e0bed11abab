"""docs/stager_protocol.md names every line of the contract suite, as the suite tells it."""

from __future__ import annotations

import re
from pathlib import Path

from kurma_core.stager_check.lines import LINES

PAGE = (Path(__file__).parents[2] / "docs" / "stager_protocol.md").read_text()


def test_docs_stager_check_names_every_line() -> None:
    section = PAGE.split("## What the check looks at\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.-]+)` \| (.+) \|$", section, re.MULTILINE)
    assert [(name, about.replace("\\|", "|")) for name, about in rows] == list(LINES.items())


def test_docs_stager_check_quotes_it_rightly() -> None:
    for name, rest in re.findall(r"^(?:ok|FAIL|--) +([\w.-]+) +(.+)$", PAGE, re.MULTILINE):
        assert rest.startswith(LINES[name])
