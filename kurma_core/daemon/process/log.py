"""kurmad's log: lines for people, for the journal, or JSON for programs; without passwords of addresses."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from kurma_core.appc.template import without_passwords
from kurma_core.errors import HostError
from kurma_core.formats.timestamps import timestamp
from kurma_core.linux.files import is_at

_LOG = logging.getLogger("kurmad")
#: Before the name of a service, the name of its logger.
SERVICE = "kurmad.service."
#: Bytes at which a log file is rotated; the one before it is kept.
SIZE = 4 << 20
#: The journal's priorities (sd-daemon(3)).
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_ABOUT: ContextVar[dict[str, str]] = ContextVar("kurmad_log", default={})  # noqa: B039 (never changed, only replaced)

#: Parts of a message that differ when it is repeated: numbers of processes, pauses, times.
_VARYING = re.compile(r"\b(process |pid |PID |(?:in|after) )\d+(?:\.\d+)?|\d{4}-\d\d-\d\dT[\d:.]+Z?")
#: Seconds from a warning to the first line that repeats it, and the longest time between two such lines. After a
#: quiet time of that length, a line is new.
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 3600.0
#: Warnings that are remembered.
_MOST_REPEATS = 1000


#: Message and subject of a line.
_Key = tuple[str, ...]
#: A line that says how often it was repeated, and its context.
_Count = tuple[logging.LogRecord, dict[str, str]]


class Repeats(logging.Filter):
    """Drops warnings and errors that repeat an earlier line, but for one after 10 s, one 20 s after that, and so
    on. That one says how often the line was repeated. Other lines say what was done, and are not dropped.

    If a line is not repeated any more, the count of those that were dropped is written before the first other line
    after the pause, or at the end of the process.

    :param write: writes such a count.
    """

    def __init__(self, write: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._write = write
        self._lock = threading.Lock()
        #: The oldest first.
        self._lines: dict[_Key, _Repeated] = {}
        #: Those of them that were repeated since they were written.
        self._dropped: dict[_Key, _Repeated] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            if self._dropped:
                self._write_counts(record.created)
            return True
        key, now = _key(record), record.created
        with self._lock:
            line = self._lines.pop(key, None)
            if line is not None and not line.since <= now <= line.last + _LONGEST_PAUSE:
                line.due, line = now, None  # forgotten: only its count is left to be written
            counts = self._counts(now, but=line)
            line = self._lines[key] = line or _Repeated(now)
            if len(self._lines) > _MOST_REPEATS:
                self._lines.pop(next(iter(self._lines))).due = now
            line.last, is_written = now, now >= line.due
            if not is_written:
                line.drop(record)
                self._dropped[key] = line
            else:
                if self._dropped.pop(key, None) is not None:
                    record.msg, record.args = line.counted(record.getMessage(), line.dropped + 1), ()
                line.written(now)
        self._write_all(counts)
        return is_written

    def flush(self) -> None:
        """Writes the counts of all lines that were dropped."""
        self._write_counts(math.inf)

    def _write_counts(self, now: float) -> None:
        with self._lock:
            counts = self._counts(now)
        self._write_all(counts)

    def _counts(self, now: float, but: _Repeated | None = None) -> list[_Count]:
        """Takes the counts of dropped lines whose pause is over. :param but: a line that is looked at anyway."""
        due = {key: line for key, line in self._dropped.items() if line.due <= now and line is not but}
        for key in due:
            del self._dropped[key]
        return [line.count(now) for line in due.values()]

    def _write_all(self, counts: list[_Count]) -> None:
        for record, context in counts:
            token = _ABOUT.set(context)
            try:
                self._write(record)
            finally:
                _ABOUT.reset(token)


class _Repeated:
    """A line that may be repeated. :ivar due: when it is written next. :ivar dropped: how often it was not."""

    __slots__ = ("_context", "_pause", "_record", "dropped", "due", "last", "since")

    def __init__(self, now: float) -> None:
        self._pause = _FIRST_PAUSE
        self.last = self.since = self.due = now
        self.dropped = 0
        self._record: logging.LogRecord | None = None
        self._context: dict[str, str] = {}

    def drop(self, record: logging.LogRecord) -> None:
        """Counts a line that is not written."""
        self.dropped += 1
        self._context = _ABOUT.get()
        # Without its exception, which would keep the objects of its frames.
        self._record = logging.LogRecord(record.name, record.levelno, "", 0, record.getMessage(), (), None)
        self._record.created = record.created
        self._record.pod = getattr(record, "pod", None)

    def count(self, now: float) -> _Count:
        """The last line that was dropped, with the count and its context: it is written now."""
        record = self._record
        assert record is not None, "a line was dropped"
        record.msg = self.counted(record.msg, self.dropped)
        self.written(now)
        return record, self._context

    def counted(self, text: str, count: int) -> str:
        return f"{text} ({'once' if count == 1 else f'{count} times'} since {timestamp(self.since)})"

    def written(self, now: float) -> None:
        self.since, self.dropped, self._record = now, 0, None
        self.due = now + self._pause
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)


def _key(record: logging.LogRecord) -> _Key:
    error = record.exc_info[1] if record.exc_info else None
    raised = "" if error is None else "".join(traceback.format_exception_only(error))
    parts = (
        record.levelname,
        record.name,
        getattr(record, "pod", None),
        _ABOUT.get(),
        record.getMessage(),
        raised,
    )
    return tuple(_VARYING.sub(r"\1", str(part)) for part in parts)


@contextmanager
def about(**fields: str) -> Iterator[None]:
    """Adds the fields to the JSON lines that this thread logs inside the ``with`` statement."""
    token = _ABOUT.set({**_ABOUT.get(), **fields})
    try:
        yield
    finally:
        _ABOUT.reset(token)


def set_up(level: str, format: str, environment: MutableMapping[str, str], file: str | None = None) -> None:
    """Sends the log to standard error, or to ``file``, to which standard output and standard error are then
    redirected, so that the output of libraries and programs is kept.

    :param environment: loses ``JOURNAL_STREAM``: programs that kurmad starts are not connected to the journal.
    :raises HostError: the file cannot be opened.
    """
    journal = environment.pop("JOURNAL_STREAM", "")
    handler: logging.Handler = _Handler() if file is None else _opened(file)
    to_journal = file is None and _is(2, journal)
    handler.setFormatter(Json() if format == "json" else Plain(priorities=to_journal))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.raiseExceptions = False


def _opened(file: str) -> LogFile:
    try:
        return LogFile(file)
    except OSError as error:
        above = os.path.dirname(os.path.abspath(file))
        raise HostError(
            f"--log-file: {file}: cannot be written: {(error.strerror or str(error)).lower()}",
            hint="name a file that can be written; without it the log goes to standard error"
            if os.path.isdir(above)
            else f"mkdir -p {above}",
            path=file,
            errno=error.errno,
        ) from None


def _is(fd: int, journal: str) -> bool:
    """Whether the descriptor is the stream that the variable names by device and inode."""
    status = os.fstat(fd)
    return journal == f"{status.st_dev}:{status.st_ino}"


def _service(record: logging.LogRecord) -> str | None:
    """The service that logs this, from any of its threads."""
    return record.name.removeprefix(SERVICE) if record.name.startswith(SERVICE) else None


def _limit(record: logging.LogRecord) -> str | None:
    """The host's limit that caused the record's exception, in words: it needs no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    known = HostError.of_shortage(error) if error is not None else None
    return known.message if known is not None else None


class Plain(logging.Formatter):
    """``TIME kurmad: text``; for the journal, which adds the time itself, ``<PRIORITY>text`` on every line."""

    def __init__(self, *, priorities: bool) -> None:
        super().__init__()
        self._priorities = priorities

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        service = _service(record)
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        head = "" if self._priorities else f"{timestamp(record.created)} kurmad: {level}"
        if service is not None:
            name = f"service {service}: "
            text = name + f"\n{head}{name}".join(text.splitlines())
        known = _limit(record)
        if known is not None:
            text += f": {known}"
        elif record.exc_info:
            text += "".join(f"; {name}: {what}" for name, what in _ABOUT.get().items() if name != "service")
            text += "\n" + self.formatException(record.exc_info)
        text = without_passwords(text)
        if self._priorities:
            priority = _PRIORITIES.get(record.levelno, 6)
            return "\n".join(f"<{priority}>{line}" for line in text.splitlines())
        return f"{head}{text}"


class Json(logging.Formatter):
    """An object on each line: ``time``, ``level``, ``message``, and context as ``pod``, ``service``, …"""

    def format(self, record: logging.LogRecord) -> str:
        known = _limit(record)
        message = record.getMessage() if known is None else f"{record.getMessage()}: {known}"
        fields: dict[str, Any] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "message": without_passwords(message),
            **{name: without_passwords(text) for name, text in _ABOUT.get().items()},
        }
        service = _service(record)
        if service is not None:
            fields["service"] = service
        pod = getattr(record, "pod", None)
        if pod is not None:
            fields["pod"] = pod
        if record.exc_info and known is None:
            fields["trace"] = without_passwords(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False)


class _Handler(logging.Handler):
    """Writes each line to descriptor 2 with one call, so that lines of several threads and programs do not mix.
    Ignores a broken pipe."""

    def __init__(self) -> None:
        super().__init__()
        self._repeats = Repeats(self._write_record)
        self.addFilter(self._repeats)

    def flush(self) -> None:
        """Called at the end of the process."""
        self._repeats.flush()

    def _write_record(self, record: logging.LogRecord) -> None:
        self.acquire()
        try:
            self.emit(record)
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._write((self.format(record) + "\n").encode("utf-8", "backslashreplace"))

    def _write(self, line: bytes) -> None:
        os.write(2, line)


class LogFile(_Handler):
    """A file that is rotated when it is full, to ``FILE.1``. It is made again if it was removed or moved away."""

    def __init__(self, path: str, size: int = SIZE) -> None:
        super().__init__()
        self._path = os.path.abspath(path)
        self._limit = size
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o600)
        sys.stdout.flush()
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        self._size = os.fstat(2).st_size

    def _write(self, line: bytes) -> None:
        if not is_at(2, self._path):
            # Its directory may be missing, too.
            with suppress(OSError):
                self._open()
        if self._size + len(line) > self._limit:
            os.rename(self._path, f"{self._path}.1")
            self._open()
        self._size += os.write(2, line)
