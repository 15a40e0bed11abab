"""Network links, as far as start-up needs them: one ioctl instead of a netlink library."""

from __future__ import annotations

import os

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def raise_lo() -> None:
    """Set the loopback interface of the current network namespace up. Needs CAP_NET_ADMIN; may be repeated.

    :raises OSError: as the kernel says.
    """
    import _socket
    import fcntl

    request = bytearray(40)
    request[:2] = b"lo"
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC, 0)
    try:
        fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, request)
        flags = int.from_bytes(request[16:18], "little") | _IFF_UP
        request[16:18] = flags.to_bytes(2, "little")
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, request)
    except OSError as error:
        raise OSError(error.errno, f"cannot raise lo: {os.strerror(error.errno or 0)}") from None
    finally:
        sock.close()
