"""The generated parts of pages are what ``./dev docs`` makes of the code (19.2)."""

from __future__ import annotations

import pytest

from docs import generated


@pytest.mark.parametrize("page", generated.PAGES, ids=lambda page: page.name)
def test_the_page_is_current(page):
    text = page.read_text(encoding="utf-8")
    assert "<!-- generated: " in text
    assert text == generated.page(text), "run ./dev docs"


def test_a_cell_may_have_a_bar():
    assert generated.table("a | b", [("x|y", "z")]).splitlines()[2] == "| x\\|y | z |"
