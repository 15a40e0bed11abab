"""Documents in which one value is of a wrong type, for tests of what reads them."""

import json

GONE = object()
WRONG = (
    None,
    "text",
    7,
    [],
    {},
    True,
    -1,
    [7, None],
    {"a": {"b": []}},
    1 << 70,
    1.5,
    "",
    [[{}]],
    "\ud800",
)


def nodes(value, way=()):
    """The ways to all values in a document."""
    if way:
        yield way
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in pairs:
        yield from nodes(below, (*way, key))


def damaged(value, each=1):
    """Copies of a document, each with one value taken away, or replaced.

    :param each: by so many of the wrong values, and the next value by the next ones.
    """
    turn = 0
    for way in nodes(value):
        for wrong in (GONE, *[WRONG[(turn + more) % len(WRONG)] for more in range(each)]):
            copy = json.loads(json.dumps(value))
            inner = copy
            for key in way[:-1]:
                inner = inner[key]
            if wrong is not GONE:
                inner[way[-1]] = wrong
            elif isinstance(inner, dict):
                del inner[way[-1]]
            yield copy
        turn += each
