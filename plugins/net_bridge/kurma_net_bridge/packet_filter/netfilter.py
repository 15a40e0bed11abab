"""Reads the tables, chains, rules and map elements of the kernel's packet filter, by nfnetlink.

A start of ``nft`` takes some milliseconds, a request here some microseconds. This module only reads; rules are
changed by input for ``nft`` and ``iptables-restore``, which an administrator can read.
"""

from __future__ import annotations

import _socket
import errno
import os
import struct

from kurma_core.linux.netlink import (
    ACK,
    DONE,
    DUMP,
    ERROR,
    INTERRUPTED,
    REQUEST,
    each_attribute,
    message,
    parse_attributes,
    split,
    string,
)
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# linux/netlink.h, linux/netfilter/nfnetlink.h
_NETLINK_NETFILTER = 12
_GENERAL = struct.Struct(">BBH")
_ROOM = 1 << 18
_ATTEMPTS = 16
# linux/netfilter/nf_tables.h
_TABLES = 10 << 8
_GETTABLE, _GETCHAIN, _GETRULE, _GETSETELEM, _GETGEN = 1, 4, 7, 13, 16
# linux/netfilter/nfnetlink_conntrack.h
_CONNECTIONS = 1 << 8
_GETSTATS = 5
#: For each part of the kernel's packet filter, a request that only a kernel without that part refuses.
_HARMLESS = {_TABLES: (_GETGEN, 0), _CONNECTIONS: (_GETSTATS, DUMP)}
_FORWARD_HOOK = 2
_COMMENT = 0

#: nftables' families (``NFPROTO_…``).
INET, IPV4, IPV6 = 1, 2, 10


@frozen
class Chain:
    """A chain. :param hook: ``forward``, or "" for all others. :param drops: its policy is to drop."""

    family: int
    table: str
    name: str
    forward: bool
    drops: bool


@frozen
class Rule:
    """A rule. :param comment: "": it has none. :param words: its expressions, in the kernel's form."""

    chain: str
    comment: str
    words: bytes


class Netfilter:
    """A connection to the packet filter of the network namespace of the thread that makes it. Use it in a
    ``with``.

    Every method raises :class:`OSError`.
    """

    def __init__(self) -> None:
        self._socket = _socket.socket(
            _socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _NETLINK_NETFILTER
        )
        self._number = 0

    def __enter__(self) -> Netfilter:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def has_tables(self) -> bool:
        """Whether the kernel has nftables."""
        return self._has(_TABLES)

    def _has(self, part: int) -> bool:
        question, flags = _HARMLESS[part]
        try:
            list(self.ask(part | question, flags, IPV4, b""))
        except OSError:
            return False
        return True

    def tables(self, family: int) -> list[str]:
        """The names of a family's tables."""
        return [_text(one.get(1, b"")) for _, one in self.dump(_TABLES | _GETTABLE, family, b"")]

    def chains(self, family: int = 0) -> list[Chain]:
        """The chains of a family; 0: of all families."""
        found = []
        for held, one in self.dump(_TABLES | _GETCHAIN, family, b""):
            hook = parse_attributes(one.get(4, b"")).get(1, b"")
            forward = bool(hook) and int.from_bytes(hook, "big") == _FORWARD_HOOK and held in (INET, IPV4, IPV6)
            drops = 5 in one and int.from_bytes(one[5], "big") == 0
            found.append(Chain(held, _text(one.get(1, b"")), _text(one.get(3, b"")), forward, forward and drops))
        return found

    def rules(self, family: int, table: str, chain: str = "") -> list[Rule]:
        """The rules of a table, or of one chain of it; none if it does not exist."""
        body = string(1, table) + (string(2, chain) if chain else b"")
        found = []
        try:
            for _, one in self.dump(_TABLES | _GETRULE, family, body):
                if _text(one.get(1, b"")) == table and (not chain or _text(one.get(2, b"")) == chain):
                    found.append(Rule(_text(one.get(2, b"")), _comment(one.get(7, b"")), one.get(4, b"")))
        except FileNotFoundError:
            return []
        return found

    def elements(self, family: int, table: str, name: str) -> list[tuple[bytes, bytes, str]]:
        """Key, value and comment of each element of a map; none if it does not exist."""
        found = []
        try:
            for _, one in self.dump(_TABLES | _GETSETELEM, family, string(1, table) + string(2, name)):
                for _, item in each_attribute(one.get(3, b"")):
                    element = parse_attributes(item)
                    key = parse_attributes(element.get(1, b"")).get(1, b"")
                    value = parse_attributes(element.get(2, b"")).get(1, b"")
                    found.append((key, value, _comment(element.get(6, b""))))
        except FileNotFoundError:
            return []
        return found

    def dump(self, kind: int, family: int, body: bytes) -> list[tuple[int, dict[int, bytes]]]:
        """Family and attributes of each listed object; none if the kernel lacks that part of the packet filter."""
        for _ in range(_ATTEMPTS):
            try:
                return list(self.ask(kind, DUMP, family, body))
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno != errno.EINVAL or self._has(kind & ~0xFF):
                    raise
                return []
        raise OSError(errno.EINTR, "other programs change the packet filter's rules too often")

    def ask(self, kind: int, flags: int, family: int, body: bytes) -> Iterator[tuple[int, dict[int, bytes]]]:
        """Sends one message. :returns: family and attributes of each answer; none for an acknowledgement."""
        self._number += 1
        if not flags & DUMP:
            flags |= ACK
        asked = _GENERAL.pack(family, 0, 0) + body
        self._socket.send(message(kind, flags | REQUEST, self._number, asked))
        changed = False
        while True:
            data = self._socket.recv(_ROOM)
            for start, end, kind, given, number in split(data):
                if number != self._number:
                    continue
                changed = changed or bool(given & INTERRUPTED)
                if kind in (ERROR, DONE):
                    code = -struct.unpack_from("=i", data, start)[0] if end - start >= 4 else 0
                    if code:
                        raise OSError(code, os.strerror(code))
                    if changed:
                        raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
                    return
                yield data[start], parse_attributes(data[start + _GENERAL.size : end])


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


def _comment(data: bytes) -> str:
    """The comment in the user data of a rule or element, where nft stores attributes as number, length and
    text."""
    at = 0
    while at + 2 <= len(data):
        kind, length = data[at], data[at + 1]
        if kind == _COMMENT:
            return _text(data[at + 2 : at + 2 + length])
        at += 2 + length
    return ""
