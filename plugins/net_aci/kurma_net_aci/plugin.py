"""The hook of the network kind ``aci``."""

from __future__ import annotations

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, Option
from kurma_core.hookspecs.network import NetworkHooks


def _create(context: DriverContext) -> NetworkHooks:
    from kurma_net_aci.driver import AciNetwork

    timeout = context.config["timeout"]
    return AciNetwork(context.state_dir, context.host_image, timeout, context.note, daemon=context.daemon)


@hookimpl
def kurma_network() -> Driver:
    """The driver of networks whose ``aci`` is an image."""
    return Driver(
        create=_create,
        options=(
            Option("timeout", float, 60.0, "seconds that a script may take before it is killed", least=0.01),
        ),
        runs_images=True,
    )
