"""The service ``cri``: serves Kurma's pods to Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_cri.options import OPTIONS, Options

if TYPE_CHECKING:
    from kurma_core.hookspecs.service import ServiceHost


class CriService:
    """Serves the Container Runtime Interface on a Unix socket."""

    def __init__(self, context: DriverContext) -> None:
        self._options = Options.read(context.config)

    @hookimpl
    def serve(self, host: ServiceHost) -> None:
        from kurma_cri.server import Server  # grpc takes long to import

        Server(self._options, host).serve()


@hookimpl
def kurma_service() -> Driver:
    return Driver(CriService, options=OPTIONS)
