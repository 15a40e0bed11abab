"""How deep a JSON document is nested, told before a parser that recurses sees it.

A parser that runs into the interpreter's limit takes with it the finalizers that happen to run just then (Python
3.11 collects garbage in the middle of it): they fail, and what they were to close stays open.
"""

from __future__ import annotations

#: Levels of lists and objects in each other that no honest document has.
FAR = 128


def bounded(document: str | bytes) -> str:
    """The text of a JSON document, for a parser that recurses; what else is wrong with it the parser will say.

    :raises ValueError: it is nested deeper than :data:`FAR`, or is not UTF-8.
    """
    text = document if isinstance(document, str) else document.decode("utf-8")
    if is_far(text):
        raise ValueError("nested too deep")
    return text


def is_far(text: str) -> bool:
    """Whether a JSON text is nested deeper than :data:`FAR`; in time that grows as the text does."""
    if text.count("[") + text.count("{") <= FAR:
        return False
    import re

    depth = 0
    for bracket in re.sub(r'(?s)"(?:[^"\\]++|\\.)*+"?|[^][{}"]++', "", text):
        depth += 1 if bracket in "[{" else -1
        if depth > FAR:
            return True
    return False
