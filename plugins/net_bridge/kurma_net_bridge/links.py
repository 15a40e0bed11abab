"""Makes, checks and removes the bridge of a network and the interfaces of pods, by netlink.

Functions with a :class:`Netlink` argument raise :class:`NetlinkError` if the kernel refuses.
"""

from __future__ import annotations

import _thread
import binascii
import errno
import os
import time
from collections.abc import Iterable

from kurma_core.errors import NetworkError
from kurma_core.linux.netlink import Link, Netlink, NetlinkError
from kurma_core.linux.process import start_thread
from kurma_core.value import frozen
from kurma_net_bridge.settings import Route, Settings
from kurma_net_bridge.subnets import Subnet, packed, text_of

#: Prefix of our interfaces on the host; the rest identifies pod and interface.
PREFIX = "kv"
#: Prefix of the aliases of our interfaces.
_MARK = "kurma"
#: Prefix of a bridge's MAC, locally administered; the network's id follows.
_BRIDGE_MAC = bytes((0x02, 0x6B))
#: Prefix of a pod's MAC, locally administered; a part of the pod's address follows, so that neighbour caches stay
#: valid when another pod gets the address.
_POD_MAC = bytes((0x0A, 0x58))
#: Seconds between two checks of an interface that is being removed.
_GONE_STEP = 0.0005
#: Most seconds to wait for a new port of a bridge, and seconds between two checks.
_PORT_SECONDS, _PORT_STEP = 2.0, 0.0005


@frozen
class Owner:
    """The owner that the alias of one of our interfaces names. :param pod: "" for a bridge."""

    network_id: str
    pod: str = ""
    interface: str = ""


def host_end(pod: str, interface: str) -> str:
    """Name of the interface on the host whose peer is ``interface`` of the pod, so that it is found without a
    record.

    It has the first eight characters of the UUID, for people, and five digits of a hash of UUID and interface.
    """
    digits = f"{binascii.crc32(f'{pod}:{interface}'.encode()):08x}"
    return f"{PREFIX}{pod[:8]}{digits[:5]}"


def alias(owner: Owner) -> str:
    return " ".join([word for word in (_MARK, owner.network_id, owner.pod, owner.interface) if word])


def owner_of(link: Link) -> Owner | None:
    """The owner, from the alias; None: the interface is not ours, or its maker was killed before it set the
    alias."""
    words = link.alias.split(" ")
    if words[0] != _MARK or len(words) not in (2, 4):
        return None
    return Owner(*words[1:])


def pod_mac(address: tuple[Subnet, int]) -> bytes:
    """The default MAC of a pod's interface."""
    return _POD_MAC + (address[1] & 0xFFFFFFFF).to_bytes(4, "big")


# --- the bridge ------------------------------------------------------------------------------------------------


def bridge_mac(network_id: str) -> bytes:
    """The bridge's MAC. It is fixed: otherwise it would change with the ports, and pods would have to learn it
    again."""
    return _BRIDGE_MAC + bytes.fromhex(network_id)


def is_ours(link: Link, network_id: str) -> bool:
    """Whether a bridge is the network's, by its MAC, which it has from the start, or by its alias."""
    return link.kind == "bridge" and (link.mac == bridge_mac(network_id) or link.alias == alias(Owner(network_id)))


def find_bridge(netlink: Netlink, settings: Settings, network_id: str) -> Link | None:
    """Finds the network's bridge; None: there is none yet.

    :raises NetworkError: an interface of that name exists and is not this network's.
    """
    link = netlink.link(settings.bridge)
    if link is not None and not (link.name == settings.bridge and is_ours(link, network_id)):
        what = f"a {link.kind}" if link.kind else "a network card"
        what = "a bridge that this network has not made" if link.kind == "bridge" else what
        raise NetworkError(
            f'network "{settings.name}": there is an interface {settings.bridge} already, {what}; kurma leaves it',
            hint="give the network another `bridge`, or remove that interface if it is unused",
            network=settings.name,
        )
    return link


def ensure_bridge(netlink: Netlink, settings: Settings, network_id: str) -> tuple[Link, bool]:
    """Makes the bridge, or repairs it if it was changed. Several processes may call it at once.

    :returns: the bridge, and whether it is new: True until :func:`tell_of_bridge` was called, also if its maker
        was killed before that.
    :raises NetworkError: a foreign interface has its name or its address.
    """
    link = find_bridge(netlink, settings, network_id)
    missing = list(settings.subnets) if link is None else _missing_gateways(netlink, settings, link)
    if missing:
        _refuse_held(netlink, settings, missing)
    if link is None:
        link = _make_bridge(netlink, settings, network_id)
        missing = _missing_gateways(netlink, settings, link)
    if missing and any(one.family == 6 for one in missing):
        _quiet_ipv6(settings.bridge)
    for subnet in missing:
        _add_address(netlink, link.index, subnet, subnet.gateway)
    change_mtu = settings.mtu is not None and link.mtu != settings.mtu
    if change_mtu or not link.up or link.mac != bridge_mac(network_id):
        netlink.set_link(
            settings.bridge, up=True, mac=bridge_mac(network_id), mtu=settings.mtu if change_mtu else None
        )
    return link, not link.alias


def tell_of_bridge(netlink: Netlink, settings: Settings, network_id: str) -> None:
    """Sets the bridge's alias, when the pods of an earlier bridge are attached to it."""
    netlink.set_link(settings.bridge, alias=alias(Owner(network_id)))


def held_gateways(netlink: Netlink, bridge: Link, subnets: Iterable[Subnet]) -> list[Subnet]:
    """The subnets whose gateway address the bridge has."""
    there = {(one.value, one.length) for one in netlink.addresses(bridge.index)}
    return [one for one in subnets if (packed(one.family, one.gateway), one.length) in there]


def take_gateways_off(netlink: Netlink, bridge: Link, subnets: Iterable[Subnet]) -> None:
    """Removes the bridge's addresses of subnets that the network does not have any more."""
    for subnet in held_gateways(netlink, bridge, subnets):
        try:
            netlink.delete_address(bridge.index, packed(subnet.family, subnet.gateway), subnet.length)
        except NetlinkError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # another pod's start has removed it
                raise


def bridge_problems(netlink: Netlink, settings: Settings, network_id: str, link: Link | None) -> list[str]:
    """Describes each problem of the bridge; empty: there is none."""
    if link is None:
        return ["missing"]
    found = [] if link.up else ["down"]
    if link.mac != bridge_mac(network_id):
        found.append("with another MAC")
    found += [f"without its address {one.text(one.gateway)}" for one in _missing_gateways(netlink, settings, link)]
    return found


def _make_bridge(netlink: Netlink, settings: Settings, network_id: str) -> Link:
    try:
        netlink.add_bridge(settings.bridge, mac=bridge_mac(network_id), mtu=settings.mtu)
    except NetlinkError as error:
        if error.errno != errno.EEXIST:
            raise
    link = find_bridge(netlink, settings, network_id)  # another pod's start may have made it
    if link is None:
        raise NetworkError(
            f'network "{settings.name}": its bridge is removed while it is made', network=settings.name
        )
    return link


def _missing_gateways(netlink: Netlink, settings: Settings, link: Link) -> list[Subnet]:
    there = held_gateways(netlink, link, settings.subnets)
    return [one for one in settings.subnets if one not in there]


def _refuse_held(netlink: Netlink, settings: Settings, missing: list[Subnet]) -> None:
    """Refuses a gateway address that another interface has: neither interface's network would work then."""
    wanted = {packed(one.family, one.gateway): one for one in missing}
    for link in netlink.links():
        if link.name == settings.bridge or link.master:
            continue
        for address in netlink.addresses(link.index):
            if address.value in wanted:
                subnet = wanted[address.value]
                raise NetworkError(
                    f'network "{settings.name}": {subnet.text(subnet.gateway)}, the gateway of {subnet}, is an '
                    f"address of the host's already, on {link.name}",
                    hint=_other_subnets(settings.name),
                    network=settings.name,
                )


def _other_subnets(network: str) -> str:
    """The hint for subnets that are in use elsewhere."""
    if network == "default":
        return "give it other subnets; where it has chosen them: `kurma network rm default`, and it chooses again"
    return (
        f"kurma network rm {network}, then kurma network create --subnet ADDRESS/LENGTH {network}; "
        "for an entry of a file of your own: change its subnets there"
    )


def _quiet_ipv6(bridge: str) -> None:
    """Turns off duplicate address detection and router advertisements on the bridge."""
    for key in ("accept_dad", "accept_ra"):
        _write_sysctl(f"/proc/sys/net/ipv6/conf/{bridge}/{key}")


def _write_sysctl(path: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return  # no IPv6 in this kernel, or /proc/sys is read-only: addresses are usable later then
    try:
        os.write(fd, b"0")
    except OSError:
        pass
    finally:
        os.close(fd)


def _add_address(netlink: Netlink, index: int, subnet: Subnet, address: int) -> None:
    try:
        netlink.add_address(index, packed(subnet.family, address), subnet.length)
    except NetlinkError as error:
        if error.errno == errno.EEXIST:
            return
        if subnet.family == 6 and error.errno in (errno.EACCES, errno.EPERM, errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
            raise NetlinkError(error.errno, f"{error.strerror}; IPv6 is disabled on this host") from error
        raise


# --- a pod's interface -----------------------------------------------------------------------------------------


def make_pair(
    netlink: Netlink, settings: Settings, bridge: Link, owner: Owner, namespace: int, mac: bytes
) -> None:
    """Makes the pod's interface, and its peer on the bridge.

    :param namespace: descriptor of the pod's network namespace.
    :raises NetlinkError: EEXIST: one of the interfaces exists.
    """
    name = host_end(owner.pod, owner.interface)
    netlink.add_veth(name, owner.interface, namespace, mac=mac, mtu=settings.mtu, master=bridge.index)
    set_port(netlink, settings, owner)


def set_port(netlink: Netlink, settings: Settings, owner: Owner) -> None:
    """Sets alias, hairpin and isolation of a bridge port, which must exist."""
    netlink.set_link(
        host_end(owner.pod, owner.interface),
        up=True,
        alias=alias(owner),
        hairpin=settings.hairpin,
        isolated=settings.isolated,
    )


def restore_port(netlink: Netlink, settings: Settings, owner: Owner, bridge: Link) -> None:
    """Puts a pod's interface back on its bridge."""
    netlink.set_link(host_end(owner.pod, owner.interface), master=bridge.index)
    set_port(netlink, settings, owner)


def wait_for_port(netlink: Netlink, owner: Owner) -> None:
    """Waits until the bridge's port forwards packets: before that, the pod's first packets are lost, and the
    kernel repeats a neighbour request only after a second. A worker of the kernel enables the port, mostly at
    once, and gives no event to wait for. After the timeout the pod starts all the same.
    """
    end = time.monotonic() + _PORT_SECONDS
    while time.monotonic() < end:
        link = netlink.link(host_end(owner.pod, owner.interface))
        if link is None or link.forwarding:
            return
        time.sleep(_PORT_STEP)


def remove_pair(name: str) -> None:
    """Removes a pod's interface and its peer ``name`` on the host. Repeatable.

    They disappear within a millisecond from the bridge and from both namespaces, and their names are free. The
    call returns only 10 to 30 ms later, since the kernel waits for its last readers (``rcu_barrier``): so a thread
    makes the call, in parallel with the rest of the pod's end. The process waits for it before it exits.

    :raises NetlinkError: the kernel refuses.
    """
    failures: list[BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()
    removing, looking = Netlink(), Netlink()

    def remove() -> None:
        try:
            with removing:
                removing.delete_link(name)
        except BaseException as error:  # noqa: BLE001 - raised again, in the caller's thread
            failures.append(error)
        finally:
            done.release()

    with looking:
        try:
            start_thread(remove)
        except RuntimeError:  # no more threads: make the call here, and wait
            remove()
        while not done.acquire(timeout=_GONE_STEP):
            if looking.link(name) is None:
                return
    if failures:
        raise failures[0]


def port_is_right(link: Link | None, settings: Settings, bridge: Link) -> bool:
    return (
        link is not None
        and link.up
        and link.master == bridge.index
        and (link.hairpin, link.isolated) == (settings.hairpin, settings.isolated)
    )


def pod_routes(settings: Settings) -> list[tuple[Route, int]]:
    """The routes of pods, each with its gateway."""
    if settings.routes is None:
        return [(Route((one.family, 0, 0)), one.gateway) for one in settings.subnets]
    found = []
    for route in settings.routes:
        subnet = settings.subnet(route.family)
        assert subnet is not None  # the configuration was checked
        found.append((route, subnet.gateway if route.gateway is None else route.gateway[1]))
    return found


def furnish(settings: Settings, interface: str, addresses: list[tuple[Subnet, int]]) -> bytes:
    """Sets the interface's addresses and routes, inside the pod's namespace. :returns: the interface's MAC.

    :raises NetlinkError: the kernel refuses.
    """
    with Netlink() as netlink:
        netlink.set_link(interface, up=True)
        link = netlink.link(interface)
        assert link is not None
        if any(subnet.family == 6 for subnet, _ in addresses):
            # Another pod on the bridge could send router advertisements.
            _write_sysctl(f"/proc/sys/net/ipv6/conf/{interface}/accept_ra")
        for subnet, address in addresses:
            _add_address(netlink, link.index, subnet, address)
        for route, gateway in pod_routes(settings):
            family, first, length = route.destination
            try:
                netlink.add_route(link.index, packed(family, first), length, packed(family, gateway))
            except NetlinkError as error:
                # An earlier network of the pod has this route: the first network is the way to the outside.
                if error.errno != errno.EEXIST:
                    raise
        return link.mac


def furnishing_problems(settings: Settings, interface: str, addresses: list[tuple[int, int]]) -> list[str]:
    """The differences to the state that :func:`furnish` made, inside the pod's namespace.

    :param addresses: family and number each.
    """
    with Netlink() as netlink:
        link = netlink.link(interface)
        if link is None:
            return [f"interface {interface} is missing"]
        found = [] if link.up else [f"interface {interface} is down"]
        there = {one.value for one in netlink.addresses(link.index)}
        found += [
            f"{interface} has lost its address {text_of(*one)}" for one in addresses if packed(*one) not in there
        ]
        return found
