"""``/opt/stager/logs APP [--follow] [--tail N] [--since T] [--stream stdout|stderr]`` (G9).

Prints what the app's current execution wrote, byte for byte. ``T`` is RFC 3339 in UTC, or seconds since the epoch.
"""

from __future__ import annotations

import os
import sys
import time

from kurma_stager_default.inside.applog import stamp
from kurma_stager_default.inside.statusfile import apps

_LOGS = "/pod/logs"
_USAGE = 2
# Seconds between looks at a log that is followed: this process is alive only while somebody watches.
_PAUSE = 0.1
_CHUNK = 1 << 18


class UsageError(Exception):
    """The arguments are off."""


class Wanted:
    """Which lines are to be printed."""

    __slots__ = ("app", "follow", "since", "stream", "tail")

    def __init__(self, arguments: list[str]) -> None:
        self.app = ""
        self.follow = False
        self.tail: int | None = None
        self.since = b""
        self.stream = b""
        left = list(arguments)
        while left:
            word, inline, value = left.pop(0).partition("=")
            if word == "--follow":
                self.follow = True
                continue
            if word.startswith("--"):
                if not inline:
                    if not left:
                        raise UsageError(f"{word} needs a value")
                    value = left.pop(0)
                self._option(word, value)
            elif self.app:
                raise UsageError("one app at a time")
            else:
                self.app = word
        if not self.app:
            raise UsageError("usage: logs APP [--follow] [--tail N] [--since T] [--stream stdout|stderr]")

    def _option(self, word: str, value: str) -> None:
        if word == "--tail" and value.isdigit():
            self.tail = int(value)
        elif word == "--since":
            self.since = _moment(value)
        elif word == "--stream" and value in ("stdout", "stderr"):
            self.stream = value.encode()
        else:
            raise UsageError(f"{word} {value}: not understood")

    def takes(self, line: bytes) -> bool:
        moment, stream, _ = line.split(b" ", 2)
        return moment >= self.since and (not self.stream or stream == self.stream)


def _moment(text: str) -> bytes:
    """As the log writes it, so that moments compare as text."""
    if text.isdigit():
        return stamp(int(text) * 1_000_000_000)
    day, _, clock = text.rstrip("Z").partition("T")
    if not text.endswith("Z") or len(day) != 10 or len(clock) < 8 or not clock[:2].isdigit():
        raise UsageError(
            f"--since {text}: neither RFC 3339 in UTC (2026-01-31T12:00:00Z) nor seconds since the epoch"
        )
    whole, _, fraction = clock.partition(".")
    return f"{day}T{whole}.{fraction:0<9.9}Z".encode()


def _print(lines: list[bytes]) -> None:
    """The text of log lines: a part of a line without its end."""
    out = bytearray()
    for line in lines:
        _, _, kind, text = line.split(b" ", 3)
        out += text
        if kind == b"F":
            out += b"\n"
    view = memoryview(out)
    while view:
        view = view[os.write(1, view) :]


class _Reader:
    """The files of one execution's log, oldest first, across their turning."""

    def __init__(self, name: str) -> None:
        self.path = f"{_LOGS}/{name}"
        self._rest = b""
        self._fd = -1
        older: list[str] = []
        while os.path.exists(f"{self.path}.{len(older) + 1}"):
            older.append(f"{self.path}.{len(older) + 1}")
        self._waiting = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in reversed(older)]
        try:  # noqa: SIM105 - contextlib costs every call
            self._waiting.append(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            pass  # being turned just now

    def lines(self) -> list[bytes]:
        """Some whole lines; none: there is nothing more at the moment."""
        while True:
            if self._fd < 0:
                if not self._waiting:
                    return []
                self._fd = self._waiting.pop(0)
            data = os.read(self._fd, _CHUNK)
            if data:
                *whole, self._rest = (self._rest + data).split(b"\n")
                if whole:
                    return [line for line in whole if line.count(b" ") >= 3]
                continue
            if not self._waiting and not self._turned():
                return []
            os.close(self._fd)
            self._fd = -1

    def _turned(self) -> bool:
        """Whether the file has been turned: it has another name now, and nothing more is written to it."""
        here = os.fstat(self._fd)
        found = []
        number = 0
        while True:
            path = f"{self.path}.{number}" if number else self.path
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                if number:
                    break
                number += 1
                continue
            if os.path.sameopenfile(fd, self._fd) or os.fstat(fd).st_ino == here.st_ino:
                os.close(fd)
                break
            found.append(fd)
            number += 1
        if found and os.fstat(self._fd).st_size > os.lseek(self._fd, 0, os.SEEK_CUR):
            for fd in found:
                os.close(fd)  # its last lines came in between: those first
            return False
        self._waiting = list(reversed(found))
        return bool(found)


def show(wanted: Wanted, name: str, running: bool) -> None:
    reader = _Reader(name)
    if wanted.tail is not None:
        last: list[bytes] = []
        while chunk := reader.lines():
            last = [*last, *[line for line in chunk if wanted.takes(line)]][-wanted.tail :] if wanted.tail else []
        _print(last)
    while True:
        chunk = reader.lines()
        if chunk:
            _print([line for line in chunk if wanted.takes(line)])
        elif not wanted.follow or not running:
            return
        else:
            time.sleep(_PAUSE)
            running = not apps()[wanted.app]["exited"]


def main() -> int:
    try:
        wanted = Wanted(sys.argv[1:])
        app = apps().get(wanted.app)
        if app is None:
            raise UsageError(f"the pod has no app {wanted.app!r}")
    except UsageError as error:
        print(f"logs: {error}", file=sys.stderr, flush=True)
        return _USAGE
    name = app.get("log")
    if name is not None:
        try:
            show(wanted, name, not app["exited"])
        except BrokenPipeError:
            return 0  # whoever reads has seen enough
    return 0
