"""The hook of the network kind ``bridge``."""

from __future__ import annotations

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_core.hookspecs.network import NetworkHooks


def _create(context: DriverContext) -> NetworkHooks:
    from kurma_net_bridge.driver import BridgeNetwork

    return BridgeNetwork(context.state_dir, context.note)


@hookimpl
def kurma_network() -> Driver:
    """The driver of the network kind ``bridge``."""
    return Driver(create=_create)
