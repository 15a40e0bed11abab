"""Reads, filters and tails an app's log in the CRI text format ``TIME STREAM P|F LINE``.

Both the core and the stager's ``logs`` call-in use it. A text is a tuple: app, time, stream, whether it is a part
of a line, bytes. The core passes its class ``LogText`` as ``make``. The stager's image contains this module.
"""

from __future__ import annotations

import os

from kurma_core.formats.rotated_log import LogChain
from kurma_core.formats.timestamps import moment, stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeVar

    #: App, time, stream, partial, bytes. Whole lines are separated by newlines; there is none after the last.
    Text = tuple[str, str, str, bool, bytes]
    T = TypeVar("T", bound=Text)
    Make = Callable[[str, str, str, bool, bytes], T]

_GAP = b"[kurma: output is missing here: the log was turned over faster than it could be read]"
_STREAMS = (b"stdout", b"stderr")

#: Bytes that are searched at once for lines with the same time.
_FEWEST, _MOST = 1 << 12, 1 << 18
#: Most bytes of an incomplete line that are kept in memory: a longer line is returned in parts.
_LONGEST = 1 << 20


def plain(app: str, at: str, stream: str, partial: bool, text: bytes) -> Text:
    """Makes a text that is a plain tuple."""
    return app, at, stream, partial, text


def parse_line(app: str, line: bytes, make: Make[T]) -> T:
    """Parses one line of the file, without its newline. A line in another format counts as a whole line of
    stdout."""
    parts = line.split(b" ", 3)
    if len(parts) == 4 and parts[1] in _STREAMS and parts[2] in (b"P", b"F"):
        at, stream, tag, text = parts
        return make(app, at.decode("ascii", "replace"), stream.decode(), tag == b"P", text)
    return make(app, "", "stdout", False, line)


def texts(app: str, data: bytes, make: Make[T], open_lines: set[str]) -> Iterator[T]:
    """The texts of some whole lines of the file. Lines of the same time and stream are returned as one text: a
    stager that stamps each chunk writes hundreds of such lines, and to parse each of them would take the most
    time. The end of a line in parts is a text of its own, since the line began at another time.

    :param data: ends with a newline, or is empty.
    :param open_lines: streams whose last line is incomplete; updated here.
    """
    start, window = 0, _FEWEST
    while start < len(data):
        end = data.index(b"\n", start)
        first = parse_line(app, data[start:end], make)
        _, at, stream, partial, text = first
        head = data[start : end - len(text)]
        if partial:
            open_lines.add(stream)
        elif stream in open_lines:
            open_lines.discard(stream)
        elif at and data.startswith(head, end + 1):
            joint = b"\n" + head
            stop = data.index(b"\n", max(end, data.rfind(joint, start, start + window)) + 1)
            lines = data[start:stop].split(b"\n")
            if len(lines) > 1 and data.count(joint, start, stop) == len(lines) - 1:
                size = len(head)  # faster than to replace the heads between lines
                yield make(app, at, stream, False, b"\n".join([line[size:] for line in lines]))
                # The next window is proportional to the lines that were found in this one.
                start, window = stop + 1, min(max(_FEWEST, 4 * (stop - start)), _MOST)
                continue
        yield first
        start, window = end + 1, _FEWEST


class LogFile:
    """The log of one execution of an app, read forward from its beginning. It need not exist yet.

    :param raw: it is plain output, not CRI lines.
    :param root: directory on its path, below which no link is followed: other programs rotate the log there.
    :raises OSError: from the reading methods: it cannot be read.
    """

    def __init__(
        self, path: str, app: str, make: Make[Any], *, raw: bool = False, root: str | None = None
    ) -> None:
        self.app = app
        self.directory, self.name = os.path.split(path)
        self.chain = LogChain(path, root=root)
        self._make = make
        self._raw = raw
        self._rest = b""
        self._open: set[str] = set()

    def read_all(self) -> Iterator[Any]:
        """Reads the new whole lines, up to the present end.

        Bytes behind the last newline are read again: on a full disk, its writer takes half a line back.
        """
        if self._rest and not self._raw and self.chain.back(len(self._rest)):
            self._rest = b""
        while text := self.chain.read():
            if self.chain.gap:
                self.chain.gap = False
                yield from self.rest()
                yield self._make(self.app, "", "stderr", False, _GAP)
            whole, newline, rest = text.rpartition(b"\n")
            if not newline:
                self._rest += rest
                if len(self._rest) > _LONGEST:
                    yield self._part()
                continue
            data, self._rest = b"%s%s\n" % (self._rest, whole), rest
            if self._raw:
                yield self._make(self.app, "", "stdout", False, data[:-1])
            else:
                yield from texts(self.app, data, self._make, self._open)

    def _part(self) -> Any:
        """The beginning of a line that is too long to be kept; the rest has the same head."""
        line, self._rest = self._rest, b""
        if self._raw:
            return self._make(self.app, "", "stdout", True, line)
        _, at, stream, _, text = parse_line(self.app, line, self._make)
        self._rest = line[: len(line) - len(text)]
        self._open.add(stream)
        return self._make(self.app, at, stream, True, text)

    def rest(self) -> Iterator[Any]:
        """The bytes behind the last newline, once the log is complete."""
        if self._rest:
            line, self._rest = self._rest, b""
            if self._raw:
                yield self._make(self.app, "", "stdout", True, line)
            else:
                yield parse_line(self.app, line, self._make)

    def close(self) -> None:
        self.chain.close()


class Filter:
    """Chooses by time and stream. A line in parts is taken, or not, as a whole: by the time at which it began.
    Text without a time (a note about missing output, the output of a stager without logs) is always taken.

    :param since: nanoseconds since the epoch.
    :param stream: ``stdout`` or ``stderr``; None: both.
    """

    def __init__(self, since: int | None, stream: str | None) -> None:
        self._since = None if since is None else max(0, since)
        self._text = "" if self._since is None else stamp(self._since).decode()
        self._stream = stream
        self._open: dict[tuple[str, str], bool] = {}
        self._last = ("", True)

    def __call__(self, text: Text) -> bool:
        app, at, stream, partial, _ = text
        if not at:
            return True
        if self._stream not in (None, stream):
            return False
        if self._since is None:
            return True
        taken = self._open.pop((app, stream), None)
        if taken is None:
            if at != self._last[0]:
                self._last = (at, self._not_before(at))
            taken = self._last[1]
        if partial:
            self._open[app, stream] = taken
        return taken

    def _not_before(self, at: str) -> bool:
        if at[:19] != self._text[:19] and at.endswith("Z"):
            return at > self._text
        try:
            return moment(at) >= (self._since or 0)
        except ValueError:
            return True  # a time that cannot be read


def tail(found: Iterable[T], count: int | None, make: Make[T]) -> Iterator[T]:
    """The last ``count`` lines; a line in parts counts once. None: all."""
    if count is None:
        yield from found
        return
    if not count:
        for _ in found:
            pass  # only later lines are wanted
        return
    kept: dict[int, list[T]] = {}  # by the number of the line, in order
    lines = 0
    open_parts: dict[tuple[str, str], list[T]] = {}
    for each in found:
        for text in _last_of(each, count, make):
            app, _, stream, partial, _ = text
            parts = open_parts.get((app, stream))
            if parts is None:
                parts = kept[lines] = []
                lines += 1
                kept.pop(lines - 1 - count, None)
            parts.append(text)
            if partial:
                open_parts[app, stream] = parts
            else:
                open_parts.pop((app, stream), None)
    for parts in kept.values():
        yield from parts


def _last_of(text: T, count: int, make: Make[T]) -> Iterator[T]:
    """The last ``count`` lines of a text, one by one."""
    app, at, stream, partial, data = text
    if partial or b"\n" not in data:
        yield text
        return
    for line in data.split(b"\n")[-count:]:
        yield make(app, at, stream, False, line)
