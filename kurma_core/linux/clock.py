"""The time as Kurma writes it down: RFC 3339 in UTC. Part of the light library that ships inside the stager."""

from __future__ import annotations

import time


def timestamp(seconds: float | None = None) -> str:
    """RFC 3339 with microseconds, UTC, e.g. ``2026-01-31T12:00:00.000123Z``.

    :param seconds: since the epoch; None: now.
    """
    moment = time.time() if seconds is None else seconds
    whole = int(moment)
    micro = int((moment - whole) * 1_000_000)
    year, month, day, hour, minute, second = time.gmtime(whole)[:6]
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micro:06}Z"
