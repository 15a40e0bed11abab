"""Waiting on descriptors."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    class HasFileno(Protocol):
        def fileno(self) -> int: ...


def wait_readable(first: HasFileno, second: HasFileno | None, timeout: float | None) -> None:
    """Until one of them polls readable, or ``timeout`` seconds are over."""
    poll = select.poll()
    poll.register(first, select.POLLIN)
    if second is not None:
        poll.register(second, select.POLLIN)
    poll.poll(None if timeout is None else max(0.0, timeout) * 1000)
