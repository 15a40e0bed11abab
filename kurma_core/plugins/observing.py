"""Passes pod events to observers, each in a thread of its own, so that neither pods nor other observers wait."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled, KurmaError
from kurma_core.models.pod import AppEvent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.hookspecs.observer import ObserverHooks
    from kurma_core.models.pod import PodEvent

    Told = PodEvent | AppEvent

#: Seconds for one event; for the first, also the import of the observer and the making of its driver.
TIMEOUT = 5.0
#: Events that wait for an observer; of more, the oldest is dropped.
_LONGEST = 1000
#: Events that wait for an observer that counts as behind.
_BEHIND = 10
#: Seconds without an event after which the thread ends.
_IDLE = 10.0


class Observing:
    """One observer with its queue.

    :param make: makes the driver, in the observer's thread: a slow import delays no pod. None: it does not work.
    :param note: shows one line to the user.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], ObserverHooks | None],
        note: Callable[[str], None],
        timeout: float = TIMEOUT,
    ) -> None:
        self._name = name
        self._make = make
        self._note = note
        self._timeout = timeout
        self._waiting: deque[Told] = deque()
        self._change = threading.Condition()
        self._running = False
        self._busy = False
        self._closing = False
        self._missed = 0
        self._late = False
        #: Calls that failed, and those of them that were noted.
        self._failed = self._told = 0
        #: The call that runs, and what is told of it once it has taken too long.
        self._call: Cancellation | None = None
        self._overdue = ""

    def tell(self, event: Told) -> None:
        """Queues the event. Never waits for the observer."""
        with self._change:
            if self._closing:
                return
            if len(self._waiting) == _LONGEST:
                self._waiting.popleft()
                self._missed += 1
            self._waiting.append(event)
            self._change.notify_all()
            if not self._running and not self._begin():
                self._waiting.clear()
                self._missed += 1

    def problem(self) -> str:
        """The backlog of the observer, in one line; empty: nothing."""
        with self._change:
            found = [self._overdue] if self._overdue else []
            if len(self._waiting) >= _BEHIND:
                found.append(f"{len(self._waiting)} events wait")
            if self._missed:
                found.append(f"it missed {_events(self._missed)}")
        return "; ".join(found)

    def end(self) -> None:
        """Lets the thread end once the queue is empty."""
        with self._change:
            self._closing = True
            self._change.notify_all()

    def wait(self, until: float) -> None:
        """Waits for the rest of the queue, and notes what is missed. :param until: of :func:`time.monotonic`."""
        with self._change:
            self._change.wait_for(lambda: not (self._waiting or self._busy), max(until - time.monotonic(), 0.0))
            missed = self._missed + len(self._waiting) + self._busy
            self._missed = 0
            self._waiting.clear()
            failed, self._told = self._failed - self._told, self._failed
        if missed:
            self._note(f"observer {self._name!r} missed {_events(missed)} of pods")
        if failed:
            self._note(f"observer {self._name!r} failed at {failed} more event{'s' if failed > 1 else ''} of pods")

    def _begin(self) -> bool:
        # Python runs signal handlers in the main thread: signals must not end up in this one.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            threading.Thread(target=self._run, name=f"observer-{self._name}", daemon=True).start()
        except RuntimeError:  # the limit of threads is reached
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._running = True
        return True

    def _run(self) -> None:
        while (event := self._next()) is not None:
            self._observe(event)
            with self._change:
                self._busy = False
                self._change.notify_all()

    def _next(self) -> Told | None:
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._closing, _IDLE)
            if not self._waiting:
                self._running = False
                return None
            self._busy = True
            return self._waiting.popleft()

    def _observe(self, event: Told) -> None:
        operation = Cancellation()
        timer = threading.Timer(self._timeout, self._cancel, (operation, event))
        timer.daemon = True
        with self._change:
            self._call, self._overdue = operation, ""
        try:
            timer.start()
            with governing(operation):
                driver = self._make()
                if driver is None:
                    return
                if isinstance(event, AppEvent):
                    driver.app_event(event)
                else:
                    driver.pod_event(event)
        except Cancelled:
            return  # noted by the timer
        except (KurmaError, RuntimeError) as error:  # RuntimeError: no thread for the timer
            self._tell_failure(event, error)
        finally:
            timer.cancel()
            with self._change:
                self._call, self._overdue = None, ""

    def _tell_failure(self, event: Told, error: Exception) -> None:
        """Notes the first failure, the second, the fourth and so on, since each is of another pod or event."""
        with self._change:
            self._failed += 1
            count = self._failed
            if count & (count - 1):
                return
            self._told = count
        times = f", {count} failures so far" if count > 1 else ""
        self._note(f"observer {self._name!r} failed at {event.kind!r} of pod {event.pod}{times}: {error}")

    def _cancel(self, operation: Cancellation, event: Told) -> None:
        what = f"{event.kind!r} of pod {event.pod} takes longer than {self._timeout:g} s"
        with self._change:
            if self._call is operation:
                self._overdue = what
        operation.cancel()
        if not self._late:
            self._late = True
            self._note(f"observer {self._name!r}: {what}")


def _events(count: int) -> str:
    return f"{count} event{'s' if count > 1 else ''}"


def close(observers: Iterable[Observing], seconds: float) -> None:
    """Waits for the queues of all observers together, that long at the most."""
    found, until = list(observers), time.monotonic() + seconds
    for observer in found:
        observer.end()
    for observer in found:
        observer.wait(until)
