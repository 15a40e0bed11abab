"""The tests shared by runs at once, each in a host of its own: ``pytest --shared DIRECTORY``.

Each run takes one file of tests after the other, in order, until none is left: so all end at about the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Takes ``--shared``."""
    parser.addoption(
        "--shared",
        metavar="DIRECTORY",
        type=Path,
        help="share the tests with those who name it, too",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Runs what nobody else has taken."""
    option = session.config.option
    if option.shared is None or option.collectonly or session.testsfailed:
        return None
    mine = taken(session.items, option.shared)
    item = next(mine, None)
    while item is not None:
        following = next(mine, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def taken(items: Sequence[pytest.Item], directory: Path) -> Iterator[pytest.Item]:
    """Those of files that are still to be had, which are taken one by one, as they are come to.

    :param directory: exists; a file in it says that a file of tests is taken.
    """
    for path, tests in groupby(items, lambda item: item.path):
        try:
            os.close(os.open(directory / str(path).replace("/", "%"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        yield from tests
