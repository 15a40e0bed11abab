"""What the loopback interface of the current network namespace lacks."""

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
    """What is wrong with lo, or None. Looks from the calling thread's namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        flags = int.from_bytes(_ask(sock, _SIOCGIFFLAGS)[16:18], "little")
        if not flags & _IFF_UP:
            return "lo is down"
        try:
            # It may have others besides, as that of the metadata service: this one is asked for.
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
    """``struct ifreq``: the name, and which of its addresses is meant (the first one, if it lacks that)."""
    asked = b"lo".ljust(16, b"\0") + struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton("127.0.0.1"))
    return fcntl.ioctl(sock.fileno(), request, asked.ljust(40, b"\0"))


def _ipv6_is_right() -> bool:
    """IPv6 may be missing from the kernel, or be off in the namespace."""
    try:
        with open("/proc/sys/net/ipv6/conf/lo/disable_ipv6", encoding="ascii") as file:
            if file.read().strip() == "1":
                return True
        # The file under /proc/net is of the process' first thread; this one's is elsewhere.
        with open("/proc/thread-self/net/if_inet6", encoding="ascii") as file:
            words = [line.split() for line in file]
    except FileNotFoundError:
        return not os.path.exists("/proc/thread-self/net/if_inet6")
    return any(w[0] == _IPV6_LOOPBACK and w[2] == "80" and w[5] == "lo" for w in words)
