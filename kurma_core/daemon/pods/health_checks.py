"""Runs the health checks of the pods that kurmad owns when they are due, and acts on unhealthy apps."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from kurma_core.cancellation import Cancellation, governing
from kurma_core.daemon.process.threads import Timetable
from kurma_core.errors import Cancelled, KurmaError, PodEndedError, PodNotFoundError, PodStateError, StagerError
from kurma_core.models.health import KILL, RESTART, STOP, UNHEALTHY
from kurma_core.pods.daemon_interface import STOPPED, UNWELL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kurma_core.daemon.pods.owned import RunningPod
    from kurma_core.models.health import HealthCheck
    from kurma_core.models.pod import AppStatus
    from kurma_core.pods.daemon_interface import Checked, DaemonInterface

_LOG = logging.getLogger("kurmad")
#: Checks that run at a time.
_AT_ONCE = 16


class _Pod:
    """A pod with apps that are checked.

    :ivar apps: names of its apps, as they were when ``checks`` was read.
    :ivar checks: by app.
    :ivar instances: by app, the execution that is checked.
    """

    __slots__ = ("apps", "checks", "instances")

    def __init__(self, apps: Iterable[str], checks: dict[str, HealthCheck]) -> None:
        self.apps = set(apps)
        self.checks = checks
        self.instances: dict[str, int] = {}


class HealthChecks:
    """:param running: gives the pod of a UUID, if kurmad owns it."""

    def __init__(self, pods: DaemonInterface, running: Callable[[str], RunningPod | None]) -> None:
        self._pods = pods
        self._running = running
        self._times = Timetable("health", _AT_ONCE)
        self._lock = threading.Lock()
        self._known: dict[str, _Pod] = {}
        self._all = Cancellation()

    def close(self) -> None:
        """Ends the checks that run; their results do not count."""
        self._all.cancel()
        self._times.close()

    def look(self, running: RunningPod, statuses: Iterable[AppStatus]) -> None:
        """Plans checks of new executions, and drops those of apps that have ended.

        :param statuses: of all apps of the pod.
        """
        uuid, now = running.uuid, {one.name: one for one in statuses}
        with self._lock:
            if running.ends:
                return  # forget() was called, or waits for the lock
            pod = self._known.get(uuid)
            if pod is None:
                document = running.pod.document
                pod = self._known[uuid] = _Pod(document.app_names, document.health_checks)
            try:
                if not pod.apps.issuperset(now):
                    document = self._pods.document(uuid)
                    pod.apps, pod.checks = set(document.app_names), document.health_checks
            except KurmaError:
                return  # it was just removed
            # An app that comes again may have another check.
            pod.apps.intersection_update(now)
            for name, check in pod.checks.items():
                status = now.get(name)
                instance = None if status is None or status.state != "running" else status.instance
                if instance is None:
                    if pod.instances.pop(name, None) is not None:
                        self._times.cancel(_key(uuid, name))
                elif status is not None and pod.instances.get(name) != instance:
                    pod.instances[name] = instance
                    self._plan(uuid, name, self._pods.first_check(uuid, status, check))

    def forget(self, uuid: str) -> None:
        """Drops the checks of a pod that kurmad owns no longer. Repeatable."""
        with self._lock:
            pod = self._known.pop(uuid, None)
        for name in () if pod is None else pod.instances:
            self._times.cancel(_key(uuid, name))

    def _plan(self, uuid: str, app: str, delay: float) -> None:
        self._times.at(_key(uuid, app), delay, lambda: self._check(uuid, app))

    def _instance(self, uuid: str, app: str) -> int | None:
        with self._lock:
            pod = self._known.get(uuid)
            return None if pod is None else pod.instances.get(app)

    def _check(self, uuid: str, app: str) -> None:
        instance, running = self._instance(uuid, app), self._running(uuid)
        if instance is None or running is None:
            self.forget(uuid)
            return
        again = 1.0
        try:
            with self._all.part() as operation, governing(operation):
                done = self._pods.check_health(uuid, app)
            again = done.pause
            if done.health is not None and done.health.status == UNHEALTHY:
                self._act(running, done)
        except Cancelled:
            return
        except (PodNotFoundError, PodEndedError):
            return
        except StagerError as error:
            _LOG.warning("the health of app %s of pod %s is not checked: %s", app, uuid, error.message)
            return
        except PodStateError:
            pass  # it is just being started, or it ends, of which the stager tells
        except KurmaError as error:
            _LOG.error("the health of app %s of pod %s: %s", app, uuid, error.message)
        except OSError as error:  # kurmad has no descriptors left, say: the next check may have some
            _LOG.error("the health of app %s of pod %s: %s", app, uuid, error.strerror or error)
        with self._lock:
            pod = self._known.get(uuid)
            if pod is not None and pod.instances.get(app) == instance:
                self._plan(uuid, app, again)

    def _act(self, running: RunningPod, done: Checked) -> None:
        """:raises KurmaError: it cannot be done; the next check tries again."""
        action = done.check.on_failure
        if action == KILL:
            _LOG.info("app %s of pod %s is unhealthy: it is killed", done.app, running.uuid)
            self._pods.kill(running.uuid, done.app)
        elif action in (RESTART, STOP):
            done_to_it = "restarted" if action == RESTART else "stopped"
            _LOG.info("app %s of pod %s is unhealthy: the pod is %s", done.app, running.uuid, done_to_it)
            running.stop(force=False, cause=UNWELL if action == RESTART else STOPPED)


def _key(uuid: str, app: str) -> str:
    return f"{uuid}/{app}"
