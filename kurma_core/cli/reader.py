"""Whether somebody still reads standard output: for commands that wait for what others do, and would not see."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import select
import stat

from kurma_core.cli.session import OutputClosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

#: Ignored unless somebody takes it, and nobody else does.
_SIGNAL = _signal.SIGURG


class _Gone(BaseException):
    """Past whatever takes errors of the system."""


class WhileRead:
    """For a ``with`` statement, in the main thread: what is done inside ends when standard output is a pipe or a
    socket whose reader goes away, even if nothing is written.

    :param wanted: else nothing is looked at.
    :raises OutputClosed: at the end of the block: it has gone.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted and _is_read()
        self._over = False

    def __enter__(self) -> None:
        if self._wanted:
            self._stop, self._stopper = os.pipe2(os.O_CLOEXEC)
            self._old = _signal.signal(_SIGNAL, self._came)
            _thread.start_new_thread(self._watch, (_thread.get_ident(),))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if self._wanted:
            _signal.signal(_SIGNAL, self._old)
            os.close(self._stopper)
        if kind is _Gone:
            raise OutputClosed from None

    def _came(self, *_: object) -> None:
        if not self._over:
            raise _Gone

    def _watch(self, main: int) -> None:
        poll = select.poll()
        poll.register(1, 0)
        poll.register(self._stop, select.POLLHUP)
        ready = [fd for fd, _ in poll.poll()]
        os.close(self._stop)
        if self._stop not in ready:
            _signal.pthread_kill(main, _SIGNAL)


def _is_read() -> bool:
    try:
        mode = os.fstat(1).st_mode
    except OSError:
        return False  # it is closed: nobody was ever there
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
