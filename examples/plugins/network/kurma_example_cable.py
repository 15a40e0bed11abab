"""The network kind ``cable``: each pod has a cable of its own to the host, and two addresses for it."""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Mapping
from typing import Any

from kurma_core.errors import NetworkError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_core.hookspecs.network import AttachmentContext
from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.linux.netlink import Netlink
from kurma_core.models.network import AddressResult, NetworkResult


class Cable:
    """Which pair of addresses is whose is told by a link in the driver's own directory, named by the pair."""

    def __init__(self, context: DriverContext) -> None:
        self._directory = context.state_dir

    @hookimpl
    def setup(self, config: Mapping[str, Any]) -> None:
        _subnet(config)
        os.makedirs(self._taken(config), mode=0o700, exist_ok=True)

    @hookimpl
    def publishes(self, config: Mapping[str, Any]) -> bool:
        return False

    @hookimpl
    def add(self, context: AttachmentContext) -> NetworkResult:
        config = context.attachment.config
        # On record first: a crash after it leaves something for delete to find.
        ours, theirs = self._take(config, _owner(context))
        try:
            namespace = os.open(context.namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                with Netlink() as netlink:
                    netlink.delete_link(_name(context))  # of an add that was broken off
                    netlink.add_veth(_name(context), context.interface, namespace)
                    index = _index(netlink, _name(context))
                    netlink.add_address(index, ours.packed, 31)
            finally:
                os.close(namespace)
            in_network_namespace(context.namespace, lambda: _furnish(context.interface, ours, theirs))
        except OSError as error:
            raise _failed(context, error.strerror or str(error)) from error
        return NetworkResult((AddressResult(f"{theirs}/31", str(ours)),))

    @hookimpl
    def delete(self, context: AttachmentContext) -> None:
        try:
            with Netlink() as netlink:
                netlink.delete_link(_name(context))  # both of its ends; none is no failure
        except OSError as error:
            raise _failed(context, error.strerror or str(error)) from error
        for path in self._pairs_of(context.attachment.config, _owner(context)):
            os.unlink(path)

    @hookimpl
    def check(self, context: AttachmentContext) -> None:
        with Netlink() as netlink:
            if netlink.link(_name(context)) is None:
                raise _failed(context, f"the pod's cable {_name(context)} is not there")

    @hookimpl
    def remove(self, config: Mapping[str, Any]) -> None:
        """Pods share nothing of it."""

    # -- which addresses are whose --

    def _taken(self, config: Mapping[str, Any]) -> str:
        return os.path.join(self._directory, config["name"])

    def _take(self, config: Mapping[str, Any], owner: str) -> tuple[ipaddress.IPv4Address, ipaddress.IPv4Address]:
        """A free pair, the owner's from now on. In one step, for pods come at once, and each may be killed."""
        for pair in _subnet(config).subnets(new_prefix=31):
            try:
                os.symlink(owner, os.path.join(self._taken(config), str(pair[0])))
            except FileExistsError:
                continue
            return pair[0], pair[1]
        raise NetworkError(f"network {config['name']}: {_subnet(config)} has no addresses left")

    def _pairs_of(self, config: Mapping[str, Any], owner: str) -> list[str]:
        try:
            paths = [entry.path for entry in os.scandir(self._taken(config))]
        except FileNotFoundError:  # add was never called
            return []
        return [path for path in paths if _reads(path) == owner]


def _furnish(interface: str, ours: ipaddress.IPv4Address, theirs: ipaddress.IPv4Address) -> None:
    """Runs in the pod's namespace."""
    with Netlink() as netlink:
        netlink.set_link(interface, up=True)
        index = _index(netlink, interface)
        netlink.add_address(index, theirs.packed, 31)
        netlink.add_route(index, bytes(4), 0, ours.packed)


def _index(netlink: Netlink, name: str) -> int:
    link = netlink.link(name)
    if link is None:
        raise OSError(f"{name} has gone")
    return link.index


def _owner(context: AttachmentContext) -> str:
    return f"{context.pod} {context.interface}"


def _name(context: AttachmentContext) -> str:
    """Of the host's end: the same for the same pod, and 15 bytes."""
    return f"cable-{hashlib.sha256(_owner(context).encode()).hexdigest()[:9]}"


def _reads(path: str) -> str | None:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # another pod has just left
        return None


def _subnet(config: Mapping[str, Any]) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(str(config.get("subnet")))
    except ValueError as error:
        raise NetworkError(f"network {config['name']}: wrong subnet: {error}", hint="e.g. 10.91.0.0/24") from None


def _failed(context: AttachmentContext, why: str) -> NetworkError:
    network = context.attachment.network
    return NetworkError(f"network {network}: pod {context.pod}: {why}", network=network)


@hookimpl
def kurma_network() -> Driver:
    return Driver(Cable, aliases=("example.com/kurma/cable",))
