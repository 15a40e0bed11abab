"""Formats times as RFC 3339 in UTC, and parses times and durations. The stager's image contains this module."""

from __future__ import annotations

import time

_SECOND = 1_000_000_000
#: Nanoseconds.
_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
    "d": 86400 * _SECOND,
}
_LAST = 253_402_300_800 * _SECOND  # the year 10000
_MONTH_ENDS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)

_second = -1
_prefix = b""


def timestamp(seconds: float | None = None) -> str:
    """RFC 3339 with microseconds, UTC, e.g. ``2026-01-31T12:00:00.000123Z``.

    :param seconds: since the epoch; None: now.
    """
    at = time.time() if seconds is None else seconds
    whole = int(at)
    micro = int((at - whole) * 1_000_000)
    year, month, day, hour, minute, second = time.gmtime(whole)[:6]
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micro:06}Z"


def stamp(now_ns: int) -> bytes:
    """RFC 3339 with nanoseconds, UTC, for logs. :param now_ns: since the epoch."""
    global _second, _prefix
    second, rest = divmod(now_ns, _SECOND)
    if second != _second:
        year, month, day, hour, minute, at = time.gmtime(second)[:6]
        _prefix = b"%04d-%02d-%02dT%02d:%02d:%02d." % (year, month, day, hour, minute, at)
        _second = second
    return b"%s%09dZ" % (_prefix, rest)


def moment(text: str, now_ns: int | None = None) -> int:
    """Parses a time of a user or a log. :returns: nanoseconds since the epoch.

    It accepts RFC 3339 (``2026-01-31T12:00:00.5Z``, ``2026-01-31T13:00+01:00``; without a zone: local time; a day
    alone: its first moment), seconds since the epoch (``1500000000.5``), and durations before now (``10m``,
    ``1h30m``, ``500ms``).

    :param now_ns: None: the clock's.
    :raises ValueError: the text has another format.
    """
    if not text.replace("µ", "u").isascii():
        raise ValueError(text)
    if text[4:5] == "-":
        found = _date(text)
    elif text.replace(".", "", 1).isdigit():
        found = _number(text, _SECOND)
    else:
        found = (time.time_ns() if now_ns is None else now_ns) - duration(text)
    if found >= _LAST:
        raise ValueError(text)
    return found


def _number(text: str, unit: int) -> int:
    whole, _, fraction = text.partition(".")
    if not (whole + fraction).isdigit() or len(text) > 30:
        raise ValueError(text)
    return int(whole or "0") * unit + int(fraction or "0") * unit // int("1" + "0" * len(fraction))


def duration(text: str) -> int:
    """Parses a duration such as ``1h30m`` or ``500ms``. :returns: nanoseconds.

    :raises ValueError: the text has another format.
    """
    if not text:
        raise ValueError(text)
    total, rest = 0, text
    while rest:
        after = rest.lstrip("0123456789.")
        number = rest[: len(rest) - len(after)]
        rest = after.lstrip("abcdefghijklmnopqrstuvwxyzµ")
        unit = _UNITS.get(after[: len(after) - len(rest)])
        if unit is None:
            raise ValueError(text)
        total += _number(number, unit)
    return total


def _date(text: str) -> int:
    day, clock = text[:10], text[11:]
    year, month, date = _digits(day[:4]), _digits(day[5:7]), _digits(day[8:])
    if len(day) != 10 or day[7] != "-" or text[10:11] not in ("", "T", "t", " ") or (len(text) == 11):
        raise ValueError(text)
    zone: int | None = None
    if clock[-1:] in ("Z", "z"):
        clock, zone = clock[:-1], 0
    elif clock[-6:-5] in ("+", "-") and clock[-3:-2] == ":":
        hours, minutes = _digits(clock[-5:-3]), _digits(clock[-2:])
        if hours > 23 or minutes > 59:
            raise ValueError(text)
        zone = (hours * 60 + minutes) * (-60 if clock[-6] == "-" else 60)
        clock = clock[:-6]
    whole, point, fraction = clock.partition(".")
    hour, minute, second = _clock(whole) if len(text) > 10 else (0, 0, 0)
    if point and (len(whole) != 8 or not fraction.isdigit()):
        raise ValueError(text)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if year < 1970 or not 1 <= month <= 12 or hour > 23 or minute > 59 or second > 60:
        raise ValueError(text)
    if not 1 <= date <= (31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]:
        raise ValueError(text)
    if zone is None:
        try:
            seconds = int(time.mktime((year, month, date, hour, minute, second, 0, 0, -1)))
        except OverflowError:
            raise ValueError(text) from None
    else:
        last = year - 1
        days = last * 365 + last // 4 - last // 100 + last // 400 - 719162
        days += _MONTH_ENDS[month - 1] + (leap and month > 2) + date - 1
        seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - zone
    return seconds * _SECOND + int(fraction[:9].ljust(9, "0"))


def _clock(text: str) -> tuple[int, int, int]:
    if len(text) not in (5, 8) or text[2] != ":" or (len(text) == 8 and text[5] != ":"):
        raise ValueError(text)
    return _digits(text[:2]), _digits(text[3:5]), _digits(text[6:]) if len(text) == 8 else 0


def _digits(text: str) -> int:
    if not text.isdigit():
        raise ValueError(text)
    return int(text)
