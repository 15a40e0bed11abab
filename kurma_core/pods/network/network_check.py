"""Checks and repairs the networks of pods on this host; frees what dead pods left behind.

The kernel and the drivers are asked before the pods' records are read: since a pod is recorded before anything of
it is made, no new pod is taken for a leak. A finding about a pod that may have ended in between is checked a
second time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError, PodNotFoundError
from kurma_core.hookspecs.network import Leak
from kurma_core.networking.network_records import PINS, clear, pin_path
from kurma_core.networking.repair import finding
from kurma_core.pods.network import port_claims
from kurma_core.pods.record.document import cgroups_of_lost
from kurma_core.pods.run import recovery

if TYPE_CHECKING:
    from kurma_core.api.host import NetworkFinding
    from kurma_core.networking.network_records import JoinRecord
    from kurma_core.networking.repair import DriverChecks
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.record.pod_store import PodStore
    from kurma_core.pods.record.state import PodState
    from kurma_core.pods.services import Events, Services

_NS_GET_USERNS = 0xB701


class JoinedPods(Collection[str]):
    """UUIDs of the pods that are joined to networks, partly joined, or about to be; read from disk at each
    access."""

    def __init__(self, store: PodStore) -> None:
        self._store = store

    def __contains__(self, uuid: object) -> bool:
        if not isinstance(uuid, str) or "/" in uuid or not uuid:
            return False
        directory = self._store.directory(uuid)
        try:
            state = directory.read_state()
        except PodNotFoundError:
            return False
        except KurmaError:
            # damaged, or of a newer version: counted as joined, to be on the safe side
            return os.path.isdir(directory.path)
        return state.live or bool(state.steps)

    def __iter__(self) -> Iterator[str]:
        return (uuid for uuid in self._store.uuids() if uuid in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class NetworkCheck:
    """Checks and repairs pods' networks.

    :param events: receives the events of pods that are taken down.
    """

    def __init__(self, services: Services, events: Events) -> None:
        self._services = services
        self._events = events
        self._pods = JoinedPods(services.store)
        self._joined = services.joined
        self._spared: list[Leak] = []

    def check(self, networks: Collection[str] = ()) -> list[NetworkFinding]:
        """Finds everything that is wrong, and changes nothing.

        :param networks: check only these; empty: all.
        :raises NetworkError: no network has such a name.
        """
        for name in networks:
            self._services.networking.show(name)
        checks = self._services.networking.driver_checks()
        told = self._told(checks, networks)
        found = [finding(leak) for leak in (*told, *self._own(checks, networks, told))]
        self._tell_of_spared()
        return found

    def unusable(self, networks: Collection[str] = ()) -> list[NetworkFinding]:
        """Finds the networks that a pod could not join now, by the status that their drivers report.

        :param networks: check only these; empty: all.
        :raises NetworkError: no network has such a name.
        """
        for name in networks:
            self._services.networking.show(name)
        return [finding(leak) for leak in self._services.networking.driver_checks().unusable(networks)]

    def repair(self, networks: Collection[str] = ()) -> list[NetworkFinding]:
        """Repairs what :meth:`check` finds, as far as possible.

        :returns: all findings, each with whether it is repaired.
        :raises NetworkError: as :meth:`check`.
        """
        for name in networks:
            self._services.networking.show(name)
        checks = self._services.networking.driver_checks()
        told = self._told(checks, networks)
        own = self._own(checks, networks, told)
        for uuid in dict.fromkeys(leak.pod for leak in own if leak.pod):
            try:
                self._repair_pod(uuid)
            except (KurmaError, OSError) as error:
                self._services.note(f"pod {uuid}: {error}")
        # Also without findings: CNI plugins clean up, by GC, leaks that only they can see.
        checks.repair(self._pods, checks.drivers_of(networks))
        if not told and not own:
            self._tell_of_spared()
            return []
        still = self._told(checks, networks)
        after = [*still, *self._own(checks, networks, still)]
        self._tell_of_spared()
        left = {_key(leak) for leak in after}
        repaired = [finding(leak, repaired=True) for leak in (*told, *own) if _key(leak) not in left]
        return [*repaired, *map(finding, after)]

    def of_gone_pods(self, *, dry_run: bool) -> list[NetworkFinding]:
        """Frees what belongs to pods that are gone, for ``gc``.

        :param dry_run: only reports it.
        """
        checks = self._services.networking.driver_checks()
        records = self._stale_records()
        drivers = {}
        for name in checks.drivers_of(()):
            gone = [leak for leak in checks.leaks(self._pods, [name]) if leak.pod not in self._pods]
            if gone:
                drivers[name] = gone
        found = [*records, *(leak for gone in drivers.values() for leak in gone)]
        if not dry_run:
            self._tidy()
        if dry_run or not found:
            return [finding(leak) for leak in found]
        for uuid in dict.fromkeys(leak.pod for leak in records):
            self._undo_record(uuid)
        checks.repair(self._pods, list(drivers))
        left = {_key(leak) for leak in (*self._stale_records(), *checks.leaks(self._pods, list(drivers)))}
        return [finding(leak, repaired=_key(leak) not in left) for leak in found]

    # -- looking --

    def _told(self, checks: DriverChecks, networks: Collection[str]) -> list[Leak]:
        """Leaks that the drivers report."""
        found = checks.leaks(self._pods, checks.drivers_of(networks))
        return [leak for leak in found if not networks or leak.network in networks or leak.kind == "plugin"]

    def _own(self, checks: DriverChecks, networks: Collection[str], told: Collection[Leak]) -> list[Leak]:
        """Leaks that the core itself finds, and networks that cannot be used.

        :param told: leaks that drivers report; their consequences are not reported again.
        """
        found = [] if networks else self._stale_records()
        said = {(leak.network, leak.why) for leak in told}
        unusable = [leak for leak in checks.unusable(networks) if (leak.network, leak.why) not in said]
        # An unusable network that is optional and that no pod has is only noted, unless the caller asks for that
        # network.
        self._spared = [
            leak
            for leak in unusable
            if not networks and checks.is_optional(leak.network) and not self._has(leak.network)
        ]
        found += [leak for leak in unusable if leak not in self._spared]
        faults = {(leak.network, leak.pod) for leak in told if leak.network}
        for uuid in self._services.store.uuids():
            try:
                found += self._look_at(self._services.store.directory(uuid), networks, faults)
            except KurmaError:
                continue  # removed meanwhile; or damaged, which `kurma list` reports
        return found

    def _has(self, network: str) -> bool:
        """Whether any pod is joined to that network."""
        for uuid in self._pods:
            try:
                if any(
                    one.network == network for one in self._services.store.directory(uuid).read_state().attachments
                ):
                    return True
            except KurmaError:
                continue  # removed meanwhile, or damaged
        return False

    def _tell_of_spared(self) -> None:
        for leak in self._spared:
            self._services.note(f"{leak.what}, which is optional, cannot be joined: {leak.why}")

    def _stale_records(self) -> list[Leak]:
        """Join records of pods that are not joined to a network any more, and the namespaces that these pods
        left."""
        found = []
        for uuid in self._joined.uuids():
            # The owner of a pod makes this record before the pod's state has the steps, and removes it before the
            # steps are removed.
            if uuid in self._pods or self._joined.read(uuid) is None or uuid in self._pods:
                continue
            # The record may be of a prestarted pod, of one that starts or ends, or of one that was just made.
            reserved = self._services.store.reserved().get(uuid)
            directory = self._services.store.directory(uuid)
            if (reserved is not None and reserved.owned()) or directory.owned() or uuid in self._pods:
                continue
            gone = not os.path.isdir(directory.path)
            why = f"its pod {uuid} {'is gone' if gone else 'has ended'}"
            for kind, (_, name) in PINS.items():
                if self._joined.holds(uuid, kind):
                    found.append(Leak("namespace", f"{name} {pin_path(kind, uuid)}", why, pod=uuid))
            found.append(Leak("record", f"record {self._joined.path(uuid)}", why, pod=uuid))
        return found

    def _look_at(
        self, directory: PodDirectory, networks: Collection[str], faults: Collection[tuple[str, str]]
    ) -> list[Leak]:
        """Checks one pod on record: finds that it is dead, or that it runs and lacks something.

        :param faults: (network, pod) of leaks that are already known; an empty pod: the network's own.
        """
        state = directory.read_state()
        if state.state == "preparing" or not (state.live or state.steps):
            return []
        document = directory.read_document()
        if networks and not any(one.network in networks for one in document.attachments):
            return []
        stager = recovery.find_stager(self._services, directory)
        if stager is None:
            # Checked twice: the owner may just have ended the pod and be still at its teardown.
            if not recovery.needs_recovery(directory) or not recovery.needs_recovery(directory):
                return []
            return [Leak("pod", f"pod {document.name}", "it has ended without a teardown", pod=document.uuid)]
        try:
            if state.state != "running":
                return []
            found = [] if networks else self._namespaces(document)
            found = found or self._attachments(document, state, networks, faults)
            # If the pod has ended meanwhile, it lacks nothing.
            running = stager.alive() and directory.read_state().state == "running"
            return found if running else []
        finally:
            stager.close()

    def _namespaces(self, document: PodDocument) -> list[Leak]:
        record = self._joined.read(document.uuid)
        kinds = {"user": document.user_namespace, "net": document.network_namespace}
        found = []
        for kind, path in kinds.items():
            if path is None:
                continue
            there = _inode(path)
            made = None if record is None else record.made.get(kind)
            if there is None:
                why = "is not pinned there any more"
            elif made not in (None, there):
                why = "is another one"
            else:
                continue
            what = f"{PINS[kind][1]} {path}"
            found.append(Leak("namespace", what, f"that of pod {document.name} {why}", pod=document.uuid))
        return found

    def _attachments(
        self,
        document: PodDocument,
        state: PodState,
        networks: Collection[str],
        faults: Collection[tuple[str, str]],
    ) -> list[Leak]:
        if document.network_namespace is None:
            return []
        found = []
        for one in state.attachments:
            if networks and one.network not in networks:
                continue
            if (one.network, "") in faults or (one.network, document.uuid) in faults:
                continue  # the same fault in other words; further faults are found once this one is repaired
            try:
                self._services.networking.check(
                    one, pod=document.uuid, pod_name=document.name, namespace=document.network_namespace
                )
            except KurmaError as error:
                what = f"interface {one.interface} of pod {document.name}"
                found.append(Leak("attachment", what, error.message, one.network, document.uuid))
        return found

    # -- repair --

    def _repair_pod(self, uuid: str) -> None:
        """Repairs one pod: takes it down if it is dead, pins missing namespaces of a running pod again, frees what
        a removed pod left.

        :raises KurmaError: a step failed.
        :raises OSError: a namespace cannot be pinned.
        """
        if uuid not in self._pods:
            self._undo_record(uuid)
            return
        directory = self._services.store.directory(uuid)
        if recovery.needs_recovery(directory) and recovery.recover(self._services, directory, self._events):
            return
        stager = recovery.find_stager(self._services, directory)
        record = self._joined.read(uuid)
        if stager is None:
            return
        try:
            for kind, inode in (record.made if record is not None else {}).items():
                path = pin_path(kind, uuid)
                if _inode(path) is None:
                    self._pin_again(kind, path, inode, stager.pid)
        finally:
            stager.close()

    @staticmethod
    def _pin_again(kind: str, path: str, inode: int, pid: int) -> None:
        """Pins the namespace whose inode is on record, and no other."""
        from kurma_core.linux import namespaces

        with _opened(kind, pid) as fd:
            if os.fstat(fd).st_ino == inode:
                clear(kind, path)
                namespaces.pin(f"/proc/self/fd/{fd}", path)

    def give_up(self, uuid: str) -> bool:
        """Frees what is on record of a pod whose directory is gone; gives up the networks whose plugins are not
        installed any more. :returns: whether there was a record."""
        if "/" in uuid or self._joined.read(uuid) is None:
            return False
        self._undo_record(uuid, give_up=True)
        return self._joined.read(uuid) is None

    def _undo_record(self, uuid: str, *, give_up: bool = False) -> None:
        """Frees what the join record names, of a pod that is joined to no network: leaves the networks, unpins the
        namespaces.

        A failure is noted, and its part stays on record.
        """
        record = self._joined.read(uuid)
        if record is None:
            return
        directory = self._services.store.directory(uuid)
        lock = directory.try_own() if os.path.isdir(directory.path) else None
        try:
            if uuid in self._pods or (lock is None and os.path.isdir(directory.path)):
                return  # the pod is just being started again
            self._undo(record, give_up=give_up)
            if lock is None:
                _remove_empty_cgroup(uuid)
        except KurmaError as error:
            error.prefix(f"pod {uuid}")
            self._services.note_error(error)
        except OSError as error:
            self._services.note(f"pod {uuid}: cannot free its namespaces or its cgroup: {error}")
        finally:
            if lock is not None:
                os.close(lock)

    def _tidy(self) -> None:
        """Removes the empty directory of user namespaces, if the process that released the last one died before it
        could."""
        try:
            self._joined.tidy()
        except OSError as error:
            self._services.note(f"cannot remove the directory of user namespaces: {error}")

    def _undo(self, record: JoinRecord, *, give_up: bool = False) -> None:
        uuid = record.uuid
        self._services.names.leave(uuid, None)
        if record.attachments and record.name:
            self._services.networking.delete_all(
                record.attachments,
                pod=uuid,
                pod_name=record.name,
                namespace=pin_path("net", uuid),
                give_up=give_up,
            )
        for kind in PINS:
            self._joined.release(uuid, kind)
        port_claims.let_go(self._services.store.directory(uuid))
        self._joined.forget(uuid)


def _remove_empty_cgroup(uuid: str) -> None:
    """Removes the cgroup of a pod whose directory is gone, unless it has processes: another process may still own
    them."""
    from kurma_core.linux.cgroups import CgroupTree

    for tree in map(CgroupTree, cgroups_of_lost(uuid)):
        if not tree.pids():
            tree.remove()


def _key(leak: Leak) -> tuple[str, str, str, str]:
    """Identifies a leak without its reason: the same leak may be described in other words later."""
    return leak.kind, leak.what, leak.network, leak.pod


def _inode(path: str) -> int | None:
    """Inode of the namespace that is pinned at ``path``; None: there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino if found.st_dev == os.stat("/proc/self/ns/net").st_dev else None


@contextlib.contextmanager
def _opened(kind: str, pid: int) -> Iterator[int]:
    """A descriptor of a pod's namespace: the network namespace of its stager, or the user namespace that owns that
    one."""
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if kind == "user":
            import fcntl

            owner = fcntl.ioctl(fd, _NS_GET_USERNS)
            os.close(fd)
            fd = owner
        yield fd
    finally:
        os.close(fd)
