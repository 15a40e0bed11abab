"""Waits until a descriptor is readable, or the operation is cancelled."""

from __future__ import annotations

import _socket
import select
from typing import TYPE_CHECKING

from kurma_core.cancellation import current
from kurma_core.linux.process import LONGEST_POLL

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Protocol

    class HasFileno(Protocol):
        def fileno(self) -> int: ...


class GivenUp:
    """For a ``with`` statement: polls readable once this thread's operation is cancelled; the end of the block
    then raises that."""

    def __init__(self) -> None:
        self._read, self._write = _socket.socketpair()
        # The callback must hold the socket, not ``self``: a reference cycle would stay until garbage collection.
        write = self._write
        self._waking = current().waking(lambda: write.send(b"."))

    def fileno(self) -> int:
        return self._read.fileno()

    def is_so(self) -> bool:
        return current().cancelled

    def __enter__(self) -> GivenUp:
        self._waking.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._read.close()
        self._write.close()
        self._waking.__exit__(kind, error, trace)


def wait_readable(timeout: float | None, *those: HasFileno | None) -> None:
    """Waits until one of the descriptors polls readable, or ``timeout`` seconds have passed; a few weeks at
    most."""
    poll = select.poll()
    for one in those:
        if one is not None:
            poll.register(one, select.POLLIN)
    poll.poll(None if timeout is None else min(max(0.0, timeout), LONGEST_POLL) * 1000)
