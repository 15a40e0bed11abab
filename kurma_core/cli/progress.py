"""A progress bar: one line on a terminal, drawn a few times a second, erased when the work is done."""

from __future__ import annotations

import os
import time
from _thread import RLock
from contextlib import suppress

from kurma_core.cli.output import cut, printable, size
from kurma_core.linux.process import start_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

_INTERVAL = 0.1
#: Seconds between two lines while nothing is reported, and of work that is too short for a line.
_TICK, _SHORT = 0.25, 0.5
_NAME_WIDTH = 32
#: Seconds over which the speed is averaged.
_WINDOW = 3.0
#: An estimate before this time and this share of the work would be a guess.
_KNOWN_AFTER, _KNOWN_SHARE = 2.0, 0.02


class Bar:
    """Implements :class:`kurma_core.api.operations.Progress`.

    :param clock: seconds, never going back.
    :param ticking: draw the line also while nothing is reported, by a thread.
    :ivar kept: whether the last download was interrupted, so that what came is kept.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic, *, ticking: bool = False) -> None:
        self.kept = False
        self._out = out
        self._clock = clock
        self._ticking = ticking
        self._closed = False
        self._lock = RLock()
        self._what: str | None = None
        self._total: int | None = None
        self._kind = "bytes"
        self._done = 0
        self._started_at = self._moved_at = self._drawn_at = 0.0
        self._drawn = False
        self._speed = 0.0
        self._measured: tuple[float, int] = (0.0, 0)

    def start(self, what: str, total: int | None, kind: str = "bytes") -> None:
        with self._lock:
            self.finish()
            if self._closed:
                return
            self._what, self._total, self._kind, self._done, self._speed = what, total, kind, 0, 0.0
            now = self._clock()
            self._started_at = self._moved_at = self._drawn_at = now
            self._measured = (now, 0)
            if self._ticking:
                self._ticking = False
                with suppress(RuntimeError):  # the host allows no more threads: only reports draw the line
                    start_thread(self._tick)

    def skip(self, count: int) -> None:
        with self._lock:
            self._done += count
            since, done = self._measured
            self._measured = (since, done + count)

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = self._moved_at = self._clock()
            if self._what is not None and now - self._drawn_at >= _INTERVAL:
                self._measure(now)
                self._draw(now)

    def finish(self) -> None:
        with self._lock:
            if self._what is not None and self._kind == "download":
                self.kept = self._done > 0 and not self._all_came()
            self.clear()
            self._what = None

    def close(self) -> None:
        """Takes the line away for good: a thread that draws while the interpreter ends would make it crash."""
        with self._lock:
            self.finish()
            self._closed = True

    def clear(self) -> None:
        """Takes the line away; the next :meth:`advance` draws it again."""
        with self._lock:
            if self._drawn:
                self._out.write("\r\x1b[K")
                self._out.flush()
                self._drawn = False

    def _tick(self) -> None:
        """Draws the line until the bar is closed. Work that waits for the disk reports nothing."""
        while True:
            time.sleep(_TICK)
            with self._lock:
                if self._closed:
                    return
                now = self._clock()
                if self._what is None or now - self._started_at < _SHORT or now - self._drawn_at < _TICK:
                    continue
                self._measure(now)
                try:
                    self._draw(now)
                except (OSError, ValueError):
                    return  # the terminal is gone

    def _measure(self, now: float) -> None:
        since, done = self._measured
        if now <= since:
            return
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

    def _all_came(self) -> bool:
        return self._total is not None and self._done >= self._total

    def text(self, width: int) -> str:
        """The line, shorter than ``width``."""
        name = cut(printable(self._what or ""), _NAME_WIDTH, head=True)
        if not self._done:
            return f"{name}  {_clock_text(self._clock() - self._started_at)}"[: width - 1]
        if self._all_came():
            # All has been read; the disk is still at work.
            word = "finishing" if self._kind == "files" else "storing"
            return f"{name}  {word}  {_clock_text(self._clock() - self._moved_at)}"[: width - 1]
        files = self._kind == "files"
        speed = f"{size(int(self._speed))}/s" if self._speed and not files else ""
        if not self._total:
            done = f"{self._done} files" if files else size(self._done)
            return f"{name}  {done}  {speed}".rstrip()[: width - 1]
        share = self._done / self._total
        counted = f"{self._done} / {self._total} files" if files else f"{size(self._done)} / {size(self._total)}"
        tail = "  ".join(filter(None, (f"{int(share * 100):3}%", counted, speed, self._left(share))))
        name = cut(name, max(8, width - 3 - len(tail)), head=True)
        room = width - 1 - len(name) - len(tail) - 6
        if room < 5:
            return f"{name}  {tail}"[: width - 1]
        filled = int(share * room)
        return f"{name}  [{'#' * filled}{'.' * (room - filled)}]  {tail}"

    def _left(self, share: float) -> str:
        known = self._measured[0] - self._started_at >= _KNOWN_AFTER and share >= _KNOWN_SHARE
        if not known or not self._speed or self._total is None:
            return ""
        seconds = (self._total - self._done) / self._speed
        return f"{_clock_text(max(1.0, seconds))} left" if seconds < 360000 else ""


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
