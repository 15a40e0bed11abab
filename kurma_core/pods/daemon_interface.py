"""The pods as kurmad uses them: the one interface of ``daemon/pods`` to the packages below.

``kurma_core/daemon/pods`` imports nothing else of ``pods``, ``image_store`` and ``staging``
(``tests/test_floors.py``).
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError
from kurma_core.pods.inside import health_checks
from kurma_core.pods.inside.health_checks import Checked
from kurma_core.pods.inside.logs import Following, LogReader
from kurma_core.pods.log_places import OutsideLog
from kurma_core.pods.prepare import grants, isolators
from kurma_core.pods.record import pod_store
from kurma_core.pods.record.document import RESTART_POLICY
from kurma_core.pods.run import pod_restarts, prestarted, recovery
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from kurma_core.api.operations import Progress
    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.template import PodTemplate
    from kurma_core.config import Config
    from kurma_core.hookspecs.stager import CallInHooks
    from kurma_core.models.health import HealthCheck
    from kurma_core.models.pod import AppStatus, PodRecord
    from kurma_core.models.streams import Stdio
    from kurma_core.models.summary import PodSummary
    from kurma_core.pods.manager import PodManager
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory, Recover
    from kurma_core.pods.record.state import PodState
    from kurma_core.pods.run.owner import NewPod, OwnedPod
    from kurma_core.pods.run.prestarted import PrestartedPod

    T = TypeVar("T")

#: Reasons for which kurmad stops a pod (``cause`` in ``state.json``): see
#: :func:`kurma_core.pods.run.pod_restarts.wanted`.
STOPPED, SHUT_DOWN, UNWELL = pod_restarts.STOPPED, pod_restarts.SHUT_DOWN, pod_restarts.UNWELL
#: Name of an app's API socket in its directory.
API_SOCKET = isolators.API_SOCKET


class DaemonInterface:
    """The pods of one state directory, for kurmad. Any thread may use it.

    :param manager: uses the present configuration; :meth:`use` replaces it after a reload.
    """

    def __init__(self, manager: PodManager) -> None:
        self._manager = manager
        #: Number of the present configuration: what was made with an earlier one is out of date.
        self.generation = 0

    def use(self, manager: PodManager) -> None:
        self._manager = manager
        self.generation += 1

    @property
    def config(self) -> Config:
        return self._manager.services.config

    def on_api_changed(self, call: Callable[[PodDocument, str], None]) -> None:
        """Registers ``call``, which gets each pod, and its directory, whose apps may have gained or lost the
        API."""
        self._manager.services.api_changed = call

    def on_spawner_started(self, call: Callable[[int], None]) -> None:
        """Registers ``call``, which gets the PID of each spawner before that starts programs."""
        self._manager.services.spawner.settle = call

    # -- find and read --

    def uuids(self) -> list[str]:
        return self._manager.store.uuids()

    def find(self, reference: str) -> str:
        """The UUID of a pod. :param reference: its UUID, the beginning of one, or its name."""
        return self._manager.store.find(reference).uuid

    def check_manager(self, verb: str, reference: str, *, managed: bool) -> None:
        """See :meth:`PodFinder.check_manager`."""
        self._manager.finder.check_manager(verb, reference, managed=managed)

    def root(self) -> str:
        """The directory of all pods; made if it is missing. :raises OSError: it cannot be made."""
        self._manager.store.make()
        return self._manager.store.root

    def path(self, uuid: str) -> str:
        return self._directory(uuid).path

    def state(self, uuid: str) -> PodState:
        """The present ``state.json``. :raises KurmaError: it cannot be read."""
        return self._directory(uuid).read_state()

    def document(self, uuid: str) -> PodDocument:
        """The present ``pod.json``. :raises KurmaError: it cannot be read."""
        return self._directory(uuid).read_document()

    def is_owned(self, uuid: str) -> bool:
        """Whether a living process owns the pod."""
        return self._directory(uuid).owned()

    def is_ephemeral(self, uuid: str) -> bool:
        """Whether the pod is removed once it has ended. :raises PodNotFoundError: it was removed."""
        return self.document(uuid).ephemeral

    def _directory(self, uuid: str) -> PodDirectory:
        return self._manager.store.directory(uuid)

    # -- prepare, start, remove --

    def prepare_to_start(
        self, request: PodRequest, progress: Progress | None, new: NewPod | None
    ) -> tuple[PodRecord, OwnedPod]:
        """See :meth:`PodManager.prepare_to_start`."""
        return self._manager.prepare_to_start(request, progress, new)

    def start_prepared(self, pod: OwnedPod, stdio: Stdio, settled: Callable[[], None]) -> OwnedPod:
        """See :meth:`PodManager.start_prepared`."""
        return self._manager.start_prepared(pod, stdio, settled)

    def start(self, reference: str, stdio: Stdio, settled: Callable[[], None], *, again: bool) -> OwnedPod:
        """See :meth:`PodManager.start`."""
        return self._manager.start(reference, stdio, settled, again=again)

    def stop(self, uuid: str) -> None:
        self._manager.stopper.stop(uuid)

    def kill(self, uuid: str, app: str) -> None:
        """Kills the main process of an app. :raises KurmaError: it does not run."""
        self._manager.stopper.kill(uuid, signal.SIGKILL, app)

    def check_health(self, uuid: str, app: str) -> Checked:
        """See :func:`kurma_core.pods.inside.health_checks.run_check`."""
        return health_checks.run_check(self._manager.finder, self._directory(uuid), app)

    def first_check(self, uuid: str, status: AppStatus, check: HealthCheck) -> float:
        """See :func:`kurma_core.pods.inside.health_checks.first_pause`."""
        return health_checks.first_pause(self._directory(uuid), status, check)

    def remove(self, uuid: str) -> None:
        """:raises PodNotFoundError: it was removed already."""
        self._manager.remover.remove(uuid)

    # -- foreground --

    def foreground_input(self, reference: str) -> tuple[bool, bool]:
        """Whether the pod reads a foreground client's input, and whether from a terminal."""
        from kurma_core.pods.prepare.app_settings import foreground_input

        return foreground_input(self._manager.services, self._manager.finder.pod(reference))

    def type_into(self, pod: OwnedPod, stdio: Stdio) -> CallInHooks | None:
        """Sends input to the app whose terminal takes it; None: the pod has no such app."""
        from kurma_core.pods.inside.enter_and_attach import type_into

        app = pod.typed_into
        return None if app is None else type_into(self._manager.services, pod, app, stdio)

    # -- recovery --

    def needs_recovery(self, uuid: str) -> bool:
        """Whether the pod has no owner although it needs one, or its teardown is not complete."""
        return recovery.needs_recovery(self._directory(uuid))

    def adopt(self, uuid: str) -> OwnedPod | None:
        """See :meth:`PodManager.adopt`."""
        return self._manager.adopt(uuid)

    def finish_change(self, uuid: str) -> bool:
        """Completes or undoes an unfinished change of the pod's apps. :returns: whether there was one."""
        return self._manager.apps.finish_change(self._directory(uuid))

    def sweep(self, age: float) -> None:
        """Removes the remains of half-made, half-removed and prestarted pods of dead processes.

        :param age: minimum age, in seconds.
        """
        prestarted.sweep(self._manager.services, age)
        self._manager.store.sweep(age)

    # -- restarts --

    def plan_restart(self, uuid: str, *, failed: bool) -> float | None:
        """Records when a pod that has ended is restarted, unless that is planned already.

        :param failed: an attempt has failed: the next one is planned.
        :returns: the seconds until then; None: it must not be restarted.
        """
        directory = self._directory(uuid)
        document = directory.read_document()
        with directory.op_lock():
            state = directory.read_state()
            if not self._wants_restart(document, state):
                return None
            at = pod_restarts.next_of(state)
            if at is not None and not failed:
                return pod_restarts.left(state, at)
            delay, tries = pod_restarts.pause(state, failed=failed)
            directory.write_state(replace(state, restart=pod_restarts.planned(state, delay, tries)))
            return delay

    def announce_restart(self, uuid: str) -> tuple[str, str] | None:
        """Tells observers that the pod is about to be restarted.

        :returns: its name and its policy; None: it must not be restarted any more.
        """
        directory = self._directory(uuid)
        document = directory.read_document()
        if not self._wants_restart(document, directory.read_state()):
            return None
        self._manager.events.tell("restarting", document)
        return document.name, document.restart_policy

    def _wants_restart(self, document: PodDocument, state: PodState) -> bool:
        return pod_restarts.wanted(document, state, self._manager.services.images.manifest)

    # -- initial pods --

    def annotated(self, name: str) -> list[tuple[str, PodDocument]]:
        """UUIDs and documents of the pods that have that annotation."""
        found = []
        for uuid in self.uuids():
            with contextlib.suppress(KurmaError):  # half-made, damaged, or of a newer version
                document = self.document(uuid)
                if document.manifest.annotation(name) is not None:
                    found.append((uuid, document))
        return found

    def initial_request(self, template: PodTemplate, name: str | None) -> PodRequest:
        from kurma_core.api.pods import PodRequest

        return PodRequest(template, uuid=template.uuid, name=name, configured=True)

    def image_ids(self, template: PodTemplate) -> dict[str, str]:
        """IDs of the images that the apps would have now, by app. :raises KurmaError: one is not available."""
        images = self._manager.services.images
        return {app.name: images.of_app(app.image).id for app in template.pod.apps}

    def fetch_image(self, locator: str) -> str:
        """Fetches an image unless the store has it. :returns: its ID."""
        return self._manager.services.images.fetch(locator).id

    # -- prestarted pods --

    def check_required(self) -> None:
        """:raises KurmaError: a plugin that the configuration requires does not work."""
        self._manager.services.registry.check_required()

    def fits_prestarted(self, request: PodRequest) -> bool:
        """See :func:`kurma_core.pods.run.prestarted.fits_request`."""
        return prestarted.fits_request(request, self.config)

    def can_prestart(self) -> bool:
        """Whether the configured stager can be started before its pod is known."""
        return prestarted.can_prestart(self._manager.services, self.config.stager)

    def prestart(self) -> PrestartedPod:
        """See :func:`kurma_core.pods.run.prestarted.prestart`."""
        return prestarted.prestart(self._manager.services, self.config.stager)

    def stager_image(self) -> str:
        """ID of the image that the configured stager is started from now."""
        return self._manager.services.stagers.image(self.config.stager, files=False).id

    def sweep_prestarted(self) -> None:
        """Removes the prestarted pods of dead processes."""
        prestarted.sweep(self._manager.services, 0)

    # -- the API of apps --

    def api_apps(self, document: PodDocument) -> tuple[str, ...]:
        """The apps of a pod that get the API."""
        return isolators.api_users(document)

    def api_rights(self, document: PodDocument, app: str) -> str:
        """``full`` or ``read``. :raises PowerError: the grants no longer give the app's image any rights."""
        return grants.api_rights(document, self._manager.services, app)

    @staticmethod
    def api_directory(pod: str, app: str) -> str:
        """The directory of the app's socket. :param pod: the pod's directory."""
        return isolators.api_directory(pod, app)

    # -- listings --

    def each(
        self, tell: Callable[[PodDirectory, Recover | None], T], broken: Callable[[PodDirectory, str, str], T]
    ) -> Iterator[T]:
        """See :meth:`PodStore.each`."""
        return self._manager.store.each(self._manager.finder.recover, tell, broken)

    def describe(
        self, directory: PodDirectory, recover: Recover | None, *, summary: bool
    ) -> tuple[PodRecord | PodSummary, bool, bool]:
        """A pod's record or summary.

        :param recover: as :meth:`each` passes it.
        :returns: the value; whether it stays true as long as the pod's files are unchanged; whether this holds
            only while the pod has an owner.
        """
        document, state = directory.read_records(recover)
        unsettled = state.unsettled
        if summary:
            return pod_store.summary(directory, document, state), True, unsettled
        value = self._manager.finder.record(directory, document, state)
        # Not cached if an owner came or died while the pod was read.
        same_owner = not state.live or value.owner == state.owner
        lasts = same_owner and self._manager.finder.told_by_files(directory, document, state)
        return value, lasts, unsettled

    def broken(self, directory: PodDirectory, state: str, why: str, *, summary: bool) -> PodRecord | PodSummary:
        """The record or summary of a pod whose records cannot be read."""
        how = pod_store.broken_summary if summary else self._manager.finder.broken
        return how(directory, state, why)


@contextlib.contextmanager
def following(
    directory: str, apps: Sequence[tuple[str, str | OutsideLog]]
) -> Iterator[tuple[LogReader, Following]]:
    """A pod's logs as they are written, also those of apps that are added later.

    :param directory: the pod's.
    :param apps: see :class:`kurma_core.pods.inside.logs.LogReader`.
    """
    with LogReader(directory, apps, newcomers=True) as reader, Following(reader) as found:
        yield reader, found


__all__ = [
    "API_SOCKET",
    "RESTART_POLICY",
    "SHUT_DOWN",
    "STOPPED",
    "UNWELL",
    "Checked",
    "DaemonInterface",
    "Following",
    "LogReader",
    "OutsideLog",
    "OwnedPod",
    "PodDirectory",
    "PodDocument",
    "PodManager",
    "PrestartedPod",
    "Recover",
    "following",
]
