"""Stops pods (``kurma stop``) and signals their apps (``kurma kill``)."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from kurma_core.cancellation import wait_readable
from kurma_core.errors import (
    AppNotFoundError,
    HostError,
    KurmaError,
    PodError,
    PodNotFoundError,
    PodStateError,
)
from kurma_core.models.pod import ENDED_STATES, PodRecord
from kurma_core.pods.record.pod_record import by_force, pod_record, request_stop, the_app
from kurma_core.pods.record.state import STARTED_STATES
from kurma_core.pods.run import pod_restarts, recovery
from kurma_core.value import replace

if TYPE_CHECKING:
    from kurma_core.hookspecs.stager import RunningStagerHooks, StagerHooks
    from kurma_core.linux.cgroups import CgroupTree
    from kurma_core.pods.finder import PodFinder
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory

#: Seconds that an owner has for its teardown once the stager has ended.
_TEARDOWN_PATIENCE = 60.0
#: Seconds to wait for the stager of a starting pod, and between two checks whether its owner is alive.
_COMING, _LOOK_AGAIN = 30.0, 1.0


class PodStopper:
    """Stops pods, and sends signals to their apps."""

    def __init__(self, finder: PodFinder) -> None:
        self._finder = finder
        self._services = finder.services
        self._events = finder.events

    def stop(
        self,
        reference: str,
        *,
        timeout: float | None = None,
        force: bool = False,
        cause: str = pod_restarts.STOPPED,
    ) -> PodRecord:
        """Stops a running pod and waits until its teardown is done. An ended pod is left as it is, but its policy
        will not restart it.

        :param timeout: seconds until it is ended by force; None: the configured time for apps, plus some reserve.
        :param cause: the reason; see :func:`kurma_core.pods.run.pod_restarts.wanted`.
        :raises PodStateError: it is still being prepared, its start makes no progress, or it does not end.
        """
        directory = self._finder.find(reference)
        # Recorded first, so that no policy restarts it. A full disk must not keep the pod running.
        with contextlib.suppress(HostError):
            directory.change_state(only_in=(*STARTED_STATES, *ENDED_STATES), cause=cause)
        state = directory.read_state()
        if state.startable:
            return self._finder.read(directory)
        stager = recovery.find_stager(self._services, directory)
        if stager is None and state.state == "starting":
            stager = self._await_stager(directory)
            state = directory.read_state()
            if state.state in ENDED_STATES:  # it failed to start
                if state.reason:
                    self._services.note(f"pod {directory.uuid}: {state.reason}")
                return self._finder.read(directory)
        if stager is None and state.state in ("preparing", "starting"):
            raise PodStateError(
                f"pod {reference} is {state.state}: it cannot be stopped yet", hint="try again in a moment"
            )
        # From the files alone: asking the stager could hang before it is ended.
        record = pod_record(directory)
        if stager is not None:
            try:
                self._end(directory, stager, timeout, force)
            finally:
                stager.close()
        self._finder.wait_ended(directory, time.monotonic() + _TEARDOWN_PATIENCE)
        try:
            now = self._finder.read(directory)
            if now.state in ENDED_STATES:
                return now
            self._services.note(
                f"pod {record.uuid}: it has ended, which cannot be recorded: the disk is full or read-only"
            )
            record = now
        except PodNotFoundError:
            # An ephemeral pod, removed by its owner: only the owner's caller knows how it ended.
            pass
        return replace(record, state="stopped", owner=None, stager_pid=None, network_namespace=None)

    def _await_stager(self, directory: PodDirectory) -> RunningStagerHooks | None:
        """The stager of a starting pod, once it runs. None: it did not start in time, or the pod has ended."""
        from kurma_core.linux.inotify import SharedWatch

        deadline = time.monotonic() + _COMING
        try:
            watch = SharedWatch(directory.path)
        except OSError:
            return None
        try:
            while directory.read_state().state == "starting" and directory.owned():
                stager = recovery.find_stager(self._services, directory)
                left = deadline - time.monotonic()
                if stager is not None or left <= 0:
                    return stager
                # An owner that is killed changes no file in the directory.
                wait_readable(min(left, _LOOK_AGAIN), watch)
                watch.drain()
            self._finder.recover(directory)
            return recovery.find_stager(self._services, directory)
        finally:
            watch.close()

    def _end(
        self, directory: PodDirectory, stager: RunningStagerHooks, timeout: float | None, force: bool
    ) -> None:
        document = directory.read_document()
        driver = self._services.stagers.of_pod(document)
        request_stop(directory, document, driver, stager, self._events, force=force)
        # Time for the apps, for their post-stop handlers, and a reserve for processes that are slow to die.
        patience = 2 * self._stop_timeout(document) + 5 if timeout is None else timeout
        if _ends(stager, patience):
            return
        if timeout is not None and not force and self._insist(directory, driver, stager):
            return
        by_force(directory)
        driver.stop(directory.path, stager, force=True)
        if not _ends(stager, 10):
            raise PodStateError(
                f"pod {directory.uuid}: its stager (process {stager.pid}) does not end after SIGKILL",
                hint="it hangs in the kernel; try again: kurma stop --force",
            )

    def _stop_timeout(self, document: PodDocument) -> float:
        """Seconds between the stop signal and SIGKILL for the pod's apps."""
        own = document.stop_timeout
        return self._services.config.stop_timeout if own is None else own

    def _insist(self, directory: PodDirectory, driver: StagerHooks, stager: RunningStagerHooks) -> bool:
        """Asks the stager to end the apps by force: the caller's timeout has passed, but not the stager's own. A
        stager that supports this runs each app's post-stop handler and keeps its records.

        :returns: whether the stager has ended.
        """
        if "stop" not in driver.app_verbs(directory.path):
            return False
        # A stager that fails is ended by force by the caller; one that has just ended needs nothing more.
        with contextlib.suppress(KurmaError, OSError):
            for status in driver.status(directory.path, stager).values():
                if not status.exited:
                    driver.stop_app(directory.path, stager, status.name, 0)
            return _ends(stager, self._stop_timeout(directory.read_document()) + 5)
        return _ends(stager, 0)

    def kill(self, reference: str, number: int, app: str | None = None) -> None:
        """Sends a signal to an app's main process, or to those of all apps.

        :raises AppNotFoundError: the pod has no such app, or it does not run.
        :raises PodStateError: the pod does not run.
        """
        from kurma_core.linux.cgroups import CgroupTree

        directory = self._finder.find(reference)
        record = self._finder.read(directory)
        if record.state != "running":
            raise PodStateError(f"cannot signal pod {record.name}: it is {record.state}", pod=record.uuid)
        running = {each.name: each.pid for each in record.apps if each.pid is not None and not each.exited}
        if not running:
            self._say_why(directory)
        if app is not None and the_app(record, app).name not in running:
            raise AppNotFoundError(f"app {app} of pod {record.name} does not run")
        # The stager's answer is untrusted: only a process in this pod's own cgroup is ever signalled.
        tree = CgroupTree(directory.read_document().cgroup)
        for name, pid in running.items():
            if app in (None, name):
                _signal_member(pid, number, tree, name)

    def _say_why(self, directory: PodDirectory) -> None:
        """Called if no app is known to run. :raises StagerError: because the stager's status cannot be parsed."""
        stager = recovery.find_stager(self._services, directory)
        if stager is not None:
            try:
                self._finder.driver(directory).status(directory.path, stager)
            finally:
                stager.close()


def _ends(stager: RunningStagerHooks, timeout: float) -> bool:
    from kurma_core.linux.process import wait_pidfd

    return wait_pidfd(stager.fileno(), timeout)


def _signal_member(pid: int, number: int, tree: CgroupTree, app: str) -> None:
    from kurma_core.linux.process import pidfd_open, pidfd_send_signal

    try:
        fd = pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Checked with the pidfd open: before, the PID could have passed to another process.
        if pid not in tree.pids():
            raise PodError(f"the stager is wrong: process {pid}, which it names for app {app}, is not in its pod")
        pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise PodError(
            f"app {app} cannot be signalled ({number}): permission denied",
            hint="check its AppArmor profile or the SELinux policy; kurma stop ends the pod",
        ) from None
    finally:
        os.close(fd)
