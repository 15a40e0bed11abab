"""The service ``dashboard``: serves the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_dashboard.options import OPTIONS, Options

if TYPE_CHECKING:
    from kurma_core.hookspecs.service import ServiceHost


class Dashboard:
    """Serves the page on the address of its options."""

    def __init__(self, context: DriverContext) -> None:
        self._options = Options.read(context.config)
        self._directory = context.state_dir

    @hookimpl
    def serve(self, host: ServiceHost) -> None:
        from kurma_dashboard.server import Server  # takes long to import

        Server(self._options, self._directory, host).serve()


@hookimpl
def kurma_service() -> Driver:
    return Driver(Dashboard, options=OPTIONS)
