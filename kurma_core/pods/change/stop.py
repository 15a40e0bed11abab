"""Ending pods: stop, kill, rm, gc."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, cast

from kurma_core.api.pods import Collected
from kurma_core.errors import (
    AppNotFoundError,
    FormatVersionError,
    HostError,
    KurmaError,
    PodDamagedError,
    PodError,
    PodNotFoundError,
    PodStateError,
)
from kurma_core.models.pod import ENDED_STATES, PodRecord
from kurma_core.pods.finder import PodFinder
from kurma_core.pods.record.pod_record import by_force, pod_record, read_document, the_app
from kurma_core.pods.record.pod_store import unwritable
from kurma_core.pods.run import pod_restarts, recovery
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kurma_core.hookspecs.stager import AppChanger, RunningStager, Stager
    from kurma_core.linux.cgroups import CgroupTree
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_store import PodDirectory
    from kurma_core.pods.services import Services

#: Seconds that an owner has for its teardown once the stager has ended.
_TEARDOWN_PATIENCE = 60.0
#: Seconds for which somebody who stops a pod waits for its stager to come, and until its owner is looked after.
_COMING, _LOOK_AGAIN = 30.0, 1.0
#: Seconds after which a pod's directory that is still being made, or removed, is nobody's.
_HALF_MADE_GRACE = 60.0
#: What reading a pod raises whose records are not there, or not to be understood.
_UNREADABLE = (PodNotFoundError, PodDamagedError, FormatVersionError)


class PodEnder(PodFinder):
    """Stopping, signalling, removing pods, and collecting what is left of dead ones."""

    def stop(
        self,
        reference: str,
        *,
        timeout: float | None = None,
        force: bool = False,
        cause: str = pod_restarts.STOPPED,
    ) -> PodRecord:
        """Stops a running pod and waits until its teardown is done. One that has ended is left as it is, and is
        not started again by its policy.

        :param timeout: seconds until it is ended by force; None: what the configuration gives apps, and some.
        :param cause: why: see :func:`kurma_core.pods.run.pod_restarts.wanted`.
        :raises PodStateError: it is only being prepared, or does not get on with its start; or it does not end.
        """
        directory = self._find(reference)
        # First, so that no policy starts it again. A full disk must not keep a pod running.
        with contextlib.suppress(HostError):
            directory.change_state(only_in=("starting", "running", "stopping", *ENDED_STATES), cause=cause)
        state = directory.read_state()["state"]
        if state in ENDED_STATES or state == "prepared":
            return self._record(directory)
        stager = recovery.find_stager(self.services, directory)
        if stager is None and state == "starting":
            stager = self._await_stager(directory)
            state = directory.read_state()["state"]
            if state in ENDED_STATES:  # it has not come up
                return self._record(directory)
        if stager is None and state in ("preparing", "starting"):
            raise PodStateError(
                f"pod {reference} is {state}: it cannot be stopped yet", hint="try again in a moment"
            )
        # Told by what stands on disk: a stager that does not answer is not asked first.
        record = pod_record(directory)
        if stager is not None:
            try:
                self._end(directory, stager, timeout, force)
            finally:
                stager.close()
        self._wait_ended(directory, time.monotonic() + _TEARDOWN_PATIENCE)
        try:
            now = self._record(directory)
            if now.state in ENDED_STATES:
                return now
            self.services.note(
                f"pod {record.uuid}: it has ended; that cannot be recorded on a disk that is full or read-only"
            )
            record = now
        except PodNotFoundError:
            # An ephemeral one, that its owner has removed: how it ended, only the owner's caller has learnt.
            pass
        return replace(record, state="stopped", owner=None, stager_pid=None, network_namespace=None)

    def _await_stager(self, directory: PodDirectory) -> RunningStager | None:
        """Of a pod that starts: once it is there. None: it does not come in time, or the pod is over."""
        from kurma_core.linux.watches import SharedWatch
        from kurma_core.pods.waiting import wait_readable

        deadline = time.monotonic() + _COMING
        try:
            watch = SharedWatch(directory.path)
        except OSError:
            return None
        try:
            while directory.read_state()["state"] == "starting" and directory.owned():
                stager = recovery.find_stager(self.services, directory)
                left = deadline - time.monotonic()
                if stager is not None or left <= 0:
                    return stager
                # An owner that is killed changes nothing in the directory.
                wait_readable(min(left, _LOOK_AGAIN), watch)
                watch.drain()
            self.recover(directory)
            return recovery.find_stager(self.services, directory)
        finally:
            watch.close()

    def _end(self, directory: PodDirectory, stager: RunningStager, timeout: float | None, force: bool) -> None:
        driver = self._driver(directory)
        if force:
            by_force(directory)
        driver.stop(directory.path, stager, force=force)
        # A full disk must not keep a pod running; and its owner may have recorded its end already.
        with contextlib.suppress(HostError, PodNotFoundError):
            if directory.move_to("stopping", only_in=("starting", "running")):
                self.events.tell("stopping", read_document(directory))
        # The apps' time, that of their post-stop handlers, and some for what does not die.
        patience = 2 * self.services.config.stop_timeout + 5 if timeout is None else timeout
        if _ends(stager, patience):
            return
        if timeout is not None and not force and self._insist(directory, driver, stager):
            return
        by_force(directory)
        driver.stop(directory.path, stager, force=True)
        if not _ends(stager, 10):
            raise PodStateError(
                f"pod {directory.uuid}: its stager (process {stager.pid}) does not die, not even of SIGKILL",
                hint="it hangs in the kernel; kurma stop --force tries again",
            )

    def _insist(self, directory: PodDirectory, driver: Stager, stager: RunningStager) -> bool:
        """The caller's time is over before the stager's own: a stager that can is told to end its apps by force,
        each with its post-stop handler, and keeps its records. :returns: whether it has ended.
        """
        if not hasattr(driver, "app_verbs") or "stop" not in driver.app_verbs(directory.path):
            return False
        changer = cast("AppChanger", driver)
        # A stager that fails, or has just ended, is ended by force, or needs no more.
        with contextlib.suppress(KurmaError, OSError):
            for status in driver.status(directory.path, stager).values():
                if not status.exited:
                    changer.stop_app(directory.path, stager, status.name, 0)
            return _ends(stager, self.services.config.stop_timeout + 5)
        return _ends(stager, 0)

    def kill(self, reference: str, number: int, app: str | None = None) -> None:
        """Sends a signal to an app's main process, or to those of all apps.

        :raises AppNotFoundError: the pod has no such app, or it does not run.
        :raises PodStateError: the pod does not run.
        """
        from kurma_core.linux.cgroups import CgroupTree

        directory = self._find(reference)
        record = self._record(directory)
        if record.state != "running":
            raise PodStateError(f"cannot signal pod {record.name}: it is {record.state}", pod=record.uuid)
        running = {each.name: each.pid for each in record.apps if each.pid is not None and not each.exited}
        if not running:
            self._say_why(directory)
        if app is not None and the_app(record, app).name not in running:
            raise AppNotFoundError(f"app {app} of pod {record.name} does not run")
        # What a stager says is untrusted: only a process of this pod's own cgroup is ever signalled.
        tree = CgroupTree(read_document(directory).cgroup)
        for name, pid in running.items():
            if app in (None, name):
                _signal_member(pid, number, tree, name)

    def _say_why(self, directory: PodDirectory) -> None:
        """No app is known to run. :raises StagerError: for what the stager says is nonsense."""
        stager = recovery.find_stager(self.services, directory)
        if stager is not None:
            try:
                self._driver(directory).status(directory.path, stager)
            finally:
                stager.close()

    def remove(self, reference: str, *, force: bool = False) -> None:
        """Removes an ended or prepared pod, its logs and empty volumes.

        :param force: stop it first if it runs, at once.
        :raises PodStateError: it runs.
        """
        directory = self.store.find(reference)
        self.recover(directory)
        if not os.path.isdir(directory.path):
            return  # half-made, or ephemeral and dead: that was all there was to do
        try:
            document = read_document(directory)
            state = directory.read_state()["state"]
        except _UNREADABLE:
            self._remove_broken(directory, force=force)
            return
        if force and state not in ("prepared", *ENDED_STATES):
            self.stop(document.uuid, force=True)
            if not os.path.isdir(directory.path):
                return  # ephemeral, and removed by its owner
        elif state not in ("prepared", *ENDED_STATES) and directory.owned():
            raise _not_removable(document, state)
        lock = self._own(directory)
        try:
            self._make_removable(directory, document)
            recovery.discard_remains(self.services, directory)
            self.store.delete(directory, document.name)
        except PodNotFoundError:
            return  # somebody was faster
        finally:
            os.close(lock)
        self.events.tell("removed", document)

    def _make_removable(self, directory: PodDirectory, document: PodDocument) -> None:
        """Takes down what is dead. That it cannot be recorded is no reason not to remove it."""
        now = directory.read_state()
        if now["state"] in ("prepared", *ENDED_STATES) and not now.get("steps"):
            return
        try:
            recovery.take_down(self.services, directory, self.events)
        except HostError as error:
            if unwritable(error):
                return
            raise
        now = directory.read_state()
        if now["state"] not in ("prepared", *ENDED_STATES):
            raise _not_removable(document, now["state"])

    def _remove_broken(self, directory: PodDirectory, *, force: bool) -> None:
        """A pod whose records cannot be read: what it may have made is known by its UUID, and what is readable."""
        from kurma_core.pods.change import broken

        lock = self._own(directory)
        try:
            broken.take_down(self.services, directory, force=force)
            recovery.discard_remains(self.services, directory)
            self.store.delete(directory, self.store.name_of(directory.uuid))
        finally:
            os.close(lock)

    def collect(self, *, grace: float, dry_run: bool) -> Collected:
        """Takes down what is dead, whenever it died, removes pods that ended more than ``grace`` seconds ago, and
        frees what pods that are gone have left: what their stagers have kept, and what is there of networks.

        :returns: a line for each thing done, or that would be done, or was left.
        """
        from kurma_core.pods.run import prestarted

        said: list[str] = []
        failed = False
        for uuid in self.store.uuids():
            directory = self.store.directory(uuid)
            try:
                said += self._collect_one(directory, grace, dry_run)
            except KurmaError as error:
                if not os.path.isdir(directory.path):
                    continue  # an ephemeral one, that its owner has removed meanwhile
                failed = True
                hint = f" (kurma rm --force {uuid})" if isinstance(error, _UNREADABLE) else ""
                said.append(f"pod {uuid}: left: {error.message.removeprefix(f'pod {uuid}: ')}{hint}")
        if not dry_run:
            prestarted.sweep(self.services, min(grace, _HALF_MADE_GRACE))
            self.store.sweep(min(grace, _HALF_MADE_GRACE))
        for line, wrong in recovery.remains_of_gone_pods(self.services, dry_run=dry_run):
            said.append(line)
            failed = failed or wrong
        for finding in self.caretaker.of_gone_pods(dry_run=dry_run):
            what = "would be freed" if dry_run else "freed" if finding.mended else "left"
            failed = failed or (not dry_run and not finding.mended)
            said.append(f"{finding.what}: {finding.why}: {what}")
        return Collected(tuple(said), failed)

    def _collect_one(self, directory: PodDirectory, grace: float, dry_run: bool) -> Iterable[str]:
        if recovery.needs_recovery(directory):
            if dry_run and not _lives(self.services, directory):
                yield f"pod {directory.uuid}: its owner has died: would be taken down"
                return
            if not dry_run and recovery.recover(self.services, directory, self.events):
                yield f"pod {directory.uuid}: taken down"
        if not os.path.isdir(directory.path):
            return
        try:
            state = _whole_state(directory)
        except PodNotFoundError:
            if directory.owned():
                return  # it is just being made
            state = _whole_state(directory)  # unless it has just been
        if state["state"] in ("running", "stopping") and not directory.owned():
            yield f"pod {directory.uuid}: runs without an owner: left (kurma stop {directory.uuid[:8]})"
        if state["state"] in ENDED_STATES and not state.get("steps") and _since_its_end(state) >= grace:
            if not dry_run:
                self.remove(directory.uuid)
            yield f"pod {directory.uuid}: {'would be ' if dry_run else ''}removed"


def _since_its_end(state: dict[str, Any]) -> float:
    """Seconds, whatever was done to the clock meanwhile."""
    from kurma_core.pods.record.times import age, between, mark

    passed = between(state.get("over"), mark())
    return age(state.get("finishedAt")) if passed is None else passed


def _lives(services: Services, directory: PodDirectory) -> bool:
    """Whether a pod without an owner runs on, and is left to."""
    try:
        if directory.read_state()["state"] not in ("running", "stopping"):
            return False
    except PodNotFoundError:
        return False  # half-made
    stager = recovery.find_stager(services, directory)
    if stager is None:
        return False
    stager.close()
    return True


def _whole_state(directory: PodDirectory) -> dict[str, Any]:
    """Of a pod whose document can be read, too, once it should be there."""
    state = directory.read_state()
    if state["state"] != "preparing":
        read_document(directory)
    return state


def _not_removable(document: PodDocument, state: str) -> PodStateError:
    return PodStateError(
        f"cannot remove pod {document.name}: it is {state}",
        hint=f"kurma stop {document.uuid[:8]}, or kurma rm --force {document.uuid[:8]}",
    )


def _ends(stager: RunningStager, timeout: float) -> bool:
    from kurma_core.linux.process import wait_pidfd

    return wait_pidfd(stager.fileno(), timeout)


def _signal_member(pid: int, number: int, tree: CgroupTree, app: str) -> None:
    from kurma_core.linux.process import pidfd_open, pidfd_send_signal

    try:
        fd = pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Only now, since the number may have gone to another process before it was held.
        if pid not in tree.pids():
            raise PodError(f"the stager is wrong: process {pid}, which it names for app {app}, is not in its pod")
        pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise PodError(
            f"app {app} cannot be sent signal {number}: permission denied",
            hint="does its AppArmor profile, or the SELinux policy, let it be signalled? kurma stop ends the pod",
        ) from None
    finally:
        os.close(fd)
