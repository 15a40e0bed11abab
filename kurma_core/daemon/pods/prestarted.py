"""Pods to come, with stagers that wait for them (G10; :mod:`kurma_core.pods.readied`): who asks the daemon for a
pod that one of them fits need not wait for what has nothing to do with the pod.

They are made by one thread, in the background, from the first start on, and not while a start is under way. They
are of the configuration's stager and by its present image: what has changed, or has died, is thrown away. Nobody
sees them, each becomes one pod at most, and none of them keeps a daemon from its end.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kurma_core.cancellation import Cancellation, governing, shielded
from kurma_core.errors import Cancelled, KurmaError
from kurma_core.pods import readied
from kurma_core.shortage import words

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from kurma_core.client.local import LocalClient
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.readied import Readied
    from kurma_core.pods.request import PodRequest
    from kurma_core.progress import Progress

_LOG = logging.getLogger("kurmad")
#: Seconds for which a start that is under way is left alone at most.
_LEAVE_ALONE = 1.0
#: Seconds: the first pause after one could not be made, or has died, and the longest.
_FIRST, _LONGEST = 1.0, 300.0


class PreparedPod:
    """A pod that was prepared to be started at once. Left as a context, without its start, it is as any other.

    :param record: the pod's. :param readied: what it was made of, for its start; None: of nothing.
    :param images: closed with it: the images that it stands on are held until then.
    """

    def __init__(
        self, supply: PrestartedPods, record: PodRecord, readied: Readied | None, images: ExitStack
    ) -> None:
        self.record = record
        self.readied = readied
        self._supply = supply
        self._images = images
        self._over = False

    def __enter__(self) -> PreparedPod:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if self.readied is not None:
                with shielded():
                    self.readied.release()
        except KurmaError as failed:
            # It is on record: whoever starts the pod or comes by takes it away.
            _LOG.error("%s", failed.message)
        finally:
            self.up()

    def settle(self) -> None:
        """It does not start at once after all, and is as prepared as any other meanwhile.

        :raises HostError: that cannot be recorded.
        """
        if self.readied is not None:
            self.readied.settle()

    def up(self) -> None:
        """It runs: whatever comes now is in nobody's way. May be repeated."""
        if not self._over:
            self._over = True
            self._images.close()
            self._supply._one_less_under_way()


class PrestartedPods:
    """:param client: asked each time: there is another one after a reload."""

    def __init__(self, client: Callable[[], LocalClient]) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._waiting: deque[Readied] = deque()
        #: What is to be thrown away.
        self._old: list[Readied] = []
        self._under_way = 0
        self._wanted = False
        self._closing = False
        #: Those that wait are to be held against their image.
        self._look = False
        self._died = False
        self._failures = 0
        #: Nothing is made before, after a failure; and while starts are under way.
        self._not_before = 0.0
        self._patient_until: float | None = None
        self._cancellation = Cancellation()
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="supply", daemon=True)

    def start(self) -> None:
        """What the daemon before this one has left is taken away; from then on what is missing is made."""
        self._thread.start()

    def close(self) -> None:
        """Throws all away, and ends. May be repeated."""
        self._closing = True
        self._cancellation.cancel()
        if self._thread.ident is not None:
            self._stir()
            self._thread.join()
        self._throw_away(self._all())

    def begin(self, request: PodRequest, progress: Progress | None = None) -> PreparedPod:
        """Prepares a pod that is to be started at once, of what there is if it fits.

        :raises KurmaError: see :meth:`PodManager.prepare`.
        """
        client = self._client()
        client.registry.check_required()
        with self._lock:
            self._under_way += 1
        one = None
        held = ExitStack()
        try:
            one = self._take(client, request)
            if one is not None:
                held.enter_context(client.images.keeping())
                one.holds_images = True
            record = client.manager.prepare(request, progress, one)
        except BaseException:
            held.close()
            self._give_back(one)
            self._one_less_under_way()
            raise
        return PreparedPod(self, record, None if one is None or one.lock < 0 else one, held)

    def refresh(self) -> None:
        """There is another configuration: what was made by the one before is thrown away."""
        with self._lock:
            self._old += self._waiting
            self._waiting.clear()
            self._failures, self._not_before = 0, 0.0
        self._stir()

    def look(self) -> None:
        """The stager's image may be another one: what was made of the one before is thrown away."""
        self._look = True
        self._stir()

    def pids(self) -> list[int]:
        """Of the stagers that wait."""
        with self._lock:
            return [one.waiting.pid for one in self._waiting]

    # -- who takes one --

    def _take(self, client: LocalClient, request: PodRequest) -> Readied | None:
        with self._lock:
            self._wanted = not self._closing
            if not readied.fit_for(request, client.config):
                return None
            while self._waiting:
                one = self._waiting.popleft()
                self._poll.unregister(one.fileno())
                if one.alive():
                    self._failures = 0
                    return one
                self._old.append(one)
                self._died = True
        return None

    def _give_back(self, one: Readied | None) -> None:
        """One that no pod has come to."""
        if one is None or one.lock < 0:
            return
        self._keep(one, self._client())

    def _one_less_under_way(self) -> None:
        with self._lock:
            self._under_way -= 1
        # Its stager may have been refused since the image is another one.
        self.look()

    # -- the thread --

    def _stir(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        with governing(self._cancellation):
            try:
                readied.sweep(self._client().services, 0)
            except (KurmaError, OSError) as error:
                _LOG.error("what was made for pods to come cannot be taken away: %s", error)
            at: float | None = None
            while not self._closing:
                # Anything may have happened: who woke us is not asked, but told that he was heard.
                events = self._poll.poll(None if at is None else max(0.0, at - time.monotonic()))
                if any(fd == self._wake for fd, _ in events):
                    os.eventfd_read(self._wake)
                try:
                    at = self._mend()
                except Cancelled:
                    return
                except Exception as error:  # noqa: BLE001 (the daemon goes on)
                    at = self._failed(words(error))

    def _mend(self) -> float | None:
        """Throws away what is of no use, and makes one that is missing, unless it is too early for that.

        :returns: when to do so again; None: not before something happens.
        """
        with self._lock:
            alive = deque(one for one in self._waiting if one.alive())
            died = self._died or len(alive) < len(self._waiting)
            old = [*self._old, *(one for one in self._waiting if one not in alive)]
            self._waiting, self._old, self._died = alive, [], False
        self._throw_away(old)
        if died:
            self._failed("one that waited has ended by itself")
        now = time.monotonic()
        if not self._wanted or self._closing:
            return None
        if now < self._not_before:
            return self._not_before
        if self._under_way:
            if self._patient_until is None:
                self._patient_until = now + _LEAVE_ALONE
            if now < self._patient_until:
                return self._patient_until
        self._patient_until = None
        try:
            # The next one in a moment: whoever comes meanwhile is first.
            return now if self._make(self._client()) else None
        except Cancelled:
            raise
        except KurmaError as error:
            return self._failed(error.message)

    def _make(self, client: LocalClient) -> bool:
        """:returns: whether one was missing, and made."""
        name = client.config.stager
        if self._look:
            self._look = False
            self._throw_away(self._of_other_images(client, name))
        if len(self._waiting) >= client.config.waiting_stagers or not readied.waits(client.services, name):
            return False
        self._keep(readied.ready(client.services, name), client)
        return True

    def _keep(self, one: Readied, client: LocalClient) -> None:
        """:param client: by whose configuration it was made."""
        with self._lock:
            if self._closing or client is not self._client():
                self._old.append(one)
            else:
                self._waiting.append(one)
                self._poll.register(one.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

    def _failed(self, why: str) -> float:
        """:returns: when it is tried again."""
        pause = min(_LONGEST, _FIRST * 2 ** min(self._failures, 20))
        self._failures += 1
        self._not_before = time.monotonic() + pause
        _LOG.warning("no stager waits for a pod: %s; tried again in %g s", why, pause)
        return self._not_before

    def _of_other_images(self, client: LocalClient, name: str) -> list[Readied]:
        """Those that wait, and would be refused."""
        if not self.pids():
            return []
        image = client.services.stagers.image(name, files=False).id
        with self._lock:
            found = [one for one in self._waiting if one.waiting.image != image]
            self._waiting = deque(one for one in self._waiting if one not in found)
        return found

    def _all(self) -> list[Readied]:
        with self._lock:
            found = [*self._waiting, *self._old]
            self._waiting.clear()
            self._old.clear()
        return found

    def _throw_away(self, found: list[Readied]) -> None:
        for one in found:
            try:
                with shielded():
                    one.discard()
            except (KurmaError, OSError) as error:
                _LOG.error("%s", error)


__all__ = ["PreparedPod", "PrestartedPods"]
