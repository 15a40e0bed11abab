"""Runs a pod in the foreground: shows its logs as they are written, and stops it on Ctrl-C and other signals.

The apps write to log files, and this process only reads these: if it is stopped, slow or killed, the apps are not
affected.
"""

from __future__ import annotations

import os
import select
import stat
from _collections_abc import Callable, Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class CanStop(Protocol):
        def stop(self, *, force: bool) -> None: ...

    from kurma_core.linux.inotify import SharedWatch
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.streams import LogText
    from kurma_core.pods.log_places import OutsideLog
    from kurma_core.pods.run.owner import OwnedPod
    from kurma_core.signals import Signals

#: Lines shown between two checks for a signal.
_LINES_BETWEEN_LOOKS = 64


def run_to_end(
    pod: OwnedPod,
    apps: Sequence[tuple[str, str | OutsideLog]],
    signals: Signals,
    output: Callable[[LogText], None],
    stdout: int,
    ending: Callable[[], None],
) -> PodRecord:
    """Shows the pod's logs until it ends; the first signal asks it to stop, the second ends it by force.

    :param apps: see :class:`kurma_core.pods.inside.logs.LogReader`.
    :param output: called with each line; its ``flush``, if it has one, is called when there are no more lines for
        now. If it raises BrokenPipeError, the reader is gone, and the pod is stopped.
    :param stdout: descriptor of the output. If it is a pipe or a socket whose reader is gone, the pod is stopped
        even if it writes nothing.
    :param ending: called once, when the pod is asked to stop or has ended.
    """
    from kurma_core.pods.inside.logs import Following, LogReader

    with (
        LogReader(pod.directory, apps, newcomers=True) as reader,
        Following(reader) as following,
        _Watching(pod) as status,
    ):
        shown = Shown(output)
        stops = Stops(pod, signals, ending)
        poll = select.poll()
        for each in (following, signals, pod):
            poll.register(each, select.POLLIN)
        if has_reader(stdout):
            poll.register(stdout, 0)
        if status is not None:
            poll.register(status, select.POLLIN)
        pod.tell_apps()
        ready: list[int] = []
        while pod.fileno() not in ready:
            _show(reader.present(), shown, stops)
            if shown.closed() and not stops.asked:
                poll.unregister(following)
                stops.ask()
            ready = [fd for fd, _ in poll.poll()]
            if stdout in ready:
                poll.unregister(stdout)
                shown.close()
            stops.look()
            if status is not None and status.fileno() in ready:
                status.drain()
                pod.tell_apps()
            following.more()
        following.over()
        stops.end()
        _show(reader.rest(), shown, stops)
        return pod.finish()


class _Watching:
    """Watches the directory to which the stager writes its status; None: the host has no watches left."""

    def __init__(self, pod: OwnedPod) -> None:
        from kurma_core.linux.inotify import IN_CLOSE_WRITE, IN_MOVED_TO, SharedWatch

        self._watch: SharedWatch | None = None
        try:  # noqa: SIM105 - contextlib takes long to import in a command that goes by way of kurmad
            self._watch = SharedWatch(f"{pod.directory}/pod", IN_MOVED_TO | IN_CLOSE_WRITE)
        except OSError:
            pass

    def __enter__(self) -> SharedWatch | None:
        return self._watch

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.close()


def _show(lines: Iterator[LogText], shown: Shown, stops: Stops) -> None:
    """Shows lines until the output is closed; checks for signals in between, so that an app that never stops
    writing can be stopped."""
    if shown.closed():
        return
    for number, line in enumerate(lines):
        shown(line)
        if shown.closed():
            return
        if number % _LINES_BETWEEN_LOOKS == 0:
            stops.look()
    shown.flush()


def has_reader(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False  # standard output is closed
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class Stops:
    """Asks the pod to stop at the first signal, and ends it by force at the second."""

    def __init__(self, pod: CanStop, signals: Signals, ending: Callable[[], None]) -> None:
        self._pod = pod
        self._ending = ending
        self._ends = False
        self._signals = signals
        self.asked = 0

    def look(self) -> None:
        for _ in self._signals.numbers():
            self.ask()

    def end(self) -> None:
        if not self._ends:
            self._ends = True
            self._ending()

    def ask(self) -> None:
        self.end()
        self._pod.stop(force=self.asked > 0)
        self.asked += 1


class Shown:
    """An output that ignores lines once its reader has closed the pipe."""

    def __init__(self, output: Callable[[LogText], None]) -> None:
        self._output: Callable[[LogText], None] | None = output
        self._flush: Callable[[], None] = getattr(output, "flush", lambda: None)

    def __call__(self, line: LogText) -> None:
        if self._output is None:
            return
        try:
            self._output(line)
        except BrokenPipeError:
            self.close()

    def flush(self) -> None:
        if self._output is None:
            return
        try:
            self._flush()
        except BrokenPipeError:
            self.close()

    def close(self) -> None:
        self._output = None

    def closed(self) -> bool:
        return self._output is None
