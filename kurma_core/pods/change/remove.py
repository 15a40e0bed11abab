"""Removes pods (``kurma rm``), and collects dead ones and what they left (``kurma gc``).

A pod whose records cannot be read is found by its UUID, and taken down as far as its parts are known.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from kurma_core.api.images import Removal
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
from kurma_core.image_store.durable import Usage
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.pod import ENDED_STATES
from kurma_core.pods.record.document import cgroups_of_lost
from kurma_core.pods.record.pod_directory import unwritable
from kurma_core.pods.run import pod_restarts, recovery

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kurma_core.api.images import DiskUse
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
        :raises PodStateError: it runs. :raises FormatVersionError: a newer version made it, and ``force`` is not
            given.
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
        except _UNREADABLE as error:
            if isinstance(error, FormatVersionError) and not force:
                raise
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
            recovery.remove_lost_cgroup(document)
            recovery.discard_remains(self._services, directory)
            self._store.delete(directory, document.name)
        except PodNotFoundError:
            return  # another process has removed it
        finally:
            os.close(lock)
        for app in document.app_names:
            self._events.tell_app("removed", document, app)
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

    def collect(self, *, grace: float, dry_run: bool, only: Collection[str] | None = None) -> Collected:
        """Takes down dead pods, whenever they died; removes pods that ended more than ``grace`` seconds ago,
        unless kurmad starts them again or a program manages them; frees what removed pods left: files of their
        stagers, and networks.

        :param only: keys of the only pods to remove; None: all of these. See :class:`Removal`.
        """
        from kurma_core.pods.run import prestarted

        found = _Found(Usage())
        for uuid in self._store.uuids():
            directory = self._store.directory(uuid)
            try:
                self._collect_one(directory, found, grace, dry_run=dry_run, only=only)
            except (KurmaError, OSError) as raised:
                error = raised if isinstance(raised, KurmaError) else HostError.of(f"pod {uuid}", raised)
                if not os.path.isdir(directory.path):
                    continue  # an ephemeral pod, which its owner has removed meanwhile
                # Only the user knows whether a plugin that is gone comes back.
                found.failed = found.failed or not isinstance(error, PluginNotFoundError)
                damaged = isinstance(error, _UNREADABLE) and not isinstance(error, FormatVersionError)
                hint = f"kurma rm --force {uuid}" if damaged else error.hint
                left = error.message.removeprefix(f"pod {uuid}: ")
                found.left.append(f"pod {uuid}: left: {left}" + (f" ({hint})" if hint else ""))
        if not dry_run:
            prestarted.sweep(self._services, min(grace, _HALF_MADE_GRACE))
            self._store.sweep(min(grace, _HALF_MADE_GRACE))
        for leftover in self._services.volumes.sweep(dry_run=dry_run):
            found.lines.append(f"volumes/{leftover}: leftover {'would be removed' if dry_run else 'removed'}")
        for line, wrong in recovery.remains_of_gone_pods(self._services, dry_run=dry_run):
            (found.left if wrong else found.lines).append(line)
            found.failed = found.failed or wrong
        for finding in self._finder.network_check.of_gone_pods(dry_run=dry_run):
            freed = dry_run or finding.repaired
            what = "would be freed" if dry_run else "freed" if freed else "left"
            (found.lines if freed else found.left).append(f"{finding.what}: {finding.why}: {what}")
            found.failed = found.failed or not freed
        for manager, count in sorted(found.managed.items()):
            pods = f"{count} ended pod{'s' if count > 1 else ''} of {manager}"
            found.left.append(f"{pods}: left for {manager} to remove")
        return Collected(tuple(found.removed), tuple(found.lines), tuple(found.left), found.failed)

    def _collect_one(
        self,
        directory: PodDirectory,
        found: _Found,
        grace: float,
        *,
        dry_run: bool,
        only: Collection[str] | None,
    ) -> None:
        """Takes down, removes or reports one pod. :raises KurmaError, OSError: the pod is left."""
        uuid = directory.uuid
        if recovery.needs_recovery(directory):
            if dry_run and not _lives(self._services, directory):
                found.lines.append(f"pod {uuid}: its owner has died: would be taken down")
                return
            if not dry_run and recovery.recover(self._services, directory, self._events):
                found.lines.append(f"pod {uuid}: taken down")
        if not os.path.isdir(directory.path):
            return
        try:
            state = _whole_state(directory)
        except PodNotFoundError:
            if directory.owned():
                return  # it is just being made
            state = _whole_state(directory)  # read again: it may have been completed just now
        if state.state in ("running", "stopping") and not directory.owned():
            found.left.append(f"pod {uuid}: runs without an owner: left (kurma stop {uuid[:8]})")
        if _is_over(state):
            self._collect_cgroup(directory, found, dry_run=dry_run)
        if _is_over(state) and _since_its_end(state) >= grace:
            document = directory.read_document()
            if document.manager is not None:
                found.managed[document.manager] = found.managed.get(document.manager, 0) + 1
                return
            if self._starts_again(document, state):
                found.left.append(
                    f"pod {document.name} ({uuid[:8]}): left: kurmad starts it again (kurma rm {uuid[:8]})"
                )
                return
            one = Removal("pod", uuid, found.usage.add(directory.path), document.name)
            if only is not None and one.key not in only:
                return
            if not dry_run:
                self.remove(uuid)
            found.removed.append(one)
        elif directory.half_changed():
            if not dry_run:
                self._apps().finish_change(directory)
            cleared = "would be cleared" if dry_run else "cleared"
            found.lines.append(f"pod {uuid}: {cleared} of a half-made change of its apps")

    def _collect_cgroup(self, directory: PodDirectory, found: _Found, *, dry_run: bool) -> None:
        """Removes the cgroup that an ended pod has left."""
        document = directory.read_document()
        if not CgroupTree(document.cgroup).exists():
            return
        lock = directory.try_own()
        if lock is None:
            return  # it is being started or removed
        try:
            gone = dry_run or (_is_over(directory.read_state()) and recovery.remove_lost_cgroup(document))
        finally:
            os.close(lock)
        if gone:
            done = "would be removed" if dry_run else "removed"
            found.lines.append(f"pod {directory.uuid}: it has ended, its cgroup is left: {done}")

    def _starts_again(self, document: PodDocument, state: PodState) -> bool:
        """Whether kurmad starts the ended pod again by its policy, after a pause or a reboot."""
        return pod_restarts.wanted(document, state, self._services.images.manifest)

    def disk_use(self) -> tuple[DiskUse, list[str]]:
        """The pods' directories, and UUIDs of those that :meth:`collect` removes without a grace period."""
        from kurma_core.api.images import DiskUse

        usage, count, size, reclaimable, removable = Usage(), 0, 0, 0, []
        for uuid in self._store.uuids():
            directory = self._store.directory(uuid)
            gone = False
            with contextlib.suppress(KurmaError):
                state = directory.read_state()
                if _is_over(state):
                    document = directory.read_document()
                    gone = document.manager is None and not self._starts_again(document, state)
            bytes_of = usage.add(directory.path)
            if not bytes_of:
                continue  # it was removed meanwhile
            count, size = count + 1, size + bytes_of
            if gone:
                removable.append(uuid)
                reclaimable += bytes_of
        return DiskUse("pod", count, count - len(removable), size, reclaimable), removable


class _Found:
    """Collects the parts of a :class:`Collected`.

    :param usage: measures the pods that are removed.
    """

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.removed: list[Removal] = []
        self.lines: list[str] = []
        #: By manager, the number of its ended pods.
        self.managed: dict[str, int] = {}
        self.left: list[str] = []
        self.failed = False


def _is_over(state: PodState) -> bool:
    """Whether the pod has ended, and is taken down."""
    return state.state in ENDED_STATES and not state.steps


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
    trees = [CgroupTree(name) for name in cgroups_of_lost(uuid)]
    namespace = pin_path("net", uuid)
    try:
        if any(tree.pids() for tree in trees) and not force:
            raise PodStateError(
                f"cannot remove pod {uuid}: its record is damaged, and processes of it run",
                hint=f"kurma rm --force {uuid}",
                pod=uuid,
            )
        for tree in trees:
            tree.kill()
        joined = _listed_attachments(directory) or _joined_networks(services, uuid)
        services.names.leave(uuid, joined or None)
        if joined:
            services.networking.delete_all(joined, pod=uuid, pod_name=uuid, namespace=namespace, give_up=force)
        for kind in PINS:
            services.joined.release(uuid, kind)
        port_claims.let_go(directory)
        services.joined.forget(uuid)
        for tree in trees:
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
