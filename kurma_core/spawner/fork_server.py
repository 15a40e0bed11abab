"""The fork server: a program that has loaded its modules, and forks on request, so that each process of it starts
sooner and shares memory with the others.

It is started like every program, in a root of its own, and gets requests on a socket, its descriptor 6. Only the
process that started it holds the other end: if that process ends, the fork server ends, too.
"""

from __future__ import annotations

import _socket
import os
import signal
from typing import TYPE_CHECKING

from kurma_core.linux import libc, process
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.spawn_plan import SpawnPlan, Started

#: The descriptor of the program on which it gets requests.
REQUESTS = 6
#: Seconds to wait for room for a request, and for the end of a killed fork server.
_PATIENCE = 10


class ForkServer:
    """A running fork server.

    :param key: a digest of its program. :param start: starts the program.
    :raises KurmaError: as ``start``.
    """

    def __init__(self, key: str, plan: SpawnPlan, start: Callable[[SpawnPlan], Started]) -> None:
        self.key = key
        self._socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
        self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, libc.words(_PATIENCE, 0))
        try:
            started = start(replace(plan, fds={REQUESTS: theirs.fileno()}, new_session=True))
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self.pid, self._pidfd = started.pid, started.pidfd

    def fileno(self) -> int:
        """The socket for requests."""
        return self._socket.fileno()

    def alive(self) -> bool:
        return self._pidfd >= 0 and not process.wait_pidfd(self._pidfd, 0)

    def end(self) -> None:
        """Kills the fork server, and waits for its end. Processes that it has forked live on. Repeatable."""
        if self._pidfd < 0:
            return
        self._socket.close()
        pidfd, self._pidfd = self._pidfd, -1
        try:  # noqa: SIM105 - contextlib is not light
            process.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait_pidfd(pidfd, _PATIENCE)
        process.exit_status(pidfd)
        os.close(pidfd)
