"""Network links of the host."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from kurma_core.errors import NetworkError
from kurma_core.linux.netlink import Netlink, NetlinkError

_SIOCGIFHWADDR = 0x8927


def exists(name: str) -> bool:
    """Whether there is a link of that name. Cheap."""
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def has_address(name: str, mac: str) -> bool:
    """Whether there is a link of that name and that hardware address."""
    # Not by /sys, which may be of another network namespace than ours.
    asked = struct.pack("16s24x", os.fsencode(name)[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), _SIOCGIFHWADDR, asked)
        except OSError:
            return False
    return answer[18:24].hex(":") == mac.lower()


def delete_link(name: str, *, mac: str | None = None) -> None:
    """Deletes a link; none there is success.

    :param mac: only if it has this address: names are used again.
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
    """Names of the links that hang on a bridge.

    :raises NetworkError: the link is no bridge, or the kernel does not tell.
    """
    try:
        with Netlink() as netlink:
            bridge = netlink.link(name)
            if bridge is None or bridge.kind != "bridge":
                raise NetworkError(f"the link {name} is no bridge")
            return tuple(link.name for link in netlink.links(master=bridge.index))
    except NetlinkError as error:
        raise NetworkError(f"the bridge {name}: {error.strerror}", errno=error.errno) from error
