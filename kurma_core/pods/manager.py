"""The pod manager: prepares, starts, adopts, stops and removes pods.

Works from any process on one state directory; file locks and atomic renames keep the processes apart.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kurma_core.api.pods import Collected
from kurma_core.appc.types import pod_uuid, sanitize_name
from kurma_core.errors import (
    ManifestError,
    PodStateError,
    UsageError,
)
from kurma_core.formats.timestamps import timestamp
from kurma_core.models.pod import ENDED_STATES, PodRecord
from kurma_core.pods.change.app_changes import APPS_PATIENCE, PodApps
from kurma_core.pods.change.remove import PodRemover
from kurma_core.pods.change.stop import PodStopper
from kurma_core.pods.finder import LOCK_PATIENCE, PodFinder
from kurma_core.pods.network import port_claims
from kurma_core.pods.record import executions
from kurma_core.pods.record.document import read_document
from kurma_core.pods.record.pod_record import record_of
from kurma_core.pods.record.pod_store import new_uuid
from kurma_core.pods.record.state import PodState
from kurma_core.pods.run import recovery
from kurma_core.pods.run.launch import Launch, tear_down
from kurma_core.pods.run.owner import OwnedPod

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.api.pods import PodRequest
    from kurma_core.models.image import RenderedImage
    from kurma_core.models.streams import Stdio
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_store import PodDirectory
    from kurma_core.pods.run.prestarted import PrestartedPod
    from kurma_core.pods.services import Services
    from kurma_core.progress import Progress

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
        self.apps = PodApps(self.finder)
        self.stopper = PodStopper(self.finder)
        self.remover = PodRemover(self.finder, self.stopper, self.apps)

    def prepare(
        self, request: PodRequest, progress: Progress | None = None, prestarted: PrestartedPod | None = None
    ) -> PodRecord:
        """Makes a pod that can be started. A failure leaves nothing behind.

        :param prestarted: becomes this pod; the caller must then give it to :meth:`start` or release it, and until
            then other processes see a pod that is still being prepared. If it does not fit, it is discarded.
        :raises KurmaError: see :func:`kurma_core.pods.prepare.prepare_pod.pod_document`.
        :raises PodExistsError: its UUID or name is taken.
        """
        directory, lock, _, record = self._prepare(request, progress, {}, prestarted)
        directory.drop_records()
        # The owner lock of a prestarted pod is held from its making to its start.
        if prestarted is None or prestarted.lock < 0:
            os.close(lock)
        return record

    def prepare_to_start(
        self, request: PodRequest, progress: Progress | None = None
    ) -> tuple[PodRecord, OwnedPod]:
        """As :meth:`prepare`; this process owns the pod from then on. The caller must call :meth:`start_prepared`,
        or :meth:`OwnedPod.close`, which leaves the pod prepared."""
        rendered: dict[str, RenderedImage] = {}
        images = self.services.images.keeping()
        images.__enter__()
        try:
            directory, lock, document, record = self._prepare(request, progress, rendered)
        except BaseException:
            images.__exit__(None, None, None)
            raise
        launch = Launch(self.services, directory, document, rendered=rendered)
        return record, OwnedPod(launch, lock, self.events, images)

    def start_prepared(self, pod: OwnedPod, stdio: Stdio, settled: Callable[[], None] = lambda: None) -> OwnedPod:
        """Starts the pod of :meth:`prepare_to_start`.

        :raises KurmaError: as :meth:`start`; the pod is closed then.
        """
        try:
            pod.use(stdio)
            self._claim(pod)
            return self._bring_up(pod, settled)
        except BaseException:
            pod.close()
            raise

    def _prepare(
        self,
        request: PodRequest,
        progress: Progress | None,
        rendered: dict[str, RenderedImage],
        prestarted: PrestartedPod | None = None,
    ) -> tuple[PodDirectory, int, PodDocument, PodRecord]:
        """:param rendered: is filled with the apps' rendered images. :returns: the lock is the owner lock."""
        from kurma_core.pods.prepare.prepare_pod import pod_document

        if prestarted is not None and request.uuid is not None:
            prestarted.discard()
            prestarted = None
        uuid = new_uuid() if request.uuid is None else pod_uuid(request.uuid)
        if prestarted is not None:
            uuid = prestarted.uuid
        name = self._name(request, uuid)
        created_at = timestamp()
        if prestarted is None:
            directory, lock = self.store.create(uuid, name)
        else:
            directory, lock = prestarted.become(name), prestarted.lock
        try:
            with self.services.images.keeping():
                document = pod_document(request, uuid, name, created_at, self.services, progress, rendered)
                if prestarted is not None and not prestarted.fits(document):
                    lock, prestarted = prestarted.withdraw(), None
                if prestarted is None:
                    directory.write_state(PodState("preparing"))
                directory.keep_records()
                directory.write_pod(document.to_json(), document)
            state = PodState("prepared")
            if prestarted is None:
                directory.write_state(state)
            else:
                # Stays "preparing": it is started at once, and the start records its next state.
                prestarted.document = document
                prestarted.rendered = rendered if prestarted.holds_images else None
            record = record_of(directory, document, state)
        except BaseException:
            if prestarted is not None:
                lock = prestarted.withdraw()
            directory.drop_records()
            self.store.delete(directory, name)
            os.close(lock)
            raise
        events = self.events if prestarted is None else prestarted.postpone(self.events)
        events.tell("prepared", document)
        return directory, lock, document, record

    @staticmethod
    def _name(request: PodRequest, uuid: str) -> str:
        if request.name is None:
            first = request.template.pod.apps[0].name if request.template.pod.apps else "pod"
            return f"{first[: _NAME_LIMIT - 9]}-{uuid[:8]}"
        name = request.name
        try:
            nearest = sanitize_name(name)
        except ManifestError:  # no character of it is allowed in a name
            nearest = ""
        if len(name) > _NAME_LIMIT or nearest != name:
            hint = f"at most {_NAME_LIMIT} of a-z, 0-9, and - inside"
            raise UsageError(
                f"{name!r} is no name for a pod", hint=f"{hint}: {nearest[:_NAME_LIMIT]}" if nearest else hint
            )
        if name == "names":
            raise UsageError("a pod cannot be named names")
        return name

    def start(
        self,
        reference: str,
        stdio: Stdio,
        settled: Callable[[], None] = lambda: None,
        prestarted: PrestartedPod | None = None,
        *,
        again: bool = False,
    ) -> OwnedPod:
        """Starts a prepared or ended pod from a clean copy; this process owns it from now on.

        :param settled: called once the pod is up, or is being taken down: from here on nothing may interrupt this
            process.
        :param prestarted: the prestarted pod that it was prepared from, if any.
        :param again: its restart policy starts it, not a user.
        :raises PodStateError: it runs already, has an owner, or must not be restarted.
        :raises KurmaError: it did not start; everything is undone and recorded.
        """
        if prestarted is not None and prestarted.uuid == reference and prestarted.lock >= 0:
            return self._start_prestarted(prestarted, stdio, settled)
        directory = self.finder.find(reference)
        self._startable(read_document(directory), directory.read_state())
        lock = self.finder.own(directory)
        try:
            # Waits for a process that still finishes a change of the apps of the last run.
            with directory.apps_lock(APPS_PATIENCE):
                self._check_power(read_document(directory))
                return self._start(directory, lock, stdio, settled, again)
        except BaseException:
            os.close(lock)
            raise

    def _start_prestarted(self, prestarted: PrestartedPod, stdio: Stdio, settled: Callable[[], None]) -> OwnedPod:
        """Starts a prestarted pod. No other process has changed it since it was prepared, since its lock was
        held."""
        directory, lock, events = prestarted.directory, prestarted.taken(), prestarted.events or self.events
        try:
            launch = prestarted.launch(stdio)
            pod = OwnedPod(launch, lock, events)
            try:
                try:
                    self._check_power(launch.document)
                    self._claim(pod)
                except BaseException:
                    try:
                        left, _ = tear_down(launch)  # now it is like any other prepared pod
                        directory.drop_spare()
                        directory.change_state(only_in=("preparing",), state="prepared", steps=left)
                        events.flush()
                    finally:
                        directory.drop_records()
                    raise
                return self._bring_up(pod, settled)
            finally:
                # Unless a start step has taken it.
                if (listener := launch.take_listener()) is not None:
                    listener.close()
        except BaseException:
            prestarted.waiting.discard()  # does nothing after the pod has taken the stager over
            os.close(lock)
            raise

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
            self.events.tell("adopted", read_document(directory))
            return pod
        except BaseException:
            os.close(lock)
            raise

    def _start(
        self, directory: PodDirectory, lock: int, stdio: Stdio, settled: Callable[[], None], again: bool
    ) -> OwnedPod:
        document = read_document(directory)
        pod = OwnedPod(Launch(self.services, directory, document, stdio), lock, self.events)
        try:
            state = directory.read_state()
            self._startable(document, state)
            if state.steps:
                raise PodStateError(
                    f"cannot start pod {document.name}: its last teardown is not complete", hint="kurma gc"
                )
            if state.state != "prepared":
                executions.keep(directory)
            self._clear_run(directory)
            self._claim(pod, again=again)
        except BaseException:
            pod.release()
            raise
        return self._bring_up(pod, settled)

    def _claim(self, pod: OwnedPod, *, again: bool = False) -> None:
        """Records that the pod is about to start, which also claims its ports."""
        directory, document, _ = pod.records()
        with port_claims.claimed(
            directory, self.store, document.name, port_claims.published(document.attachments)
        ):
            pod.claim(again=again)

    def _bring_up(self, pod: OwnedPod, settled: Callable[[], None]) -> OwnedPod:
        try:
            pod.start(self.services.config.start_timeout, settled)
        except BaseException:
            pod.release()
            raise
        return pod

    def stop_to_restart(self, reference: str, *, timeout: float | None = None, force: bool = False) -> PodRecord:
        """Stops a pod as :meth:`PodStopper.stop` does, so that it can be started again.

        :raises PowerError: it must not be started again; it is left as it is.
        """
        directory = self.finder.find(reference)
        self._check_power(read_document(directory))
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
        if state.state not in ("prepared", *ENDED_STATES):
            raise PodStateError(f"cannot start pod {document.name}: it is {state.state}", pod=document.uuid)

    def _clear_run(self, directory: PodDirectory) -> None:
        """Removes the files of an earlier run, since every execution starts from a clean copy (see
        ``executions.keep``)."""
        from kurma_core.linux.beneath import remove_tree

        recovery.discard_remains(self.services, directory)
        fd = os.open(directory.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in ("pod", "stager", "volumes"):
                try:
                    remove_tree(fd, name)
                except FileNotFoundError:
                    continue
        finally:
            os.close(fd)


__all__ = ["Collected", "PodManager"]
