"""Checks network links of the host and of a pod's namespace, with few system calls, and deletes links."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from typing import Any

from kurma_core.appc.cni_result import parse_result
from kurma_core.errors import NetworkError
from kurma_core.hookspecs.network import AttachmentContext
from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.linux.netlink import Netlink, NetlinkError

_SIOCGIFHWADDR = 0x8927


def exists(name: str) -> bool:
    """Whether there is a link of that name."""
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def has_address(name: str, mac: str) -> bool:
    """Whether there is a link with that name and that hardware address."""
    # Not by /sys, which may show another network namespace than ours.
    asked = struct.pack("16s24x", os.fsencode(name)[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), _SIOCGIFHWADDR, asked)
        except OSError:
            return False
    return answer[18:24].hex(":") == mac.lower()


def delete_link(name: str, *, mac: str | None = None) -> None:
    """Deletes a link; succeeds if there is none.

    :param mac: delete it only if it has this address, since names are reused.
    :raises NetworkError: the kernel refuses.
    """
    if not exists(name):
        return
    try:
        with Netlink() as netlink:
            link = netlink.link(name)
            if link is not None and (mac is None or link.mac.hex(":") == mac.lower()):
                netlink.delete_link(name, index=link.index)
    except NetlinkError as error:
        raise NetworkError(f"cannot delete the link {name}: {error.strerror}", errno=error.errno) from error


def bridge_ports(name: str) -> tuple[str, ...]:
    """Names of the ports of a bridge.

    :raises NetworkError: the link is not a bridge, or the kernel refuses.
    """
    try:
        with Netlink() as netlink:
            bridge = netlink.link(name)
            if bridge is None or bridge.kind != "bridge":
                raise NetworkError(f"the link {name} is no bridge")
            return tuple(link.name for link in netlink.links(master=bridge.index))
    except NetlinkError as error:
        raise NetworkError(f"the bridge {name}: {error.strerror}", errno=error.errno) from error


Json = Any
_NS_GET_NSTYPE = 0xB703
_SIOCGIFCONF = 0x8912
#: Bytes of the kernel's ``struct ifreq``, and the most of them to read (with more, the comparison fails, as it
#: should).
_IFREQ = 40
_IFREQ_MAX = 64


def is_namespace(path: str) -> bool:
    """Whether the path is a network namespace, and not only the file that one was pinned on."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.ioctl(fd, _NS_GET_NSTYPE)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def has_interface(namespace: str, interface: str) -> bool:
    """Whether the namespace has the interface; False if the namespace is "" or does not exist."""

    def look() -> bool:
        try:
            socket.if_nametoindex(interface)
        except OSError:
            return False
        return True

    try:
        return bool(namespace) and in_network_namespace(namespace, look)
    except OSError:
        return False


def intact(context: AttachmentContext, result: Json) -> bool:
    """Whether the pod's interface has exactly the one address of the result. Apps with CAP_NET_ADMIN can remove
    both, and plugins find their rules by the interface's addresses.

    It is also False for several addresses and for IPv6, which are not checked.
    """
    try:
        addresses = parse_result(result, context.attachment.network).addresses
        if len(addresses) != 1 or ":" in addresses[0].address:
            return False
        there = in_network_namespace(context.namespace, lambda: _addresses(context.interface))
    except (NetworkError, OSError):
        return False
    return there == [addresses[0].address.partition("/")[0]]


def _addresses(interface: str) -> list[str]:
    """Addresses of an interface of the calling thread's namespace, without IPv6's link-local ones."""
    room = array.array("B", bytes(_IFREQ * _IFREQ_MAX))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = struct.pack("iP", len(room), room.buffer_info()[0])
        length, _ = struct.unpack("iP", fcntl.ioctl(sock.fileno(), _SIOCGIFCONF, asked))
    found = []
    for start in range(0, length, _IFREQ):
        label = bytes(room[start : start + 16]).partition(b"\0")[0]
        if os.fsdecode(label).partition(":")[0] == interface:
            found.append(socket.inet_ntoa(bytes(room[start + 20 : start + 24])))
    return found + _ipv6_addresses(interface)


def _ipv6_addresses(interface: str) -> list[str]:
    try:
        # /proc/net shows the namespace of the process's first thread.
        with open("/proc/thread-self/net/if_inet6", encoding="ascii") as file:
            words = [line.split() for line in file]
    except FileNotFoundError:  # no IPv6 here
        return []
    return [address for address, _, _, scope, _, name in words if name == interface and scope != "20"]
