"""Keeps prestarted pods (:mod:`kurma_core.pods.run.prestarted`), which contain all that does not depend on a
request, so that a client does not wait for that.

One thread makes them in the background, from the first start of a pod on, and not while a start is under way or
has just ended. They use the configured stager in its present image: outdated and dead ones are discarded. No
listing shows them, each becomes one pod at most, and they do not keep an idle kurmad from ending.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from kurma_core.cancellation import Cancellation, governing, shielded
from kurma_core.daemon.process.threads import Poller, pause_after
from kurma_core.errors import Cancelled, KurmaError
from kurma_core.shortage import words

if TYPE_CHECKING:
    from types import TracebackType

    from kurma_core.api.operations import Progress
    from kurma_core.api.pods import PodRequest
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.daemon_interface import DaemonInterface, OwnedPod, PrestartedPod

_LOG = logging.getLogger("kurmad")
#: Seconds for which starts that are under way postpone the making.
_LEAVE_ALONE = 1.0
#: Seconds after the start of a pod in which kurmad makes no prestarted pod if it has one left: the work would slow
#: down the client's next calls, such as the addition of an app to a sandbox.
_AFTER_START = 0.1


class PreparedPod:
    """A pod that was prepared to be started at once. If the context is left without its start, it is like any
    prepared pod.

    :param record: the pod's.
    """

    def __init__(self, source: PrestartedPods, record: PodRecord, pod: OwnedPod) -> None:
        self.record = record
        self._source = source
        self._pod: OwnedPod | None = pod
        self._over = False

    def __enter__(self) -> PreparedPod:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if self._pod is not None:
                with shielded():
                    self._pod.close()
        except KurmaError as failed:
            # The pod's record lists the steps that are left: the next command that sees the pod undoes them.
            _LOG.error("%s", failed.message)
        finally:
            self.up()

    def take(self) -> OwnedPod:
        """Hands the pod over to its start. The start closes it after a failure."""
        pod, self._pod = self._pod, None
        assert pod is not None, "a prepared pod is started once"
        return pod

    def settle(self) -> None:
        """Records it as prepared: its start does not follow at once.

        :raises HostError: that cannot be recorded.
        """
        assert self._pod is not None
        self._pod.settle()

    def up(self) -> None:
        """The started pod runs: making another prestarted one no longer delays it. Repeatable."""
        if not self._over:
            self._over = True
            self._source._start_over()


class PrestartedPods:
    def __init__(self, pods: DaemonInterface) -> None:
        self._interface = pods
        self._lock = threading.Lock()
        self._ready: deque[PrestartedPod] = deque()
        #: Prestarted pods to discard.
        self._old: list[PrestartedPod] = []
        #: Starts of pods that are under way.
        self._starts = 0
        self._wanted = False
        self._closing = False
        #: Whether the images of the pods in ``_ready`` must be compared.
        self._compare = False
        self._died = False
        self._failures = 0
        #: When to make the next one: later after a failure, and while starts are under way.
        self._not_before = 0.0
        self._patient_until: float | None = None
        #: When the last start was over.
        self._start_ended = 0.0
        self._cancellation = Cancellation()
        #: Whether a making that failed, or a dead kurmad, can have left something.
        self._sweep_due = True
        self._poller = Poller("prestart", self._work)

    def start(self) -> None:
        """Removes the prestarted pods of dead kurmads; begins to make new ones once a client has requested a
        pod."""
        self._poller.start()

    def close(self) -> None:
        """Discards all. Repeatable."""
        self._closing = True
        self._cancellation.cancel()
        self._poller.close()
        with self._lock:
            found = [*self._ready, *self._old]
            self._ready.clear()
            self._old.clear()
        self._discard(found)
        # Also what a failed making could not undo, for want of descriptors, say.
        self._sweep()

    def begin(self, request: PodRequest, progress: Progress | None = None) -> PreparedPod:
        """Prepares a pod that is started at once, from a prestarted one if it fits.

        :raises KurmaError: see :meth:`PodManager.prepare`.
        """
        self._interface.check_required()
        generation = self._interface.generation
        with self._lock:
            self._starts += 1
        one = None
        try:
            one = self._take(request)
            record, pod = self._interface.prepare_to_start(request, progress, one)
        except BaseException:
            try:
                if one is not None and not one.taken:
                    self._put_back(one, generation)
            finally:
                self._start_over()
            raise
        return PreparedPod(self, record, pod)

    def discard_all(self) -> None:
        """After a reload with another configuration."""
        with self._lock:
            self._old += self._ready
            self._ready.clear()
            self._failures, self._not_before = 0, 0.0
        self._poller.wake()

    def compare_images(self) -> None:
        """Discards those whose stager's image is out of date."""
        self._compare = True
        self._poller.wake()

    def _take(self, request: PodRequest) -> PrestartedPod | None:
        with self._lock:
            self._wanted = not self._closing
            if not self._interface.fits_prestarted(request):
                return None
            while self._ready:
                one = self._ready.popleft()
                self._poller.remove(one.fileno())
                if one.alive():
                    self._failures = 0
                    return one
                self._old.append(one)
                self._died = True
        return None

    def _start_over(self) -> None:
        with self._lock:
            self._starts -= 1
            self._start_ended = time.monotonic()
        # The pod may have refused its stager because of the image.
        self.compare_images()

    # -- the thread --

    def _work(self) -> float | None:
        """:returns: seconds until there is more to do; None: not before something happens."""
        with governing(self._cancellation):
            try:
                if self._sweep_due:
                    self._sweep_due = False
                    self._sweep()
                at = self._mend()
            except Cancelled:
                return None
            except Exception as error:  # noqa: BLE001 (the daemon goes on)
                at = self._failed(words(error))
        return None if at is None else max(0.0, at - time.monotonic())

    def _sweep(self) -> None:
        try:
            self._interface.sweep_prestarted()
        except (KurmaError, OSError) as error:
            _LOG.error("cannot remove a prestarted pod: %s", error)

    def _mend(self) -> float | None:
        """Discards outdated and dead ones, and makes a missing one, unless it is too early for that.

        :returns: the time of the next call; None: not before the next event.
        """
        with self._lock:
            alive = deque(one for one in self._ready if one.alive())
            died = self._died or len(alive) < len(self._ready)
            old = [*self._old, *(one for one in self._ready if one not in alive)]
            self._ready, self._old, self._died = alive, [], False
        self._discard(old)
        if died:
            self._failed("one that waited has ended by itself")
        now = time.monotonic()
        if not self._wanted or self._closing:
            return None
        if now < self._not_before:
            return self._not_before
        if self._starts:
            if self._patient_until is None:
                self._patient_until = now + _LEAVE_ALONE
            if now < self._patient_until:
                return self._patient_until
        self._patient_until = None
        if self._ready and now < (quiet := self._start_ended + _AFTER_START):
            return quiet
        try:
            # One in each round, so that events are handled in between.
            return now if self._make() else None
        except Cancelled:
            raise
        except KurmaError as error:
            return self._failed(error.message)

    def _make(self) -> bool:
        """:returns: whether one was missing, and made."""
        pods, generation = self._interface, self._interface.generation
        if self._compare:
            self._compare = False
            self._discard(self._take_outdated())
        if len(self._ready) >= pods.config.prestarted_stagers or not pods.can_prestart():
            return False
        self._keep(pods.prestart(), generation)
        return True

    def _take_outdated(self) -> list[PrestartedPod]:
        """Takes out those that pods would refuse, because of the image of their stager."""
        if not self._ready:
            return []
        image = self._interface.stager_image()
        with self._lock:
            found = [one for one in self._ready if one.waiting.image != image]
            self._ready = deque(one for one in self._ready if one not in found)
        return found

    def _keep(self, one: PrestartedPod, generation: int) -> None:
        """:param generation: number of the configuration with which it was made."""
        with self._lock:
            if self._closing or generation != self._interface.generation:
                self._old.append(one)
            else:
                self._ready.append(one)
                # Its end wakes the thread.
                self._poller.add(one.fileno(), lambda: None, select.EPOLLIN | select.EPOLLONESHOT)

    def _put_back(self, one: PrestartedPod, generation: int) -> None:
        """Keeps one that no pod has taken over; discards it if its removal has begun."""
        if one.alive():
            self._keep(one, generation)
            return
        with self._lock:
            self._old.append(one)

    def _failed(self, why: str) -> float:
        """:returns: when to try again."""
        pause = pause_after(self._failures)
        self._failures += 1
        self._sweep_due = True
        self._not_before = time.monotonic() + pause
        _LOG.warning("no stager waits for a pod: %s; tried again in %g s", why, pause)
        return self._not_before

    def _discard(self, found: list[PrestartedPod]) -> None:
        for one in found:
            try:
                with shielded():
                    one.discard()
            except (KurmaError, OSError) as error:
                _LOG.error("%s", error)
