"""Writes an app's log: its standard output and error in the CRI text format ``TIME STREAM P|F LINE``.

Each chunk gets one timestamp, by bulk replacement: a million lines cost a tenth of a second. A full or broken disk
does not block or end the app: output that cannot be written is dropped and counted, and a line in the log says so
when there is space again.
"""

from __future__ import annotations

import os
import time

from kurma_core.formats.timestamps import stamp
from kurma_stager_default.inside.streams import log_rotation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

STDOUT = b"stdout"
STDERR = b"stderr"
#: Most bytes of output in one line of the log: a longer line is written in parts.
LONGEST = 1 << 14
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def lines(data: bytes, stream: bytes, now_ns: int) -> bytes:
    """The chunk as log lines. An incomplete last line is marked ``P`` and continues in the next chunk; a line of
    more than :data:`LONGEST` bytes is in parts, all but its last marked ``P``."""
    head = b"%s %s " % (stamp(now_ns), stream)
    whole, newline, rest = data.rpartition(b"\n")
    made = b""
    if newline:
        full = head + b"F "
        if len(whole) > LONGEST and _has_long(whole):
            made = b"".join([_in_parts(line, head) for line in whole.split(b"\n")])
        else:
            made = b"%s%s\n" % (full, whole.replace(b"\n", b"\n" + full))
    for start in range(0, len(rest), LONGEST):
        made += b"%sP %s\n" % (head, rest[start : start + LONGEST])
    return made


def _has_long(whole: bytes) -> bool:
    """Whether a line may have more than :data:`LONGEST` bytes: it then fills one of these windows."""
    window = LONGEST // 2
    return any(whole.find(b"\n", at, at + window) < 0 for at in range(0, len(whole), window))


def _in_parts(line: bytes, head: bytes) -> bytes:
    last = max(0, len(line) - 1) // LONGEST * LONGEST
    parts = [b"%sP %s\n" % (head, line[start : start + LONGEST]) for start in range(0, last, LONGEST)]
    return b"%s%sF %s\n" % (b"".join(parts), head, line[last:])


class AppLog:
    """A log that is rotated by size, between lines: no line is split over two files, unless it is as long as a
    file.

    :param path: path of the current file; older ones are ``path.1`` (the newest) and so on.
    :param size: bytes after which it is rotated; 0: never.
    :param count: how many files are kept, the current one included.
    :param opener: opens the file, whose directory belongs to other programs; None: it is opened by its path.
    """

    __slots__ = (
        "_bytes",
        "_fd",
        "_limit",
        "_open_lines",
        "_opener",
        "changed",
        "count",
        "dropped",
        "dropped_in_all",
        "path",
        "size",
    )

    def __init__(self, path: str, size: int, count: int, opener: Callable[[], int] | None = None) -> None:
        self.path = path
        self._opener = opener
        self.size = size
        self.count = max(1, count)
        #: Bytes of output that were lost since the last successful write, and in all.
        self.dropped = 0
        self.dropped_in_all = 0
        #: Set when losses begin or end; the caller resets it.
        self.changed = False
        self._fd = -1
        self._bytes = -1  # the file's size up to its last whole line; -1: unknown, take the size on disk
        self._limit = size  # the size at which this file is rotated
        self._open_lines: set[bytes] = set()
        self._open()

    def _open(self) -> None:
        try:
            self._fd = os.open(self.path, _FLAGS, 0o640) if self._opener is None else self._opener()
            found = os.fstat(self._fd).st_size
            if 0 <= self._bytes < found:
                os.ftruncate(self._fd, self._bytes)  # removes half a line, which could not be removed earlier
            else:
                self._bytes = found
        except OSError:
            self._shut()  # a full or read-only disk: lines are dropped, and the next write opens the file again

    def write(self, stream: bytes, data: bytes) -> None:
        """Writes output of the app. :param data: not empty."""
        now = time.time_ns()
        made = whole = lines(data, stream, now)
        if self.dropped:
            made = whole = self._words(now) + made
        if 0 < self._limit < self._bytes + len(made):
            made = self._fill(stream, made)
        if made and not self._append(made):
            self._drop(len(data) if len(made) == len(whole) else _length(made, stream))
            return
        if data.endswith(b"\n"):
            self._open_lines.discard(stream)
        else:
            self._open_lines.add(stream)

    def _fill(self, stream: bytes, made: bytes) -> bytes:
        """Fills this file, and more files if need be, and rotates. :returns: the lines for the last file."""
        while self._bytes + len(made) > self._limit:
            long = self._bytes > 0 and self._bytes + len(made) >= 2 * self._limit
            if not long and self._open_lines - {stream}:
                return made  # the other stream has an open line in this file, which may end soon
            end = made.rfind(b"\n", 0, max(0, self._limit - self._bytes)) + 1
            if not end and (stream in self._open_lines or self._bytes <= 0):
                # The line has begun in this file, or is longer than any file.
                end = made.index(b"\n") + 1
                if end == len(made):
                    if not long:
                        return made
                    end = 0
            if end:
                if not self._append(made[:end]):
                    return made
                self._open_lines.discard(stream)
                made = made[end:]
            if not self._turn():
                return made
        return made

    def _append(self, made: bytes) -> bool:
        """Appends all lines, or none: after an error the file is truncated. Lines that report losses are part of
        them. :returns: whether they were written."""
        done = self._try_to_append(made)
        if not done and self._opener is None and log_rotation.shed(self.path, self.count):
            done = self._try_to_append(made)
        if done and self.dropped:
            self.dropped = 0
            self._open_lines.clear()
            self.changed = True
        return done

    def _try_to_append(self, made: bytes) -> bool:
        if self._fd < 0:
            self._open()
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
                self._shut()
            return False
        self._bytes += len(made)
        return True

    def _drop(self, count: int) -> None:
        if not self.dropped:
            self.changed = True
        self.dropped += count
        self.dropped_in_all += count

    def _words(self, now: int) -> bytes:
        """A line that reports the dropped output. It ends open lines first, so that no text continues after it."""
        ends = b"".join([lines(b"\n", stream, now) for stream in sorted(self._open_lines)])
        note = b"[kurma: %d bytes of output were dropped, the log could not be written]\n" % self.dropped
        return ends + lines(note, STDERR, now)

    def _turn(self) -> bool:
        try:
            older = log_rotation.turn(self.path, self.count)
        except OSError:
            self._limit = max(self._bytes, 0) + self.size
            return False  # the file grows on, and loses no output
        self._shut()
        self._bytes = -1
        self._open()
        # If files are kept for a slow reader, the next ones are longer, so that they stay few.
        self._limit = self.size * max(1, older // self.count)
        return True

    @property
    def closed(self) -> bool:
        """Whether the file is not open: it could not be opened or written to."""
        return self._fd < 0

    def reopen(self) -> None:
        """Goes on with a new file after another program has renamed this one, which gets nothing more.

        :raises OSError: the new file cannot be made; output still goes to the old one.
        """
        assert self._opener is not None
        fd = self._opener()
        self._shut()
        self._fd = fd
        self._bytes = os.fstat(fd).st_size

    def _shut(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Closes the log; no output comes after it."""
        if self.dropped:
            self._append(self._words(time.time_ns()))
        self._shut()


def _length(made: bytes, stream: bytes) -> int:
    """The bytes of output that these lines hold."""
    head = len(lines(b"\n", stream, 0)) - 1
    partial = made.rfind(b"\n", 0, -1) + 1
    return len(made) - made.count(b"\n") * head - (made[partial + head - 2 : partial + head - 1] == b"P")


def file_name(app: str, number: int) -> str:
    """The name of an execution's log file: ``APP.log``, then ``APP.1.log``, ….

    An app's name has no dot, so the names of two apps' files differ (see :func:`app_of`).
    """
    return f"{app}.{number}.log" if number else f"{app}.log"


def app_of(name: str) -> str:
    """The app whose log, or older part of a log, has this file name."""
    return name.partition(".")[0]


def remove(path: str) -> None:
    """Removes a log with all its older parts; ignores missing files, and those that cannot be removed."""
    number = 0
    while True:
        try:
            os.unlink(f"{path}.{number}" if number else path)
        except FileNotFoundError:
            if number:
                return
        except OSError:
            return
        number += 1
