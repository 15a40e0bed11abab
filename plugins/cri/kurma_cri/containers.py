"""Creates, starts, stops, removes and lists containers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kurma_core.cancellation import Cancellation, current, governing
from kurma_core.errors import AppNotFoundError, KurmaError, PodNotFoundError, PodStateError
from kurma_cri.container_request import container_request
from kurma_cri.images import Images
from kurma_cri.mounts import explained, with_image_ids
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import Container, Records, WholeList, containers_of
from kurma_cri.resources import RESOURCES, check, to_isolator
from kurma_cri.rpc import RpcError, already_exists, failed_precondition, invalid, is_not_found, unavailable
from kurma_cri.sandboxes import check_ready
from kurma_cri.statuses import chosen, container_item, container_state

if TYPE_CHECKING:
    from kurma_core.api.operations import Api
    from kurma_cri.sandboxes import Sandboxes
    from kurma_cri.stagers import Stagers


class Containers:
    """:param client: has the pods. :param records: finds them."""

    def __init__(self, client: Api, records: Records, sandboxes: Sandboxes, stagers: Stagers) -> None:
        self._client = client
        self._records = records
        self._sandboxes = sandboxes
        self._images = Images(client)
        self._lock = threading.Lock()
        #: Sandbox, name and attempt of the containers that are being made.
        self._making: set[tuple[str, str, int]] = set()
        self._stagers = stagers
        self._all = WholeList()

    def create(self, sandbox_id: str, config: cri.ContainerConfig) -> str:
        """Adds a container to a sandbox. :returns: its ID.

        :raises RpcError: the configuration is wrong; the sandbox is not ready; it has a container of this name and
            attempt.
        """
        key = (self._records.id_of(sandbox_id), config.metadata.name, config.metadata.attempt)
        with self._lock:
            if key in self._making:
                raise unavailable(f"a container of the name {key[1]!r} and attempt {key[2]} is being created")
            self._making.add(key)
        try:
            return self._create(sandbox_id, config)
        finally:
            with self._lock:
                self._making.discard(key)

    def _create(self, sandbox_id: str, config: cri.ContainerConfig) -> str:
        sandbox = self._sandboxes.running(sandbox_id)
        for other in containers_of(sandbox):
            if _key(other) == (config.metadata.name, config.metadata.attempt):
                raise already_exists(
                    f"container {other.id} of this sandbox has the name {config.metadata.name!r} and attempt "
                    f"{config.metadata.attempt}"
                )
        image = self._images.run_image(config.image.image)
        config, mounted = with_image_ids(self._images, config)
        foreign = self._stagers.is_foreign(sandbox.pod.stager)
        with self._records.making() as id:
            request = container_request(id, sandbox, config, image, mounted, self._records.now(), foreign=foreign)
            try:
                self._client.app_add(sandbox.pod.uuid, request)
                current().check()  # a client that has gone never learns its ID
            except BaseException as error:
                if isinstance(error, KurmaError):
                    explained(error, config)
                # The caller gets the first error. The next change of the pod undoes an unfinished addition, too.
                with governing(Cancellation()), contextlib.suppress(KurmaError):
                    self._client.app_rm(sandbox.pod.uuid, id, force=True)
                raise
        self._records.added(id, sandbox)
        return id

    def start(self, reference: str) -> None:
        """Starts a created container; returns once its program runs.

        :raises RpcError: it was started before.
        :raises KurmaError: its program could not be executed.
        """
        container = self._records.container(reference)
        if container_state(container) != cri.CONTAINER_CREATED:
            raise failed_precondition(f"container {container.id} was started before: it is {container.app.state}")
        check_ready(container.sandbox)
        self._client.app_start(container.sandbox.pod.uuid, container.id)

    def stop(self, reference: str, timeout: int) -> None:
        """Ends a container; returns once it has ended. Repeatable.

        :param timeout: seconds between its stop signal and SIGKILL; 0 or less: it is killed at once.
        """
        container = self._find(reference)
        if container is None or container.app.state == "created":
            return
        if container_state(container) == cri.CONTAINER_EXITED:
            return
        with contextlib.suppress(PodNotFoundError, AppNotFoundError, PodStateError):
            self._client.app_stop(
                container.sandbox.pod.uuid, container.id, force=timeout <= 0, timeout=float(max(timeout, 0))
            )

    def update(self, reference: str, resources: cri.LinuxContainerResources) -> None:
        """Changes the resources of a container, also of one that was not started: all of them or none. Fields that
        are 0 or empty stay as they are.

        :raises KurmaError: a value is wrong, or the kernel refuses it; all is as before.
        :raises RpcError: the host cannot apply one.
        """
        container = self._records.container(reference)
        foreign = self._stagers.is_foreign(container.sandbox.pod.stager)
        check(resources, foreign=foreign)
        value = to_isolator(resources)
        if value and not foreign:
            self._client.app_update(container.sandbox.pod.uuid, container.id, {RESOURCES: value}, managed=True)

    def reopen_log(self, reference: str) -> None:
        """Goes on with a new log file of a running container, after the caller has renamed the present one.

        :raises RpcError: it does not run.
        """
        container = self._records.container(reference)
        if container_state(container) != cri.CONTAINER_RUNNING:
            raise failed_precondition(f"container {container.id} does not run: it is {container.app.state}")
        if not self._stagers.is_foreign(container.sandbox.pod.stager):
            self._client.app_reopen_log(container.sandbox.pod.uuid, container.id)

    def exec_sync(self, reference: str, command: tuple[str, ...], timeout: int) -> cri.ExecSyncResponse:
        """Runs a command in a running container. :param timeout: seconds; 0: there is no limit.

        :raises RpcError: it does not run; the command was killed after its time.
        """
        from kurma_cri.exec_sync import exec_sync

        container = self._records.container(reference)
        if container_state(container) != cri.CONTAINER_RUNNING:
            raise failed_precondition(f"container {container.id} does not run: it is {container.app.state}")
        if not command:
            raise invalid("cmd is empty: it is the command and its arguments")
        pod = container.sandbox.pod
        contained = timeout > 0 or not self._stagers.is_foreign(pod.stager)
        return exec_sync(self._client, pod.uuid, container.id, command, timeout, contained=contained)

    def remove(self, reference: str) -> None:
        """Removes a container; ends it first. Its log files stay. Repeatable."""
        container = self._find(reference)
        if container is None:
            return
        with contextlib.suppress(PodNotFoundError, AppNotFoundError):
            self._client.app_rm(container.sandbox.pod.uuid, container.id, force=container.sandbox.live)
        self._records.forget(container.id)

    def _find(self, reference: str) -> Container | None:
        try:
            return self._records.container(reference)
        except RpcError as error:
            if is_not_found(error):
                return None
            raise

    def answer(self, wanted: cri.ContainerFilter) -> cri.ListContainersResponse | bytes:
        """The answer to ListContainers; serialized, if there is no condition."""
        if wanted.ListFields():
            return cri.ListContainersResponse(containers=self.list(wanted))
        listing = self._records.listing()
        return self._all.answer(
            listing,
            lambda: cri.ListContainersResponse(
                containers=[container_item(container) for _, containers in listing for container in containers]
            ),
        )

    def list(self, wanted: cri.ContainerFilter) -> Iterator[cri.Container]:
        """The containers that fulfil each condition of the filter."""
        state = wanted.state.state if wanted.HasField("state") else None
        id, sandbox, labels = wanted.id, wanted.pod_sandbox_id, dict(wanted.label_selector)
        for container in self._records.containers():
            if (
                container.id.startswith(id)
                and container.sandbox.id.startswith(sandbox)
                and (state is None or container_state(container) == state)
                and (not labels or chosen(container.config.labels, labels))
            ):
                yield container_item(container)


def _key(container: Container) -> tuple[str, int]:
    return (container.config.metadata.name, container.config.metadata.attempt)
