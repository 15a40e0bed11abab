"""The hook of the network kind ``bridge``."""

from __future__ import annotations

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, HostCheck
from kurma_core.hookspecs.network import NetworkHooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def _create(context: DriverContext) -> NetworkHooks:
    from kurma_net_bridge.driver import BridgeNetwork

    return BridgeNetwork(context.state_dir, context.note)


@hookimpl
def kurma_checks() -> Sequence[HostCheck]:
    """nftables, forwarding, and other programs' rules that stop the packets of pods."""
    from kurma_net_bridge.packet_filter.rules import host_checks

    return tuple(host_checks())


@hookimpl
def kurma_network() -> Driver:
    """The driver of the network kind ``bridge``."""
    return Driver(create=_create)
