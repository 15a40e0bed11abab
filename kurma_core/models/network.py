"""Networks: requests, published ports, results and attachments."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.schema import JsonValue, Pairs, Port, Words
from kurma_core.value import field, frozen

#: Ports of one range at most: each is a rule or more, and CNI's plugins run programs for each.
MOST_PORTS = 1024

#: Protocols of ports that can be published.
PROTOCOLS = ("tcp", "udp", "sctp")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any
    Protocol = str
else:
    Protocol = Words(*PROTOCOLS)


@frozen
class PortMapping(JsonValue):
    """One port of the host that leads into the pod.

    :param host_ip: the address on the host; empty: every address.
    """

    PARTIAL = True

    host_port: Port
    pod_port: Port
    protocol: Protocol = "tcp"
    host_ip: str = field(default="", key="hostIP")


@frozen
class NetworkRequest(JsonValue):
    """A wish to join a network: ``--net NAME[:IFNAME][,ip=…,mac=…,optional]``.

    :param optional: the pod starts without it where joining it fails.
    """

    PARTIAL = True

    name: str
    interface: str | None = None
    ips: tuple[str, ...] = ()
    mac: str | None = None
    optional: bool = False


@frozen
class AddressResult(JsonValue):
    """One address of an attachment, in CIDR form, and its gateway."""

    address: str
    gateway: str | None = None


@frozen
class NetworkResult(JsonValue):
    """What a network's ``add`` gave, whatever version of the CNI result it came in.

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
    """One network of one pod, as it was asked for and as it came out. Recorded before ``add`` (result None).

    :param driver: name of the network plugin that serves it.
    :param config: the network's configuration as handed to the plugin; ``del`` gets the same.
    :param capabilities: further capability arguments of CNI (``dns``, ``bandwidth``), by name.
    :param names: pods on it find each other by name.
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
    capabilities: Mapping[str, Json] = field(default_factory=dict)
    names: bool = True

    @property
    def addresses(self) -> tuple[str, ...]:
        """In CIDR form."""
        return () if self.result is None else tuple([one.address for one in self.result.addresses])

    def to_json(self) -> dict[str, Json]:
        found = JsonValue.to_json(self)
        found["result"] = found.pop("result")  # people read the addresses first
        return found
