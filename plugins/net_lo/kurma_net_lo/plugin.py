"""The loopback network: the hook and its driver."""

from __future__ import annotations

import os
from _thread import get_native_id
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import NetworkError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_core.hookspecs.network import AttachmentContext, NetworkHooks
from kurma_core.linux.namespaces import in_netns, in_network_namespace

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

#: The plugin's name in the Kurma Network Specification, and so in configurations for other Kurmas.
ALIAS = "apcera.com/kurma/lo-netplugin"


class LoopbackNetwork(NetworkHooks):
    """Raises ``lo``; the kernel then gives it 127.0.0.1/8 and, unless IPv6 is off, ::1/128.

    It works in process, by one ioctl, and keeps no state: the kernel makes and removes ``lo`` with the namespace.
    """

    @hookimpl
    def interface(self, config: Mapping[str, Any]) -> str:
        """The kernel's name of the loopback interface."""
        return "lo"

    @hookimpl
    def setup(self, config: Mapping[str, Any]) -> None:
        """Does nothing: the network has no options."""

    @hookimpl
    def add(self, context: AttachmentContext) -> None:
        """Raises ``lo``. :raises NetworkError: the namespace cannot be entered, or the kernel refuses."""
        from kurma_core.linux.namespaces import raise_lo

        _inside(context, raise_lo)

    @hookimpl
    def delete(self, context: AttachmentContext) -> None:
        """Does nothing: the kernel removes ``lo`` with the namespace."""

    @hookimpl
    def check(self, context: AttachmentContext) -> None:
        """Checks ``lo``. :raises NetworkError: it is down, or lacks one of its addresses."""
        from kurma_net_lo.inspect import missing

        found = _inside(context, missing)
        if found:
            raise NetworkError(f"loopback of pod {context.pod}: {found}", network=context.attachment.network)

    @hookimpl
    def remove(self, config: Mapping[str, Any]) -> None:
        """Does nothing: pods share no resource."""


def _inside(context: AttachmentContext, function: Callable[[], T]) -> T:
    try:
        if get_native_id() != os.getpid():
            # Python delivers signals only to the main thread, so no handler can interrupt this thread between
            # entering the namespace and leaving it.
            with in_netns(context.namespace):
                return function()
        return in_network_namespace(context.namespace, function)
    except OSError as error:
        raise NetworkError(
            f"loopback of pod {context.pod}: {error.strerror}: {context.namespace}",
            network=context.attachment.network,
            errno=error.errno,
            path=context.namespace,
        ) from error


def _create(context: DriverContext) -> NetworkHooks:
    return LoopbackNetwork()


@hookimpl
def kurma_network() -> Driver:
    """The driver of the network kind ``lo``."""
    return Driver(create=_create, aliases=(ALIAS,))
