"""The tests in parts that run at once, each in a host of its own: ``pytest --part 1/2``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

#: For how many tests one marked slow counts.
_SLOW = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    """Takes ``--part``."""
    parser.addoption("--part", metavar="K/N", type=_part, help="the K-th of N parts of the tests, by files")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves this part's tests, in their order. Last: the parts are of what ``-m`` and ``-k`` leave."""
    if config.option.part is None:
        return
    number, count = config.option.part
    weights = Counter[Path]()
    for item in items:
        weights[item.path] += _SLOW if item.get_closest_marker("slow") else 1
    mine = parts(weights, count)[number - 1]
    config.hook.pytest_deselected(items=[item for item in items if item.path not in mine])
    items[:] = [item for item in items if item.path in mine]


def parts(files: Mapping[Path, int], count: int) -> list[set[Path]]:
    """Files in parts of about as many tests of each directory, which take about as long as each other. Each file
    is in one part, the same one every time.

    :param files: and how many tests each holds.
    """
    split: list[set[Path]] = [set() for _ in range(count)]
    sizes = [0] * count
    here = Counter[tuple[Path, int]]()
    for path in sorted(files, key=lambda path: (path.parent, -files[path], path)):
        place = min(range(count), key=lambda number: (here[path.parent, number], sizes[number]))
        split[place].add(path)
        sizes[place] += files[path]
        here[path.parent, place] += files[path]
    return split


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(text)
    return int(number), int(count)
