"""Stops pods at the same time, each after those that depend on it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kurma_core.cancellation import Cancellation, current, governing
from kurma_core.errors import PodStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import TracebackType

#: Pods that are stopped at a time.
_AT_ONCE = 16


class Stops:
    """The stops of several pods, by threads, as a context manager. Leaving it begins no further stop.

    :param stop: stops the pod of that name, and waits until it has ended.
    :param after: by the name of each pod, the names of those that depend on it, and so must have ended before. If
        pods depend on each other in a circle, the first of them is stopped first.
    """

    def __init__(self, stop: Callable[[str], object], after: Mapping[str, Collection[str]]) -> None:
        self._stop = stop
        self._left = dict(after)
        self._running = 0
        #: The pods whose stops have ended, and how they have failed.
        self._ended: dict[str, BaseException | None] = {}
        self._changed = threading.Condition()
        self._part = current().part()

    def __enter__(self) -> Stops:
        part = self._part.__enter__()
        begun = 0
        for _ in range(min(_AT_ONCE, len(self._left))):
            try:
                # A daemon thread: after Ctrl-C the command does not wait for it.
                threading.Thread(target=self._work, args=(part,), name="kurma-stop", daemon=True).start()
            except RuntimeError:  # the host allows no more threads
                break
            begun += 1
        if not begun:
            self._work(part)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._left.clear()
            self._changed.notify_all()
        self._part.__exit__(kind, error, trace)

    def wait(self, name: str) -> None:
        """Waits until the pod is stopped.

        :raises KurmaError: its stop has failed. :raises PodStateError: that of a pod that depends on it has.
        """
        with self._changed:
            while name not in self._ended:
                self._changed.wait()
        if (error := self._ended[name]) is not None:
            raise error

    def _work(self, part: Cancellation) -> None:
        """Stops pods until none is left."""
        with governing(part):
            while (name := self._next()) is not None:
                error = None
                try:
                    self._stop(name)
                except BaseException as failed:  # noqa: BLE001 (raised in the thread that waits for the pod)
                    error = failed
                with self._changed:
                    self._running -= 1
                    self._ended[name] = error
                    self._changed.notify_all()

    def _next(self) -> str | None:
        """The pod to stop next, once there is one; None: none is left."""
        with self._changed:
            while self._left:
                name = self._ready()
                if name is not None:
                    del self._left[name]
                    self._running += 1
                    return name
                self._changed.wait()
            return None

    def _ready(self) -> str | None:
        """A pod that can be stopped now. Gives up those that failed ones depend on."""
        while found := self._behind_failure():
            name, failed = found
            del self._left[name]
            self._ended[name] = PodStateError(
                f"pod {name} is left, since pod {failed}, which depends on it, could not be stopped"
            )
            self._changed.notify_all()
        ready = (name for name, others in self._left.items() if all(one in self._ended for one in others))
        return next(ready, None) or (None if self._running else next(iter(self._left), None))

    def _behind_failure(self) -> tuple[str, str] | None:
        """A pod that one whose stop has failed depends on, and that one."""
        for name, others in self._left.items():
            for one in others:
                if self._ended.get(one) is not None:
                    return name, one
        return None
