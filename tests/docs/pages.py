"""Where the pages of the documentation are: the only place in the tests that knows it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def find_page(name: str) -> Path:
    """The page with that file name, in whichever of the parts of ``docs`` it is: ``find_page("trust.md")``."""
    found = sorted(DOCS.rglob(name))
    assert len(found) == 1, f"{name}: {found}"
    return found[0]
