"""A pod joins its networks, and leaves them.

What is about to be joined is written down before: whenever this process ends, ``gc`` knows what to leave. The
pod's namespace is pinned: plugins find what they have made on the host by what is in it.
"""

from __future__ import annotations

import contextlib
import json
import os
from ipaddress import ip_interface

from kurma_core.linux import cni_orphans, namespaces
from kurma_stager_default.stage1.netconf import Network, number
from kurma_stager_default.stage1.netplugins import PluginError, Plugins, addresses
from kurma_stager_default.stage1.netrules import sweep
from kurma_stager_default.stage1.place import ROOTFS, Stage1Error, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_stager_default.stage1.place import Place

    Json = dict[str, Any]

#: Ours, below stage1's root, which no app sees; and what rkt has left in the pod's directory for those who look.
_RECORD = f"{ROOTFS}/stage1/networks.json"
_INFO, _PINNED = "net-info.json", "netns"
#: From here on a plugin is told at DEL what it has said at ADD.
_DEL_KNOWS = (0, 4, 0)


class Joined:
    """:attr:`networks` and what each has said, in the order of ADD; None: nothing, yet or at all.

    :param local_config: where plugins may be, too.
    """

    def __init__(self, place: Place, container: str, local_config: str, networks: list[Network]) -> None:
        self._place = place
        self.container = container
        self._local_config = local_config
        self.networks = networks
        self.results: list[Json | None] = [None] * len(networks)
        self.pinned = f"/run/netns/rkt-{container}"
        #: How many have been begun with; what was refused, in a plugin's words; whether all are joined.
        self._begun = 0
        self._refused = ""
        self._whole = False

    # -- its record --

    def _write(self) -> None:
        _replace(
            f"{self._place.path}/{_RECORD}",
            {
                "container": self.container,
                "localConfig": self._local_config,
                "networks": [each.to_json() for each in self.networks],
                "results": self.results,
                "begun": self._begun,
                "refused": self._refused,
                "whole": self._whole,
            },
        )

    @classmethod
    def read(cls, place: Place) -> Joined | None:
        """None: it has joined none, or has left all. :raises Stage1Error: the record is damaged."""
        if not os.path.exists(f"{place.path}/{_RECORD}"):
            return None
        value = place.json(_RECORD)
        try:
            networks = [Network.from_json(each) for each in value["networks"]]
            found = cls(place, value["container"], value["localConfig"], networks)
            found.results = list(value["results"])
            found._begun, found._refused = int(value["begun"]), str(value["refused"])
            found._whole = value["whole"] is True
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Stage1Error(f"{place.path}/{_RECORD}: damaged") from None
        return found

    def _write_info(self) -> None:
        """As rkt's own stage1 does, for what lists pods."""
        found = []
        for network, result in zip(self.networks, self.results, strict=True):
            one = {"netName": network.name, "netConf": network.source, "ifName": network.interface}
            for address, _ in addresses(result)[:1]:
                interface = ip_interface(address)
                one |= {"ip": str(interface.ip), "mask": str(interface.netmask)}
            found.append({**one, "args": network.arguments})
        _replace(f"{self._place.path}/{_INFO}", found)

    # -- joining --

    def join(self, namespace: int) -> None:
        """:param namespace: a descriptor of the pod's.
        :raises Stage1Error: one cannot be joined; then none is.
        """
        plugins = self._plugins()
        for network in self.networks:
            for kind in network.programs:
                plugins.find(kind, network)
        self._write()
        try:
            namespaces.pin(f"/proc/self/fd/{namespace}", self.pinned)
            _replace(f"{self._place.path}/{_PINNED}", self.pinned)
            for place in range(len(self.networks)):
                self._begun = place + 1
                self._write()
                self._add(plugins, place)
            self._whole = True
            self._write()
            self._write_info()
        except BaseException:
            for text in self.leave():
                say(text)
            raise

    def _add(self, plugins: Plugins, place: int) -> None:
        network = self.networks[place]
        for each in range(len(network.plugins)):
            previous = self.results[place]
            try:
                self.results[place] = plugins.execute("ADD", network, each, self.pinned, previous)
            except PluginError as error:
                self._refused = error.reason if previous is None else ""
                raise
            self._write()

    def _plugins(self) -> Plugins:
        return Plugins(self._place, self._local_config, self.container)

    # -- leaving --

    def leave(self) -> list[str]:
        """All of them, in the other order, whichever fails; why any has. May be repeated."""
        if not self._whole:
            cni_orphans.end(self.container)
        self._whole = False
        self._write()
        namespace = self.pinned if namespaces.is_pinned(self.pinned) else ""
        failures = self._leave_all(namespace)
        failures += sweep(self.container)
        if failures:  # some stumble over rules that they do not expect, and succeed once these are gone
            failures = [*self._leave_all(namespace), *sweep(self.container)]
        if failures:
            return failures
        namespaces.unpin(self.pinned)
        for path in (_INFO, _PINNED, _RECORD):
            _remove(f"{self._place.path}/{path}")
        return []

    def _leave_all(self, namespace: str) -> list[str]:
        plugins = self._plugins()
        failures = []
        for place in reversed(range(self._begun)):
            network, result = self.networks[place], self.results[place]
            # Of that network alone nothing was made; others may fail for the same reason (a full disk).
            refused = self._refused if place == self._begun - 1 else ""
            for each in reversed(range(len(network.plugins))):
                try:
                    previous = result if number(network.version) >= _DEL_KNOWS else None
                    plugins.execute("DEL", network, each, namespace, previous)
                except PluginError as error:
                    # What a plugin does not understand, it understands now no better; nothing was made.
                    if not refused or error.reason != refused:
                        failures.append(str(error))
        return failures

    # -- what the pod is told --

    @property
    def gateway(self) -> str:
        """The host's address as the pod has it, in the network that is for that; empty: that has none."""
        place = self.networks.index(forwarding(self.networks))
        return next((gateway for _, gateway in addresses(self.results[place]) if gateway), "")

    @property
    def dns(self) -> Json:
        """The first that a network says."""
        said = [(result or {}).get("dns") for result in self.results]
        return next((dns for dns in said if isinstance(dns, dict) and any(dns.values())), {})

    def told(self) -> list[str]:
        """A line each."""
        return [
            f"network {network.name}: {network.interface}, "
            + (", ".join(address for address, _ in addresses(result)) or "no address")
            for network, result in zip(self.networks, self.results, strict=True)
        ]


def forwarding(networks: list[Network]) -> Network:
    """The one that ports are led into, and by which the host is reached: the first that masquerades, else the last
    (rkt's networking documentation, "Network used for forwarded ports").
    """
    return next((each for each in networks if each.masquerades), networks[-1])


def publish(networks: list[Network], ports: list[Json]) -> None:
    """Ports of the host lead into the pod, by the network that says it can, or by a plugin more.

    :param ports: as CNI's capability ``portMappings`` has them.
    """
    if not ports:
        return
    network = next((each for each in networks if each.publishes), None)
    if network is None:
        network = forwarding(networks)
        network.plugins.append({"type": "portmap", "capabilities": {"portMappings": True}, "snat": True})
        network.programs.append("portmap")
    network.runtime["portMappings"] = ports


def _replace(path: str, value: Any) -> None:
    with open(f"{path}.new", "w") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))
    os.rename(f"{path}.new", path)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
