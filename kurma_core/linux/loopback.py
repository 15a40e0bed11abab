"""Raises the loopback interface and adds addresses to it, without a netlink library, which is slow to import."""

from __future__ import annotations

import os
import sys

from kurma_core.linux.libc import words

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def raise_lo() -> None:
    """Set the loopback interface of the current network namespace up. Needs CAP_NET_ADMIN; it can be repeated.

    :raises OSError: as the kernel says.
    """
    import _socket
    import fcntl

    request = bytearray(40)
    request[:2] = b"lo"
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC, 0)
    try:
        fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, request)
        flags = int.from_bytes(request[16:18], "little")
        if flags & _IFF_UP:
            return  # reading the flags does not wait for the lock of all interfaces
        request[16:18] = (flags | _IFF_UP).to_bytes(2, "little")
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, request)
    except OSError as error:
        raise OSError(error.errno, f"cannot raise lo: {os.strerror(error.errno or 0)}") from None
    finally:
        sock.close()


# struct nlmsghdr and ifaddrmsg of rtnetlink(7).
_NEWADDR, _REQUEST_ACK_CREATE_NEW = 20, 0x1 | 0x4 | 0x400 | 0x200
_ROUTE, _INET, _SCOPE_HOST, _LOOPBACK = 0, 2, 254, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_ERROR_AT, _EEXIST = 16, 17


def add_lo_address(address: bytes) -> None:
    """Add an address with prefix length 32 and host scope to the loopback interface of the current network
    namespace, unless it exists. Needs CAP_NET_ADMIN.

    :param address: IPv4, four bytes.
    :raises OSError: as the kernel says.
    """
    import _socket

    body = bytes((_INET, 32, 0, _SCOPE_HOST)) + words(_LOOPBACK, size=4)
    for kind in (_IFA_LOCAL, _IFA_ADDRESS):
        body += words(8, kind, size=2) + address
    message = (
        words(16 + len(body), size=4)
        + words(_NEWADDR, _REQUEST_ACK_CREATE_NEW, size=2)
        + words(1, 0, size=4)
        + body
    )
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _ROUTE)
    try:
        sock.send(message)
        answer = sock.recv(4096)
    finally:
        sock.close()
    code = -int.from_bytes(answer[_ERROR_AT : _ERROR_AT + 4], sys.byteorder, signed=True)
    if code not in (0, _EEXIST):
        raise OSError(code, f"cannot give lo an address: {os.strerror(code)}")
