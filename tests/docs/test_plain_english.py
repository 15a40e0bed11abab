"""Comments, docstrings and pages name the actor: they do not begin with *who* or *what*, nor speak of *nobody*."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Texts that may match. Most of these are quotations, or clauses that read well.
ALLOWED = 20

_BEGINS = re.compile(r"^\W*(who|what|which|whoever|whose|whom|whatever)\b", re.I)
_SPEAKS_OF = re.compile(
    r"\b(nobody|somebody|whoever|whosoever|who asks|what stands|the one that|those that are)\b", re.I
)


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Each comment of a Python file with its line; lines of one comment are one text."""
    found: list[tuple[int, str]] = []
    last = (-1, -1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            body = token.string.lstrip("#: ")
            if last == (line - 1, column):
                found[-1] = (found[-1][0], f"{found[-1][1]} {body}")
            else:
                found.append((line, body))
            last = (line, column)
    yield from found


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, " ".join(node.value.value.split())


def riddles() -> Iterator[str]:
    for place in ("kurma_core", "plugins", "libs"):
        for path in sorted((ROOT / place).rglob("*.py")):
            if "tests" not in path.relative_to(ROOT).parts:
                text = path.read_text()
                for line, body in (*comments(text), *docstrings(text)):
                    if _BEGINS.match(body) or _SPEAKS_OF.search(body):
                        yield f"{path.relative_to(ROOT)}:{line}: {body[:100]}"
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for line, body in enumerate(path.read_text().splitlines(), 1):
            if _SPEAKS_OF.search(body):
                yield f"{path.relative_to(ROOT)}:{line}: {body[:100]}"


def test_texts_name_the_actor() -> None:
    found = list(riddles())
    assert len(found) <= ALLOWED, "\n".join(found)


def test_riddles_are_found() -> None:
    text = '"""What who may only look gets to see."""\n#: Seconds.\nx = 1  # nobody asks\n# Kept by\n# somebody.\n'
    found = [body for _, body in (*comments(text), *docstrings(text))]
    assert [body for body in found if _BEGINS.match(body) or _SPEAKS_OF.search(body)] == [
        "nobody asks",
        "Kept by somebody.",
        "What who may only look gets to see.",
    ]
