"""Ages, of the times that records hold."""

from __future__ import annotations

import time


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
