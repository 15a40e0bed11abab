"""The pod manager: makes pods, starts them, finds them, stops and removes them. Works from any process on one
state directory; flocks and atomic renames keep the processes apart."""

from __future__ import annotations

import contextlib
import os
import time
import uuid as uuids
from typing import TYPE_CHECKING

from kurma_core.appc.types import pod_uuid, sanitize_name
from kurma_core.errors import (
    AppNotFoundError,
    FormatVersionError,
    HostError,
    KurmaError,
    PluginError,
    PodDamagedError,
    PodError,
    PodNotFoundError,
    PodStateError,
    StagerError,
    UsageError,
)
from kurma_core.linux.clock import timestamp
from kurma_core.models import ENDED_STATES, PodRecord
from kurma_core.pods import ports, recovery
from kurma_core.pods.events import Events
from kurma_core.pods.launch import Launch
from kurma_core.pods.owned import OwnedPod
from kurma_core.pods.records import pod_record, read_document
from kurma_core.pods.space import no_space
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kurma_core.hookspecs import Progress, RunningStager, Stager, Stdio
    from kurma_core.linux.cgroups import CgroupTree
    from kurma_core.pod_store import PodDirectory
    from kurma_core.pods.document import PodDocument
    from kurma_core.pods.request import PodRequest
    from kurma_core.pods.services import Services

_NAME_LIMIT = 128
#: Seconds that an owner has for its teardown once the stager has ended.
_TEARDOWN_PATIENCE = 60.0
#: Seconds to wait for the owner lock, where nobody should hold it for long.
_LOCK_PATIENCE = 2.0
#: Seconds until a dead pod that somebody owns is looked at again.
_LOOK_AGAIN = 1.0
#: Seconds after which a pod's directory that is still being made, or removed, is nobody's.
_HALF_MADE_GRACE = 60.0
#: What reading a pod raises whose records are not there, or not to be understood.
_UNREADABLE = (PodNotFoundError, PodDamagedError, FormatVersionError)


class Collected(tuple[str, ...]):
    """What a collection of garbage has to say, line by line.

    :param failed: whether something was left because of an error.
    """

    failed: bool

    def __new__(cls, lines: Iterable[str], *, failed: bool) -> Collected:
        self = super().__new__(cls, lines)
        self.failed = failed
        return self


class PodManager:
    """:param services: the rooms below."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.store = services.store
        self.events = Events(services.registry)

    # -- making --

    def prepare(self, request: PodRequest, progress: Progress | None = None) -> PodRecord:
        """Makes a pod that can be started. What fails leaves nothing behind.

        :raises KurmaError: see :func:`kurma_core.pods.prepare.pod_document`.
        :raises PodExistsError: its UUID or name is taken.
        """
        from kurma_core.pods.prepare import pod_document

        uuid = str(uuids.uuid4()) if request.uuid is None else pod_uuid(request.uuid)
        name = self._name(request, uuid)
        created_at = timestamp()
        directory, lock = self.store.create(uuid, name)
        try:
            document = pod_document(request, uuid, name, created_at, self.services, progress)
            directory.write_state({"state": "preparing", "steps": []})
            directory.write_pod(document.to_json())
            directory.write_state({"state": "prepared", "steps": []})
            record = pod_record(directory)
        except BaseException:
            self.store.delete(directory, name)
            raise
        finally:
            os.close(lock)
        self.events.tell("prepared", document)
        return record

    @staticmethod
    def _name(request: PodRequest, uuid: str) -> str:
        if request.name is None:
            first = request.template.pod.apps[0].name if request.template.pod.apps else "pod"
            return f"{first[: _NAME_LIMIT - 9]}-{uuid[:8]}"
        name = request.name
        if len(name) > _NAME_LIMIT or sanitize_name(name) != name:
            raise UsageError(
                f"{name!r} is no name for a pod",
                hint=f"at most {_NAME_LIMIT} of a-z, 0-9, and - inside: {sanitize_name(name)[:_NAME_LIMIT]}",
            )
        if name == "names":
            raise UsageError("a pod cannot be named names")
        return name

    # -- running --

    def start(self, reference: str, stdio: Stdio, settled: Callable[[], None] = lambda: None) -> OwnedPod:
        """Starts a prepared or ended pod from a clean copy; this process owns it from now on.

        :param settled: called once it is up, or on its way down: then nothing may interrupt this process any more.
        :raises PodStateError: it runs already, or is owned by another process.
        :raises KurmaError: it did not come up; all is undone and recorded.
        """
        directory = self._find(reference)
        document = read_document(directory)
        self._startable(document, directory.read_state())
        pod = OwnedPod(Launch(self.services, directory, document, stdio), self._own(directory), self.events)
        try:
            state = directory.read_state()
            self._startable(document, state)
            if state.get("steps"):
                raise PodStateError(
                    f"cannot start pod {document.name}: its last teardown is not complete", hint="kurma gc"
                )
            self._clear_run(directory)
            with ports.claimed(self.store, document.uuid, ports.published(document.attachments)):
                directory.change_state(state="starting", owner=os.getpid())
            pod.start(self.services.config.start_timeout, settled)
        except BaseException:
            pod.close()
            raise
        return pod

    @staticmethod
    def _startable(document: PodDocument, state: Mapping[str, object]) -> None:
        if state["state"] not in ("prepared", *ENDED_STATES):
            raise PodStateError(f"cannot start pod {document.name}: it is {state['state']}", pod=document.uuid)

    @staticmethod
    def _own(directory: PodDirectory) -> int:
        """The owner lock. Who only looks after what is dead, as any command does, soon lets go of it."""
        lock = directory.try_own(_LOCK_PATIENCE)
        if lock is None:
            raise PodStateError(f"pod {directory.uuid}: another process is at work on it", pod=directory.uuid)
        return lock

    def _clear_run(self, directory: PodDirectory) -> None:
        """Every execution starts from a clean copy: what an earlier run left is removed, its logs too."""
        from kurma_core.linux.beneath import remove_tree

        fd = os.open(directory.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in ("pod", "stager", "volumes"):
                try:
                    remove_tree(fd, name)
                except FileNotFoundError:
                    continue
        finally:
            os.close(fd)

    # -- telling --

    def pods(self) -> list[PodRecord]:
        """Every pod, oldest first. Dead ones are taken down on the way; a broken one never hides the rest."""
        found = []
        for uuid in self.store.uuids():
            directory = self.store.directory(uuid)
            try:
                self._recover(directory)
                found.append(self._record(directory))
            except KurmaError as error:
                if os.path.isdir(directory.path):
                    found.append(self._broken(directory, error))
        return sorted(found, key=lambda record: record.created_at)

    def pod(self, reference: str) -> PodRecord:
        """:raises PodNotFoundError: there is none of that UUID, prefix or name."""
        directory = self._find(reference)
        return self._record(directory)

    def wait(self, reference: str) -> PodRecord:
        """Waits until the pod has ended and its teardown is done.

        :raises PodNotFoundError: it was removed in the meantime, as ephemeral ones are.
        """
        directory = self._find(reference)
        self._wait_ended(directory, None)
        return self._record(directory)

    def _find(self, reference: str) -> PodDirectory:
        directory = self.store.find(reference)
        self._recover(directory)
        if not os.path.isdir(directory.path):
            raise PodNotFoundError(f"no pod {reference}: it was half-made, and its remains were removed")
        return directory

    def _recover(self, directory: PodDirectory) -> None:
        if recovery.needs_recovery(directory):
            try:
                recovery.recover(self.services, directory, self.events)
            except PodNotFoundError:
                return  # removed in the meantime: whoever asks for it is told so
            except KurmaError as error:
                self.services.note(error.message)

    def _record(self, directory: PodDirectory) -> PodRecord:
        state = directory.read_state()["state"]
        if state not in ("running", "stopping"):
            return pod_record(directory)
        try:
            driver = self._driver(directory)
            stager = recovery.find_stager(self.services, directory)
        except (PluginError, StagerError) as error:
            # Its stager's plugin is gone, or broken: the pod is listed all the same.
            self.services.note(error.message)
            return pod_record(directory)
        try:
            return pod_record(directory, driver, stager)
        finally:
            if stager is not None:
                stager.close()

    def _driver(self, directory: PodDirectory) -> Stager:
        return self.services.stagers.of_pod(read_document(directory).stager)

    @staticmethod
    def _broken(directory: PodDirectory, error: KurmaError) -> PodRecord:
        state = "preparing" if directory.owned() else "errored"
        return PodRecord(
            uuid=directory.uuid,
            name="-",
            state=state,
            created_at="",
            apps=(),
            images={},
            stager="",
            renderer="",
            reason=None if state == "preparing" else error.message,
        )

    # -- ending --

    def stop(self, reference: str, *, timeout: float | None = None, force: bool = False) -> PodRecord:
        """Stops a running pod and waits until its teardown is done. One that has ended is left as it is.

        :param timeout: seconds until it is ended by force; None: what the configuration gives apps, and some.
        :raises PodStateError: it is only being prepared or started; or it does not end.
        """
        directory = self._find(reference)
        state = directory.read_state()["state"]
        if state in ENDED_STATES or state == "prepared":
            return self._record(directory)
        stager = recovery.find_stager(self.services, directory)
        if stager is None and state in ("preparing", "starting"):
            raise PodStateError(
                f"pod {reference} is {state}: it cannot be stopped yet", hint="try again in a moment"
            )
        record = self._record(directory)
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
            self.services.note(f"pod {record.uuid}: it has ended; there is no space to record that")
            record = now
        except PodNotFoundError:
            # An ephemeral one, that its owner has removed: how it ended, only the owner's caller has learnt.
            pass
        return replace(record, state="stopped", owner=None, stager_pid=None, network_namespace=None)

    def _end(self, directory: PodDirectory, stager: RunningStager, timeout: float | None, force: bool) -> None:
        driver = self._driver(directory)
        driver.stop(directory.path, stager, force=force)
        # A full disk must not keep a pod running; and its owner may have recorded its end already.
        with contextlib.suppress(HostError, PodNotFoundError):
            directory.change_state(only_in=("starting", "running"), state="stopping")
        patience = self.services.config.stop_timeout + 5 if timeout is None else timeout
        if _ends(stager, patience):
            return
        driver.stop(directory.path, stager, force=True)
        if not _ends(stager, 10):
            raise PodStateError(
                f"pod {directory.uuid}: its stager (process {stager.pid}) does not die, not even of SIGKILL",
                hint="it hangs in the kernel; kurma stop --force tries again",
            )

    def _wait_ended(self, directory: PodDirectory, deadline: float | None) -> None:
        """Until the pod is recorded as ended (or gone): by its owner, or by us when it has none."""
        from kurma_core.linux.inotify import Watch
        from kurma_core.pods.waiting import wait_readable

        try:
            watch = Watch(directory.path)
        except OSError:
            return
        try:
            while True:
                try:
                    # What cannot be taken down is an error here: waiting on would not change it.
                    if recovery.needs_recovery(directory):
                        recovery.recover(self.services, directory, self.events)
                    state = directory.read_state()["state"]
                except PodNotFoundError:
                    return
                except HostError as error:
                    if no_space(error):
                        return  # it is taken down; only that cannot be recorded
                    raise
                if state in ENDED_STATES:
                    return
                if deadline is not None and time.monotonic() > deadline:
                    raise PodStateError(
                        f"pod {directory.uuid}: its stager has ended, but its owner does not take it down",
                        hint="is that process stopped? see OWNER in kurma show",
                    )
                stager = recovery.find_stager(self.services, directory)
                try:
                    left = None if deadline is None else deadline - time.monotonic()
                    # An owner that could not record the end changes nothing in the directory.
                    wait_readable(watch, stager, _LOOK_AGAIN if stager is None else left)
                finally:
                    if stager is not None:
                        stager.close()
                watch.drain()
        finally:
            watch.close()

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
        if app is not None and app not in [each.name for each in record.apps]:
            raise AppNotFoundError(
                f"pod {record.name} has no app {app}", hint="its apps: " + ", ".join(a.name for a in record.apps)
            )
        if app is not None and app not in running:
            raise AppNotFoundError(f"app {app} of pod {record.name} does not run")
        # What a stager says is untrusted: only a process of this pod's own cgroup is ever signalled.
        tree = CgroupTree(read_document(directory).cgroup)
        for name, pid in running.items():
            if app in (None, name):
                _signal_member(pid, number, tree, name)

    def remove(self, reference: str, *, force: bool = False) -> None:
        """Removes an ended or prepared pod, its logs and empty volumes.

        :param force: stop it first if it runs, at once.
        :raises PodStateError: it runs.
        """
        directory = self.store.find(reference)
        self._recover(directory)
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
            self.store.delete(directory, document.name)
        except PodNotFoundError:
            return  # somebody was faster
        finally:
            os.close(lock)
        self.events.tell("removed", document)

    def _make_removable(self, directory: PodDirectory, document: PodDocument) -> None:
        """Takes down what is dead. That there is no space to record it is no reason not to remove it."""
        now = directory.read_state()
        if now["state"] in ("prepared", *ENDED_STATES) and not now.get("steps"):
            return
        try:
            recovery.take_down(self.services, directory, self.events)
        except HostError as error:
            if no_space(error):
                return
            raise
        now = directory.read_state()
        if now["state"] not in ("prepared", *ENDED_STATES):
            raise _not_removable(document, now["state"])

    def _remove_broken(self, directory: PodDirectory, *, force: bool) -> None:
        """A pod whose records cannot be read: what it may have made is known by its UUID, and what is readable."""
        from kurma_core.pods import broken

        lock = self._own(directory)
        try:
            broken.take_down(self.services, directory, force=force)
            self.store.delete(directory, self.store.name_of(directory.uuid))
        finally:
            os.close(lock)

    def collect(self, *, grace: float, dry_run: bool) -> Collected:
        """Takes down what is dead, whenever it died, and removes pods that ended more than ``grace`` seconds ago.

        :returns: a line for each thing done, or that would be done, or was left.
        """
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
            self.store.sweep(min(grace, _HALF_MADE_GRACE))
        return Collected(said, failed=failed)

    def _collect_one(self, directory: PodDirectory, grace: float, dry_run: bool) -> Iterable[str]:
        from kurma_core.pods.times import age

        if recovery.needs_recovery(directory):
            if dry_run:
                yield f"pod {directory.uuid}: its owner has died: would be taken down if it has ended"
                return
            if recovery.recover(self.services, directory, self.events):
                yield f"pod {directory.uuid}: taken down"
        if not os.path.isdir(directory.path):
            return
        try:
            state = directory.read_state()
            if state["state"] != "preparing":
                read_document(directory)
        except PodNotFoundError:
            if directory.owned():
                return  # it is just being made
            raise
        if state["state"] in ("running", "stopping") and not directory.owned():
            yield f"pod {directory.uuid}: runs without an owner: left (kurma stop {directory.uuid[:8]})"
        if state["state"] in ENDED_STATES and not state.get("steps") and age(state.get("finishedAt")) >= grace:
            if not dry_run:
                self.remove(directory.uuid)
            yield f"pod {directory.uuid}: {'would be ' if dry_run else ''}removed"

    def used_images(self) -> set[str]:
        """IDs of the images that any pod of the store names."""
        used: set[str] = set()
        for uuid in self.store.uuids():
            try:
                used.update(read_document(self.store.directory(uuid)).images.values())
            except KurmaError:
                continue  # nothing can be known of a broken one, and it can never run again
        return used

    def network_users(self, network: str) -> list[str]:
        """Names of the live pods that are joined to that network."""
        return [
            record.name
            for record in self.pods()
            if record.state not in (*ENDED_STATES, "prepared")
            and any(attachment.network == network for attachment in record.attachments)
        ]


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
    finally:
        os.close(fd)
