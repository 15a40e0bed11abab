"""An app's log: what it wrote to stdout and stderr, in the CRI text format ``TIME STREAM P|F LINE`` (H7).

Stamped per chunk read, by bulk replacement: a million lines cost a tenth of a second. Whatever the disk does, the
app is neither blocked nor ended: what cannot be written is dropped, counted, and said as soon as there is room.
"""

from __future__ import annotations

import os
import time

STDOUT = b"stdout"
STDERR = b"stderr"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

#: Bytes of a log that are kept, however many files these are, while somebody follows it.
FOLLOWED_BYTES = 1 << 30

_second = -1
_prefix = b""


def stamp(now_ns: int) -> bytes:
    """RFC 3339 with nanoseconds, UTC. :param now_ns: since the epoch."""
    global _second, _prefix
    second, rest = divmod(now_ns, 1_000_000_000)
    if second != _second:
        year, month, day, hour, minute, at = time.gmtime(second)[:6]
        _prefix = b"%04d-%02d-%02dT%02d:%02d:%02d." % (year, month, day, hour, minute, at)
        _second = second
    return b"%s%09dZ" % (_prefix, rest)


def lines(data: bytes, stream: bytes, now_ns: int) -> bytes:
    """The chunk as log lines; a last piece that does not end its line is marked ``P``; it goes on in the next."""
    head = b"%s %s " % (stamp(now_ns), stream)
    whole, newline, rest = data.rpartition(b"\n")
    made = b""
    if newline:
        full = head + b"F "
        made = b"%s%s\n" % (full, whole.replace(b"\n", b"\n" + full))
    if rest:
        made += b"%sP %s\n" % (head, rest)
    return made


class AppLog:
    """One file, turned by size, between lines: no line is torn in two by it (unless it is as long as a whole log).

    :param path: of the current file; older ones are ``path.1`` (the newest) and so on.
    :param size: bytes after which it is turned; 0: never.
    :param count: how many files are kept, the current one included.
    """

    __slots__ = ("_bytes", "_fd", "_open_lines", "count", "dropped", "dropped_in_all", "path", "size")

    def __init__(self, path: str, size: int, count: int) -> None:
        self.path = path
        self.size = size
        self.count = max(1, count)
        self.dropped = 0
        self.dropped_in_all = 0
        self._fd = -1
        self._bytes = 0
        self._open_lines: set[bytes] = set()
        self._open()

    def _open(self) -> None:
        try:
            self._fd = os.open(self.path, _FLAGS, 0o640)
            self._bytes = os.fstat(self._fd).st_size
        except OSError:
            self._fd = -1  # a full or read-only disk: lines are dropped, and it is tried again with the next ones

    def write(self, stream: bytes, data: bytes) -> None:
        if 0 < self.size <= self._bytes:
            data = self._turn_between_lines(stream, data)
        if data:
            self._write(stream, data)

    def _turn_between_lines(self, stream: bytes, data: bytes) -> bytes:
        """Turns the file, after what ends this stream's open line; the rest of ``data``."""
        if stream in self._open_lines:
            head, newline, rest = data.partition(b"\n")
            if newline:
                self._write(stream, head + newline)
                data = rest
        if data and (not self._open_lines or self._bytes >= 2 * self.size):
            self._turn()
        return data

    def _write(self, stream: bytes, data: bytes) -> None:
        if self._fd < 0:
            self._open()
        now = time.time_ns()
        if data.endswith(b"\n"):
            self._open_lines.discard(stream)
        else:
            self._open_lines.add(stream)
        made = lines(data, stream, now)
        if self.dropped:
            note = b"[kurma: %d bytes of output were dropped, the log could not be written]\n" % self.dropped
            made = lines(note, STDERR, now) + made
        if self._append(made):
            self.dropped = 0
        else:
            self.dropped += len(data)
            self.dropped_in_all += len(data)

    def _append(self, made: bytes) -> bool:
        """All of it or, with the file cut back to where it was, nothing."""
        if self._fd < 0:
            return False
        rest = made
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            try:
                os.ftruncate(self._fd, self._bytes)
            except OSError:
                self.close()
            return False
        self._bytes += len(made)
        return True

    def _turn(self) -> None:
        kept = self.count
        if _followed(os.path.dirname(self.path)):
            kept = max(kept, FOLLOWED_BYTES // self.size)
        older = 0
        while os.path.lexists(f"{self.path}.{older + 1}"):
            older += 1
        try:
            for number in range(older, -1, -1):
                name = f"{self.path}.{number}" if number else self.path
                if number + 1 >= kept:
                    os.unlink(name)
                else:
                    os.rename(name, f"{self.path}.{number + 1}")
        except OSError:
            return  # it grows on, which loses nothing
        self.close()
        self._open()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _followed(directory: str) -> bool:
    """Whether somebody reads the logs in it as they come: who does holds the directory's lock, shared."""
    import fcntl

    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def free_name(directory: str, app: str) -> str:
    """The name of an instance's log file: ``APP.log``, else the first of ``APP.1.log``, … that is free.

    A dot cannot be part of an app's name, so no two apps meet.
    """
    number = 0
    while True:
        name = f"{app}.{number}.log" if number else f"{app}.log"
        if not os.path.lexists(f"{directory}/{name}"):
            return name
        number += 1
