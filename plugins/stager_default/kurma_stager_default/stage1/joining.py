"""Joins a pod to its networks and takes it out of them, by CNI plugins on the host's root.

Each network is recorded before the pod joins it, so that ``gc`` knows what to leave even if this process is
killed. The pod's network namespace is pinned, because plugins find their resources on the host by its interfaces.
"""

from __future__ import annotations

import contextlib
import json
import os
from ipaddress import ip_interface

from kurma_cni import iptables, orphans
from kurma_cni.attachment import Attachment
from kurma_cni.errors import CniError
from kurma_cni.plugins import Plugins

from kurma_core.linux import namespaces, programs
from kurma_stager_default.stage1.networks import DIRECTORY, Network, forwarding
from kurma_stager_default.stage1.place import ROOTFS, Stage1Error, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_stager_default.stage1.place import Place

    Json = dict[str, Any]

#: Our record, below stage1's root, which no app sees; and the files that other programs expect in the pod's
#: directory.
_RECORD = f"{ROOTFS}/stage1/networks.json"
_INFO, _PINNED = "net-info.json", "netns"
#: rkt's directory of the administrator's plugins, and, below the image's root, of a stage1's plugins.
_OF_RKT = "/usr/lib/rkt/plugins/net"
#: Plugin directories of distributions and other programs.
_USUAL = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")


class Joined:
    """The networks of one pod, in the order of ADD.

    :param local_config: a directory that may hold plugins, too.
    """

    def __init__(self, place: Place, container: str, local_config: str, networks: list[Network]) -> None:
        self._place = place
        self.container = container
        self._local_config = local_config
        self.networks = networks
        self._attachments = [self._attachment(network) for network in networks]
        self.pinned = f"/run/netns/rkt-{container}"
        #: The number of networks whose join has begun; whether all are joined.
        self._begun = 0
        self._whole = False
        directories = (f"{local_config}/{DIRECTORY}", _OF_RKT, f"{place.rootfs}{_OF_RKT}", *_USUAL)
        self._plugins = Plugins(programs, directories)

    def _attachment(self, network: Network) -> Attachment:
        return Attachment(network.chain, self.container, network.interface, network.arguments, network.runtime)

    # -- its record --

    def _write(self) -> None:
        begun = self._attachments[: self._begun]
        _replace(
            f"{self._place.path}/{_RECORD}",
            {
                "container": self.container,
                "localConfig": self._local_config,
                "networks": [each.to_json() for each in self.networks],
                "results": [each.result for each in self._attachments],
                "begun": self._begun,
                "refused": begun[-1].refused if begun else "",
                "whole": self._whole,
            },
        )

    @classmethod
    def read(cls, place: Place) -> Joined | None:
        """Reads the record; None: the pod has joined no network, or has left all. :raises Stage1Error: it is
        damaged.
        """
        if not os.path.exists(f"{place.path}/{_RECORD}"):
            return None
        value = place.json(_RECORD)
        try:
            networks = [Network.from_json(each) for each in value["networks"]]
            found = cls(place, value["container"], value["localConfig"], networks)
            for attachment, result in zip(found._attachments, value["results"], strict=True):
                attachment.result = result
            found._begun = int(value["begun"])
            if found._begun:
                # Only the last network made nothing; earlier ones may fail for the same reason (a full disk).
                found._attachments[found._begun - 1].refused = str(value["refused"])
            found._whole = value["whole"] is True
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, CniError):
            raise Stage1Error(f"{place.path}/{_RECORD}: damaged") from None
        return found

    def _write_info(self) -> None:
        """Writes ``net-info.json`` for programs that list pods, as rkt's own stage1 does."""
        found = []
        for network, attachment in zip(self.networks, self._attachments, strict=True):
            one = {"netName": network.name, "netConf": network.source, "ifName": network.interface}
            for address, _ in addresses(attachment.result)[:1]:
                interface = ip_interface(address)
                one |= {"ip": str(interface.ip), "mask": str(interface.netmask)}
            found.append({**one, "args": network.arguments})
        _replace(f"{self._place.path}/{_INFO}", found)

    # -- joining --

    def join(self, namespace: int) -> None:
        """Joins all networks. :param namespace: a descriptor of the pod's network namespace.

        :raises Stage1Error: a network cannot be joined; then the pod is in none.
        """
        try:
            for network in self.networks:
                self._plugins.find_all(network.chain)
                self._plugins.choose_version(network.chain)
        except CniError as error:
            leave_out = ", or leave the network out (--net=host, --net=none)" if error.missing else ""
            raise Stage1Error(f"{_told(error)}{leave_out}") from None
        self._write()
        try:
            namespaces.pin(f"/proc/self/fd/{namespace}", self.pinned)
            _replace(f"{self._place.path}/{_PINNED}", self.pinned)
            for attachment in self._attachments:
                self._begun += 1
                self._write()
                attachment.add(self._plugins, self.pinned, _check, self._write)
                self._write()
            if any("portMappings" in network.runtime for network in self.networks):
                iptables.put_pod_first(programs, self.container)
            self._whole = True
            self._write()
            self._write_info()
        except BaseException as error:
            for text in self.leave():
                say(text)
            if isinstance(error, CniError):
                raise Stage1Error(_told(error)) from None
            raise

    # -- leaving --

    def leave(self) -> list[str]:
        """Leaves all networks, the last one first; goes on after a failure. It can be repeated.

        :returns: the failures' reasons.
        """
        if not self._whole:
            orphans.end(self.container)
        self._whole = False
        self._write()
        namespace = self.pinned if namespaces.is_pinned(self.pinned) else ""
        failures = self._leave_all(namespace)
        if failures:  # a plugin may fail because of another's rules: try again when those are removed
            failures = self._leave_all(namespace)
        if failures:
            return failures
        namespaces.unpin(self.pinned)
        for path in (_INFO, _PINNED, _RECORD):
            _remove(f"{self._place.path}/{path}")
        return []

    def _leave_all(self, namespace: str) -> list[str]:
        failures = []
        for attachment in reversed(self._attachments[: self._begun]):
            failures += [_told(error) for error in attachment.delete(self._plugins, namespace)]
        try:
            iptables.drop_pod_chains(programs, self.container)
        except CniError as error:
            failures.append(_told(error))
        return failures

    # -- network facts for the pod --

    @property
    def gateway(self) -> str:
        """The host's address in the network that ports are forwarded to; empty: there is none."""
        place = self.networks.index(forwarding(self.networks))
        return next((gateway for _, gateway in addresses(self._attachments[place].result) if gateway), "")

    @property
    def dns(self) -> Json:
        """The first DNS settings that a network has."""
        said = [(each.result or {}).get("dns") for each in self._attachments]
        return next((dns for dns in said if isinstance(dns, dict) and any(dns.values())), {})

    def told(self) -> list[str]:
        """A line for the user on each network."""
        return [
            f"network {network.name}: {network.interface}, "
            + (", ".join(address for address, _ in addresses(attachment.result)) or "no address")
            for network, attachment in zip(self.networks, self._attachments, strict=True)
        ]


def addresses(result: Json | None) -> list[tuple[str, str]]:
    """The addresses with prefix length, and their gateways, which may be empty; IPv4 first. It reads results of
    any CNI version."""
    found = [each for each in (result or {}).get("ips") or [] if isinstance(each, dict)]
    pairs = [(str(each.get("address") or ""), str(each.get("gateway") or "")) for each in found]
    for key in ("ip4", "ip6"):
        each = (result or {}).get(key)
        if isinstance(each, dict):
            pairs.append((str(each.get("ip") or ""), str(each.get("gateway") or "")))
    return sorted([pair for pair in pairs if pair[0]], key=lambda pair: ":" in pair[0])


def _check(result: Any) -> None:
    """Checks a plugin's output. :raises ValueError: it is not a CNI result."""
    try:
        if not isinstance(result, dict):
            raise TypeError("it is not an object")
        for address, _ in addresses(result):
            ip_interface(address)
    except (TypeError, ValueError) as error:
        raise ValueError(programs.one_line(str(error))) from None


def _told(error: CniError) -> str:
    return f"{error.message}: {error.hint}" if error.hint else error.message


def _replace(path: str, value: Any) -> None:
    with open(f"{path}.new", "w") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))
    os.rename(f"{path}.new", path)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
