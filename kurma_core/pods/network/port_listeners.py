"""Finds the process that listens on a port of the host: by binding the port, and in ``/proc/net``.

A bind that fails does not prove a listener: an outgoing connection may use the port. So ``/proc/net`` is read,
too.
"""

from __future__ import annotations

import errno
import os

from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_REUSE, _FREE_V4, _FREE_V6, _ONLY_V6 = 2, 15, 78, 26  # SO_REUSEADDR, IP_FREEBIND, IPV6_FREEBIND, IPV6_V6ONLY
#: Files by protocol, and the kernel's code for a listening socket's state.
_FILES = {"tcp": (("/proc/net/tcp", "/proc/net/tcp6"), "0A"), "udp": (("/proc/net/udp", "/proc/net/udp6"), "07")}
_NOBODY = ("0.0.0.0", "::")  # noqa: S104 (addresses to compare with)


@frozen
class Listener:
    """A listening socket.

    :param address: ``0.0.0.0`` and ``::`` are all addresses of the family.
    :param process: name and PID of a process that has the socket open; "" if that cannot be found out.
    """

    address: str
    port: int
    protocol: str
    process: str

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.process or 'a process'}, which listens on {address}:{self.port}"


def find_listener(protocol: str, port: int, address: str = "") -> Listener | None:
    """Finds a socket that keeps us from binding that port and address; None: there is none.

    :param protocol: ``tcp`` or ``udp``; for other protocols the answer is None.
    :param address: "" is every address of both families, ``0.0.0.0`` and ``::`` every address of one family.
    """
    import socket

    if protocol not in _FILES:
        return None
    wanted = (address,) if address else _NOBODY
    for one in wanted:
        if not _can_bind(protocol, port, one):
            family = socket.AF_INET6 if ":" in one else socket.AF_INET
            packed = None if one in _NOBODY else socket.inet_pton(family, one)
            for where, inode in _listening(protocol, port):
                if where in _NOBODY or packed is None or _packed(where) == packed:
                    return Listener(where, port, protocol, _process(inode))
    return None


def _can_bind(protocol: str, port: int, address: str) -> bool:
    import socket

    v6 = ":" in address
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    try:
        with socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, kind) as probe:
            # IP_FREEBIND: the address may not be configured yet.
            probe.setsockopt(socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP, _FREE_V6 if v6 else _FREE_V4, 1)
            if v6:
                probe.setsockopt(socket.IPPROTO_IPV6, _ONLY_V6, 1)
            if protocol == "tcp":
                probe.setsockopt(socket.SOL_SOCKET, _REUSE, 1)  # connections in TIME_WAIT do not matter
            probe.bind((address, port))
    except OSError as error:
        # other errors, such as IPv6 missing in the kernel, mean no listener
        return error.errno != errno.EADDRINUSE
    return True


def _listening(protocol: str, port: int) -> Iterator[tuple[str, str]]:
    """Address and inode of each socket that listens on that port."""
    files, waits = _FILES[protocol]
    ending = f":{port:04X}"
    for path in files:
        try:
            with open(path, encoding="ascii") as file:
                next(file, None)
                for line in file:
                    words = line.split(None, 10)
                    if words[3] != waits:
                        if protocol == "tcp":
                            break  # the kernel lists those that listen first
                        continue
                    if words[1].endswith(ending):
                        yield _address(words[1].partition(":")[0]), words[9]
        except OSError:
            continue


def _address(digits: str) -> str:
    """Decodes an address of ``/proc/net``: 32-bit words, each in the machine's byte order."""
    import socket
    import sys

    words = [int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def _packed(address: str) -> bytes:
    import socket

    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def _process(inode: str) -> str:
    """A process that has that socket open; "" if it is not visible to us. A process chooses its own name, so
    unprintable characters are replaced."""
    link = f"socket:[{inode}]"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        directory = f"/proc/{pid}/fd"
        try:
            if any(os.readlink(f"{directory}/{fd}") == link for fd in os.listdir(directory)):
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    name = file.read().strip()
                return f"{''.join(letter if letter.isprintable() else '?' for letter in name)} (process {pid})"
        except OSError:
            continue  # it has ended, or we may not read it
    return ""
