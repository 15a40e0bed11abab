"""Networks: requests, published ports, results and attachments."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.appc.types import nonempty
from kurma_core.models.isolator import TrafficLimit
from kurma_core.schema import JsonValue, Map, Pairs, Port, SchemaError, Text, Words, describe
from kurma_core.value import field, frozen

#: Ports of one range at most: each is a rule or more, and CNI's plugins run programs for each.
MOST_PORTS = 1024

#: Protocols of ports that can be published.
PROTOCOLS = ("tcp", "udp", "sctp")

#: Keys of :attr:`NetworkRequest.args` that other options set, with the option.
_OWN_ARGS = {"IP": "ip", "MAC": "mac", "IgnoreUnknown": ""}
_ARG_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any
    Nonempty = str
    Protocol = str
else:
    Nonempty = Text(nonempty)
    Protocol = Words(*PROTOCOLS)


def argument_name(value: object, path: str = "$") -> str:
    """Checks the name of an argument for a network's plugins. :raises SchemaError: it is not one."""
    if not isinstance(value, str) or not value or not _ARG_NAME.issuperset(value):
        raise SchemaError(path, "a name of ASCII letters, digits and _", describe(value))
    if value in _OWN_ARGS:
        raise SchemaError(path, "an argument that Kurma does not set itself", describe(value))
    return value


def argument_value(value: object, path: str = "$") -> str:
    """Checks the value of an argument for a network's plugins: CNI's list of arguments has no way to quote a
    separator.

    :raises SchemaError: it has a separator or a control character.
    """
    if not isinstance(value, str) or not value.isprintable() or ";" in value or "=" in value:
        raise SchemaError(path, "printable text without ; and =", describe(value))
    return value


@frozen
class PortMapping(JsonValue):
    """One published port: a port of the host that is forwarded to the pod.

    :param host_port: the port of the host. :param pod_port: the port in the pod.
    :param protocol: of both ports.
    :param host_ip: the address on the host; empty: every address.
    """

    PARTIAL = True

    host_port: Port
    pod_port: Port
    protocol: Protocol = "tcp"
    host_ip: str = field(default="", key="hostIP")

    @property
    def text(self) -> str:
        """``[IP:]HOST:POD/PROTOCOL``."""
        host = f"[{self.host_ip}]" if ":" in self.host_ip else self.host_ip
        return f"{f'{host}:' if host else ''}{self.host_port}:{self.pod_port}/{self.protocol}"


@frozen
class NetworkRequest(JsonValue):
    """A request to join a network: ``--net NAME[:IFNAME][,ip=…,mac=…,arg=…,optional]``.

    :param name: name of the network.
    :param interface: name of the interface in the pod; null: from the network's configuration.
    :param ips: addresses that the pod wants; empty: any.
    :param mac: the interface's address; null: any.
    :param optional: true: the pod starts without the network where joining it fails.
    :param args: arguments for the network's plugins, by name: CNI's get them in ``CNI_ARGS``. Plugins ignore those
        that they do not know.
    """

    PARTIAL = True

    name: Nonempty
    interface: Nonempty | None = None
    ips: tuple[Nonempty, ...] = ()
    mac: Nonempty | None = None
    optional: bool = False
    args: Mapping[str, str] = field(default_factory=dict, shape=Map(Text(argument_value), Text(argument_name)))


@frozen
class AddressResult(JsonValue):
    """One address of an attachment, and its gateway.

    :param address: in CIDR form.
    :param gateway: its IP address; null: there is no gateway.
    """

    address: str
    gateway: str | None = None


@frozen
class NetworkResult(JsonValue):
    """The result of a network's ``add``, independent of the form in which the network gave it.

    :param addresses: of the interface.
    :param routes: destination in CIDR form and IP address of the gateway; null: there is no gateway.
    :param nameservers: IP addresses. :param search: domains. :param options: of the resolver.
    :param raw: the result as the plugin printed it.
    """

    addresses: tuple[AddressResult, ...]
    routes: tuple[tuple[str, str | None], ...] = field(default=(), shape=Pairs(("dst", "gw"), str, (str, None)))
    nameservers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    raw: Json = None


@frozen
class Attachment(JsonValue):
    """One network of one pod: the request and the result. It is recorded before ``add`` (result None).

    :param network: name of the network. :param driver: name of the network plugin that serves it.
    :param interface: name that it has in the pod.
    :param config: the network's configuration as handed to the plugin; ``del`` gets the same.
    :param request: the request to join.
    :param ports: ports of the host that are published on this network.
    :param result: the driver's answer; null: the pod is not joined yet.
    :param base: every pod joins the network, which may give it no address.
    :param limits: limits of traffic over the interface that the network applies itself; at most one for each
        direction.
    :param dns: ``nameservers``, ``search`` and ``options`` that the caller wants in the pod's resolv.conf.
    :param names: whether pods on it find each other by name.
    :param addresses: of the interface, in CIDR form.
    """

    JSON_NAME = "Attachment"
    COMPUTED = {"addresses": [str]}  # noqa: RUF012 - of the class

    network: str
    driver: str
    interface: str
    config: Mapping[str, Json]
    request: NetworkRequest
    ports: tuple[PortMapping, ...] = ()
    result: NetworkResult | None = None
    base: bool = False
    limits: tuple[TrafficLimit, ...] = ()
    dns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: bool = True

    @property
    def addresses(self) -> tuple[str, ...]:
        """In CIDR form."""
        return () if self.result is None else tuple([one.address for one in self.result.addresses])

    def to_json(self) -> dict[str, Json]:
        found = JsonValue.to_json(self)
        found["result"] = found.pop("result")  # people read the addresses first
        return found
