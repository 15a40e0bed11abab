"""Networks: requests, published ports, results and attachments."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.schema import fit
from kurma_core.value import field, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from kurma_core.schema import Form

    Json = Any

#: Ports of one range at most: each is a rule or more, and CNI's plugins run programs for each.
MOST_PORTS = 1024

#: Protocols of ports that can be published.
PROTOCOLS = ("tcp", "udp", "sctp")


@frozen
class PortMapping:
    """One port of the host that leads into the pod. ``protocol`` is ``tcp``, ``udp`` or ``sctp``; ``host_ip``
    "" is any."""

    host_port: int
    pod_port: int
    protocol: str = "tcp"
    host_ip: str = ""

    SHAPE: ClassVar[Form] = {
        "hostPort": range(1, 1 << 16),
        "podPort": range(1, 1 << 16),
        "protocol": frozenset(PROTOCOLS),
        "hostIP": str,
    }

    def to_json(self) -> dict[str, Json]:
        return {
            "hostPort": self.host_port,
            "podPort": self.pod_port,
            "protocol": self.protocol,
            "hostIP": self.host_ip,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> PortMapping:
        fit(value, cls.SHAPE, "port")
        return cls(value["hostPort"], value["podPort"], value["protocol"], value["hostIP"])


@frozen
class NetworkRequest:
    """A wish to join a network: ``--net NAME[:IFNAME][,ip=…,mac=…,optional]``.

    :param optional: the pod starts without it where joining it fails (W4).
    """

    name: str
    interface: str | None = None
    ips: tuple[str, ...] = ()
    mac: str | None = None
    optional: bool = False

    SHAPE: ClassVar[Form] = {
        "name": str,
        "interface?": (str, None),
        "ips?": [str],
        "mac?": (str, None),
        "optional?": bool,
    }

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "interface": self.interface,
            "ips": list(self.ips),
            "mac": self.mac,
            "optional": self.optional,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> NetworkRequest:
        fit(value, cls.SHAPE, "request")
        return cls(
            value["name"],
            value.get("interface"),
            tuple(value.get("ips", ())),
            value.get("mac"),
            value.get("optional", False),
        )


@frozen
class AddressResult:
    """One address of an attachment, in CIDR form, and its gateway."""

    address: str
    gateway: str | None = None


@frozen
class NetworkResult:
    """What a network's ``add`` gave (W3), whatever version of the CNI result it came in.

    :param raw: the result as the plugin printed it.
    """

    addresses: tuple[AddressResult, ...]
    routes: tuple[tuple[str, str | None], ...] = ()
    nameservers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    raw: Json = None


@frozen
class Attachment:
    """One network of one pod, as it was asked for and as it came out. Recorded before ``add`` (result None).

    :param driver: name of the network plugin that serves it.
    :param config: the network's configuration as handed to the plugin; ``del`` gets the same.
    :param capabilities: further capability arguments of CNI (``dns``, ``bandwidth``), by name.
    :param names: pods on it find each other by name (W10).
    """

    network: str
    driver: str
    interface: str
    config: Mapping[str, Json]
    request: NetworkRequest
    ports: tuple[PortMapping, ...] = ()
    result: NetworkResult | None = None
    capabilities: Mapping[str, Json] = field(default_factory=dict)
    names: bool = True

    SHAPE: ClassVar[Form] = {
        "network": str,
        "driver": str,
        "interface": str,
        "config": dict,
        "request": NetworkRequest.SHAPE,
        "ports": [PortMapping.SHAPE],
        "capabilities?": dict,
        "names?": bool,
        "result?": (
            {
                "addresses": [{"address": str, "gateway?": (str, None)}],
                "routes": [{"dst": str, "gw?": (str, None)}],
                "nameservers": [str],
                "search": [str],
                "options": [str],
                "raw": object,
            },
            None,
        ),
    }

    def to_json(self) -> dict[str, Json]:
        result = self.result
        return {
            "network": self.network,
            "driver": self.driver,
            "interface": self.interface,
            "config": dict(self.config),
            "request": self.request.to_json(),
            "ports": [port.to_json() for port in self.ports],
            "capabilities": dict(self.capabilities),
            "names": self.names,
            "addresses": [] if result is None else [a.address for a in result.addresses],
            "result": None
            if result is None
            else {
                "addresses": [{"address": a.address, "gateway": a.gateway} for a in result.addresses],
                "routes": [{"dst": dst, "gw": gateway} for dst, gateway in result.routes],
                "nameservers": list(result.nameservers),
                "search": list(result.search),
                "options": list(result.options),
                "raw": result.raw,
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Attachment:
        fit(value, cls.SHAPE, "attachment")
        raw = value.get("result")
        result = None
        if raw is not None:
            result = NetworkResult(
                addresses=tuple(AddressResult(a["address"], a.get("gateway")) for a in raw["addresses"]),
                routes=tuple((r["dst"], r.get("gw")) for r in raw["routes"]),
                nameservers=tuple(raw["nameservers"]),
                search=tuple(raw["search"]),
                options=tuple(raw["options"]),
                raw=raw["raw"],
            )
        return cls(
            network=value["network"],
            driver=value["driver"],
            interface=value["interface"],
            config=value["config"],
            request=NetworkRequest.from_json(value["request"]),
            ports=tuple(PortMapping.from_json(port) for port in value["ports"]),
            result=result,
            capabilities=value.get("capabilities", {}),
            names=value.get("names", True),
        )
