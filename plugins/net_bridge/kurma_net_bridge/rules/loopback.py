"""The host's ``[::1]:PORT`` led to a pod.

IPv4 has a switch for it, ``route_localnet``. IPv6 has none, but the answer from the bridge, which netfilter has
made one to ``::1`` again, only needs a route: the kernel looks for a loopback address at the interface that the
packet has come by. Packets that name ``::1`` when they come from outside are dropped long before.

Where bridges hand their frames to the packet filter (``net.bridge.bridge-nf-call-ip6tables``) that is too early:
the answer names ``::1`` before the kernel looks at it, and is dropped.
"""

from __future__ import annotations

import _socket
import errno
import struct

_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_NEWROUTE = 24
#: Request, acknowledge, create, append: another network's bridge may have such a route.
_FLAGS = 0x1 | 0x4 | 0x400 | 0x800
_LOCAL_TABLE, _STATIC, _LOCAL = 255, 4, 2
_DESTINATION, _INTERFACE, _PRIORITY = 1, 4, 6
#: Behind the kernel's own route to ::1, by ``lo``.
_METRIC = 2048
_LOOPBACK = bytes(15) + b"\1"
_SWITCH = "/proc/sys/net/bridge/bridge-nf-call-ip6tables"


def ensure_loopback_route(bridge: str) -> None:
    """The route to ``::1`` by the bridge; it goes with it. Where the host lacks IPv6, there is none.

    :raises OSError: there is no such bridge.
    """
    index = _socket.if_nametoindex(bridge)
    body = _ROUTE.pack(_socket.AF_INET6, 128, 0, 0, _LOCAL_TABLE, _STATIC, 0, _LOCAL, 0)
    values = (
        (_DESTINATION, _LOOPBACK),
        (_INTERFACE, struct.pack("=I", index)),
        (_PRIORITY, struct.pack("=I", _METRIC)),
    )
    body += b"".join(_ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value for kind, value in values)
    message = _HEADER.pack(_HEADER.size + len(body), _NEWROUTE, _FLAGS, 1, 0) + body
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, 0)
    try:
        sock.send(message)
        code = -struct.unpack_from("=i", sock.recv(4096), _HEADER.size)[0]
    finally:
        sock.close()
    if code not in (0, errno.EEXIST, errno.EOPNOTSUPP, errno.EACCES, errno.ENETDOWN, errno.EINVAL):
        raise OSError(code, "cannot add a route to ::1")


def loopback_works() -> bool:
    """False: bridges hand their frames of IPv6 to the packet filter, and no port is reached by ``[::1]``."""
    try:
        with open(_SWITCH, "rb", buffering=0) as file:
            return file.read(8).strip() == b"0"
    except OSError:
        return True
