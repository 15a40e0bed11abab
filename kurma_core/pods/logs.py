"""An app's log, read from the file that its stager keeps: CRI text lines, ``TIME STREAM P|F LINE`` (H7, G9).

The core reads it by itself, with or without a living stager. The files are the stager's: untrusted.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence

from kurma_core.errors import PodError
from kurma_core.linux.inotify import Watch
from kurma_core.models import LogLine

_CHUNK = 1 << 20


def parse_line(app: str, line: bytes) -> LogLine:
    """One line of the file, without its newline. A line that is none of ours comes out as stdout, whole."""
    parts = line.split(b" ", 3)
    if len(parts) == 4 and parts[1] in (b"stdout", b"stderr") and parts[2] in (b"P", b"F"):
        at, stream, tag, text = parts
        return LogLine(app, at.decode("ascii", "replace"), stream.decode(), tag == b"P", text)
    return LogLine(app, "", "stdout", False, line)


class LogFile:
    """One log file, read forward from where it was left; survives that it does not exist yet.

    :param raw: the file is plain output, not CRI lines.
    """

    def __init__(self, path: str, app: str, *, raw: bool = False) -> None:
        self.app = app
        self._path = path
        self._raw = raw
        self._fd = -1
        self._rest = b""

    def read(self) -> list[LogLine]:
        """The lines that came since the last time; empty at the (present) end."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                return []
            except OSError as error:
                raise PodError(f"cannot read the log of {self.app}: {os.strerror(error.errno or 0)}") from None
        text = os.read(self._fd, _CHUNK)
        if not text:
            return []
        lines = (self._rest + text).split(b"\n")
        self._rest = lines.pop()
        if self._raw:
            return [LogLine(self.app, "", "stdout", False, line) for line in lines]
        return [parse_line(self.app, line) for line in lines]

    def read_all(self) -> Iterator[LogLine]:
        """All lines up to the present end."""
        while True:
            lines = self.read()
            if not lines and not self._more():
                return
            yield from lines

    def rest(self) -> Iterator[LogLine]:
        """What stands behind the last newline, once nothing more can come."""
        if self._rest:
            line, self._rest = self._rest, b""
            yield LogLine(self.app, "", "stdout", True, line) if self._raw else parse_line(self.app, line)

    def _more(self) -> bool:
        return self._fd >= 0 and os.lseek(self._fd, 0, os.SEEK_CUR) < os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def log_files(directory: str, apps: Sequence[tuple[str, str]]) -> list[LogFile]:
    """The log files of these apps. Where the stager keeps none in the CRI format, all that there is is what it
    printed itself, raw, under the first app's name.

    :param directory: the pod's.
    :param apps: (app, name of its log file under ``logs/``).
    """
    if not os.path.isdir(f"{directory}/pod/logs"):
        return [LogFile(f"{directory}/stager/output", apps[0][0] if apps else "", raw=True)]
    return [LogFile(f"{directory}/pod/logs/{name}", app) for app, name in apps]


class LogReader:
    """The logs of some apps of one pod, in the order of the files; followed, in the order of arrival."""

    def __init__(self, directory: str, apps: Sequence[tuple[str, str]]) -> None:
        self._files = log_files(directory, apps)
        kept = os.path.isdir(f"{directory}/pod/logs")
        self._watched = f"{directory}/pod/logs" if kept else f"{directory}/stager"

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def present(self) -> Iterator[LogLine]:
        """What is there now and was not read before; several apps' lines merged by time."""
        if len(self._files) == 1:
            yield from self._files[0].read_all()
            return
        lines = [line for file in self._files for line in file.read_all()]
        lines.sort(key=lambda line: line.at)
        yield from lines

    def rest(self) -> Iterator[LogLine]:
        """What is left once the stager has ended."""
        yield from self.present()
        for file in self._files:
            yield from file.rest()

    def watch(self) -> Watch:
        """Polls readable when more may have come."""
        return Watch(self._watched)

    def follow(self, ended: int) -> Iterator[LogLine]:
        """What is there and what comes, until the descriptor ``ended`` polls readable; then the rest.

        :param ended: a pidfd of the stager, for instance.
        """
        watch = self.watch()
        try:
            poll = select.poll()
            poll.register(watch, select.POLLIN)
            poll.register(ended, select.POLLIN)
            over = False
            while not over:
                yield from self.present()
                over = any(fd == ended for fd, _ in poll.poll())
                watch.drain()
            yield from self.rest()
        finally:
            watch.close()
