"""A progress bar: one line on a terminal, drawn a few times a second, erased when the work is done."""

from __future__ import annotations

import os
import time

from kurma_core.cli.output import printable, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

_INTERVAL = 0.1
_NAME_WIDTH = 32
#: Seconds over which the speed is averaged.
_WINDOW = 3.0


class Bar:
    """Implements :class:`kurma_core.api.operations.Progress`.

    :param clock: seconds, never going back.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._what: str | None = None
        self._total: int | None = None
        self._done = 0
        self._drawn_at = 0.0
        self._drawn = False
        self._speed = 0.0
        self._measured: tuple[float, int] = (0.0, 0)

    def start(self, what: str, total: int | None) -> None:
        self.finish()
        self._what, self._total, self._done, self._speed = what, total, 0, 0.0
        now = self._clock()
        self._measured, self._drawn_at = (now, 0), now

    def skip(self, count: int) -> None:
        self._done += count
        since, done = self._measured
        self._measured = (since, done + count)

    def advance(self, count: int) -> None:
        self._done += count
        now = self._clock()
        if self._what is not None and now - self._drawn_at >= _INTERVAL:
            self._measure(now)
            self._draw(now)

    def finish(self) -> None:
        self.clear()
        self._what = None

    def clear(self) -> None:
        """Takes the line away; the next :meth:`advance` draws it again."""
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._drawn = False

    def _measure(self, now: float) -> None:
        since, done = self._measured
        current = (self._done - done) / (now - since)
        weight = min(1.0, (now - since) / _WINDOW) if self._speed else 1.0
        self._speed += (current - self._speed) * weight
        self._measured = (now, self._done)

    def _draw(self, now: float) -> None:
        self._drawn_at, self._drawn = now, True
        self._out.write(f"\r{self.text(self._width())}\x1b[K")
        self._out.flush()

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def text(self, width: int) -> str:
        """The line, shorter than ``width``."""
        name = printable(self._what or "")
        if len(name) > _NAME_WIDTH:
            name = "…" + name[-_NAME_WIDTH + 1 :]
        speed = f"{size(int(self._speed))}/s" if self._speed else ""
        if not self._total:
            return f"{name}  {size(self._done)}  {speed}".rstrip()[: width - 1]
        share = min(1.0, self._done / self._total)
        left = _clock_text((self._total - self._done) / self._speed) if self._speed else ""
        tail = f"{share:4.0%}  {size(self._done)} / {size(self._total)}  {speed}  {left}".rstrip()
        room = width - 1 - len(name) - len(tail) - 6
        if room < 5:
            return f"{name}  {tail}"[: width - 1]
        filled = int(share * room)
        return f"{name}  [{'#' * filled}{'.' * (room - filled)}]  {tail}"


def _clock_text(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole >= 360000:
        return ""
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} left" if hours else f"{minutes}:{rest:02} left"
