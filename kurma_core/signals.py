"""Ctrl-C, SIGTERM and SIGHUP: raised as exceptions while a command works, read from a descriptor while a pod runs.

All of it may run in the middle of an import, so it imports only what is loaded by then or built into Python.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys
import time

from kurma_core.errors import Interrupted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import Handlers
    from types import FrameType, TracebackType

#: Seconds until a signal is sent again.
_LATER = 0.001
#: Python's import system. An exception in some of its steps leaves its locks held for ever, and every other thread
#: that imports waits for them (CPython, ``importlib._bootstrap._get_module_lock``).
_IMPORTING = "<frozen importlib._bootstrap>"
_SIGNALS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)


def raise_signals(over: Callable[[], bool] = bool) -> None:
    """From now on SIGINT raises KeyboardInterrupt, SIGTERM and SIGHUP raise :class:`Interrupted`, so that
    half-made things are undone. A signal that this process was started to ignore (nohup) stays ignored.

    :param over: whether the command has ended: the process reports how and exits, and signals do nothing.
    """

    def came(number: int, frame: FrameType | None) -> None:
        if over() or _postponed(number, frame):
            return
        if number == _signal.SIGINT:
            raise KeyboardInterrupt
        raise Interrupted(number)

    # Before the handlers: no signal may come between.
    sys.unraisablehook = _send_lost_again
    for number in _SIGNALS:
        if _signal.getsignal(number) in (_signal.SIG_DFL, _signal.default_int_handler):
            _signal.signal(number, came)


def _send_lost_again(lost: sys.UnraisableHookArgs) -> None:
    """Sends a signal again whose exception Python drops, as it does in destructors: Ctrl-C must not be lost."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        _send_again(_signal.SIGINT)
    elif isinstance(lost.exc_value, Interrupted):
        _send_again(lost.exc_value.number)
    else:
        sys.__unraisablehook__(lost)


def _postponed(number: int, frame: FrameType | None) -> bool:
    """Sends a signal again, a moment later, if it has interrupted a step of an import. :returns: whether it has.

    :param frame: that was interrupted, as the signal's handler gets it.
    """
    if frame is None or frame.f_code.co_filename != _IMPORTING:
        return False
    _send_again(number)
    return True


def _send_again(number: int) -> None:
    """Sends the signal to this process from a thread: at once, it would interrupt the same step."""

    def again() -> None:
        time.sleep(_LATER)
        os.kill(os.getpid(), number)

    _thread.start_new_thread(again, ())


class Signals:
    """SIGINT, SIGTERM and SIGHUP: the first one raises :class:`Interrupted` while ``raising`` is set; all others
    only make the descriptor readable. So no teardown is ever interrupted by a second Ctrl-C.

    The interpreter writes to the descriptor (``set_wakeup_fd``), not the handler: a signal that comes just before
    poll(2) does not interrupt it, and the handler would not run until something else does.

    :param taken: whether there are any: in a thread of a daemon there are none.
    :param also: others, that never raise.
    """

    def __init__(self, *, taken: bool = True, also: tuple[int, ...] = ()) -> None:
        self.raising = True
        self._taken = (*_SIGNALS, *also) if taken else ()
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._outer = -1
        self._numbers = bytearray()
        self._old: dict[int, Handlers | int | Callable[[int, FrameType | None], object] | None] = {}

    def __enter__(self) -> Signals:
        if self._taken:
            self._outer = _signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self._taken:
            # A signal that is ignored from the start (nohup) stays ignored.
            if _signal.getsignal(number) != _signal.SIG_IGN:
                self._old[number] = _signal.signal(number, self._came)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for number, old in self._old.items():
            _signal.signal(number, old)
        if self._taken:
            _signal.set_wakeup_fd(self._outer)
        os.close(self._read)
        os.close(self._write)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.raising and number in _SIGNALS:
            if _postponed(number, frame):
                return
            self.raising = False
            raise Interrupted(number)
        self._numbers.append(number)

    def settle(self) -> None:
        """From here on, signals only make the descriptor readable."""
        self.raising = False

    def fileno(self) -> int:
        return self._read

    def numbers(self) -> bytes:
        """Those that came since the last time."""
        try:  # noqa: SIM105 - contextlib is not light
            os.read(self._read, 64)
        except BlockingIOError:
            pass
        numbers, self._numbers = self._numbers, bytearray()
        return bytes(numbers)
