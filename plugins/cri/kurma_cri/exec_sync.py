"""Runs a command in a container to its end, and keeps its output within bounds, for the call ExecSync."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
from typing import TYPE_CHECKING

from kurma_core.api.pods import EnterRequest
from kurma_core.errors import CommandTimeoutError
from kurma_core.models.streams import Stdio
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import deadline_exceeded

if TYPE_CHECKING:
    from kurma_core.api.operations import Api

#: Most bytes of each output. A client of gRPC takes no message of 16 MiB: the rest is for the message's own bytes.
LONGEST = 16 << 20
WHOLE = LONGEST - 4096
_PIECE = 1 << 16
_F_SETPIPE_SZ = 1031
_PIPE = 1 << 18


def exec_sync(
    client: Api, pod: str, app: str, command: tuple[str, ...], timeout: int, *, contained: bool = True
) -> cri.ExecSyncResponse:
    """:param timeout: seconds; 0 or less: there is no limit.
    :param contained: what the command has started ends with it; every stager can run commands without that.

    :raises RpcError: the time is over; the command was killed with all that it had started.
    """
    request = EnterRequest(
        exec=command, app=app, timeout=float(timeout) if timeout > 0 else None, contained=contained
    )
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        outputs = _Outputs()
        stdio = Stdio(null, *outputs.ends, relayed=True)
        try:
            code = client.enter(pod, request, stdio)
        except CommandTimeoutError as error:
            raise deadline_exceeded(error.message) from None
        finally:
            outputs.finish()
    finally:
        os.close(null)
    stdout, stderr = outputs.data
    # Together they must fit in one message, too: standard error gives way.
    return cri.ExecSyncResponse(exit_code=code, stdout=stdout, stderr=stderr[: max(0, WHOLE - len(stdout))])


class _Outputs:
    """Pipes for standard output and error, and the thread that reads them: what is too much is dropped."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as undo:
            pipes = []
            for _ in range(2):
                pipes.append(os.pipe2(os.O_CLOEXEC))
                for end in pipes[-1]:
                    undo.callback(os.close, end)
            #: The write ends.
            self.ends = (pipes[0][1], pipes[1][1])
            self._kept = {read: bytearray() for read, _ in pipes}
            self._over = os.eventfd(0, os.EFD_CLOEXEC)
            undo.callback(os.close, self._over)
            for read, _ in pipes:
                os.set_blocking(read, False)
                # The user's limit of pipe memory may be reached.
                with contextlib.suppress(OSError):
                    fcntl.fcntl(read, _F_SETPIPE_SZ, _PIPE)
            self._thread = threading.Thread(target=self._run, name="exec-sync", daemon=True)
            self._thread.start()
            undo.pop_all()

    @property
    def data(self) -> tuple[bytes, bytes]:
        stdout, stderr = self._kept.values()
        return bytes(stdout), bytes(stderr)

    def finish(self) -> None:
        """Reads what has been written until now. A process that the command has left may hold the pipes for
        ever."""
        for end in self.ends:
            os.close(end)
        os.eventfd_write(self._over, 1)
        self._thread.join()
        for fd in (*self._kept, self._over):
            os.close(fd)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._over, select.POLLIN)
        for fd in self._kept:
            poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            for fd in ready:
                if fd in self._kept and not self._read(fd):
                    poll.unregister(fd)
            if self._over in ready:
                for fd in self._kept:
                    self._rest(fd)
                return

    def _read(self, fd: int) -> int:
        """:returns: the number of bytes; 0: the end."""
        try:
            data = os.read(fd, _PIECE)
        except BlockingIOError:
            return -1
        kept = self._kept[fd]
        kept += data[: max(0, WHOLE - len(kept))]
        return len(data)

    def _rest(self, fd: int) -> None:
        left = _PIPE
        while left > 0 and (count := self._read(fd)) > 0:
            left -= count
