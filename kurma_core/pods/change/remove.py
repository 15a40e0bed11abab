"""Removes pods (``kurma rm``), and collects dead ones and what they left (``kurma gc``).

A pod whose records cannot be read is found by its UUID, and taken down as far as its parts are known.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from kurma_core.api.pods import Collected
from kurma_core.errors import (
    FormatVersionError,
    HostError,
    KurmaError,
    PluginNotFoundError,
    PodDamagedError,
    PodNotFoundError,
    PodStateError,
)
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.pod import ENDED_STATES
from kurma_core.pods.record.document import cgroup_of
from kurma_core.pods.record.pod_directory import unwritable
from kurma_core.pods.run import recovery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kurma_core.models.network import Attachment
    from kurma_core.pods.change.app_changes import PodApps
    from kurma_core.pods.change.stop import PodStopper
    from kurma_core.pods.finder import PodFinder
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.record.state import PodState
    from kurma_core.pods.services import Services


#: Seconds after which the directory of an unfinished or half-removed pod counts as abandoned.
_HALF_MADE_GRACE = 60.0
#: Errors of reading a pod whose records are missing or cannot be parsed.
_UNREADABLE = (PodNotFoundError, PodDamagedError, FormatVersionError)


class PodRemover:
    """Removes pods, and collects the remains of dead ones.

    :param stopper: gives the manager's; it stops pods that are removed by force.
    :param apps: gives the manager's; it finishes changes of the apps of running pods whose process has died.
    """

    def __init__(self, finder: PodFinder, stopper: Callable[[], PodStopper], apps: Callable[[], PodApps]) -> None:
        self._finder = finder
        self._stopper = stopper
        self._apps = apps
        self._services = finder.services
        self._store = finder.store
        self._events = finder.events

    def remove(self, reference: str, *, force: bool = False) -> None:
        """Removes an ended or prepared pod, its logs and empty volumes.

        :param force: stop it first if it runs, at once; give up the networks whose plugins are not installed any
            more.
        :raises PodStateError: it runs.
        :raises PluginNotFoundError: a plugin is not installed that is needed to take it down.
        """
        try:
            directory = self._store.find(reference)
        except PodNotFoundError:
            if force and self._finder.network_check.give_up(reference):
                return
            raise
        self._recover(directory, force=force)
        if not os.path.isdir(directory.path):
            return  # half-made, or ephemeral and dead: the recovery has removed it
        try:
            document = directory.read_document()
            state = directory.read_state()
        except _UNREADABLE:
            self._remove_broken(directory, force=force)
            return
        if force and not state.startable:
            with contextlib.suppress(PluginNotFoundError):
                self._stopper().stop(document.uuid, force=True)
            if not os.path.isdir(directory.path):
                return  # ephemeral, and removed by its owner
        elif not state.startable and directory.owned():
            raise _not_removable(document, state.state)
        lock = self._finder.own(directory)
        try:
            self._make_removable(directory, document, force=force)
            recovery.discard_remains(self._services, directory)
            self._store.delete(directory, document.name)
        except PodNotFoundError:
            return  # another process has removed it
        finally:
            os.close(lock)
        self._events.tell("removed", document)

    def _recover(self, directory: PodDirectory, *, force: bool) -> None:
        """Takes the pod down if it is dead. Damaged records and a full disk do not prevent the removal."""
        if not recovery.needs_recovery(directory):
            return
        try:
            recovery.recover(self._services, directory, self._events, give_up=force)
        except _UNREADABLE:
            return
        except HostError as error:
            if not unwritable(error):
                raise

    def _make_removable(self, directory: PodDirectory, document: PodDocument, *, force: bool) -> None:
        """Takes the pod down if it is dead. A full disk, which keeps that from being recorded, does not prevent
        the removal."""
        now = directory.read_state()
        if now.startable and not now.steps:
            return
        try:
            recovery.take_down(self._services, directory, self._events, give_up=force)
        except HostError as error:
            if unwritable(error):
                return
            raise
        now = directory.read_state()
        if not now.startable:
            raise _not_removable(document, now.state)

    def _remove_broken(self, directory: PodDirectory, *, force: bool) -> None:
        """Removes a pod whose records cannot be read: its parts are known by its UUID, and by the records that can
        be read."""
        lock = self._finder.own(directory)
        try:
            _take_down_damaged(self._services, directory, force=force)
            recovery.discard_remains(self._services, directory)
            self._store.delete(directory, self._store.name_of(directory.uuid))
        finally:
            os.close(lock)

    def collect(self, *, grace: float, dry_run: bool) -> Collected:
        """Takes down dead pods, whenever they died; removes pods that ended more than ``grace`` seconds ago; frees
        what removed pods left: files of their stagers, and networks.

        :returns: a line for each thing done, or that would be done, or was left.
        """
        from kurma_core.pods.run import prestarted

        said: list[str] = []
        failed = False
        for uuid in self._store.uuids():
            directory = self._store.directory(uuid)
            try:
                said += self._collect_one(directory, grace, dry_run)
            except KurmaError as error:
                if not os.path.isdir(directory.path):
                    continue  # an ephemeral pod, which its owner has removed meanwhile
                # Only the user knows whether a plugin that is gone comes back.
                failed = failed or not isinstance(error, PluginNotFoundError)
                hint = f"kurma rm --force {uuid}" if isinstance(error, _UNREADABLE) else error.hint
                left = error.message.removeprefix(f"pod {uuid}: ")
                said.append(f"pod {uuid}: left: {left}" + (f" ({hint})" if hint else ""))
        if not dry_run:
            prestarted.sweep(self._services, min(grace, _HALF_MADE_GRACE))
            self._store.sweep(min(grace, _HALF_MADE_GRACE))
        for line, wrong in recovery.remains_of_gone_pods(self._services, dry_run=dry_run):
            said.append(line)
            failed = failed or wrong
        for finding in self._finder.network_check.of_gone_pods(dry_run=dry_run):
            what = "would be freed" if dry_run else "freed" if finding.repaired else "left"
            failed = failed or (not dry_run and not finding.repaired)
            said.append(f"{finding.what}: {finding.why}: {what}")
        return Collected(tuple(said), failed)

    def _collect_one(self, directory: PodDirectory, grace: float, dry_run: bool) -> Iterable[str]:
        if recovery.needs_recovery(directory):
            if dry_run and not _lives(self._services, directory):
                yield f"pod {directory.uuid}: its owner has died: would be taken down"
                return
            if not dry_run and recovery.recover(self._services, directory, self._events):
                yield f"pod {directory.uuid}: taken down"
        if not os.path.isdir(directory.path):
            return
        try:
            state = _whole_state(directory)
        except PodNotFoundError:
            if directory.owned():
                return  # it is just being made
            state = _whole_state(directory)  # read again: it may have been completed just now
        if state.state in ("running", "stopping") and not directory.owned():
            yield f"pod {directory.uuid}: runs without an owner: left (kurma stop {directory.uuid[:8]})"
        if state.state in ENDED_STATES and not state.steps and _since_its_end(state) >= grace:
            if not dry_run:
                self.remove(directory.uuid)
            yield f"pod {directory.uuid}: {'would be ' if dry_run else ''}removed"
        elif directory.half_changed():
            if not dry_run:
                self._apps().finish_change(directory)
            cleared = "would be cleared" if dry_run else "cleared"
            yield f"pod {directory.uuid}: {cleared} of a half-made change of its apps"


def _since_its_end(state: PodState) -> float:
    """Seconds since the pod ended; a change of the system clock does not matter."""
    from kurma_core.pods.record.state import age, between, mark

    passed = between(state.over, mark())
    return age(state.finished_at) if passed is None else passed


def _lives(services: Services, directory: PodDirectory) -> bool:
    """Whether a pod without an owner still runs, and so is left alone."""
    try:
        if directory.read_state().state not in ("running", "stopping"):
            return False
    except PodNotFoundError:
        return False  # half-made
    stager = recovery.find_stager(services, directory)
    if stager is None:
        return False
    stager.close()
    return True


def _whole_state(directory: PodDirectory) -> PodState:
    """The state of a pod. Also checks that its definition can be read, once the pod is past its preparation."""
    state = directory.read_state()
    if state.state != "preparing":
        directory.read_document()
    return state


def _not_removable(document: PodDocument, state: str) -> PodStateError:
    return PodStateError(
        f"cannot remove pod {document.name}: it is {state}",
        hint=f"kurma stop {document.uuid[:8]}, or kurma rm --force {document.uuid[:8]}",
    )


def _take_down_damaged(services: Services, directory: PodDirectory, *, force: bool) -> None:
    """Ends its processes, leaves its networks, removes its namespaces and cgroup. The caller holds the owner lock.

    :raises PodStateError: processes of it run, and ``force`` is not given.
    :raises KurmaError: a part cannot be undone.
    """
    from kurma_core.networking.network_records import PINS, pin_path
    from kurma_core.pods.network import port_claims

    uuid = directory.uuid
    tree = CgroupTree(cgroup_of(uuid))
    namespace = pin_path("net", uuid)
    try:
        if tree.pids() and not force:
            raise PodStateError(
                f"cannot remove pod {uuid}: its record is damaged, and processes of it run",
                hint=f"kurma rm --force {uuid}",
                pod=uuid,
            )
        tree.kill()
        joined = _listed_attachments(directory) or _joined_networks(services, uuid)
        services.names.leave(uuid, joined or None)
        if joined:
            services.networking.delete_all(joined, pod=uuid, pod_name=uuid, namespace=namespace, give_up=force)
        for kind in PINS:
            services.joined.release(uuid, kind)
        port_claims.let_go(directory)
        services.joined.forget(uuid)
        tree.remove()
    except OSError as error:
        raise HostError.of(f"cannot take down pod {uuid}", error, pod=uuid) from None


def _joined_networks(services: Services, uuid: str) -> tuple[Attachment, ...]:
    """The networks by the join record, which is outside of the pod's own directory."""
    record = services.joined.read(uuid)
    return () if record is None else record.attachments


def _listed_attachments(directory: PodDirectory) -> tuple[Attachment, ...]:
    """The networks that it may have joined, from the first of its records that can be read."""
    from kurma_core.models.network import Attachment

    for name in ("state.json", "pod.json"):
        record = directory.raw(name)
        listed = record.get("attachments") if isinstance(record, dict) else None
        found = []
        for one in listed if isinstance(listed, list) else ():
            with contextlib.suppress(ValueError):
                found.append(Attachment.from_json(one))
        if found:
            return tuple(found)
    return ()
