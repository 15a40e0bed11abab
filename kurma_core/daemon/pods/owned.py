"""The pods that kurmad owns: waits for their ends, takes them down, and restarts them by policy."""

from __future__ import annotations

import contextlib
import functools
import logging
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from kurma_core.cancellation import current
from kurma_core.daemon.pods.app_watcher import AppWatcher
from kurma_core.daemon.process.threads import Poller, Timetable, Workers
from kurma_core.errors import KurmaError, PodNotFoundError
from kurma_core.models.pod import ENDED_STATES
from kurma_core.pods.daemon_interface import SHUT_DOWN, STOPPED, following
from kurma_core.shortage import words

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.daemon_interface import DaemonInterface, Following, LogReader, OutsideLog, OwnedPod

_LOG = logging.getLogger("kurmad")
#: Pods that are taken down, or restarted, at a time.
_AT_ONCE = 4
#: Seconds to wait for pods that are ended by force, at the daemon's end.
_BY_FORCE = 10.0


class RunningPod:
    """A pod that the daemon owns, as requests see it.

    :param uuid: the pod's. :param directory: the pod's.
    :ivar ends: it has ended, and is taken down.
    """

    def __init__(self, pod: OwnedPod) -> None:
        self.pod = pod
        self.uuid = pod.uuid
        self.directory = pod.directory
        self.ends = False
        self._ended: Future[PodRecord] = Future()
        self._lock = threading.Lock()
        self._readers = 0
        self._over = False
        self._then: Callable[[], None] | None = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Postpones what follows the pod's end, as the removal of an ephemeral pod, until the block is left."""
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

    def stop(self, *, force: bool, cause: str = STOPPED) -> None:
        """Requests the pod's end; does not wait. Does nothing if it has ended. :param cause: recorded as the
        reason: see :func:`kurma_core.pods.run.pod_restarts.wanted`."""
        with self._lock:
            if not self._over:
                self.pod.stop(force=force, cause=cause)

    def follow_logs(
        self, apps: Sequence[tuple[str, str | OutsideLog]]
    ) -> AbstractContextManager[tuple[LogReader, Following]]:
        """See :func:`kurma_core.pods.daemon_interface.following`."""
        return following(self.directory, apps)

    def close(self) -> None:
        with self._lock:
            self._over = True
            self.pod.close()

    def wait(self, timeout: float | None = None) -> PodRecord:
        """Waits until the pod is taken down. :returns: how it has ended.

        :raises KurmaError: its teardown is not complete; or its directory was removed.
        :raises TimeoutError: it has not ended by then.
        """
        return self._ended.result(timeout)

    def wait_asked(self) -> PodRecord:
        """As :meth:`wait`, until the operation of this thread is cancelled.

        :raises Cancelled: it was.
        """
        ended = threading.Event()
        self._ended.add_done_callback(lambda _: ended.set())
        with current().waking(ended.set):
            ended.wait()
        return self.wait(0)

    def end(self, record: PodRecord | None, error: BaseException | None, then: Callable[[], None]) -> None:
        """Wakes the threads that wait. :param then: called once no request reads the pod any more."""
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
    """:param ended: called with each pod that has ended, once it is taken down; from any thread."""

    def __init__(self, ended: Callable[[PodRecord], None] = lambda record: None) -> None:
        self._ended = ended
        #: Called, from any thread, when this kurmad begins or ceases to own a pod.
        self.changed: Callable[[], None] = lambda: None
        #: Called with the UUID of a pod that has ended, before it is taken down.
        self.ending: Callable[[str], None] = lambda uuid: None
        self._lock = threading.Lock()
        #: By the descriptor of the stager.
        self._pods: dict[int, RunningPod] = {}
        #: UUIDs of pods that are no longer owned here, but are still read.
        self._after: set[str] = set()
        self._workers = Workers(_AT_ONCE, "teardown")
        self.apps = AppWatcher()
        #: Waits for the ends of stagers.
        self.poller = Poller("owner")

    def start(self) -> None:
        self.poller.start()
        self.apps.start()

    def alive(self) -> bool:
        """Whether the thread that waits for the ends of pods runs."""
        return self.poller.alive()

    def close(self) -> None:
        """Gives up all pods; running ones keep running. Waits for teardowns that have begun."""
        self.poller.close()
        self.apps.close()
        self._workers.shutdown()
        with self._lock:
            left = list(self._pods.values())
            self._pods.clear()
        for running in left:
            running.close()

    def stop_all(self, stop_timeout: float, reserve: float) -> None:
        """Stops all pods at the same time, and waits for their ends. They are ended by force after twice the
        longest stop timeout of them, for the apps and for their post-stop handlers, and a reserve.

        :param stop_timeout: of pods that have none of their own. :param reserve: in seconds.
        """
        with self._lock:
            own = [running.pod.stop_timeout for running in self._pods.values()]
        patience = 2 * max([stop_timeout if one is None else one for one in own], default=0.0) + reserve
        for force, seconds in ((False, patience), (True, _BY_FORCE)):
            deadline = time.monotonic() + seconds
            with self._lock:
                left = list(self._pods.values())
            for running in left:
                try:
                    running.stop(force=force, cause=SHUT_DOWN)
                except (KurmaError, OSError) as error:
                    _LOG.error("pod %s cannot be stopped: %s", running.uuid, error)
            for running in left:
                with contextlib.suppress(KurmaError, TimeoutError):  # logged already; or force is next
                    running.wait(max(0.0, deadline - time.monotonic()))

    def uuids(self) -> list[str]:
        with self._lock:
            return [running.uuid for running in self._pods.values()]

    def running(self, uuid: str) -> RunningPod | None:
        """None: that pod is not owned here."""
        with self._lock:
            return next((running for running in self._pods.values() if running.uuid == uuid), None)

    def holds(self, uuid: str) -> bool:
        """Whether that pod is owned here, or what follows its end is not done yet."""
        return self.running(uuid) is not None or uuid in self._after

    def take(self, pod: OwnedPod, up: Callable[[RunningPod], None] = lambda running: None) -> RunningPod:
        """Owns a pod that is up.

        :param up: called before the pod's end is waited for.
        """
        fd, running = pod.fileno(), RunningPod(pod)
        try:
            up(running)
        finally:
            with self._lock:
                self._pods[fd] = running
            finish = functools.partial(self._workers.submit, self._finish, fd, running)
            self.apps.add(running)
            self.poller.add(fd, finish, select.EPOLLIN | select.EPOLLONESHOT)
            self.changed()
        return running

    # -- the ends of pods --

    def _finish(self, fd: int, running: RunningPod) -> None:
        record, failed = None, None
        running.ends = True
        try:
            self.apps.remove(running)
            self.ending(running.uuid)
            record = running.pod.finish()
        except KurmaError as error:
            failed = error
            if not isinstance(error, PodNotFoundError):
                _LOG.error("%s", error.message, extra={"pod": running.uuid})
        except Exception as error:  # noqa: BLE001 (raised in the threads that wait for the pod)
            failed = KurmaError(f"pod {running.uuid}: its teardown failed: {words(error)}")
            _LOG.exception("pod %s: its teardown failed", running.uuid, extra={"pod": running.uuid})
        finally:
            with self._lock:
                self._after.add(running.uuid)
                self._pods.pop(fd, None)
            self._let_go(fd, running)
        uuid = running.uuid  # the lambda must not refer to the pod, which refers to the lambda: a cycle for gc
        running.end(record, failed, lambda: self._then(uuid, record))
        self.changed()

    def _let_go(self, fd: int, running: RunningPod) -> None:
        """Stops polling and closes; even after a failure, threads that wait for the pod must be woken."""
        try:
            try:
                self.poller.remove(fd)
            finally:
                running.close()
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


class Restarts:
    """Restarts pods that have ended, if their policies require it, after a pause that grows.

    The plan is in ``state.json``, so that the next kurmad continues it.

    :param start: starts the pod of that UUID again.
    """

    def __init__(self, pods: DaemonInterface, start: Callable[[str], object]) -> None:
        self._pods = pods
        self._start = start
        self.times = Timetable("restart", _AT_ONCE)

    def close(self) -> None:
        self.times.close()

    def look(self, uuid: str, *, failed: bool = False) -> None:
        """Plans the next start of a pod that has ended, if its policy requires one. Repeatable.

        :param failed: a start by its policy has failed.
        """
        try:
            delay = self._pods.plan_restart(uuid, failed=failed)
        except PodNotFoundError:
            return
        except KurmaError as error:
            _LOG.error("%s", error.message)
            return
        if delay is not None:
            self.times.at(uuid, delay, lambda: self._attempt(uuid))

    def _attempt(self, uuid: str) -> None:
        try:
            announced = self._pods.announce_restart(uuid)
            if announced is None:
                return  # it was stopped or started meanwhile
            self._start(uuid)
        except PodNotFoundError:
            return
        except KurmaError as error:
            _LOG.error("pod %s cannot be started again: %s", uuid, error.message)
            self._after_failure(uuid)
        except Exception:  # noqa: BLE001 (a mistake in kurmad: the next attempt may succeed)
            _LOG.exception("pod %s cannot be started again: a mistake in kurmad", uuid)
            self._after_failure(uuid)
        else:
            _LOG.info("pod %s is started again: its policy is %s", *announced)

    def _after_failure(self, uuid: str) -> None:
        with contextlib.suppress(KurmaError):  # it was removed
            if self._pods.state(uuid).state in ENDED_STATES:
                self.look(uuid, failed=True)
