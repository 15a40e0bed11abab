"""The pods that the daemon owns: it waits for the ends of all their stagers at once, and takes them down."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from kurma_core.cancellation import current
from kurma_core.daemon.process.threads import Workers
from kurma_core.errors import KurmaError, PodNotFoundError
from kurma_core.pods import restarts
from kurma_core.shortage import words

if TYPE_CHECKING:
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.stdio import Stdio
    from kurma_core.pods.manager import PodManager
    from kurma_core.pods.owned import OwnedPod
    from kurma_core.pods.readied import Readied

_LOG = logging.getLogger("kurmad")
#: Pods that are taken down at a time.
_AT_ONCE = 4
#: Seconds for what is ended by force at the daemon's end.
_BY_FORCE = 10.0


class RunningPod:
    """A pod that the daemon owns, as whoever looks on sees it.

    :param uuid: the pod's. :param directory: where it is.
    """

    def __init__(self, pod: OwnedPod) -> None:
        self.pod = pod
        self.uuid = pod.uuid
        self.directory = pod.directory
        self._ended: Future[PodRecord] = Future()
        self._lock = threading.Lock()
        self._readers = 0
        self._over = False
        self._then: Callable[[], None] | None = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """What follows the pod's end, as its removal if it is ephemeral, waits until the block is left."""
        with self._lock:
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                then = self._then if self._readers == 0 else None
            if then is not None:
                then()

    def stop(self, *, force: bool, cause: str = restarts.STOPPED) -> None:
        """Asks the pod to end; does not wait. Nothing happens if it has.

        :param cause: why: see :func:`kurma_core.pods.restarts.wanted`.
        """
        with self._lock:
            if not self._over:
                self.pod.stop(force=force, cause=cause)

    def _close(self) -> None:
        with self._lock:
            self._over = True
            self.pod.close()

    def wait(self, timeout: float | None = None) -> PodRecord:
        """How it has ended, once it is taken down.

        :raises KurmaError: its teardown is not complete; or its directory was removed.
        :raises TimeoutError: it has not ended by then.
        """
        return self._ended.result(timeout)

    def wait_asked(self) -> PodRecord:
        """As :meth:`wait`, until the operation that this thread works for is given up.

        :raises Cancelled: it was.
        """
        ended = threading.Event()
        self._ended.add_done_callback(lambda _: ended.set())
        with current().waking(ended.set):
            ended.wait()
        return self.wait(0)

    def _end(self, record: PodRecord | None, error: BaseException | None, then: Callable[[], None]) -> None:
        """:param then: what follows, once nobody reads any more."""
        with self._lock:
            self._then = then
            now = self._readers == 0
        if error is not None:
            self._ended.set_exception(error)
        elif record is not None:
            self._ended.set_result(record)
        if now:
            then()


class OwnedPods:
    """:param manager: asked for the pod manager at each start: there is another one after a reload.
    :param ended: told of each pod that has ended, once it is taken down; from any thread.
    """

    def __init__(
        self, manager: Callable[[], PodManager], ended: Callable[[PodRecord], None] = lambda record: None
    ) -> None:
        self._manager = manager
        self._ended = ended
        #: Called, from any thread, when a pod is owned, or owned no more.
        self.changed: Callable[[], None] = lambda: None
        self._beat = threading.Event()
        self._lock = threading.Lock()
        self._pods: dict[int, RunningPod] = {}
        #: Pods that are owned no more, and that somebody still reads.
        self._after: set[str] = set()
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._closing = False
        self._workers = Workers(_AT_ONCE, "teardown")
        self._thread = threading.Thread(target=self._run, name="owner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def alive(self) -> bool:
        """Whether ends of pods are waited for."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Gives every pod up; those that run go on. What is being taken down is taken down."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._workers.shutdown()
        with self._lock:
            left = list(self._pods.values())
            self._pods.clear()
        for running in left:
            running._close()

    def stop_all(self, patience: float) -> None:
        """Stops every pod that is owned here, all at once, and waits for their ends.

        :param patience: seconds until they are ended by force.
        """
        for force, seconds in ((False, patience), (True, _BY_FORCE)):
            deadline = time.monotonic() + seconds
            with self._lock:
                left = list(self._pods.values())
            for running in left:
                try:
                    running.stop(force=force, cause=restarts.SHUT_DOWN)
                except (KurmaError, OSError) as error:
                    _LOG.error("pod %s cannot be stopped: %s", running.uuid, error)
            for running in left:
                with contextlib.suppress(KurmaError, TimeoutError):  # told when it happened; or tried by force
                    running.wait(max(0.0, deadline - time.monotonic()))

    def uuids(self) -> list[str]:
        """Of the pods that are owned here."""
        with self._lock:
            return [running.uuid for running in self._pods.values()]

    def launch(
        self,
        reference: str,
        stdio: Stdio,
        up: Callable[[RunningPod], None] = lambda running: None,
        *,
        again: bool = False,
        readied: Readied | None = None,
        settled: Callable[[], None] = lambda: None,
    ) -> RunningPod:
        """Starts a pod and owns it.

        :param up: called once the pod is up, and before anybody looks whether it has ended.
        :param readied: and ``again``, ``settled``: see :meth:`PodManager.start`.
        :raises KurmaError: see :meth:`PodManager.start`.
        """
        return self.take(self._manager().start(reference, stdio, settled, readied, again=again), up)

    def take(self, pod: OwnedPod, up: Callable[[RunningPod], None] = lambda running: None) -> RunningPod:
        """Owns a pod that is up."""
        fd, running = pod.fileno(), RunningPod(pod)
        try:
            up(running)
        finally:
            with self._lock:
                self._pods[fd] = running
            self._poll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)
            self.changed()
        return running

    def holds(self, uuid: str) -> bool:
        """Whether that pod is owned here, or what is to follow its end has not been done yet."""
        return self.running(uuid) is not None or uuid in self._after

    def answers(self, patience: float) -> bool:
        """Whether the thread that waits for ends gets on within so many seconds."""
        self._beat.clear()
        os.eventfd_write(self._wake, 1)
        return self._beat.wait(patience)

    def running(self, uuid: str) -> RunningPod | None:
        """None: that pod is not owned here."""
        with self._lock:
            return next((running for running in self._pods.values() if running.uuid == uuid), None)

    def _run(self) -> None:
        while not self._closing:
            for fd, _ in self._poll.poll():
                if fd == self._wake:
                    if not self._closing:
                        os.eventfd_read(self._wake)
                        self._beat.set()
                    continue
                with self._lock:
                    running = self._pods[fd]
                self._workers.submit(self._finish, fd, running)

    def _finish(self, fd: int, running: RunningPod) -> None:
        record, failed = None, None
        try:
            record = running.pod.finish()
        except KurmaError as error:
            failed = error
            if not isinstance(error, PodNotFoundError):
                _LOG.error("%s", error.message, extra={"pod": running.uuid})
        except Exception as error:  # noqa: BLE001 (whoever waits is told of it)
            failed = KurmaError(f"pod {running.uuid}: its teardown failed: {words(error)}")
            _LOG.exception("pod %s: its teardown failed", running.uuid, extra={"pod": running.uuid})
        finally:
            with self._lock:
                self._after.add(running.uuid)
                self._pods.pop(fd, None)
            self._let_go(fd, running)
        uuid = running.uuid  # not the pod itself, which holds this: it goes once nobody has it any more
        running._end(record, failed, lambda: self._then(uuid, record))
        self.changed()

    def _let_go(self, fd: int, running: RunningPod) -> None:
        """Whatever goes wrong with that, who waits for the pod hears of its end."""
        try:
            try:
                self._poll.unregister(fd)
            finally:
                running._close()
        except Exception:  # noqa: BLE001 (the daemon goes on)
            _LOG.exception("pod %s cannot be let go of", running.uuid, extra={"pod": running.uuid})

    def _then(self, uuid: str, record: PodRecord | None) -> None:
        try:
            if record is not None:
                self._ended(record)
        except Exception:  # noqa: BLE001 (the daemon goes on)
            _LOG.exception("pod %s: what was to follow its end failed", uuid)
        finally:
            self._after.discard(uuid)


__all__ = ["OwnedPods", "RunningPod"]
