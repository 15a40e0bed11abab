"""The caller's terminal, lent to a call-in (H8): it switches it to raw mode, and puts it back at its end."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

from kurma_core.linux import process, terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Self

    _Handler = signal.Handlers | int | Callable[[int, FrameType | None], object] | None

#: What a call-in is to know of: it ends then as it has to, and we with it; or the window has another size.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)


class LentTerminal:
    """Made while the terminal is as it should be. As a context, signals go to the call-in; at its end, the
    terminal is as it was: who may be killed with its pod cannot promise to see to that.

    :param fd: of the terminal.
    """

    def __init__(self, fd: int) -> None:
        self._pidfd = -1
        self._held = terminal.Held(fd)
        self._old: dict[int, _Handler] = {}

    def to(self, pidfd: int) -> Self:
        """:param pidfd: the call-in."""
        self._pidfd = pidfd
        return self

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _PASSED_ON:
                # Who was started with a signal ignored (nohup) goes on ignoring it.
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._old[number] = signal.signal(number, self._pass_on)
        return self

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.pidfd_send_signal(self._pidfd, number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._held.restore()
        for number, old in self._old.items():
            signal.signal(number, old)
