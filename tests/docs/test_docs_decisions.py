"""Pages of decisions are found by their numbers."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = sorted((Path(__file__).parents[2] / "docs/decisions").glob("*.md"))


def test_every_page_has_a_number_of_its_own_and_says_it():
    numbers = [int(page.name[:4]) for page in PAGES]
    assert numbers == sorted(set(numbers))
    for page in PAGES:
        title = page.read_text().split("\n", 1)[0]
        assert re.match(rf"# {int(page.name[:4])}\. \S", title), f"{page.name}: {title}"
