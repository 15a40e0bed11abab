"""What the HTTP side needs of the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from kurma_core.api.pods import PodRequest
    from kurma_core.client.client import Client
    from kurma_core.config import Config
    from kurma_core.daemon.http.server import Server
    from kurma_core.daemon.pods.listing import Listing
    from kurma_core.daemon.pods.owned import OwnedPods, RunningPod
    from kurma_core.daemon.pods.prestarted import PreparedPod
    from kurma_core.models.stdio import Stdio
    from kurma_core.pods.daemon_interface import PrestartedPod
    from kurma_core.progress import Progress

    Json = Any


class Counts(Protocol):
    """What the daemon has counted."""

    began: float

    def requests(self) -> list[tuple[dict[str, str], float]]: ...

    def starts(self) -> Iterable[str]: ...


class Daemon(Protocol):
    """:class:`kurma_core.daemon.kurmad.Daemon`, as operations use it."""

    @property
    def config(self) -> Config: ...
    @property
    def client(self) -> Client: ...
    @property
    def server(self) -> Server: ...
    @property
    def metrics(self) -> Counts: ...
    @property
    def listing(self) -> Listing: ...
    @property
    def owners(self) -> OwnedPods: ...

    def described(self) -> dict[str, Json]:
        """What ``info`` tells of kurmad."""

    def problems(self) -> list[str]:
        """What keeps kurmad from its work, a line for each."""

    def running(self, reference: str) -> RunningPod | None:
        """The pod, if the daemon owns it."""

    def launch(
        self,
        reference: str,
        stdio: Stdio | None = None,
        up: Callable[[RunningPod], None] = ...,
        *,
        prestarted: PrestartedPod | None = None,
        settled: Callable[[], None] = ...,
    ) -> RunningPod:
        """Starts a pod that the daemon owns."""

    def run(
        self, request: PodRequest, progress: Progress | None = None, up: Callable[[RunningPod], None] = ...
    ) -> RunningPod:
        """Prepares a pod and starts it."""

    def prepared(
        self, request: PodRequest, progress: Progress | None = None
    ) -> AbstractContextManager[PreparedPod]:
        """Prepares a pod that is to be started inside the ``with`` statement."""


__all__ = ["Counts", "Daemon"]
