"""Threads that are started for who asks: there may be none left for him."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import BusyError

if TYPE_CHECKING:
    import threading


def begin(thread: threading.Thread) -> None:
    """Starts it. :raises BusyError: there are as many as the host, or the daemon's cgroup, lets it have."""
    try:
        thread.start()
    except RuntimeError:
        raise BusyError("kurmad has as many threads as the host lets it have") from None


__all__ = ["begin"]
