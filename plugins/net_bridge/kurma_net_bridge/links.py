"""The bridge of a network and the interfaces of pods, in the kernel.

Functions that take a :class:`Netlink` raise :class:`NetlinkError` where the kernel refuses.
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
from kurma_core.value import frozen
from kurma_net_bridge.settings import Route, Settings
from kurma_net_bridge.subnets import Subnet, packed, text_of

#: Prefix of our interfaces on the host; the rest identifies pod and interface.
PREFIX = "kv"
#: Begins the alias of everything that we make.
_MARK = "kurma"
#: Locally administered; the rest is the network's id.
_BRIDGE_MAC = bytes((0x02, 0x6B))
#: Locally administered; the rest is of the pod's address, so that neighbours need not forget who had it before.
_POD_MAC = bytes((0x0A, 0x58))
#: How often one that is being removed is looked for; seconds.
_GONE_STEP = 0.0005
#: How long a new port of a bridge is waited for at most, and how often it is looked at; seconds.
_PORT_SECONDS, _PORT_STEP = 2.0, 0.0005


@frozen
class Owner:
    """The owner that the alias of one of our interfaces names. :param pod: "" for a bridge."""

    network_id: str
    pod: str = ""
    interface: str = ""


def host_end(pod: str, interface: str) -> str:
    """Name of the interface on the host whose peer is ``interface`` of the pod: it can be found without a record.

    The first eight characters of the UUID, for people, and five digits of all of it and the interface.
    """
    digits = f"{binascii.crc32(f'{pod}:{interface}'.encode()):08x}"
    return f"{PREFIX}{pod[:8]}{digits[:5]}"


def alias(owner: Owner) -> str:
    return " ".join([word for word in (_MARK, owner.network_id, owner.pod, owner.interface) if word])


def owner_of(link: Link) -> Owner | None:
    """None: it is not ours, or its maker was killed before it said so."""
    words = link.alias.split(" ")
    if words[0] != _MARK or len(words) not in (2, 4):
        return None
    return Owner(*words[1:])


def pod_mac(address: tuple[Subnet, int]) -> bytes:
    """The MAC of a pod's interface, unless another is asked for."""
    return _POD_MAC + (address[1] & 0xFFFFFFFF).to_bytes(4, "big")


# --- the bridge ------------------------------------------------------------------------------------------------


def bridge_mac(network_id: str) -> bytes:
    """Fixed, so that it does not change as ports come and go, and pods need not learn it again."""
    return _BRIDGE_MAC + bytes.fromhex(network_id)


def is_ours(link: Link, network_id: str) -> bool:
    """Whether a bridge is the network's, by its MAC, which it is born with, or by its alias."""
    return link.kind == "bridge" and (link.mac == bridge_mac(network_id) or link.alias == alias(Owner(network_id)))


def find_bridge(netlink: Netlink, settings: Settings, network_id: str) -> Link | None:
    """None: there is none yet.

    :raises NetworkError: an interface of that name exists and is not this network's.
    """
    link = netlink.link(settings.bridge)
    if link is not None and not (link.name == settings.bridge and is_ours(link, network_id)):
        what = f"a {link.kind}" if link.kind else "a network card"
        what = "a bridge that this network has not made" if link.kind == "bridge" else what
        raise NetworkError(
            f'network "{settings.name}": there is an interface {settings.bridge} already, {what}: left alone',
            hint="give the network another `bridge`, or remove that interface if nobody needs it",
            network=settings.name,
        )
    return link


def ensure_bridge(netlink: Netlink, settings: Settings, network_id: str) -> tuple[Link, bool]:
    """Makes the bridge, or repairs it if it was changed. Several processes may do it at once.

    :returns: the bridge, and whether it is new: until :func:`tell_of_bridge`, also if its maker was killed
        meanwhile.
    :raises NetworkError: somebody else's interface has its name, or its address.
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
    """It says whose it is: pods that were on one before are on it again."""
    netlink.set_link(settings.bridge, alias=alias(Owner(network_id)))


def held_gateways(netlink: Netlink, bridge: Link, subnets: Iterable[Subnet]) -> list[Subnet]:
    """Those whose gateway's address the bridge has."""
    there = {(one.value, one.length) for one in netlink.addresses(bridge.index)}
    return [one for one in subnets if (packed(one.family, one.gateway), one.length) in there]


def take_gateways_off(netlink: Netlink, bridge: Link, subnets: Iterable[Subnet]) -> None:
    """Addresses that the bridge has had of subnets that the network has no more."""
    for subnet in held_gateways(netlink, bridge, subnets):
        try:
            netlink.delete_address(bridge.index, packed(subnet.family, subnet.gateway), subnet.length)
        except NetlinkError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # another pod's start was faster
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
    link = find_bridge(netlink, settings, network_id)  # also where another pod's start was faster
    if link is None:
        raise NetworkError(
            f'network "{settings.name}": its bridge is removed while it is made', network=settings.name
        )
    return link


def _missing_gateways(netlink: Netlink, settings: Settings, link: Link) -> list[Subnet]:
    there = held_gateways(netlink, link, settings.subnets)
    return [one for one in settings.subnets if one not in there]


def _refuse_held(netlink: Netlink, settings: Settings, missing: list[Subnet]) -> None:
    """An address on two interfaces: neither the network nor what hangs on the other interface would work."""
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
    return f"give network {network} other subnets in kurma.yml"


def _quiet_ipv6(bridge: str) -> None:
    """Turns off duplicate address detection and router advertisements on the bridge."""
    for key in ("accept_dad", "accept_ra"):
        _write_sysctl(f"/proc/sys/net/ipv6/conf/{bridge}/{key}")


def _write_sysctl(path: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return  # no IPv6 in this kernel, or /proc/sys is read-only: then it goes slower
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
            raise NetlinkError(error.errno, f"{error.strerror}; IPv6 is switched off here") from error
        raise


# --- a pod's interface -----------------------------------------------------------------------------------------


def make_pair(
    netlink: Netlink, settings: Settings, bridge: Link, owner: Owner, namespace: int, mac: bytes
) -> None:
    """The pod's interface, and its peer on the bridge.

    :param namespace: descriptor of the pod's network namespace.
    :raises NetlinkError: EEXIST: there is one, here or there.
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
    """Until the bridge lets pass what the pod sends and gets: else its first packets are lost, and those that ask
    for a neighbour are sent again after a second only. The kernel's worker does it, mostly at once; there is
    nothing else to wait for. One that is very late keeps no pod.
    """
    end = time.monotonic() + _PORT_SECONDS
    while time.monotonic() < end:
        link = netlink.link(host_end(owner.pod, owner.interface))
        if link is None or link.forwarding:
            return
        time.sleep(_PORT_STEP)


def remove_pair(name: str) -> None:
    """Removes a pod's interface and its peer ``name`` on the host. Repeatable.

    They are gone within a millisecond, from the bridge and from both namespaces, and their names may be taken
    again. The kernel makes the remover wait for 10 to 30 ms more, until its last reader is done (``rcu_barrier``):
    a thread waits, beside the rest of the pod's end. A process that ends waits for it.

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
            _thread.start_new_thread(remove, ())
        except RuntimeError:  # no more threads: it takes longer, then
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
    """Routes that pods get, and by which gateway."""
    if settings.routes is None:
        return [(Route((one.family, 0, 0)), one.gateway) for one in settings.subnets]
    found = []
    for route in settings.routes:
        subnet = settings.subnet(route.family)
        assert subnet is not None  # the configuration was checked
        found.append((route, subnet.gateway if route.gateway is None else route.gateway[1]))
    return found


def furnish(settings: Settings, interface: str, addresses: list[tuple[Subnet, int]]) -> bytes:
    """Inside the pod's namespace: addresses and routes. :returns: the interface's MAC.

    :raises NetlinkError: the kernel refuses.
    """
    with Netlink() as netlink:
        netlink.set_link(interface, up=True)
        link = netlink.link(interface)
        assert link is not None
        if any(subnet.family == 6 for subnet, _ in addresses):
            # Another pod on the bridge could say that it is the router.
            _write_sysctl(f"/proc/sys/net/ipv6/conf/{interface}/accept_ra")
        for subnet, address in addresses:
            _add_address(netlink, link.index, subnet, address)
        for route, gateway in pod_routes(settings):
            family, first, length = route.destination
            try:
                netlink.add_route(link.index, packed(family, first), length, packed(family, gateway))
            except NetlinkError as error:
                # The pod's earlier network has one: the first that a pod joins leads to the outside.
                if error.errno != errno.EEXIST:
                    raise
        return link.mac


def furnishing_problems(settings: Settings, interface: str, addresses: list[tuple[int, int]]) -> list[str]:
    """Inside the pod's namespace: what is not as :func:`furnish` made it.

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
