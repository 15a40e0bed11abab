"""Finds pods by UUID, prefix or name, reads their records and waits for their end; takes down dead ones."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from kurma_core.cancellation import CancellationFd, wait_readable
from kurma_core.errors import (
    HostError,
    KurmaError,
    PluginError,
    PodDamagedError,
    PodManagedError,
    PodNotFoundError,
    PodStateError,
    StagerError,
)
from kurma_core.models.pod import ENDED_STATES, PodRecord
from kurma_core.pods.record.document import cgroups_of_lost
from kurma_core.pods.record.pod_directory import unwritable
from kurma_core.pods.record.pod_record import record_of
from kurma_core.pods.run import recovery
from kurma_core.pods.services import Events

if TYPE_CHECKING:
    from collections.abc import Collection

    from kurma_core.hookspecs.stager import StagerHooks
    from kurma_core.models.summary import PodSummary
    from kurma_core.pods.network.network_check import NetworkCheck
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory, Recover
    from kurma_core.pods.record.state import PodState
    from kurma_core.pods.services import Services

#: Seconds to wait for an owner lock that other processes hold only briefly.
LOCK_PATIENCE = 2.0
#: Seconds to wait for another process that changes the pod's apps; its call-ins are limited in time.
APPS_PATIENCE = 120.0
#: States in which the stager is asked for the status of the apps.
_UP = ("running", "stopping")
#: Seconds between two looks at a dead pod that still has an owner.
_LOOK_AGAIN = 1.0


class PodFinder:
    """Finds pods of one state directory.

    :param services: everything that pods need.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.store = services.store
        self.events = Events(services.registry, services.journal)

    @property
    def network_check(self) -> NetworkCheck:
        """Checks and repairs the networks of pods."""
        from kurma_core.pods.network.network_check import NetworkCheck

        return NetworkCheck(self.services, self.events)

    def pods(self) -> list[PodRecord]:
        """Records of all pods, oldest first. Dead pods are taken down on the way; a broken pod never hides the
        others."""

        def tell(directory: PodDirectory, recover: Recover | None) -> PodRecord:
            return self.record(directory, *directory.read_records(recover))

        found = self.store.each(self.recover, tell, self.broken)
        return sorted(found, key=lambda record: record.created_at)

    def summaries(self) -> list[PodSummary]:
        """As :meth:`pods`, with only the fields of a table."""
        return self.store.summaries(self.recover)

    def pod(self, reference: str) -> PodRecord:
        """:raises PodNotFoundError: no pod has that UUID, prefix or name."""
        directory = self.find(reference)
        return self.read(directory)

    def wait(self, reference: str) -> PodRecord:
        """Waits until the pod has ended and its teardown is done.

        :raises PodNotFoundError: it was removed in the meantime, as ephemeral pods are.
        :raises Cancelled: the thread's operation was cancelled.
        """
        directory = self.find(reference)
        with CancellationFd() as cancellation:
            self.wait_ended(directory, None, cancellation)
        return self.read(directory)

    def used_images(self, *, without: Collection[str] = ()) -> set[str]:
        """IDs of all images in use: those that pods name, their layers while they run, and the images of stagers
        that run or are prestarted.

        :param without: UUIDs of pods that do not count.

        Of a damaged record, every image ID in its text counts.

        :raises PodDamagedError: the pod of a damaged record runs, and its records contain no image ID.
        """
        used: set[str] = set()
        for directory in self.store.reserved().values():
            with contextlib.suppress(KurmaError, OSError):
                used.update(filter(None, [directory.read_state().stager_image]))
        for uuid in self.store.uuids():
            if uuid in without:
                continue
            directory = self.store.directory(uuid)
            try:
                state = directory.read_state()
                used.update(directory.read_document().used_images)
            except PodNotFoundError:
                continue  # it was removed, or is just being made
            except HostError:
                raise  # the record is not damaged
            except KurmaError as error:
                used.update(self._in_broken(directory, error, rb"(sha512-[0-9a-f]{128})", "images"))
                continue
            stager = (state.stager or {}).get("image")
            up = "stager" in state.steps
            if up:
                used.update(*state.layers.values())
            if isinstance(stager, str) and (up or directory.has_remains()):
                used.add(stager)
        return used

    def _in_broken(self, directory: PodDirectory, error: KurmaError, pattern: bytes, what: str) -> set[str]:
        """All names of a kind in the text of records that cannot be parsed: such as IDs of images and trees."""
        import re

        from kurma_core.linux.cgroups import CgroupTree

        found: set[str] = set()
        for name in ("pod.json", "state.json"):
            with contextlib.suppress(OSError), open(directory.file(name), "rb") as file:
                found.update(map(bytes.decode, re.findall(pattern, file.read())))
        if not found and any(CgroupTree(name).pids() for name in cgroups_of_lost(directory.uuid)):
            raise PodDamagedError(
                f"pod {directory.uuid} runs, and which {what} it uses cannot be read: {error.message}",
                hint=f"kurma rm --force {directory.uuid}",
                pod=directory.uuid,
            )
        return found

    def network_users(self, network: str, *, all: bool = False) -> list[str]:
        """Names of the live pods that are joined to that network. :param all: of all pods that name it."""
        return [
            pod.name
            for pod in self.summaries()
            if (all or pod.state not in (*ENDED_STATES, "prepared"))
            and any(one.network == network for one in pod.networks)
        ]

    def volume_users(self, *, without: Collection[str] = ()) -> dict[str, list[str]]:
        """By named volume, the names of the pods that use it, in whatever state; of pods with damaged records, the
        UUIDs. Takes no lock, and takes no pod down.

        :param without: UUIDs of pods that do not count.
        :raises PodDamagedError: the pod of a damaged record runs, and its records name no volume.
        """
        users: dict[str, list[str]] = {}
        for uuid in self.store.uuids():
            if uuid in without:
                continue
            directory = self.store.directory(uuid)
            pod = uuid
            try:
                document, state = directory.read_document(), directory.read_state()
                pod, used = document.display_name or document.name, {*document.manifest.named_volumes}
                if state.change is not None:
                    used.update(state.change.named)
            except PodNotFoundError:
                continue  # it was removed, or is just being made
            except HostError:
                raise  # the record is not damaged
            except KurmaError as error:
                used = self._in_broken(directory, error, rb'"kurma\.io/volume": *"([^"]+)"', "volumes")
            for volume in sorted(used):
                users.setdefault(volume, []).append(pod)
        return users

    def find(self, reference: str) -> PodDirectory:
        directory = self.store.find(reference)
        self.recover(directory)
        if not os.path.isdir(directory.path):
            raise PodNotFoundError(
                f"no pod {reference}: its preparation was interrupted, and its leftovers were removed"
            )
        return directory

    def check_manager(self, verb: str, reference: str, *, managed: bool) -> None:
        """Refuses a change of a pod that a program manages. A pod that is missing, or whose definition cannot be
        read, passes: the operation itself reports it.

        :param verb: what the caller wants to do, for the message. :param managed: the caller may do it.
        :raises PodManagedError: a program manages the pod.
        """
        if managed:
            return
        try:
            document = self.store.find(reference).read_document()
        except KurmaError:
            return
        if document.manager is not None:
            raise PodManagedError(
                f"cannot {verb} pod {document.display_name or document.name}: {document.manager} manages it",
                hint=f"let {document.manager} do it; or, against it: --force",
                pod=document.uuid,
                manager=document.manager,
            )

    def recover(self, directory: PodDirectory) -> None:
        """Takes the pod down if it is dead. A failure is noted, not raised."""
        if recovery.needs_recovery(directory):
            try:
                recovery.recover(self.services, directory, self.events)
            except PodNotFoundError:
                return  # removed in the meantime: the caller notices when it opens the directory
            except KurmaError as error:
                self.services.note_error(error)

    def read(self, directory: PodDirectory) -> PodRecord:
        return self.record(directory, *directory.read_records())

    def record(self, directory: PodDirectory, document: PodDocument, state: PodState) -> PodRecord:
        """The record of a pod, with the status of its apps as the stager reports it.

        :param document: and ``state``: the pod's records.
        """
        if state.state not in _UP:
            return record_of(directory, document, state)
        try:
            driver = self.services.stagers.of_pod(document)
            stager = driver.attach_to(directory.path, state.stager) if state.stager else None
        except (PluginError, StagerError) as error:
            # The stager's plugin is missing or broken; the pod is listed all the same.
            self.services.note(error.message)
            return record_of(directory, document, state)
        try:
            return record_of(directory, document, state, driver, stager)
        finally:
            if stager is not None:
                stager.close()

    def told_by_files(self, directory: PodDirectory, document: PodDocument, state: PodState) -> bool:
        """Whether :meth:`record` is determined by the pod's files and whether the pod has an owner; else it
        depends on a call-in to the stager."""
        if state.state not in _UP:
            return True
        try:
            driver = self.services.stagers.of_pod(document)
        except (PluginError, StagerError):
            return False
        return driver.features().status_file and os.path.lexists(directory.file("pod/status.json"))

    def driver(self, directory: PodDirectory) -> StagerHooks:
        return self.services.stagers.of_pod(directory.read_document())

    @staticmethod
    def own(directory: PodDirectory) -> int:
        """Takes the owner lock; waits a moment, since a command that only recovers a dead pod soon releases it."""
        lock = directory.try_own(LOCK_PATIENCE)
        if lock is None:
            raise PodStateError(f"pod {directory.uuid}: another process changes it", pod=directory.uuid)
        return lock

    @staticmethod
    def broken(directory: PodDirectory, state: str, why: str) -> PodRecord:
        """The record of a pod whose own records cannot be read. :param state: ``preparing`` or ``errored``."""
        return PodRecord(
            uuid=directory.uuid,
            name="-",
            state=state,
            created_at="",
            apps=(),
            images={},
            stager="",
            renderer="",
            reason=None if state == "preparing" else why,
        )

    def wait_ended(
        self, directory: PodDirectory, deadline: float | None, cancellation: CancellationFd | None = None
    ) -> None:
        """Waits until the pod is recorded as ended by its owner, is recovered here if it has no owner, is removed,
        or the wait is cancelled."""
        from kurma_core.linux.inotify import SharedWatch

        watch = None
        try:
            watch = SharedWatch(directory.path)
        except FileNotFoundError:
            return
        except OSError:
            pass  # the host has no inotify watches left: poll instead
        try:
            while True:
                try:
                    # A failed teardown is raised: waiting longer would not change it.
                    if recovery.needs_recovery(directory):
                        recovery.recover(self.services, directory, self.events)
                    state = directory.read_state().state
                except PodNotFoundError:
                    return
                except HostError as error:
                    if unwritable(error):
                        return  # it is taken down, but the full disk keeps that from being recorded
                    raise
                if state in ENDED_STATES:
                    return
                if deadline is not None and time.monotonic() > deadline:
                    raise PodStateError(
                        f"pod {directory.uuid}: its stager has ended, but its owner does not clean up",
                        hint="check whether the process is stopped: OWNER in kurma show",
                    )
                stager = recovery.find_stager(self.services, directory)
                try:
                    left = None if deadline is None else deadline - time.monotonic()
                    # An owner that could not record the end changes no file in the directory.
                    wait_readable(_LOOK_AGAIN if stager is None else left, watch, stager, cancellation)
                finally:
                    if stager is not None:
                        stager.close()
                if cancellation is not None and cancellation.cancelled:
                    return
                if watch is not None:
                    watch.drain()
        finally:
            if watch is not None:
                watch.close()
