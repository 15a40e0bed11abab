"""What the supervisor sleeps in: descriptors that it watches, and moments that it waits for."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    #: Given the descriptor and its events (``select.POLLIN`` and so on).
    Handler = Callable[[int, int], None]

#: Milliseconds: what poll(2) can wait for is less than 25 days.
_LONGEST = 2_000_000_000


class Loop:
    """Calls back; it sleeps while nothing happens, however long that is.

    A descriptor may have been closed and its number taken again by the time of a callback of the same turn: so all
    of them are non-blocking, and a callback takes it that there may be nothing to read.
    """

    __slots__ = ("_handlers", "_poll", "_timers")

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Handler] = {}
        self._timers: dict[object, tuple[float, Callable[[], None]]] = {}

    def watch(self, fd: int, handler: Handler, events: int = select.POLLIN) -> None:
        """From now on; again for the same descriptor, it replaces handler and events."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """To be called before the descriptor is closed. One that is not watched is left alone."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def at(self, key: object, moment: float, call: Callable[[], None]) -> None:
        """Calls once at that moment of ``time.monotonic()``. :param key: one timer each; a new one replaces it."""
        self._timers[key] = (moment, call)

    def cancel(self, key: object) -> None:
        self._timers.pop(key, None)

    def waits(self, key: object) -> bool:
        """Whether that timer is still to come."""
        return key in self._timers

    def turn(self) -> None:
        """Sleeps until something happens, and calls whom it concerns."""
        for fd, events in self._poll.poll(self._sleep()):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(fd, events)
        if not self._timers:
            return
        now = time.monotonic()
        for key, (moment, call) in list(self._timers.items()):
            # One that an earlier one of this turn has cancelled or set anew is not due.
            if moment <= now and self._timers.get(key) == (moment, call):
                del self._timers[key]
                call()

    def _sleep(self) -> float | None:
        """Milliseconds; None: until something happens."""
        if not self._timers:
            return None
        first = min([moment for moment, _ in self._timers.values()])
        return min(max(0.0, (first - time.monotonic()) * 1000 + 1), _LONGEST)


#: Whoever sends one of these wants the call-in to end.
ENDING = (_signal.SIGTERM, _signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT)
#: What a call-in looks at.
WATCHED = (*ENDING, _signal.SIGCHLD, _signal.SIGWINCH, _signal.SIGCONT)


def catch_signals(numbers: tuple[int, ...] = WATCHED) -> int:
    """A descriptor that becomes readable, one byte per signal, with their numbers."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in numbers:
        _signal.signal(number, _nothing)
    return read


def _nothing(_number: int, _frame: object) -> None:
    """Python calls it after it has written to the descriptor, which is all that is wanted."""
