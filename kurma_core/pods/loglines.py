"""Choosing lines of a log: the last ones, those since a time, those of one stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kurma_core.linux.clock import timestamp

if TYPE_CHECKING:
    from kurma_core.models import LogText


class Filter:
    """:param since: seconds since the epoch.
    :param stream: ``stdout`` or ``stderr``; None: both.
    """

    def __init__(self, since: float | None, stream: str | None) -> None:
        # Times in a log are UTC and of one length up to the seconds' fraction: they compare as text.
        self._since = "" if since is None else timestamp(since)[:19]
        self._stream = stream

    def __call__(self, line: LogText) -> bool:
        return line.at >= self._since and self._stream in (None, line.stream)


def tail(lines: Iterable[LogText], count: int | None) -> Iterator[LogText]:
    """The last ``count`` lines; a line in parts counts once. None: all."""
    if count is None:
        yield from lines
        return
    kept: deque[list[LogText]] = deque(maxlen=count)
    open_parts: dict[tuple[str, str], list[LogText]] = {}
    for line in (each for text in lines for each in _split(text)):
        key = (line.app, line.stream)
        parts = open_parts.get(key)
        if parts is None:
            parts = []
            kept.append(parts)
        parts.append(line)
        if line.partial:
            open_parts[key] = parts
        else:
            open_parts.pop(key, None)
    for parts in kept:
        yield from parts


def _split(text: LogText) -> Iterator[LogText]:
    if text.partial:
        yield text
        return
    for line in text.text.split(b"\n"):
        yield text._replace(text=line)
