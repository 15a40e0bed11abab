"""Checks the loopback interface of the current network namespace."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B
_IFF_UP = 0x1
_IPV6_LOOPBACK = "0" * 31 + "1"


def missing() -> str | None:
    """Describes what is wrong with lo in the calling thread's network namespace; None: nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        flags = int.from_bytes(_ask(sock, _SIOCGIFFLAGS)[16:18], "little")
        if not flags & _IFF_UP:
            return "lo is down"
        try:
            # lo may have further addresses, such as the metadata service's: the request names 127.0.0.1.
            address = socket.inet_ntoa(_ask(sock, _SIOCGIFADDR)[20:24])
            netmask = socket.inet_ntoa(_ask(sock, _SIOCGIFNETMASK)[20:24])
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return "lo has no IPv4 address"
        if (address, netmask) != ("127.0.0.1", "255.0.0.0"):
            return f"lo has {address}, netmask {netmask}, instead of 127.0.0.1/8"
    return None if _ipv6_is_right() else "lo lacks ::1/128"


def _ask(sock: socket.socket, request: int) -> bytes:
    """Sends an ioctl with a ``struct ifreq``: the name, and one address of it (the kernel takes the first address
    if the interface lacks that one)."""
    asked = b"lo".ljust(16, b"\0") + struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton("127.0.0.1"))
    return fcntl.ioctl(sock.fileno(), request, asked.ljust(40, b"\0"))


def _ipv6_is_right() -> bool:
    """Whether lo has ::1/128, or IPv6 is missing from the kernel or off in the namespace."""
    try:
        with open("/proc/sys/net/ipv6/conf/lo/disable_ipv6", encoding="ascii") as file:
            if file.read().strip() == "1":
                return True
        # /proc/net belongs to the first thread of the process, which is in another network namespace.
        with open("/proc/thread-self/net/if_inet6", encoding="ascii") as file:
            words = [line.split() for line in file]
    except FileNotFoundError:
        return not os.path.exists("/proc/thread-self/net/if_inet6")
    return any(w[0] == _IPV6_LOOPBACK and w[2] == "80" and w[5] == "lo" for w in words)
