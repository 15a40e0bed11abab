"""Reads and changes links, addresses and routes of a network namespace, by rtnetlink(7). Light to import.

A message to the kernel takes some microseconds; a complete netlink library takes 190 ms to import. This module has
the operations to join a pod to a bridge. Errors name the operation, and the kernel's own reason if it gives one
(NETLINK_EXT_ACK).

:param kind: of a message or an attribute, the kernel's number.
:param body: of a message, without its header. :param at: where the attributes begin in it, in bytes.
:param flags: of a message, such as ``REQUEST | ACK``.
"""

from __future__ import annotations

import _socket
import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: Header, types and flags of messages, as in ``linux/netlink.h``.
HEADER = struct.Struct("=IHHII")
ERROR, DONE = 2, 3
REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
#: Flag of an answer: the listed objects have changed while the kernel wrote the list.
INTERRUPTED = 0x10
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=I")
_TYPE_MASK = 0x3FFF
_NESTED = 0x8000


def message(kind: int, flags: int, number: int, body: bytes) -> bytes:
    """A message to the kernel. :param number: the sequence number, which its answers repeat."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, number, 0) + body


def split(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Splits received data into messages: begin and end of each one's body, its type, flags and number.

    :param data: as received from the socket.
    """
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, flags, number, _ = HEADER.unpack_from(data, at)
        yield at + HEADER.size, at + length, kind, flags, number
        at += length + 3 & ~3


def each_attribute(body: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Number and value of every attribute from ``at`` on, in order."""
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        yield kind & _TYPE_MASK, body[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3


def parse_attributes(body: bytes, at: int = 0) -> dict[int, bytes]:
    """The values of the attributes from ``at`` on, by number."""
    return dict(each_attribute(body, at))


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute with that value, padded."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def nest(kind: int, value: bytes) -> bytes:
    """An attribute whose value is a sequence of attributes."""
    return attribute(kind | _NESTED, value)


def string(kind: int, value: str) -> bytes:
    """An attribute whose value is a text that ends with NUL."""
    return attribute(kind, os.fsencode(value) + b"\0")


def integer(kind: int, value: int) -> bytes:
    """An attribute whose value has 32 bits, in the machine's byte order."""
    return attribute(kind, _NUMBER.pack(value))


# linux/netlink.h
_CREATE_NEW, _CREATE_MORE = 0x600, 0xC00
_TLVS = 0x200
_SOL_NETLINK, _EXT_ACK, _CAP_ACK, _STRICT = 270, 11, 10, 12
_ERROR_MESSAGE = 1
# linux/rtnetlink.h, if_link.h, if_addr.h, veth.h
_NEWLINK, _DELLINK, _GETLINK = 16, 17, 18
_NEWADDR, _DELADDR, _GETADDR = 20, 21, 22
_NEWROUTE, _GETROUTE = 24, 26
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_IFLA_ADDRESS, _IFLA_NAME, _IFLA_MTU, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_ALIAS = 1, 3, 4, 10, 18, 20
_IFLA_NET_NS_FD = 28
_KIND, _DATA, _PORT_KIND, _PORT_DATA = 1, 2, 4, 5
_PEER = 1
_STATE, _HAIRPIN, _ISOLATED = 1, 4, 33
_FORWARDING = 3
_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST = 1, 2, 4
_NODAD, _PERMANENT = 0x02, 0x80
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY = 1, 4, 5, 6
_MAIN, _STATIC, _UNIVERSE, _ON_LINK, _UNICAST = 254, 4, 0, 253, 1
_LOCAL_TABLE, _LOCAL = 255, 2
_IFF_UP = 0x1
_FAMILIES = {4: _socket.AF_INET, 6: _socket.AF_INET6}
_ROOM = 1 << 16
#: Attempts at a listing that changes while the kernel writes it.
_ATTEMPTS = 16


class NetlinkError(OSError):
    """The kernel has refused a request; ``strerror`` names the operation and the reason."""


class Link:
    """The state of a network interface.

    :param name: of the interface. :param index: the kernel's number. :param mtu: in bytes. :param up: it is
        raised.
    :param kind: ``bridge``, ``veth`` …; "" for a physical one. :param mac: six bytes, or empty.
    :param master: index of the bridge that it is a port of; 0: none. :param alias: a note on it.
    :param hairpin: as a bridge's port, it may send packets back to their sender.
    :param isolated: as a bridge's port, it exchanges no packets with other isolated ports.
    :param forwarding: as a bridge's port, it forwards packets: this begins some time after its peer is raised.
    """

    __slots__ = (
        "alias",
        "forwarding",
        "hairpin",
        "index",
        "isolated",
        "kind",
        "mac",
        "master",
        "mtu",
        "name",
        "up",
    )

    def __init__(self, body: bytes) -> None:
        """:param body: of the kernel's message."""
        _, _, index, flags, _ = _LINK.unpack_from(body)
        attributes = parse_attributes(body, _LINK.size)
        info = parse_attributes(attributes.get(_IFLA_LINKINFO, b""), 0)
        port = {}
        if info.get(_PORT_KIND, b"").rstrip(b"\0") == b"bridge":
            port = parse_attributes(info.get(_PORT_DATA, b""), 0)
        self.index: int = index
        self.name = os.fsdecode(attributes[_IFLA_NAME].rstrip(b"\0"))
        self.kind = info.get(_KIND, b"").rstrip(b"\0").decode()
        self.mac = attributes.get(_IFLA_ADDRESS, b"")
        self.mtu: int = _NUMBER.unpack(attributes[_IFLA_MTU])[0]
        self.up = bool(flags & _IFF_UP)
        self.master: int = _NUMBER.unpack(attributes[_IFLA_MASTER])[0] if _IFLA_MASTER in attributes else 0
        self.alias = attributes.get(_IFLA_ALIAS, b"").rstrip(b"\0").decode(errors="replace")
        self.forwarding = port.get(_STATE, b"\0")[0] == _FORWARDING
        self.hairpin = port.get(_HAIRPIN, b"\0") != b"\0"
        self.isolated = port.get(_ISOLATED, b"\0") != b"\0"


class Address:
    """An address of an interface. :param value: 4 or 16 bytes. :param length: length of the prefix in bits."""

    __slots__ = ("length", "value")

    def __init__(self, value: bytes, length: int) -> None:
        self.value = value
        self.length = length

    @property
    def family(self) -> int:
        """4 or 6."""
        return 4 if len(self.value) == 4 else 6


class Netlink:
    """A connection to the network namespace of the thread that makes it. Other threads may use it, one at a time.
    Changes need CAP_NET_ADMIN in that namespace. Close it.

    :param name: of an interface. :param index: of an interface, the kernel's number.
    :param up: whether an interface is raised. :param mac: hardware address, six bytes.
    :param mtu: largest packet in bytes; None: the kernel's default, or unchanged.
    :param address: 4 or 16 bytes. :param length: of an address's prefix, in bits.
    :raises NetlinkError: the kernel refuses the request.
    """

    __slots__ = ("_number", "_socket")

    def __init__(self) -> None:
        self._socket = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, 0)
        self._number = 0
        for option in (_EXT_ACK, _CAP_ACK, _STRICT):
            try:  # noqa: SIM105 - contextlib is not light
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            except OSError:
                pass  # an old kernel (before 4.12, 4.20): errors without reasons, unfiltered listings

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. It may be repeated."""
        self._socket.close()

    # -- links --

    def link(self, name: str) -> Link | None:
        """The interface with that name or alternative name; None: there is none."""
        body = _LINK.pack(0, 0, 0, 0, 0) + string(_IFLA_NAME, name)
        try:
            answers = list(self._ask(f"find interface {name}", _GETLINK, 0, body))
        except NetlinkError as error:
            if error.errno == errno.ENODEV:
                return None
            raise
        return Link(answers[0])

    def links(self, *, master: int = 0, kind: str = "") -> list[Link]:
        """All interfaces, or the ports of one bridge, or the interfaces of one kind.

        :param master: index of the bridge; 0: all. :param kind: ``bridge``, ``veth`` …; empty: all.
        """
        body = _LINK.pack(0, 0, 0, 0, 0)
        if master:
            body += integer(_IFLA_MASTER, master)
        if kind:
            body += nest(_IFLA_LINKINFO, string(_KIND, kind))
        found = [Link(one) for one in self._list("list interfaces", _GETLINK, body)]
        return [one for one in found if (not master or one.master == master) and (not kind or one.kind == kind)]

    def add_bridge(self, name: str, *, mac: bytes, mtu: int | None = None) -> None:
        """Makes a bridge, which is down. With a given MAC, its MAC does not change with its ports."""
        body = _LINK.pack(0, 0, 0, 0, 0) + string(_IFLA_NAME, name) + attribute(_IFLA_ADDRESS, mac)
        if mtu is not None:
            body += integer(_IFLA_MTU, mtu)
        self._change(
            f"make bridge {name}", _NEWLINK, _CREATE_NEW, body + nest(_IFLA_LINKINFO, string(_KIND, "bridge"))
        )

    def add_veth(
        self,
        name: str,
        peer: str,
        namespace: int,
        *,
        mac: bytes | None = None,
        mtu: int | None = None,
        master: int = 0,
    ) -> None:
        """Makes a pair of interfaces: one here, up, and its peer in another namespace. The peer is down: the
        kernel cannot raise it before the pair exists.

        :param peer: name of the peer.
        :param namespace: descriptor of the peer's network namespace. :param mac: the peer's; None: any.
        :param mtu: of both. :param master: index of the bridge whose port the interface here becomes.
        """
        size = b"" if mtu is None else integer(_IFLA_MTU, mtu)
        other = _LINK.pack(0, 0, 0, 0, 0) + string(_IFLA_NAME, peer) + size
        if mac is not None:
            other += attribute(_IFLA_ADDRESS, mac)
        other += integer(_IFLA_NET_NS_FD, namespace)
        body = _LINK.pack(0, 0, 0, _IFF_UP, _IFF_UP) + string(_IFLA_NAME, name) + size
        if master:
            body += integer(_IFLA_MASTER, master)
        body += nest(_IFLA_LINKINFO, string(_KIND, "veth") + nest(_DATA, nest(_PEER, other)))
        self._change(f"make interface {name} with {peer} in the other namespace", _NEWLINK, _CREATE_NEW, body)

    def set_link(
        self,
        name: str,
        *,
        up: bool | None = None,
        mac: bytes | None = None,
        mtu: int | None = None,
        master: int | None = None,
        alias: str | None = None,
        hairpin: bool | None = None,
        isolated: bool | None = None,
    ) -> None:
        """Changes the given settings of an interface.

        :param master: 0: remove it from its bridge. :param alias: a note on it, at most 255 bytes.
        :param hairpin: as a bridge's port, which it must be already, it may send packets back to their sender.
        :param isolated: as a bridge's port, it exchanges no packets with other isolated ports.
        """
        change = 0 if up is None else _IFF_UP
        body = _LINK.pack(0, 0, 0, _IFF_UP if up else 0, change) + string(_IFLA_NAME, name)
        if mac is not None:
            body += attribute(_IFLA_ADDRESS, mac)
        if mtu is not None:
            body += integer(_IFLA_MTU, mtu)
        if master is not None:
            body += integer(_IFLA_MASTER, master)
        if alias is not None:
            body += attribute(_IFLA_ALIAS, alias.encode())
        port = b"" if hairpin is None else attribute(_HAIRPIN, bytes((hairpin,)))
        port += b"" if isolated is None else attribute(_ISOLATED, bytes((isolated,)))
        if port:
            body += nest(_IFLA_LINKINFO, string(_PORT_KIND, "bridge") + nest(_PORT_DATA, port))
        self._change(f"change interface {name}", _NEWLINK, 0, body)

    def delete_link(self, name: str, *, index: int = 0) -> bool:
        """Deletes an interface; a veth interface with its peer, in any namespace. :returns: False: it does not
        exist.

        :param index: delete the interface of that index, even if its name has changed; 0: the one of that name.
        """
        body = _LINK.pack(0, 0, index, 0, 0) + (b"" if index else string(_IFLA_NAME, name))
        try:
            self._change(f"remove interface {name}", _DELLINK, 0, body)
        except NetlinkError as error:
            if error.errno == errno.ENODEV:
                return False
            raise
        return True

    # -- addresses and routes --

    def addresses(self, index: int) -> list[Address]:
        """The addresses of one interface, of both families, with IPv6's link-local ones."""
        body = _ADDRESS.pack(0, 0, 0, 0, index)
        found = []
        for answer in self._list("list addresses", _GETADDR, body):
            _, length, _, _, holder = _ADDRESS.unpack_from(answer)
            if holder == index:
                attributes = parse_attributes(answer, _ADDRESS.size)
                found.append(Address(attributes.get(_IFA_LOCAL) or attributes[_IFA_ADDRESS], length))
        return found

    def add_address(self, index: int, address: bytes, length: int) -> None:
        """Adds an address without IPv6's duplicate address detection: it can be used at once.

        :param address: 4 or 16 bytes. :param length: of the prefix. :raises NetlinkError: EEXIST: it is there.
        """
        body = self._address(index, address, length)
        if len(address) == 4 and length < 31:
            rest = (1 << (32 - length)) - 1
            body += attribute(_IFA_BROADCAST, (int.from_bytes(address, "big") | rest).to_bytes(4, "big"))
        self._change(f"add address {_shown(address, length)}", _NEWADDR, _CREATE_NEW, body)

    def delete_address(self, index: int, address: bytes, length: int) -> None:
        """Removes an address. :raises NetlinkError: EADDRNOTAVAIL: it does not exist."""
        self._change(
            f"remove address {_shown(address, length)}", _DELADDR, 0, self._address(index, address, length)
        )

    def _address(self, index: int, address: bytes, length: int) -> bytes:
        family = _FAMILIES[4 if len(address) == 4 else 6]
        flags = _PERMANENT | (_NODAD if len(address) == 16 else 0)
        head = _ADDRESS.pack(family, length, flags, _UNIVERSE, index)
        return head + attribute(_IFA_LOCAL, address) + attribute(_IFA_ADDRESS, address)

    def add_route(self, index: int, destination: bytes, length: int, gateway: bytes | None = None) -> None:
        """Adds a route by one interface to the main table.

        :param destination: 4 or 16 bytes; with ``length`` 0 the default route. :param gateway: None: on the link.
        :raises NetlinkError: EEXIST: there is one to it.
        """
        scope = _ON_LINK if gateway is None and len(destination) == 4 else _UNIVERSE
        family = _FAMILIES[4 if len(destination) == 4 else 6]
        body = _ROUTE.pack(family, length, 0, 0, _MAIN, _STATIC, scope, _UNICAST, 0)
        if length:
            body += attribute(_RTA_DST, destination)
        if gateway is not None:
            body += attribute(_RTA_GATEWAY, gateway)
        body += integer(_RTA_OIF, index)
        self._change(f"add a route to {_shown(destination, length)}", _NEWROUTE, _CREATE_NEW, body)

    def add_local_route(self, index: int, address: bytes, metric: int) -> None:
        """Adds a local route of an IPv6 address by one interface, beside other routes to the address.

        :param metric: the kernel prefers lower ones. :raises NetlinkError: EEXIST: the same route exists.
        """
        body = _ROUTE.pack(_socket.AF_INET6, 128, 0, 0, _LOCAL_TABLE, _STATIC, _UNIVERSE, _LOCAL, 0)
        body += attribute(_RTA_DST, address) + integer(_RTA_OIF, index) + integer(_RTA_PRIORITY, metric)
        self._change(f"add a route to {_shown(address, 128)}", _NEWROUTE, _CREATE_MORE, body)

    def routes(self, index: int) -> list[tuple[bytes, int, bytes | None]]:
        """Destination, prefix length and gateway of each route of the main table by that interface; the
        destination of a default route is zero.
        """
        found = []
        for family, size in ((_socket.AF_INET, 4), (_socket.AF_INET6, 16)):
            body = _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)
            for answer in self._list("list routes", _GETROUTE, body):
                _, length, _, _, table, _, _, _, _ = _ROUTE.unpack_from(answer)
                attributes = parse_attributes(answer, _ROUTE.size)
                out = attributes.get(_RTA_OIF)
                if table == _MAIN and out is not None and _NUMBER.unpack(out)[0] == index:
                    found.append((attributes.get(_RTA_DST, bytes(size)), length, attributes.get(_RTA_GATEWAY)))
        return found

    # -- messages --

    def _change(self, what: str, kind: int, flags: int, body: bytes) -> None:
        for _ in self._ask(what, kind, flags | ACK, body):
            pass

    def _list(self, what: str, kind: int, body: bytes) -> list[bytes]:
        for _ in range(_ATTEMPTS):
            try:
                return list(self._ask(what, kind, DUMP, body))
            except NetlinkError as error:
                if error.errno != errno.EINTR:
                    raise
        raise NetlinkError(errno.EINTR, f"cannot {what}: it changes all the time")

    def _ask(self, what: str, kind: int, flags: int, body: bytes) -> Iterator[bytes]:
        """Sends a request. :returns: the bodies of the kernel's answers."""
        self._number += 1
        self._socket.send(message(kind, flags | REQUEST, self._number, body))
        changed = False
        while True:
            data = self._socket.recv(_ROOM)
            for start, end, kind, given, number in split(data):
                if number != self._number:
                    continue  # an answer of an earlier listing that was not read to its end
                changed = changed or bool(given & INTERRUPTED)
                if kind in (ERROR, DONE):
                    _check(what, data[start:end], given, kind)
                    if changed:
                        raise NetlinkError(errno.EINTR, f"cannot {what}: it has changed in between")
                    return
                yield data[start:end]
                if not flags & (DUMP | ACK):
                    return


def _check(what: str, body: bytes, flags: int, kind: int) -> None:
    """Checks the kernel's answer. :raises NetlinkError: it is an error."""
    code = -int.from_bytes(body[:4], "little" if _LITTLE else "big", signed=True) if body else 0
    if code == 0:
        return
    reason = ""
    if flags & _TLVS:
        at = 4 if kind == DONE else 4 + HEADER.size
        reason = parse_attributes(body, at).get(_ERROR_MESSAGE, b"").rstrip(b"\0").decode(errors="replace")
    text = os.strerror(code)
    raise NetlinkError(code, f"cannot {what}: {text}" + (f" ({reason.rstrip('.')})" if reason else ""))


_LITTLE = struct.pack("=H", 1) == b"\1\0"


def _shown(address: bytes, length: int) -> str:
    return f"{_socket.inet_ntop(_FAMILIES[4 if len(address) == 4 else 6], address)}/{length}"
