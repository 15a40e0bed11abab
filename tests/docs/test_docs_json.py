"""``json.md``: its tables are what ``./dev docs`` makes of the classes, and lack nothing (issue 16)."""

from __future__ import annotations

import re

from docs import tables
from kurma_core.api.operations import resolve
from kurma_core.schema import Count, JsonValue, Timestamp, Words
from kurma_core.value import field, frozen

__all__ = ["Count", "Timestamp"]  # looked for by name: annotations are text


Owner = Words("peer", "queen")


@frozen
class Wheel(JsonValue):
    """:param turns: how often it has turned."""

    turns: Count


@frozen
class Cart(JsonValue):
    """A cart.

    :param bought_at: when it was bought; null: it is borrowed.
    :param wheels: the front ones first.
    :param spare: null: there is no spare wheel.
    """

    bought_at: Timestamp | None
    wheels: tuple[Wheel, ...]
    spare: Wheel | None = None


@frozen
class LargerCart(Cart):
    """The same with a field more, which is declared and described here alone.

    :param owners: the first one | the others.
    """

    owners: tuple[Owner, ...] = field(default=(), key="ownedBy")


CART = """\
| key | type | meaning |
|---|---|---|
| `boughtAt` | time, or null | when it was bought; null: it is borrowed |
| `wheels` | list of objects | the front ones first |
| `wheels[].turns` | number | how often it has turned |
| `spare` | object, or null | null: there is no spare wheel |
| `spare.turns` | number | how often it has turned |
"""
ROW = "| `ownedBy` | list, each one of `peer`, `queen` | the first one \\| the others |\n"


def test_the_page_is_current() -> None:
    text = tables.PAGE.read_text(encoding="utf-8")
    assert text == tables.page(text), "run ./dev docs"


def test_a_new_field_needs_its_declaration_alone() -> None:
    assert tables.table(Cart) == CART
    assert tables.table(LargerCart) == CART + ROW
    assert tables.table(LargerCart, [key for key, _, _ in tables.rows(Cart)]).count("\n") == 3


def test_the_text_around_a_table_stays() -> None:
    text = "# before\n\n<!-- table: Exit -->\nold\n<!-- end -->\n\nafter\n"
    assert tables.page(text) == text.replace("old\n", tables.table(resolve("Exit").kind))


def test_every_key_has_a_meaning() -> None:
    text = tables.PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^\| (.+?) \| .+? \| *\|$", text, re.MULTILINE) == []
