"""Waiting in tests: for a state, never for a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

#: Seconds that a state may take to come. A busy machine is slow, so this is many times what it takes; the virtual
#: machine's processor is emulated.
PATIENCE = 120.0 if os.environ.get("KURMA_TEST_VM") else 20.0

Found = TypeVar("Found")


def until(
    condition: Callable[[], Found], what: str | Callable[[], str] = "it", patience: float = PATIENCE
) -> Found:
    """Waits until ``condition()`` is true, and returns its value.

    :param what: what is waited for, or a function that says so when time is up.
    """
    deadline = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > deadline:
            said = what() if callable(what) else what
            raise AssertionError(f"{said} did not come true within {patience:g} s")
        time.sleep(0.01)
    return found


def alive(pid: int | str) -> bool:
    """Whether the process runs. A zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
