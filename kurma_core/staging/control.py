"""Sends requests to a running stager's control socket, instead of starting call-ins
(docs/reference/stager_protocol.md, "Control socket"). The stager's answers are untrusted."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any

from kurma_core.cancellation import CancellationFd
from kurma_core.errors import StagerError
from kurma_core.hookspecs.stager import CallInHooks
from kurma_core.json_text import loads
from kurma_core.linux.beneath import open_in_root
from kurma_core.linux.descriptor_passing import packed
from kurma_core.linux.process import LONGEST_POLL
from kurma_core.value import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kurma_core.hookspecs.stager import RunningStagerHooks
    from kurma_core.models.streams import Stdio

_PATH = "run/kurma/control"
_PACKET = 65536
#: Seconds in which the stager accepts a connection, and in which it ends a command that it was asked to kill.
_ACCEPTS, _KILLS = 10.0, 5.0
_TURN = 0.005
_SIGTERM, _SIGALRM = 15, 14


class Conversation:
    """One conversation with a stager: a request and its answers, each a packet of JSON.

    :param fds: descriptors for the stager.
    :raises StagerError: the stager has ended, or does not take the request.
    """

    def __init__(self, running: RunningStagerHooks, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self.socket.setblocking(False)
            _connect(self.socket, running)
            self.say(request, fds)
        except OSError as error:
            self.socket.close()
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT, errno.EPIPE, errno.ECONNRESET):
                raise _has_ended() from None
            raise StagerError(f"the pod's stager takes no request: {error.strerror}") from None
        except BaseException:
            self.socket.close()
            raise

    def say(self, value: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Sends a packet. :raises OSError: it cannot be sent."""
        self.socket.sendmsg([json.dumps(value).encode()], packed(fds))

    def hear(self) -> dict[str, Any]:
        """The next answer, once the socket polls readable. Descriptors that come with it are dropped.

        :raises StagerError: the stager refuses the request, has ended, or broke the protocol.
        """
        try:
            data = self.socket.recv(_PACKET + 1)
        except BlockingIOError:
            return {}
        except OSError:
            data = b""
        if not data:
            raise _has_ended()
        try:
            value = loads(data, own=True)
        except ValueError as error:
            raise StagerError(f"the stager is wrong: an answer of its control socket: {error}") from None
        if not isinstance(value, dict):
            raise StagerError("the stager is wrong: an answer of its control socket is not a JSON object")
        if "error" in value:
            code = value.get("code")
            raise StagerError(
                f"the stager refuses: {_sane(value['error'])}", status=code if type(code) is int else 1
            )
        return value

    def close(self) -> None:
        self.socket.close()


def _connect(sock: socket.socket, running: RunningStagerHooks) -> None:
    """Connects to the socket in the stager's root. :raises OSError: it is not possible."""
    end = time.monotonic() + _ACCEPTS
    root = os.open(f"/proc/{running.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not running.alive():
            raise _has_ended()  # the root may be another process's, with the same PID
        place = open_in_root(root, _PATH, os.O_PATH)
    finally:
        os.close(root)
    try:
        while True:
            try:
                sock.connect(f"/proc/self/fd/{place}")
                return
            except BlockingIOError:  # its backlog is full
                if time.monotonic() >= end or not running.alive():
                    raise
                time.sleep(_TURN)
    finally:
        os.close(place)


def _has_ended() -> StagerError:
    return StagerError("the pod's stager has ended")


def _sane(text: object) -> str:
    """The text of an error on one line, of at most 2048 printable characters."""
    from kurma_core.linux.programs import one_line

    words = text if isinstance(text, str) else "an error without a text"
    return one_line(words.encode("utf-8", "replace").decode())[-2048:]


def ask(
    running: RunningStagerHooks,
    words: tuple[str, ...],
    timeout: float,
    document: bytes | None = None,
    *,
    cancellable: bool = False,
) -> None:
    """Requests a change of an app, and waits until it is done.

    :param words: name and arguments of the call-in that does the same.
    :param document: of a new app.
    :param cancellable: the wait ends when this thread's operation is cancelled; the stager still does the work.
    :raises StagerError: the stager refuses, has ended, or does not answer in time.
    """
    verb, app, *rest = words
    request: dict[str, Any] = {"do": verb.removeprefix("app-"), "app": app}
    if rest:
        request["timeout"] = float(rest[1])
    fds = [] if document is None else [_file(document)]
    try:
        conversation = Conversation(running, request, fds)
    finally:
        for fd in fds:
            os.close(fd)
    try:
        poll = select.poll()
        poll.register(conversation.socket, select.POLLIN)
        if not cancellable:
            ready = poll.poll(min(timeout, LONGEST_POLL) * 1000)
        else:
            with CancellationFd() as cancelled:
                poll.register(cancelled, select.POLLIN)
                ready = poll.poll(min(timeout, LONGEST_POLL) * 1000)
        if not ready:
            raise StagerError(f"the stager's call-in {verb!r} did not answer within {timeout:g} s")
        conversation.hear()
    finally:
        conversation.close()


def _file(content: bytes) -> int:
    fd = os.memfd_create("document", os.MFD_CLOEXEC)
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
    return fd


@frozen
class _End:
    """How the wait for a command ended. :param code: None: it was killed."""

    code: int | None


class ForkedCommand(CallInHooks):
    """A contained command without a terminal, which the stager starts itself: it does the work of the call-in
    ``run`` in a child of its own, so that no interpreter is started.

    :param stdio: relayed.
    :raises StagerError: the stager has ended, or refuses.
    """

    def __init__(self, running: RunningStagerHooks, app: str, stdio: Stdio, document: bytes) -> None:
        self._signals = stdio.signals
        file = _file(document)
        try:
            request = {"do": "run", "app": app}
            self._conversation = Conversation(running, request, [stdio.stdin, stdio.stdout, stdio.stderr, file])
        finally:
            os.close(file)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end. :returns: the exit code. :raises StagerError: the time is over; it was killed."""
        code = self.wait_contained(timeout)
        if code is None:
            raise StagerError(f"the stager's call-in 'run' did not answer within {timeout:g} s")
        return code

    def wait_contained(self, timeout: float | None) -> int | None:
        """See the hook of this name. :raises Cancelled: this thread's operation was cancelled."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            with CancellationFd() as cancelled:
                found = self._wait(deadline, cancelled.fileno())
                if found.code is None:
                    self._kill()
                return found.code
        finally:
            self._conversation.close()

    def end(self) -> None:
        """Kills the command. It can be repeated."""
        if self._conversation.socket.fileno() >= 0:
            self._kill()
            self._conversation.close()

    def _wait(self, deadline: float | None, cancelled: int) -> _End:
        poll = select.poll()
        fds = [self._conversation.socket.fileno(), cancelled]
        for fd in (*fds, *([self._signals] if self._signals >= 0 else [])):
            poll.register(fd, select.POLLIN)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = [fd for fd, _ in poll.poll(None if left is None else min(left, LONGEST_POLL) * 1000)]
            if fds[0] in ready:
                code = self._code(self._conversation.hear())
                if code is not None:
                    return _End(code)
            elif cancelled in ready or (deadline is not None and time.monotonic() >= deadline):
                return _End(None)
            elif self._signals in ready:
                numbers = os.read(self._signals, 64)
                if not numbers:  # the caller has gone
                    poll.unregister(self._signals)
                for number in numbers or bytes([_SIGTERM]):
                    self._say_signal(number)

    @staticmethod
    def _code(answer: dict[str, Any]) -> int | None:
        """The exit code of an answer; None: it has none. :raises StagerError: it is malformed."""
        code = answer.get("exited")
        if code is not None and not (type(code) is int and 0 <= code <= 255):
            raise StagerError("the stager is wrong: the exit code of a command is not a number from 0 to 255")
        return code

    def _say_signal(self, number: int) -> None:
        try:
            self._conversation.say({"signal": number})
        except OSError:
            return  # the stager has ended, which hear() reports

    def _kill(self) -> None:
        """Kills the command with all that it has started, and waits a limited time for their end."""
        self._say_signal(_SIGALRM)
        end = time.monotonic() + _KILLS
        poll = select.poll()
        poll.register(self._conversation.socket, select.POLLIN)
        while (left := end - time.monotonic()) > 0 and poll.poll(left * 1000):
            try:
                if self._code(self._conversation.hear()) is not None:
                    return
            except StagerError:
                return  # the pod has ended
        raise StagerError("the stager's call-in 'run' does not end: its command hangs")
