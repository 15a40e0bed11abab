"""The event loop of the supervisor and the call-ins: watched descriptors, timers, and signals as a descriptor."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    #: Called with the descriptor and its events (``select.POLLIN`` and so on).
    Handler = Callable[[int, int], None]

#: Milliseconds: poll(2) can wait for less than 25 days.
_LONGEST = 2_000_000_000


class Loop:
    """An event loop on poll(2): it calls a handler for each ready descriptor and each due timer.

    Within one turn, an earlier handler may close a descriptor, and a new one may get its number. So all
    descriptors are non-blocking, and a handler must cope with a descriptor that has nothing to read.
    """

    __slots__ = ("_handlers", "_poll", "_timers")

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Handler] = {}
        self._timers: dict[object, tuple[float, Callable[[], None]]] = {}

    def watch(self, fd: int, handler: Handler, events: int = select.POLLIN) -> None:
        """Watches a descriptor. A second call for the same descriptor replaces its handler and events."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Stops watching; call it before the descriptor is closed. Does nothing if the descriptor is not
        watched."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def sooner(self, key: object, moment: float, call: Callable[[], None]) -> None:
        """As :meth:`at`, but keeps an earlier timer with the same key."""
        if key not in self._timers or moment < self._timers[key][0]:
            self.at(key, moment, call)

    def at(self, key: object, moment: float, call: Callable[[], None]) -> None:
        """Calls once at that moment of ``time.monotonic()``. A new timer with the same key replaces the old
        one."""
        self._timers[key] = (moment, call)

    def cancel(self, key: object) -> None:
        self._timers.pop(key, None)

    def waits(self, key: object) -> bool:
        """Whether the timer with that key is still set."""
        return key in self._timers

    def turn(self) -> None:
        """Sleeps until a descriptor is ready or a timer is due, then calls the handlers."""
        for fd, events in self._poll.poll(self._sleep()):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(fd, events)
        if not self._timers:
            return
        now = time.monotonic()
        for key, (moment, call) in list(self._timers.items()):
            # An earlier timer of this turn may have cancelled this one, or set it anew.
            if moment <= now and self._timers.get(key) == (moment, call):
                del self._timers[key]
                call()

    def _sleep(self) -> float | None:
        """Milliseconds until the next timer; None: there is no timer."""
        if not self._timers:
            return None
        first = min([moment for moment, _ in self._timers.values()])
        return min(max(0.0, (first - time.monotonic()) * 1000 + 1), _LONGEST)


#: Signals that ask a call-in to end.
ENDING = (_signal.SIGTERM, _signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT)
#: Signals that a call-in handles.
WATCHED = (*ENDING, _signal.SIGCHLD, _signal.SIGWINCH, _signal.SIGCONT)


def catch_signals(numbers: tuple[int, ...] = WATCHED) -> int:
    """Catches these signals. :returns: a descriptor to read the signals' numbers from, one byte per signal."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in numbers:
        _signal.signal(number, _nothing)
    return read


def _nothing(_number: int, _frame: object) -> None:
    """A signal handler that does nothing: Python has already written the signal's number to the descriptor."""
