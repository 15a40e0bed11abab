"""The pod manager: prepares, starts, adopts, stops and removes pods.

Works from any process on one state directory; file locks and atomic renames keep the processes apart.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING

from kurma_core.appc.types import pod_uuid, sanitize_name
from kurma_core.errors import (
    KurmaError,
    ManifestError,
    PodStateError,
    UsageError,
)
from kurma_core.formats.timestamps import timestamp
from kurma_core.models.pod import PodRecord
from kurma_core.pods.finder import APPS_PATIENCE, LOCK_PATIENCE, PodFinder
from kurma_core.pods.record.pod_record import keep_executions, record_of
from kurma_core.pods.record.pod_store import new_uuid
from kurma_core.pods.record.state import PodState
from kurma_core.pods.run import recovery
from kurma_core.pods.run.launch import Launch
from kurma_core.pods.run.owner import NewPod, OwnedPod

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.api.operations import Progress
    from kurma_core.api.pods import PodRequest
    from kurma_core.models.image import RenderedImage
    from kurma_core.models.streams import Stdio
    from kurma_core.pods.change.app_changes import PodApps
    from kurma_core.pods.change.remove import PodRemover
    from kurma_core.pods.change.stop import PodStopper
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.services import Services

_NAME_LIMIT = 128


class PodManager:
    """Prepares and starts pods; its parts stop them, remove them and change their apps.

    :param services: images, stagers, networks and the like.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.finder = PodFinder(services)
        self.store = services.store
        self.events = self.finder.events

    @functools.cached_property
    def apps(self) -> PodApps:
        from kurma_core.pods.change.app_changes import PodApps

        return PodApps(self.finder)

    @functools.cached_property
    def stopper(self) -> PodStopper:
        from kurma_core.pods.change.stop import PodStopper

        return PodStopper(self.finder)

    @functools.cached_property
    def remover(self) -> PodRemover:
        from kurma_core.pods.change.remove import PodRemover

        return PodRemover(self.finder, lambda: self.stopper, lambda: self.apps)

    def prepare(self, request: PodRequest, progress: Progress | None = None) -> PodRecord:
        """Makes a pod that can be started. A failure leaves nothing behind.

        :raises KurmaError: see :func:`kurma_core.pods.prepare.prepare_pod.pod_document`.
        :raises PodExistsError: its UUID or name is taken.
        """
        record, pod = self.prepare_to_start(request, progress)
        pod.close()
        return record

    def prepare_to_start(
        self, request: PodRequest, progress: Progress | None = None, new: NewPod | None = None
    ) -> tuple[PodRecord, OwnedPod]:
        """As :meth:`prepare`; this process owns the pod from then on. The caller must call :meth:`start_prepared`,
        or :meth:`OwnedPod.close`, which leaves the pod prepared.

        :param new: becomes this pod; None: nothing of it exists yet.
        """
        from kurma_core.pods.prepare.prepare_pod import pod_document

        if new is None:
            new = NewPod(self.services, new_uuid() if request.uuid is None else pod_uuid(request.uuid))
        name = self._name(request, new.uuid)
        created_at = timestamp()
        rendered: dict[str, RenderedImage] = {}
        images = self.services.images.keeping()
        images.__enter__()
        try:
            directory = new.become(name)
            try:
                document = pod_document(request, new.uuid, name, created_at, self.services, progress, rendered)
                new = new.fitted(document)
                new.record(document)
                if document.manifest.named_volumes:
                    from kurma_core.pods.prepare.named_volumes import make_missing

                    # After the record: a volume is not removed while the record of a pod names it.
                    make_missing(self.services, document.manifest)
                record = record_of(directory, document, PodState("prepared"))
            except BaseException:
                new.abandon(name)
                raise
        except BaseException:
            images.__exit__(None, None, None)
            raise
        pod = new.owned(document, rendered, images, self.events)
        try:
            labels = document.manifest.user_labels
            pod.events.tell("prepared", document, {"labels": dict(labels)} if labels else None)
            for app in document.app_names:
                pod.events.tell_app("created", document, app)
        except BaseException:
            pod.close()
            raise
        return record, pod

    def start_prepared(self, pod: OwnedPod, stdio: Stdio, settled: Callable[[], None] = lambda: None) -> OwnedPod:
        """Starts the pod of :meth:`prepare_to_start`.

        :raises KurmaError: as :meth:`start`. The pod is closed then, and recorded as errored: unlike a pod that
            was prepared to be started later, it was made for this start alone.
        """
        try:
            try:
                # Grants may have changed since its preparation: a client may have waited before the start.
                self._check_power(pod.document)
                pod.claim()
            except KurmaError as error:
                pod.refuse(error)
                raise
        except BaseException:
            pod.close()
            raise
        pod.start(stdio, settled)
        return pod

    @staticmethod
    def _name(request: PodRequest, uuid: str) -> str:
        name = request.name or request.template.name
        if name is None:
            first = request.template.pod.apps[0].name if request.template.pod.apps else "pod"
            return f"{first[: _NAME_LIMIT - 9]}-{uuid[:8]}"
        try:
            nearest = sanitize_name(name)
        except ManifestError:  # no character of it is allowed in a name
            nearest = ""
        if len(name) > _NAME_LIMIT or nearest != name:
            hint = f"at most {_NAME_LIMIT} of a-z, 0-9, and - inside"
            raise UsageError(
                f"{name!r} is not a valid pod name", hint=f"{hint}: {nearest[:_NAME_LIMIT]}" if nearest else hint
            )
        if name == "names":
            raise UsageError("'names' is reserved: choose another name for the pod")
        return name

    def start(
        self,
        reference: str,
        stdio: Stdio,
        settled: Callable[[], None] = lambda: None,
        *,
        again: bool = False,
    ) -> OwnedPod:
        """Starts a prepared or ended pod from a clean copy; this process owns it from now on.

        :param settled: called once the pod is up, or is being taken down: from here on nothing may interrupt this
            process.
        :param again: its restart policy starts it, not a user.
        :raises PodStateError: it runs already, has an owner, or must not be restarted.
        :raises KurmaError: it did not start; everything is undone and recorded.
        """
        directory = self.finder.find(reference)
        self._startable(directory.read_document(), directory.read_state())
        with contextlib.ExitStack() as undo:
            lock = self.finder.own(directory)
            undo.callback(os.close, lock)
            # Waits for a process that still finishes a change of the apps of the last run.
            with directory.apps_lock(APPS_PATIENCE):
                document = directory.read_document()
                self._check_power(document)
                self._clear(directory, document)
                pod = OwnedPod(Launch(self.services, directory, document), lock, self.events)
                undo.pop_all()
                pod.start(stdio, settled, again=again)
        return pod

    def adopt(self, uuid: str) -> OwnedPod | None:
        """Takes over a pod whose owner has died. A dead pod is taken down, a half-made one undone.

        :returns: None: it does not run, or has a living owner.
        :raises PodNotFoundError: it was half-made, or ephemeral and taken down, and is removed now.
        :raises KurmaError: its record cannot be read; or it could not be taken down, which is on record.
        """
        directory = self.store.directory(uuid)
        lock = directory.try_own(LOCK_PATIENCE)
        if lock is None:
            return None
        try:
            while True:
                recovery.take_down(self.services, directory, self.events)
                if directory.read_state().state not in ("running", "stopping"):
                    os.close(lock)
                    return None
                stager = recovery.find_stager(self.services, directory)
                if stager is not None:  # else it has just ended
                    break
            try:
                pod = OwnedPod.adopted(self.services, directory, stager, lock, self.events)
            except BaseException:
                stager.close()
                raise
            self.events.tell("adopted", directory.read_document())
            return pod
        except BaseException:
            os.close(lock)
            raise

    def stop_to_restart(self, reference: str, *, timeout: float | None = None, force: bool = False) -> PodRecord:
        """Stops a pod as :meth:`PodStopper.stop` does, so that it can be started again.

        :raises PowerError: it must not be started again; it is left as it is.
        """
        directory = self.finder.find(reference)
        self._check_power(directory.read_document())
        return self.stopper.stop(directory.uuid, timeout=timeout, force=force)

    def _check_power(self, document: PodDocument) -> None:
        """:raises PowerError: a power that an image was granted when the pod was made is no longer granted.
        :raises IsolatorError: an app lacks an isolator that is required now.
        """
        from kurma_core.pods.prepare import isolators

        isolators.check_start(self.services, document)
        if document.needs:
            from kurma_core.pods.prepare import grants

            grants.check_again(document, self.services)

    @staticmethod
    def _startable(document: PodDocument, state: PodState) -> None:
        if not state.startable:
            raise PodStateError(f"cannot start pod {document.name}: it is {state.state}", pod=document.uuid)

    def _clear(self, directory: PodDirectory, document: PodDocument) -> None:
        """Saves the logs and results of an earlier run, and removes its other files: every execution starts from a
        clean copy. Kept roots stay until the stager is started, so that a start that fails before does not lose
        them.

        :raises PodStateError: the pod cannot be started.
        """
        from kurma_core.linux.beneath import remove_tree

        state = directory.read_state()
        self._startable(document, state)
        if state.steps:
            raise PodStateError(
                f"cannot start pod {document.name}: its last removal from the host is incomplete", hint="kurma gc"
            )
        if state.state != "prepared":
            keep_executions(directory)
        recovery.discard_remains(self.services, directory)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(directory.path, flags)
        try:
            for name in ("stager", "volumes"):
                remove_tree(fd, name)
            if not document.keeps_root:
                remove_tree(fd, "pod")
                return
            with contextlib.suppress(FileNotFoundError):
                pod = os.open("pod", flags, dir_fd=fd)
                try:
                    for name in os.listdir(pod):
                        if name != "apps":
                            remove_tree(pod, name)
                finally:
                    os.close(pod)
        finally:
            os.close(fd)
