"""Measures ages by marks of a clock that cannot be set; reads RFC 3339 times.

A wall clock may be set while we look elsewhere. So what something waits for is measured from marks of a clock that
nobody sets, which counts from the host's start on; they say nothing after the next one.
"""

from __future__ import annotations

import time
from typing import Any

from kurma_core.linux.process import boot_id

Json = Any


def mark(later: float = 0.0) -> dict[str, Json]:
    """This moment, or one that comes. :param later: by so many seconds."""
    return {"boot": boot_id(), "uptime": round(time.clock_gettime(time.CLOCK_BOOTTIME) + later, 3)}


def between(first: Json, last: Json) -> float | None:
    """Seconds from one mark to another; None: one of them is none, or the host was started in between."""
    try:
        return float(last["uptime"] - first["uptime"]) if first["boot"] == last["boot"] else None
    except (KeyError, TypeError):
        return None


def seconds(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time.

    :raises ValueError: it is none.
    """
    from datetime import datetime

    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def age(text: str | None) -> float:
    """Seconds since then; an unreadable time is infinitely old."""
    if not text:
        return float("inf")
    try:
        return time.time() - seconds(text)
    except ValueError:
        return float("inf")
