"""Finds the process that listens on a port of the host: by binding the port, and in ``/proc/net``.

A port that cannot be bound need not have a listener: a connection that goes out may use it. So both are asked.
"""

from __future__ import annotations

import errno
import os

from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_REUSE, _FREE_V4, _FREE_V6, _ONLY_V6 = 2, 15, 78, 26  # SO_REUSEADDR, IP_FREEBIND, IPV6_FREEBIND, IPV6_V6ONLY
#: Files by protocol, and the state in which a socket waits for whoever comes.
_FILES = {"tcp": (("/proc/net/tcp", "/proc/net/tcp6"), "0A"), "udp": (("/proc/net/udp", "/proc/net/udp6"), "07")}
_NOBODY = ("0.0.0.0", "::")  # noqa: S104 (addresses to compare with)


@frozen
class Listener:
    """A socket that waits for whoever comes.

    :param address: where: ``0.0.0.0`` and ``::`` are all addresses of the family.
    :param process: the name of a process that has it, and its PID; "" where that cannot be told.
    """

    address: str
    port: int
    protocol: str
    process: str

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.process or 'a process'}, which listens on {address}:{self.port}"


def find_listener(protocol: str, port: int, address: str = "") -> Listener | None:
    """Who listens where a socket bound to that port and address would stand in the way; None: nobody.

    :param protocol: ``tcp`` or ``udp``; of others nothing is known.
    :param address: "" is every address of both families, ``0.0.0.0`` and ``::`` every one of one.
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
            # An address that will only come is as good as one that is there.
            probe.setsockopt(socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP, _FREE_V6 if v6 else _FREE_V4, 1)
            if v6:
                probe.setsockopt(socket.IPPROTO_IPV6, _ONLY_V6, 1)
            if protocol == "tcp":
                probe.setsockopt(socket.SOL_SOCKET, _REUSE, 1)  # connections that have ended are in nobody's way
            probe.bind((address, port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE  # a kernel without IPv6, say, has no listener there
    return True


def _listening(protocol: str, port: int) -> Iterator[tuple[str, str]]:
    """Address and inode of each socket that waits at that port."""
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
    """As the kernel writes it: words of 32 bits, each in the machine's order of bytes."""
    import socket
    import sys

    words = [int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def _packed(address: str) -> bytes:
    import socket

    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def _process(inode: str) -> str:
    """Whoever has that socket, as far as we may see; its name is its own choice."""
    link = f"socket:[{inode}]"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        directory = f"/proc/{pid}/fd"
        try:
            if any(os.readlink(f"{directory}/{fd}") == link for fd in os.listdir(directory)):
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    name = file.read().strip()
                return f"{''.join(letter if letter.isprintable() else '?' for letter in name)} (process {pid})"
        except OSError:
            continue  # it has ended, or is not ours to look at
    return ""
