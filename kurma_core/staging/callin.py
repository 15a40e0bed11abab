"""Runs call-ins of a running stager (Kurma Stager Specification, Call Ins).

A call-in is a program of the stager's image. It runs in the stager's mount and network namespaces, in its own
session, with pipes or a terminal of Kurma (:mod:`kurma_core.staging.relay`), and may get a document on descriptor
3.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

from kurma_core.errors import StagerError
from kurma_core.hookspecs.stager import CallInHooks
from kurma_core.linux import process
from kurma_core.linux.beneath import open_in_root
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.process import DEFAULT_PATH
from kurma_core.linux.programs import exit_code
from kurma_core.spawn_plan import EnterPlan
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.hookspecs.stager import RunningStagerHooks
    from kurma_core.models.streams import Stdio
    from kurma_core.spawn_plan import Starter

_SIOCOUTQ = 0x5411
# The signal by which ``run`` kills a contained command, with all that it has started.
_KILL_COMMAND = signal.SIGALRM
# Seconds between SIGTERM and SIGKILL for a call-in.
_PATIENCE = 3.0
_ENVIRONMENT = {"PATH": DEFAULT_PATH}


def has_call_in(running: RunningStagerHooks, verb: str) -> bool:
    """Whether the stager's root has that call-in. Symbolic links are resolved inside of that root."""
    try:
        root = os.open(f"/proc/{running.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # The stager is still alive, so its PID was not reused when the root was opened.
        if not running.alive():
            return False
        os.close(open_in_root(root, f"opt/stager/{verb}", os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


@frozen
class StagerTimes:
    """Timeouts of stagers and call-ins, and limits of logs.

    :param stop: seconds between SIGTERM and SIGKILL for an app.
    :param log_size: bytes after which an app's log is rotated; ``log_count`` files are kept.
    :param status: seconds that a ``status`` call-in may take.
    :param document: seconds in which a call-in must have read its document to the end.
    :param change: seconds that the ``app-add`` and ``app-rm`` call-ins may take.
    """

    stop: float = 10.0
    log_size: int = 16 << 20
    log_count: int = 5
    status: float = 10.0
    document: float = 10.0
    change: float = 30.0


class CallIn(CallInHooks):
    """A running call-in.

    :param document_timeout: seconds in which the call-in must have read the document.
    :param cgroup: the pod's cgroup; the call-in runs in a child of it, so that it ends with the pod.
    :raises CommandNotFoundError: the stager has no such call-in.
    :raises StagerError: it cannot be entered.
    """

    def __init__(
        self,
        spawner: Starter,
        pid: int,
        pidfd: int,
        cgroup: str,
        argv: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None,
        document_timeout: float,
    ) -> None:
        self._document_timeout = document_timeout
        self._signals = stdio.signals
        self._ended = False
        self._lock = threading.Lock()
        self._verb = os.path.basename(argv[0])
        home = CgroupTree(f"{cgroup}/callins")
        home.create()
        fds = {0: stdio.stdin, 1: stdio.stdout, 2: stdio.stderr}
        self._ours: socket.socket | None = None
        theirs: socket.socket | None = None
        if document is not None:
            self._ours, theirs = socket.socketpair()
            fds[3] = theirs.fileno()
        try:
            self._process = spawner.enter(
                EnterPlan(
                    pid=pid,
                    pidfd=pidfd,
                    argv=argv,
                    environment=_ENVIRONMENT,
                    cgroup=tuple(home.directories()),
                    fds=fds,
                    # A new session, since /dev/tty would be the caller's terminal otherwise.
                    new_session=True,
                    controlling_tty=stdio.terminal and stdio.relayed,
                    # Without the parent, the answer has no reader. SIGTERM, so that the call-in can pass it on to
                    # the command that it runs.
                    parent_death_signal=signal.SIGTERM,
                )
            )
        except BaseException:
            if self._ours is not None:
                self._ours.close()
            if process.wait_pidfd(pidfd, 0):
                # The pod has ended. If its cgroup was removed before we made the call-ins' cgroup, then we must
                # remove that.
                with contextlib.suppress(OSError):
                    home.remove()
            raise
        finally:
            if theirs is not None:
                theirs.close()
        self._document = document or b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def give_up(self) -> None:
        """Kills the call-in while another thread waits for it. It may be called after the end."""
        with self._lock:
            if not self._ended:
                self._signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Passes the document, and waits for the end. :returns: the exit code, 128+N for signal N.

        :raises StagerError: the document was not read in time, or the timeout is over; the call-in is killed.
        """
        try:
            code = self._wait(timeout)
        finally:
            with self._lock:
                self._ended = True
            if self._ours is not None:
                self._ours.close()
            os.close(self._process.pidfd)
        if code is None:
            raise StagerError(f"the exit status of the stager's call-in {self._verb!r} is not known")
        return exit_code(code)

    def wait_contained(self, timeout: float | None) -> int | None:
        """Waits for the end of a contained command, as :meth:`wait`; see the hook of this name.

        :returns: the exit code; None: the time was over.
        :raises Cancelled: this thread's operation was cancelled.
        """
        from kurma_core.cancellation import CancellationFd

        deadline = None if timeout is None else time.monotonic() + timeout
        with CancellationFd() as cancelled:
            try:
                if self._ours is not None:
                    self._hand_over(self._ours)
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not (over := self._wait_ended(left, cancelled.fileno())):
                    self._signal(_KILL_COMMAND)
                    if not process.wait_pidfd(self._process.pidfd, _PATIENCE):
                        raise StagerError(f"the stager's call-in {self._verb!r} does not end: its command hangs")
                code = process.exit_status(self._process.pidfd)
            except BaseException:
                self._kill()
                raise
            finally:
                with self._lock:
                    self._ended = True
                if self._ours is not None:
                    self._ours.close()
                os.close(self._process.pidfd)
        if over and code is None:
            raise StagerError(f"the exit status of the stager's call-in {self._verb!r} is not known")
        return exit_code(code) if over and code is not None else None

    def end(self) -> None:
        """Ends the call-in by SIGTERM, or SIGKILL after a timeout.

        It can be repeated, and does nothing after :meth:`wait`.
        """
        if self._ended:
            return
        self._ended = True
        self._signal(signal.SIGTERM)
        if not process.wait_pidfd(self._process.pidfd, _PATIENCE):
            self._kill()
        process.exit_status(self._process.pidfd)
        if self._ours is not None:
            self._ours.close()
        os.close(self._process.pidfd)

    def _wait(self, timeout: float | None) -> int | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            if self._ours is not None:
                self._hand_over(self._ours)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._wait_ended(left):
                raise StagerError(f"the stager's call-in {self._verb!r} did not answer within {timeout:g} s")
            return process.exit_status(self._process.pidfd)
        except BaseException:
            self._kill()
            raise

    def _wait_ended(self, timeout: float | None, cancelled: int = -1) -> bool:
        """Waits for the end, and passes signals on meanwhile. :returns: False: it has not ended in time.

        :param cancelled: a descriptor that polls readable once the wait is to end; -1: there is none.
        """
        if self._signals < 0 and cancelled < 0:
            return process.wait_pidfd(self._process.pidfd, timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._process.pidfd, select.POLLIN)
        for fd in (self._signals, cancelled):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while True:
            left = None if deadline is None else min(max(0.0, deadline - time.monotonic()), process.LONGEST_POLL)
            ready = [fd for fd, _ in poll.poll(None if left is None else left * 1000)]
            if self._process.pidfd in ready or not ready:
                if ready or (deadline is not None and time.monotonic() >= deadline):
                    return bool(ready)
                continue
            if cancelled in ready:
                return False
            numbers = os.read(self._signals, 64)
            if not numbers:  # the caller has gone
                poll.unregister(self._signals)
                numbers = bytes([signal.SIGTERM])
            for number in numbers:
                self._signal(number)

    def answer(self, output: int, limit: int, timeout: float) -> tuple[bytes, int]:
        """Reads the output of a call-in without a document, to its end. :returns: the output and the exit code.

        :param output: the read end of its standard output, a pipe.
        :param limit: bytes: a call-in that prints more is killed, and one byte more is returned.
        :raises StagerError: the call-in does not end in time, and is killed.
        """
        deadline = time.monotonic() + timeout
        poll = select.poll()
        for fd in (output, self._process.pidfd):
            poll.register(fd, select.POLLIN)
        text = b""
        while len(text) <= limit and (left := deadline - time.monotonic()) > 0:
            ready = [fd for fd, _ in poll.poll(left * 1000)]
            if output not in ready:
                break  # it has ended or timed out; a process that it has started may hold the pipe open for ever
            more = os.read(output, limit + 1 - len(text))
            if not more:
                break
            text += more
        if len(text) > limit:
            self._signal(signal.SIGKILL)
        if not process.wait_pidfd(self._process.pidfd, max(0.0, deadline - time.monotonic())):
            with contextlib.suppress(StagerError):
                self.wait(0.0)  # kills it
            raise StagerError(f"the stager's call-in {self._verb!r} did not answer within {timeout:g} s")
        return text, self.wait()

    def _signal(self, number: int) -> bool:
        """:returns: False: the call-in has ended, and was reaped."""
        try:
            process.pidfd_send_signal(self._process.pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def _kill(self) -> None:
        if not self._signal(signal.SIGKILL):
            return
        process.wait_pidfd(self._process.pidfd, 5)
        process.exit_status(self._process.pidfd)

    def _hand_over(self, sock: socket.socket) -> None:
        """Writes the document and its end, and waits until it is read. :raises StagerError: it is not, in time."""
        deadline = time.monotonic() + self._document_timeout
        sock.settimeout(self._document_timeout)
        try:
            sock.sendall(self._document)
            sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            if isinstance(error, TimeoutError) or error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise self._unread() from None
            return  # the call-in has closed the descriptor early: its exit code tells whether it has failed
        poll = select.poll()
        poll.register(sock, select.POLLRDHUP | select.POLLHUP)
        poll.register(self._process.pidfd, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if self._unread_bytes(sock) == 0 or poll.poll(min(left, 0.1) * 1000):
                return
        raise self._unread()

    @staticmethod
    def _unread_bytes(sock: socket.socket) -> int:
        answer = fcntl.ioctl(sock, _SIOCOUTQ, b"\0\0\0\0")
        return int(struct.unpack("i", answer)[0])

    def _unread(self) -> StagerError:
        return StagerError(
            f"the stager's call-in {self._verb!r} did not read its document within {self._document_timeout:g} s"
        )
