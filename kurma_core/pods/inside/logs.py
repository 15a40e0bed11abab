"""Reads and follows an app's log file, which its stager writes: CRI text lines, ``TIME STREAM P|F LINE``.

The core reads the files directly, with or without a living stager. They are the stager's, so they are untrusted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kurma_core.cancellation import CancellationFd
from kurma_core.errors import HostError, PodError
from kurma_core.formats.cri_log import LogFile
from kurma_core.formats.rotated_log import LogChain
from kurma_core.json_text import loads
from kurma_core.linux.inotify import IN_CREATE, IN_MOVED_TO, SharedWatch
from kurma_core.models.streams import LogText
from kurma_core.pods import log_places
from kurma_core.pods.log_places import OutsideLog
from kurma_core.staging.stager_status import read_status_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kurma_core.models.pod import AppStatus

    Choice = Callable[[Iterator[LogText]], Iterator[LogText]]

#: Attempts to find the app of a new log file, one at each event.
_LOOKS = 20


class LogReader:
    """Reads the logs of some apps of one pod: in the order of the files, or, when following, in the order of
    arrival. When an app is executed again, reading continues with its new log.

    If the stager keeps no logs in the CRI format (see :attr:`kept`), the only log is the stager's own output, raw,
    under the first app's name.

    :param directory: the pod's.
    :param apps: (app, name of its log file under ``logs/``, or its log in the pod's log directory).
    :param place: directory, below the pod's, of the logs of an earlier execution; later executions are not read
        then.
    :param newcomers: also show apps that are added while the pod runs.
    """

    def __init__(
        self,
        directory: str,
        apps: Sequence[tuple[str, str | OutsideLog]],
        place: str | None = None,
        *,
        newcomers: bool = False,
    ) -> None:
        self._directory = directory
        self._newcomers = newcomers
        self._logs = f"{directory}/{place or 'pod/logs'}"
        self._over = place is not None
        self._shares = False
        self._outside: set[str] = set()
        #: Whether the stager keeps logs in the CRI format.
        self.kept = os.path.isdir(self._logs)
        if self.kept:
            self._files = [self._file(app, name) for app, name in apps]
        else:
            app = apps[0][0] if apps else ""
            self._files = [LogFile(f"{directory}/stager/output", app, LogText, raw=True)]

    def _file(self, app: str, name: str | OutsideLog) -> LogFile:
        if isinstance(name, OutsideLog):
            file = LogFile(name.whole, app, LogText, root=name.root)
            self._outside.add(app)
        else:
            file = LogFile(f"{self._logs}/{name}", app, LogText)
        if self._shares:
            file.chain.share()
        return file

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def present(self) -> Iterator[LogText]:
        """The lines that are there now and were not read before; lines of several apps are merged by time.

        :raises PodError: a log cannot be read.
        """
        if len(self._files) == 1:
            yield from self._read(self._files[0])
            return
        lines = [line for file in self._files for line in self._read(file)]
        lines.sort(key=lambda line: line.at)
        yield from lines

    @staticmethod
    def _read(file: LogFile) -> Iterator[LogText]:
        try:
            yield from file.read_all()
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise PodError(f"cannot read the log of {file.app}: {why}") from None

    def rest(self) -> Iterator[LogText]:
        """The remaining lines, once the stager has ended."""
        yield from self.present()
        while self.follow_executions():
            yield from self.present()
        for file in self._files:
            yield from file.rest()

    def follow_executions(self) -> bool:
        """Opens the new logs of apps that were executed again. :returns: whether there are any. Call it when the
        present logs are read to their ends."""
        found = read_status_file(self._directory) if self.kept and not self._over else None
        changed = False
        for place, file in enumerate(self._files):
            status = None if found is None else found[0].get(file.app)
            if status is not None and status.log not in (None, file.name):
                file.close()
                self._files[place] = self._file(file.app, status.log)
                changed = True
        if self._newcomers and found is not None:
            changed = self._follow_newcomers(found[0]) or changed
        return changed

    def _follow_newcomers(self, told: Mapping[str, AppStatus]) -> bool:
        """Adds the logs of new apps; drops those of removed apps, which are read to their ends, since an app of
        the same name may be added again."""
        for file in [file for file in self._files if file.app not in told]:
            if file.app in self._outside or not os.path.lexists(f"{self._logs}/{file.name}"):
                file.close()
                self._files.remove(file)
                self._outside.discard(file.app)
        known = {file.app for file in self._files}
        new: list[tuple[str, str | OutsideLog]] = [
            (name, status.log) for name, status in told.items() if status.log and name not in known
        ]
        if any(status.log is None and status.started_at and name not in known for name, status in told.items()):
            found = log_places.outside_logs(_manifest(self._directory))
            new += [(name, log) for name in told if name not in known and (log := found.get(name)) is not None]
        self._files += [self._file(name, log) for name, log in new]
        return bool(new)

    def watched(self) -> list[str]:
        """The directories to watch for changes; the first exists."""
        first = self._logs if self.kept else f"{self._directory}/stager"
        return list(dict.fromkeys([first, *(file.directory for file in self._files if file.app in self._outside)]))

    def chains(self) -> list[LogChain]:
        return [file.chain for file in self._files]

    def share(self) -> None:
        """From now on, locks the unread logs, so that the stager keeps them when it rotates its logs."""
        self._shares = True
        for chain in self.chains():
            chain.share()

    def follow(
        self, ended: int, first: Choice = iter, then: Choice = iter, idle: Callable[[], None] = lambda: None
    ) -> Iterator[LogText]:
        """The present lines, then new ones, until the descriptor ``ended`` polls readable; then the rest.

        :param ended: a pidfd of the stager, for instance.
        :param first: filters the present lines, such as a tail; ``then`` filters the new ones.
        :param idle: called before each wait.
        :raises Cancelled: the operation that this thread works for was cancelled.
        """
        with Following(self) as following, CancellationFd() as cancelled:
            poll = select.poll()
            poll.register(cancelled, select.POLLIN)
            poll.register(following, select.POLLIN)
            poll.register(ended, select.POLLIN)
            over = False
            yield from first(self.present())
            while not over:
                yield from then(self.present())
                idle()
                ready = [fd for fd, _ in poll.poll()]
                if cancelled.fileno() in ready:
                    return
                over = ended in ready
                following.more()
            yield from then(self.rest())


class Following:
    """Polls readable when there may be new lines. No line is lost when a log is rotated while our reader is slow:
    a lock on each unread file asks the stager to keep it, and a thread opens each new file at once, for stagers
    that ignore the locks.

    :raises HostError: the directory of the logs is gone, or the host has no inotify watches left.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        with contextlib.ExitStack() as undo:
            self._watch = _watch(reader)
            undo.callback(self._watch.close)
            self._turns = _watch(reader, IN_CREATE | IN_MOVED_TO)
            undo.callback(self._turns.close)
            self._stop, self._stopper = os.pipe2(os.O_CLOEXEC)
            undo.pop_all()
        self._looks = 0
        self._thread = threading.Thread(target=self._hold, daemon=True)

    def __enter__(self) -> Following:
        self._reader.share()
        try:
            self._thread.start()
        except RuntimeError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._stopper)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._stop)
        self._watch.close()
        self._turns.close()

    def over(self) -> None:
        """Stops watching: no more lines will come. The kernel needs some milliseconds to release a watch; it can
        do that while other work is done."""
        self._watch.forget()
        self._turns.forget()

    def fileno(self) -> int:
        return self._watch.fileno()

    def more(self) -> None:
        """Clears the readable state; checks whether apps were executed again."""
        if self._watch.drain() & IN_CREATE:
            self._looks = _LOOKS
        # A log file exists a moment before the stager's status names its app.
        if self._looks:
            self._looks = 0 if self._reader.follow_executions() else self._looks - 1
            for watch in (self._watch, self._turns):
                _watch_more(self._reader, watch)

    def _hold(self) -> None:
        poll = select.poll()
        poll.register(self._turns, select.POLLIN)
        poll.register(self._stop, select.POLLHUP)
        while self._stop not in [fd for fd, _ in poll.poll()]:
            self._turns.drain()
            for chain in self._reader.chains():
                with contextlib.suppress(OSError):  # the reader meets the same error, and reports it
                    chain.look()


def _watch(reader: LogReader, *mask: int) -> SharedWatch:
    place = reader.watched()[0]
    try:
        watch = SharedWatch(place, *mask)
        _watch_more(reader, watch)
        return watch
    except OSError as error:
        raise HostError(
            f"cannot follow the logs in {place}: {os.strerror(error.errno or 0)}",
            hint="other programs use all inotify watches: raise sysctl fs.inotify.max_user_watches"
            if error.errno == errno.ENOSPC
            else None,
            errno=error.errno,
            path=place,
        ) from None


def _watch_more(reader: LogReader, watch: SharedWatch) -> None:
    """Watches the directories of logs outside of the pod's, too. One that does not exist yet is watched later."""
    for place in reader.watched()[1:]:
        with contextlib.suppress(FileNotFoundError):
            watch.also(place)


def _manifest(directory: str) -> dict[str, Any]:
    """The pod's manifest as JSON; empty: the pod is being removed."""
    try:
        with open(f"{directory}/pod.json", "rb") as file:
            found: dict[str, Any] = loads(file.read(), own=True)["manifest"]
    except FileNotFoundError:
        return {}
    return found
