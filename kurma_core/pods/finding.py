"""Finding pods and telling of them; whatever is dead is taken down on the way."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from kurma_core.errors import (
    HostError,
    KurmaError,
    PluginError,
    PodNotFoundError,
    PodStateError,
    StagerError,
)
from kurma_core.models import ENDED_STATES, PodRecord
from kurma_core.pods import recovery
from kurma_core.pods.events import Events
from kurma_core.pods.launch import layers_of
from kurma_core.pods.records import pod_record, read_document
from kurma_core.pods.space import unwritable

if TYPE_CHECKING:
    from kurma_core.hookspecs import Stager
    from kurma_core.pod_store import PodDirectory
    from kurma_core.pods.caring import Caretaker
    from kurma_core.pods.services import Services

#: Seconds to wait for the owner lock, where nobody should hold it for long.
LOCK_PATIENCE = 2.0
#: Seconds until a dead pod that somebody owns is looked at again.
_LOOK_AGAIN = 1.0


class PodFinder:
    """:param services: the rooms below."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.store = services.store
        self.events = Events(services.registry, services.journal)

    @property
    def caretaker(self) -> Caretaker:
        """Who looks after what pods have by way of networks."""
        from kurma_core.pods.caring import Caretaker

        return Caretaker(self.services, self.events)

    def pods(self) -> list[PodRecord]:
        """Every pod, oldest first. Dead ones are taken down on the way; a broken one never hides the rest."""
        found = []
        for uuid in self.store.uuids():
            directory = self.store.directory(uuid)
            try:
                self._recover(directory)
                found.append(self._record(directory))
            except KurmaError as error:
                with contextlib.suppress(KurmaError):
                    # It may have been made whole, or been removed, while we looked.
                    found.append(self._record(directory))
                    continue
                if os.path.isdir(directory.path) and not _unmade(directory, error):
                    found.append(self._broken(directory, error))
        return sorted(found, key=lambda record: record.created_at)

    def pod(self, reference: str) -> PodRecord:
        """:raises PodNotFoundError: there is none of that UUID, prefix or name."""
        directory = self._find(reference)
        return self._record(directory)

    def is_ephemeral(self, uuid: str) -> bool:
        """Whether it is to be removed once it has ended. :raises PodNotFoundError: it was."""
        return read_document(self.store.directory(uuid)).ephemeral

    def wait(self, reference: str) -> PodRecord:
        """Waits until the pod has ended and its teardown is done.

        :raises PodNotFoundError: it was removed in the meantime, as ephemeral ones are.
        """
        directory = self._find(reference)
        self._wait_ended(directory, None)
        return self._record(directory)

    def used_images(self) -> set[str]:
        """IDs of the images that any pod of the store names, and of all in those whose stagers are up, or wait."""
        used: set[str] = set()
        for directory in self.store.reserved().values():
            with contextlib.suppress(KurmaError, OSError):
                used.update(filter(None, [directory.read_state().get("stagerImage")]))
        for uuid in self.store.uuids():
            directory = self.store.directory(uuid)
            # Nothing can be known of a broken one, and it can never run again; its stager may be up all the same.
            with contextlib.suppress(KurmaError):
                used.update(read_document(directory).images.values())
            with contextlib.suppress(KurmaError):
                state = directory.read_state()
                stager = (state.get("stager") or {}).get("image")
                if "stager" in state.get("steps", ()):
                    used.update(*layers_of(state).values())
                    if stager is not None:
                        used.add(stager)
        return used

    def network_users(self, network: str) -> list[str]:
        """Names of the live pods that are joined to that network."""
        return [
            record.name
            for record in self.pods()
            if record.state not in (*ENDED_STATES, "prepared")
            and any(attachment.network == network for attachment in record.attachments)
        ]

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
    def _own(directory: PodDirectory) -> int:
        """The owner lock. Who only looks after what is dead, as any command does, soon lets go of it."""
        lock = directory.try_own(LOCK_PATIENCE)
        if lock is None:
            raise PodStateError(f"pod {directory.uuid}: another process is at work on it", pod=directory.uuid)
        return lock

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
                    if unwritable(error):
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


def _unmade(directory: PodDirectory, error: KurmaError) -> bool:
    """Whether a living process is about to make the pod: it has no record yet, and was never started."""
    return isinstance(error, PodNotFoundError) and directory.owned() and not os.path.lexists(directory.file("pod"))
