"""Runs, stops, removes and lists pod sandboxes."""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kurma_core.cancellation import Cancellation, current, governing
from kurma_core.errors import KurmaError, PodNotFoundError
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import (
    SANDBOX_RESOURCES,
    Records,
    Sandbox,
    WholeList,
    metadata_of,
    pod_name,
    resources_annotation,
    set_resources,
)
from kurma_cri.rpc import RpcError, already_exists, failed_precondition, invalid, is_not_found
from kurma_cri.sandbox_request import sandbox_request
from kurma_cri.security_context import has_selinux, selinux_level
from kurma_cri.statuses import chosen, list_item

if TYPE_CHECKING:
    from kurma_core.api.operations import Api
    from kurma_cri.options import Handler, Options
    from kurma_cri.records import Metadata
    from kurma_cri.stagers import Stagers


class Sandboxes:
    """:param client: has the pods. :param records: finds them."""

    def __init__(self, options: Options, client: Api, records: Records, stagers: Stagers) -> None:
        self._options = options
        self._client = client
        self._records = records
        self._stagers = stagers
        self._lock = threading.Condition()
        #: Metadata of the sandboxes that are being made.
        self._making: set[Metadata] = set()
        self._updating = threading.Lock()
        self._mounts = _Mounts()
        self._all = WholeList()

    def close(self) -> None:
        self._mounts.close()

    def run(self, config: cri.PodSandboxConfig, handler: str) -> str:
        """Makes and starts a sandbox; returns once its network is up. :returns: its ID.

        :raises RpcError: the configuration is wrong; a sandbox with this metadata lives.
        :raises KurmaError: it could not be started; nothing of it is left.
        """
        chosen_handler = self.handler(handler)
        with self._making_alone(metadata_of(config)):
            for other in self._records.named(config):
                self._replace(other)
            with self._records.making(selinux_level if has_selinux() else None) as id:
                foreign = self._stagers.is_foreign(chosen_handler.stager)
                request = sandbox_request(
                    id, config, chosen_handler, self._records.now(), self._options, foreign=foreign
                )
                try:
                    self._client.prepare(request, start=True)
                    current().check()  # a client that has gone never learns its ID
                except BaseException:
                    self._undo(id)
                    raise
                self._records.made(id, config)
            return id

    def handler(self, name: str) -> Handler:
        """:raises RpcError: it is unknown."""
        found = self._options.handlers.get(name)
        if found is None:
            known = ", ".join(repr(one) for one in sorted(self._options.handlers))
            raise invalid(f"there is no runtime handler {name!r}: kurma.yml has {known}")
        return found

    @contextlib.contextmanager
    def _making_alone(self, key: Metadata) -> Iterator[None]:
        """A second call with the same metadata waits for the first."""
        operation = current()

        def wake() -> None:
            with self._lock:
                self._lock.notify_all()

        with operation.waking(wake), self._lock:
            while key in self._making and not operation.cancelled:
                self._lock.wait()
            operation.check()
            self._making.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._making.discard(key)
                self._lock.notify_all()

    def _replace(self, other: Sandbox) -> None:
        """:raises RpcError: it lives; else its remains are removed."""
        if other.ready:
            meta = other.config.metadata
            raise already_exists(
                f"pod sandbox {other.id} of {meta.namespace}/{meta.name} exists with this metadata"
            )
        if other.pod.state in ("preparing", "prepared", "errored") and not other.pod.apps:
            self._undo(other.id)

    def _undo(self, id: str) -> None:
        """Removes a sandbox that did not come up, whatever the operation's caller wants by now."""
        # The caller gets the first error. Kubelet removes a sandbox that is not ready.
        with governing(Cancellation()), contextlib.suppress(KurmaError):
            self._client.rm(pod_name(id), force=True)

    def update_resources(self, request: cri.UpdatePodSandboxResourcesRequest) -> None:
        """Records the given resources of a sandbox. Kubelet itself writes the files of its cgroup."""
        with self._updating:
            sandbox = self._records.sandbox(request.pod_sandbox_id)
            linux = cri.LinuxPodSandboxConfig()
            linux.CopyFrom(sandbox.config.linux)
            set_resources(linux, request)
            changed = {SANDBOX_RESOURCES: resources_annotation(linux)}
            self._client.pod_annotate(sandbox.pod.uuid, set=changed, managed=True)

    def stop(self, reference: str) -> None:
        """Ends all processes of a sandbox, and gives its network back. Repeatable."""
        sandbox = self._find(reference)
        if sandbox is None:
            return
        with contextlib.suppress(PodNotFoundError):
            if sandbox.live:
                self._client.stop(sandbox.pod.uuid, timeout=0.0)

    def remove(self, reference: str) -> None:
        """Removes a sandbox with its containers. Repeatable."""
        sandbox = self._find(reference)
        if sandbox is None:
            return
        with contextlib.suppress(PodNotFoundError):
            self._client.rm(sandbox.pod.uuid, force=True)
        self._records.forget_sandbox(sandbox.id, sandbox.config)
        for app in sandbox.pod.apps:
            self._records.forget(app.name)

    def _find(self, reference: str) -> Sandbox | None:
        try:
            return self._records.sandbox(reference)
        except RpcError as error:
            if is_not_found(error):
                return None
            raise

    def answer(self, wanted: cri.PodSandboxFilter) -> cri.ListPodSandboxResponse | bytes:
        """The answer to ListPodSandbox; serialized, if there is no condition."""
        if wanted.ListFields():
            return cri.ListPodSandboxResponse(items=self.list(wanted))
        mounts, listing = self._mounts.changes(), self._records.listing()
        return self._all.answer(
            listing,
            lambda: cri.ListPodSandboxResponse(items=[list_item(sandbox, mounts) for sandbox, _ in listing]),
            mounts,
        )

    def list(self, wanted: cri.PodSandboxFilter) -> Iterator[cri.PodSandbox]:
        """The sandboxes that fulfil each condition of the filter."""
        state = wanted.state.state if wanted.HasField("state") else None
        id, labels = wanted.id, dict(wanted.label_selector)
        mounts = self._mounts.changes()
        for sandbox in self._records.sandboxes():
            item = list_item(sandbox, mounts)
            if (
                sandbox.id.startswith(id)
                and (state is None or item.state == state)
                and (not labels or chosen(sandbox.config.labels, labels))
            ):
                yield item

    def running(self, reference: str) -> Sandbox:
        """:raises RpcError: there is none, or it does not run."""
        sandbox = self._records.sandbox(reference)
        check_ready(sandbox)
        return sandbox


class _Mounts:
    """Counts the changes of the host's mounts. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table = open("/proc/self/mountinfo", "rb", 0)  # noqa: SIM115 - until close()
        # The kernel reports each change once: see poll in proc_pid_mounts(5).
        self._poll = select.poll()
        self._poll.register(self._table, select.POLLPRI)
        self._changes = 0

    def changes(self) -> int:
        """Their number until now."""
        with self._lock:
            if self._poll.poll(0):
                self._changes += 1
            return self._changes

    def close(self) -> None:
        self._table.close()


def check_ready(sandbox: Sandbox) -> None:
    """:raises RpcError: no container can be started in the sandbox."""
    if not sandbox.ready:
        raise failed_precondition(f"pod sandbox {sandbox.id} is not ready: its pod is {sandbox.pod.state}")
