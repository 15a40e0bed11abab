"""Network links of the host, by netlink.

Its library is slow to import, and only needed where something has gone wrong or goes for good.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from kurma_core.errors import NetworkError

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
    from pyroute2 import IPRoute, NetlinkError

    with IPRoute() as netlink:
        try:
            for link in netlink.get_links(ifname=name):
                if mac is None or link.get_attr("IFLA_ADDRESS") == mac.lower():
                    netlink.link("del", index=link["index"])
        except NetlinkError as error:
            if error.code != errno.ENODEV:
                raise NetworkError(f"cannot delete the link {name}: {error}", errno=error.code) from error


def bridge_ports(name: str) -> tuple[str, ...]:
    """Names of the links that hang on a bridge.

    :raises NetworkError: the link is no bridge.
    """
    from pyroute2 import IPRoute

    with IPRoute() as netlink:
        (bridge,) = netlink.get_links(ifname=name)
        info = bridge.get_attr("IFLA_LINKINFO")
        if info is None or info.get_attr("IFLA_INFO_KIND") != "bridge":
            raise NetworkError(f"the link {name} is no bridge")
        return tuple(
            link.get_attr("IFLA_IFNAME")
            for link in netlink.get_links()
            if link.get_attr("IFLA_MASTER") == bridge["index"]
        )
