"""Parses the words of ``--net NAME[:IFNAME][,ip=…,mac=…]`` and ``-p [IP:]HOST:POD[/udp]``."""

from __future__ import annotations

from kurma_core.appc.types import address_family, is_cidr
from kurma_core.errors import UsageError
from kurma_core.models.network import (
    MOST_PORTS,
    PROTOCOLS,
    NetworkRequest,
    PortMapping,
    argument_name,
    argument_value,
)
from kurma_core.schema import SchemaError

_HEX = frozenset("0123456789abcdef")


def parse_net(text: str) -> NetworkRequest:
    """``NAME[:IFNAME][,ip=ADDRESS[/LENGTH]…][,mac=MAC][,arg=KEY=VALUE…][,optional]``; ``ip=`` and ``arg=`` may
    be given several times. Also ``NAME:IP=ADDRESS``, the notation of rkt.

    :raises UsageError: the text is malformed; whether the network exists is not checked here.
    """
    head, *options = text.split(",")
    name, colon, interface = head.partition(":")
    if not name or (colon and not interface):
        raise _net_error(text, "the interface is missing" if name else "a name is missing")
    if interface.startswith("IP="):
        options.insert(0, interface.lower())
        interface = ""
    ips: list[str] = []
    mac: str | None = None
    optional = False
    args: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if key == "ip" and equals:
            if not (address_family(value) or is_cidr(value)):
                raise _net_error(text, f'"{value}" is not an address')
            ips.append(value)
        elif key == "mac" and equals:
            mac = _mac(text, value)
        elif key == "arg" and "=" in value:
            argument, content = _argument(text, value)
            if argument in args:
                raise _net_error(text, f"the argument {argument} is given twice")
            args[argument] = content
        elif option == "optional":
            optional = True
        else:
            raise _net_error(text, f'unknown option "{option}"')
    return NetworkRequest(name, interface or None, tuple(ips), mac, optional, args)


def parse_port(text: str) -> PortMapping:
    """``[IP:]HOST:POD[/PROTOCOL]``, one port each; an IPv6 address is written in brackets.

    :raises UsageError: the text is malformed.
    """
    mappings = parse_ports(text)
    if len(mappings) != 1:
        raise _port_error(text, "one port is wanted, not a range")
    return mappings[0]


def parse_ports(text: str) -> tuple[PortMapping, ...]:
    """As :func:`parse_port`, where HOST and POD may also be ranges of one length (``8000-8003:80-83``).

    :raises UsageError: the text is malformed.
    """
    if "," in text:
        each = " ".join(f"-p {one}" for one in text.split(",") if one)
        raise _port_error(text, "one mapping is wanted, or a range of ports", f"write: {each}")
    rest, slash, protocol = text.partition("/")
    if not slash:
        protocol = "tcp"
    if protocol not in PROTOCOLS:
        raise _port_error(text, f"the protocol is one of {', '.join(PROTOCOLS)}")
    host_ip = ""
    if rest.startswith("["):
        host_ip, _, rest = rest[1:].partition("]:")
        if address_family(host_ip) != 6:
            raise _port_error(text, "between brackets stands an IPv6 address")
    elif rest.count(":") > 2:
        raise _port_error(text, "an IPv6 address stands in brackets: [::1]:8080:80")
    elif rest.count(":") == 2:
        host_ip, _, rest = rest.partition(":")
        if address_family(host_ip) != 4:
            raise _port_error(text, f'"{host_ip}" is no IPv4 address')
    if why := no_address_of_a_host(host_ip):
        raise _port_error(text, why)
    host, colon, pod = rest.partition(":")
    if not colon:
        # A port of the host that Kurma chose could not be known to firewall rules beforehand.
        address = f"[{host_ip}]:" if host_ip else ""
        hint = f"for the same port on both sides: {address}{host}:{host}{slash}{protocol if slash else ''}"
        raise _port_error(text, "the pod's port is missing", hint if host else "")
    host_ports, pod_ports = _range(text, host), _range(text, pod)
    if len(host_ports) != len(pod_ports):
        raise _port_error(text, f"a range of {len(host_ports)} ports leads to one of {len(pod_ports)}")
    if len(host_ports) > MOST_PORTS:
        raise _port_error(
            text,
            f"it has {len(host_ports)} ports, {MOST_PORTS} are allowed in one range",
            hint="a pod that needs more is better off in the host's network: --net host",
        )
    return tuple(PortMapping(h, p, protocol, host_ip) for h, p in zip(host_ports, pod_ports, strict=True))


def no_address_of_a_host(address: str) -> str | None:
    """Why no host can be reached by that address; None: one may have it.

    :param address: "" is any.
    """
    if not address:
        return None
    import _socket  # the light half of it

    first = _socket.inet_pton(_socket.AF_INET6 if ":" in address else _socket.AF_INET, address)[0]
    if first == 0xFF if ":" in address else 224 <= first <= 239:
        return f"{address} is a multicast address, which no host has for itself"
    return f"{address} is the address of broadcasts" if address == "255.255.255.255" else None


def _range(text: str, ports: str) -> range:
    first, dash, last = ports.partition("-")
    if dash and not (first and last):
        raise _port_error(text, f'"{ports}" is not a port (1 to 65535)')
    start = _port(text, first)
    end = _port(text, last) if dash else start
    if end < start:
        raise _port_error(text, f'"{ports}" runs backwards')
    return range(start, end + 1)


def _port(text: str, digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 5 and 0 < int(digits) < 65536):
        raise _port_error(text, f'"{digits}" is not a port (1 to 65535)')
    return int(digits)


def _mac(text: str, value: str) -> str:
    mac = value.lower()
    octets = mac.split(":")
    if len(octets) != 6 or any(len(octet) != 2 or not _HEX.issuperset(octet) for octet in octets):
        raise _net_error(text, f'"{value}" is no MAC address')
    if int(octets[0], 16) & 1:
        raise _net_error(text, f'"{value}" is a multicast address')
    if not mac.strip("0:"):
        raise _net_error(text, f'"{value}" is nobody\'s: all of it is zero')
    return mac


def _argument(text: str, option: str) -> tuple[str, str]:
    name, _, value = option.partition("=")
    try:
        return argument_name(name, "the argument's name"), argument_value(value, f"the argument {name}")
    except SchemaError as error:
        raise _net_error(text, str(error)) from None


def _net_error(text: str, why: str) -> UsageError:
    return UsageError(
        f"malformed network {text!r}: {why}",
        hint="write NAME[:INTERFACE][,ip=ADDRESS][,mac=MAC][,arg=KEY=VALUE][,optional]",
    )


def _port_error(text: str, why: str, hint: str = "") -> UsageError:
    usual = "write [IP:]HOST:POD[/tcp|udp|sctp], e.g. 127.0.0.1:8080:80"
    return UsageError(f"malformed port {text!r}: {why}", hint=hint or usual)
