"""Reads app logs by the ``logs`` call-in, for stagers that keep no log files."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kurma_core.cancellation import CancellationFd
from kurma_core.errors import KurmaError, StagerError
from kurma_core.formats.timestamps import stamp
from kurma_core.models.streams import LogText, Stdio

if TYPE_CHECKING:
    from kurma_core.hookspecs.stager import RunningStagerHooks, StagerHooks

_CHUNK = 1 << 16


def arguments(
    app: str,
    *,
    follow: bool = False,
    tail: int | None = None,
    since: int | None = None,
    stream: str | None = None,
) -> tuple[str, ...]:
    """Arguments of the call-in. :param since: nanoseconds since the epoch."""
    words = [app]
    if follow:
        words.append("--follow")
    if tail is not None:
        words += ["--tail", str(tail)]
    if since is not None:
        words += ["--since", stamp(max(0, since)).decode()]
    if stream is not None:
        words += ["--stream", stream]
    return tuple(words)


def called_logs(
    driver: StagerHooks,
    directory: str,
    stager: RunningStagerHooks,
    words: tuple[str, ...],
    idle: Callable[[], None],
) -> Iterator[LogText]:
    """The output of the call-in as it is printed: without times, and all as standard output.

    :param words: see :func:`arguments`.
    :param idle: called before each wait.
    :raises StagerError: the call-in fails, or the stager has none.
    """
    call = _Call(driver, directory, stager, words)
    try:
        while data := call.read(idle):
            whole, newline, rest = data.rpartition(b"\n")
            if newline:
                yield LogText(words[0], "", "stdout", False, whole)
            if rest:
                yield LogText(words[0], "", "stdout", True, rest)
        call.check()
    finally:
        call.close()


class _Call:
    """Runs the call-in and waits for its end in a thread: it may print for as long as the pod runs."""

    def __init__(
        self, driver: StagerHooks, directory: str, stager: RunningStagerHooks, words: tuple[str, ...]
    ) -> None:
        self._said = os.memfd_create("errors", os.MFD_CLOEXEC)
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.output, self._out = os.pipe2(os.O_CLOEXEC)
        self._ended, self._end = os.pipe2(os.O_CLOEXEC)
        self._code = 0
        self._error: KurmaError | None = None
        self._thread = threading.Thread(target=self._run, args=(driver, directory, stager, words), daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            for fd in (self._said, self._null, self.output, self._out, self._ended, self._end):
                os.close(fd)
            raise

    def _run(
        self, driver: StagerHooks, directory: str, stager: RunningStagerHooks, words: tuple[str, ...]
    ) -> None:
        try:
            stdio = Stdio(self._null, self._out, self._said, relayed=True)
            self._code = driver.call(directory, stager, "logs", words, stdio, None)
        except KurmaError as error:
            self._error = error
        finally:
            os.close(self._out)
            os.close(self._end)

    def read(self, idle: Callable[[], None]) -> bytes:
        """A piece of its output; empty once the call-in itself has ended, since programs that it started may keep
        the pipe open."""
        poll = select.poll()
        poll.register(self.output, select.POLLIN)
        poll.register(self._ended, select.POLLHUP)
        with CancellationFd() as cancelled:
            poll.register(cancelled, select.POLLIN)
            idle()
            ready = [fd for fd, _ in poll.poll()]
        return os.read(self.output, _CHUNK) if self.output in ready else b""

    def check(self) -> None:
        """Called after the end of its output. :raises StagerError: it failed."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._code:
            said = os.pread(self._said, 4096, 0).decode(errors="replace").strip().splitlines()
            why = f": {said[-1]}" if said else ""
            raise StagerError(f"the stager's call-in 'logs' ended with status {self._code}{why}")

    def close(self) -> None:
        # A call-in that still prints gets EPIPE; one that waits ends when this process does.
        os.close(self.output)
        os.close(self._ended)
        if not self._thread.is_alive():
            os.close(self._null)
            os.close(self._said)
