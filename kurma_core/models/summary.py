"""Pod summaries: what a table of pods shows."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any


@frozen
class NetworkSummary:
    """A network that a pod is joined to.

    :param addresses: in CIDR form; none before the pod was started.
    """

    network: str
    interface: str
    addresses: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        return {"network": self.network, "interface": self.interface, "addresses": list(self.addresses)}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> NetworkSummary:
        return cls(value["network"], value["interface"], tuple(value["addresses"]))


@frozen
class PodSummary:
    """What a table of pods shows of a :class:`kurma_core.models.pod.PodRecord`. No stager is asked for it.

    :param apps: names, in the manifest's order.
    :param networks: none: the pod shares the host's.
    """

    uuid: str
    name: str
    state: str
    created_at: str
    apps: tuple[str, ...] = ()
    networks: tuple[NetworkSummary, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "uuid": self.uuid,
            "name": self.name,
            "state": self.state,
            "createdAt": self.created_at,
            "apps": list(self.apps),
            "networks": [one.to_json() for one in self.networks],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> PodSummary:
        return cls(
            uuid=value["uuid"],
            name=value["name"],
            state=value["state"],
            created_at=value["createdAt"],
            apps=tuple(value["apps"]),
            networks=tuple(NetworkSummary.from_json(one) for one in value["networks"]),
        )
