"""An app's log, read from the file that its stager keeps: CRI text lines, ``TIME STREAM P|F LINE`` (H7, G9).

The core reads it by itself, with or without a living stager. The files are the stager's: untrusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time
from collections.abc import Iterator, Sequence

from kurma_core.errors import PodError
from kurma_core.linux.inotify import IN_CREATE, IN_MOVED_TO, Watch
from kurma_core.models import LogText
from kurma_core.pods.logchain import LogChain
from kurma_core.staging.records import read_status_file

_GAP = b"[kurma: output is missing here: the log was turned over faster than it could be read]"


#: Bytes that are looked at in one piece for lines of one moment.
_FEWEST, _MOST = 1 << 12, 1 << 18
_TRIES = 20


def texts(app: str, data: bytes) -> Iterator[LogText]:
    """What stands in some whole lines of the file. Lines of one moment and stream come out together: a stager that
    stamps what it reads in pieces writes hundreds of them, and taking each apart costs more than all else.

    :param data: ends with a newline, or is empty.
    """
    start, window = 0, _FEWEST
    while start < len(data):
        end = data.index(b"\n", start)
        first = parse_line(app, data[start:end])
        head = data[start : end - len(first.text)]
        if first.at and not first.partial and data.startswith(head, end + 1):
            joint = b"\n" + head
            stop = data.index(b"\n", max(end, data.rfind(joint, start, start + window)) + 1)
            lines = data[start:stop].split(b"\n")
            if len(lines) > 1 and data.count(joint, start, stop) == len(lines) - 1:
                size = len(head)  # faster, so, than to replace what stands between lines
                yield first._replace(text=b"\n".join([line[size:] for line in lines]))
                # More where much was found: what is looked through bears a ratio to that.
                start, window = stop + 1, min(max(_FEWEST, 4 * (stop - start)), _MOST)
                continue
        yield first
        start, window = end + 1, _FEWEST


def parse_line(app: str, line: bytes) -> LogText:
    """One line of the file, without its newline. A line that is none of ours comes out as stdout, whole."""
    parts = line.split(b" ", 3)
    if len(parts) == 4 and parts[1] in (b"stdout", b"stderr") and parts[2] in (b"P", b"F"):
        at, stream, tag, text = parts
        return LogText(app, at.decode("ascii", "replace"), stream.decode(), tag == b"P", text)
    return LogText(app, "", "stdout", False, line)


class LogFile:
    """The log of one app, read forward from its beginning; survives that there is none yet.

    :param raw: it is plain output, not CRI lines.
    """

    def __init__(self, path: str, app: str, *, raw: bool = False) -> None:
        self.app = app
        self.name = os.path.basename(path)
        self.chain = LogChain(path, app)
        self._raw = raw
        self._rest = b""

    def read_all(self) -> Iterator[LogText]:
        """What came since the last time in whole lines, up to the present end."""
        while text := self.chain.read():
            if self.chain.gap:
                self.chain.gap = False
                yield LogText(self.app, "", "stderr", False, _GAP)
            whole, newline, rest = text.rpartition(b"\n")
            if not newline:
                self._rest += rest
                continue
            data, self._rest = b"%s%s\n" % (self._rest, whole), rest
            if self._raw:
                yield LogText(self.app, "", "stdout", False, data[:-1])
            else:
                yield from texts(self.app, data)

    def rest(self) -> Iterator[LogText]:
        """What stands behind the last newline, once nothing more can come."""
        if self._rest:
            line, self._rest = self._rest, b""
            yield self._line(line, partial=True)

    def _line(self, line: bytes, *, partial: bool) -> LogText:
        if self._raw:
            return LogText(self.app, "", "stdout", partial, line)
        return parse_line(self.app, line)

    def close(self) -> None:
        self.chain.close()


class LogReader:
    """The logs of some apps of one pod, in the order of the files; followed, in the order of arrival. An app that
    is executed again has another log: it is gone on with.

    Where the stager keeps no logs in the CRI format, all that there is is what it printed itself, raw, under the
    first app's name.

    :param directory: the pod's.
    :param apps: (app, name of its log file under ``logs/``).
    """

    def __init__(self, directory: str, apps: Sequence[tuple[str, str]]) -> None:
        self._directory = directory
        self._logs = f"{directory}/pod/logs"
        self._kept = os.path.isdir(self._logs)
        if self._kept:
            self._files = [LogFile(f"{self._logs}/{name}", app) for app, name in apps]
        else:
            self._files = [LogFile(f"{directory}/stager/output", apps[0][0] if apps else "", raw=True)]

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def present(self) -> Iterator[LogText]:
        """What is there now and was not read before; several apps' lines merged by time."""
        if len(self._files) == 1:
            yield from self._files[0].read_all()
            return
        lines = [line for file in self._files for line in file.read_all()]
        lines.sort(key=lambda line: line.at)
        yield from lines

    def rest(self) -> Iterator[LogText]:
        """What is left once the stager has ended."""
        yield from self.present()
        while self.follow_executions():
            yield from self.present()
        for file in self._files:
            yield from file.rest()

    def follow_executions(self) -> bool:
        """Goes on with the logs of apps that are executed anew; whether there are any. For the present end."""
        found = read_status_file(self._directory) if self._kept else None
        changed = False
        for place, file in enumerate(self._files):
            status = None if found is None else found[0].get(file.app)
            if status is not None and status.log not in (None, file.name):
                file.close()
                self._files[place] = LogFile(f"{self._logs}/{status.log}", file.app)
                changed = True
        return changed

    def watched(self) -> str:
        """The directory in which something changes when more has come."""
        return self._logs if self._kept else f"{self._directory}/stager"

    def chains(self) -> list[LogChain]:
        return [file.chain for file in self._files]

    def follow(self, ended: int) -> Iterator[LogText]:
        """What is there and what comes, until the descriptor ``ended`` polls readable; then the rest.

        :param ended: a pidfd of the stager, for instance.
        """
        with Following(self) as following:
            poll = select.poll()
            poll.register(following, select.POLLIN)
            poll.register(ended, select.POLLIN)
            over = False
            while not over:
                yield from self.present()
                over = any(fd == ended for fd, _ in poll.poll())
                following.more()
            yield from self.rest()


def _share(fd: int) -> None:
    """Takes the lock, shared. A stager that looks for it holds it for a moment; one that holds it for good is not
    waited for."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.001)
        else:
            return


class Following:
    """Polls readable when more may have come. Nothing is lost to a log that turns while whoever reads what we
    print is slow: the directory's lock asks the stager to keep what it turns, and a thread takes hold of each file
    as it comes, for stagers that do not look for it.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._watch = Watch(reader.watched())
        self._turns = Watch(reader.watched(), IN_CREATE | IN_MOVED_TO)
        self._stop, self._stopper = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._hold, daemon=True)
        self._lock = os.open(reader.watched(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Following:
        _share(self._lock)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._stopper)
        self._thread.join()
        os.close(self._stop)
        os.close(self._lock)
        self._watch.close()
        self._turns.close()

    def over(self) -> None:
        """Nothing more will come. What is done between this and the end need not be waited for then."""
        self._watch.forget()
        self._turns.forget()

    def fileno(self) -> int:
        return self._watch.fileno()

    def more(self) -> None:
        """Forgets why it was readable; sees whether apps were executed anew."""
        kinds = self._watch.drain()
        if kinds & IN_CREATE:
            self._reader.follow_executions()

    def _hold(self) -> None:
        poll = select.poll()
        poll.register(self._turns, select.POLLIN)
        poll.register(self._stop, select.POLLHUP)
        while self._stop not in [fd for fd, _ in poll.poll()]:
            self._turns.drain()
            for chain in self._reader.chains():
                with contextlib.suppress(PodError):  # the reader meets the same, and says so
                    chain.look()
