"""The network driver ``bridge``: joins pods to a bridge and takes them out, by netlink."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kurma_core.errors import NetworkError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.network import AttachmentContext, Leak, NetworkHooks
from kurma_core.linux.netlink import Link, Netlink, NetlinkError
from kurma_core.models.network import AddressResult, NetworkResult
from kurma_net_bridge import links
from kurma_net_bridge.addresses import owner_name
from kurma_net_bridge.choices import Choices, with_any
from kurma_net_bridge.links import Owner
from kurma_net_bridge.namespace import inside, open_namespace, refused
from kurma_net_bridge.records import NetworkRecords, Record, network_rules
from kurma_net_bridge.settings import Settings, parse_settings
from kurma_net_bridge.subnets import Subnet, text_of

if TYPE_CHECKING:
    from kurma_net_bridge.packet_filter.network_rules import NetworkRules
    from kurma_net_bridge.packet_filter.rules import Rules

Json = Any


class BridgeNetwork(NetworkHooks):
    """The driver of all bridge networks. Several threads may use it, for different pods.

    :param state_dir: of this driver. :param note: shows the user a line.
    """

    def __init__(self, state_dir: str, note: Callable[[str], None]) -> None:
        self._state_dir = state_dir
        self._note = note
        self._choices = Choices(state_dir)
        self._made: Rules | None = None

    @property
    def _rules(self) -> Rules:
        if self._made is None:
            from kurma_net_bridge.packet_filter.rules import Rules

            self._made = Rules(self._note)
        return self._made

    # -- configuration --

    @hookimpl
    def setup(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: the configuration is wrong."""
        parse_settings(config)

    @hookimpl
    def check_config(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: the configuration is wrong."""
        parse_settings(with_any(config))

    @hookimpl
    def complete(self, config: Mapping[str, Json], choose: bool) -> Mapping[str, Json] | None:
        """Chooses ``bridge`` and ``subnets`` where the configuration leaves them open."""
        return self._choices.complete(config, choose)

    @hookimpl
    def publishes(self, config: Mapping[str, Json]) -> bool:
        """Whether the network can publish ports: every bridge network can."""
        return True

    @hookimpl
    def status(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: pods could not join now, and why."""
        from kurma_net_bridge.repair import status

        status(self._records(config["name"]), parse_settings(config), self._rules)

    # -- joining and leaving --

    @hookimpl
    def add(self, context: AttachmentContext) -> NetworkResult:
        """Joins a pod to the network. Everything is recorded before it is made in the kernel.

        :raises NetworkError: it failed; ``delete`` undoes what was done.
        """
        attachment = context.attachment
        settings = parse_settings(attachment.config)
        wanted_mac = _checked_mac(settings.name, attachment.request.mac)
        records = self._records(settings.name)
        owner = owner_name(context.pod, context.interface)
        with records.lock():
            record = records.keep(settings)
            addresses = records.addresses.take(settings.subnets, owner, attachment.request.ips)
            plain = tuple([subnet.text(address) for subnet, address in addresses])
            if attachment.ports:
                records.publish(owner, plain, attachment.ports)
            try:
                with Netlink() as netlink:
                    if record.former:
                        record = self._retire(netlink, records, settings, record)
                    bridge, new = links.ensure_bridge(netlink, settings, record.id)
                    if new:
                        self._put_back(netlink, records, settings, bridge)
                    rules = network_rules(record)
                    if self._rules.ensure(rules):
                        self._publish_again(netlink, records, rules)
                    mac = wanted_mac or links.pod_mac(addresses[0])
                    mac = self._join(netlink, context, settings, bridge, records, addresses, mac)
            except NetlinkError as error:
                raise refused(settings.name, error) from error
            if attachment.ports:
                with records.publishing(owner):
                    self._rules.publish(rules, context.pod, plain, attachment.ports)
        return _result(settings, context, addresses, mac)

    def _join(
        self,
        netlink: Netlink,
        context: AttachmentContext,
        settings: Settings,
        bridge: Link,
        records: NetworkRecords,
        addresses: list[tuple[Subnet, int]],
        mac: bytes,
    ) -> bytes:
        """Makes the pair of interfaces, with the pod's addresses and routes. :returns: the MAC of the pod's."""
        owner = Owner(records.id(), context.pod, context.interface)
        namespace = open_namespace(context)
        try:
            try:
                links.make_pair(netlink, settings, bridge, owner, namespace, mac)
            except NetlinkError as error:
                # Left by an interrupted join of this pod, which alone uses the name.
                name = links.host_end(context.pod, context.interface)
                if error.errno != errno.EEXIST or not netlink.delete_link(name):
                    raise
                records.addresses.free(owner_name(context.pod, context.interface), addresses)
                links.make_pair(netlink, settings, bridge, owner, namespace, mac)
        finally:
            os.close(namespace)
        mac = inside(context, lambda: links.furnish(settings, context.interface, addresses))
        links.wait_for_port(netlink, owner)
        return mac

    @staticmethod
    def _retire(netlink: Netlink, records: NetworkRecords, settings: Settings, record: Record) -> Record:
        """Removes the gateways of subnets of an earlier configuration."""
        from kurma_net_bridge.repair import retire

        return retire(netlink, records, settings, record)

    @staticmethod
    def _put_back(netlink: Netlink, records: NetworkRecords, settings: Settings, bridge: Link) -> None:
        """Attaches the pods of a removed bridge to the new one."""
        from kurma_net_bridge.repair import put_back

        put_back(netlink, records, settings, bridge)

    def _publish_again(self, netlink: Netlink, records: NetworkRecords, rules: NetworkRules) -> None:
        """Publishes the ports of other pods again after a flush of the rules."""
        for owner in records.publishers():
            pod, _, interface = owner.partition(":")
            published = records.published(owner)
            if published is not None and netlink.link(links.host_end(pod, interface)) is not None:
                self._rules.publish(rules, pod, *published)

    @hookimpl
    def delete(self, context: AttachmentContext) -> None:
        """Takes a pod out of the network. It works without records, and without the pod's namespace, too.

        :raises NetworkError: a part cannot be removed.
        """
        name = context.attachment.network
        records = self._records(name)
        owner = owner_name(context.pod, context.interface)
        if context.attachment.ports or records.has_published(owner):
            records.settle(owner)
            self._rules.withdraw(self._rules_of(records, context.attachment.config), context.pod)
        try:
            links.remove_pair(links.host_end(context.pod, context.interface))
        except NetlinkError as error:
            raise refused(name, error) from error
        if os.path.isdir(records.directory):
            with records.lock():
                records.addresses.free(owner)
                records.withdraw(owner)
            self._forget_unmade(records)

    def _forget_unmade(self, records: NetworkRecords) -> None:
        """Removes the records of a network whose first join failed before anything was made."""
        record = records.read()
        if record is None:
            return
        with Netlink() as netlink:
            bridge = netlink.link(record.bridge)
        if bridge is None or not links.is_ours(bridge, record.id):
            from kurma_net_bridge.repair import forget_unmade

            forget_unmade(records, self._rules)

    @hookimpl
    def check(self, context: AttachmentContext) -> None:
        """Checks a pod's attachment. :raises NetworkError: the pod is not joined, or the attachment has
        changed."""
        from kurma_net_bridge.repair import check

        settings = parse_settings(context.attachment.config)
        found = check(self._records(settings.name), settings, context, lambda: self._rules)
        if found:
            raise NetworkError(
                f'network "{settings.name}" of pod {context.pod}: {"; ".join(found)}', network=settings.name
            )

    # -- the network itself --

    @hookimpl
    def remove(self, config: Mapping[str, Json]) -> None:
        """Removes the network's rules, bridge and records, and what was chosen for it.

        :raises NetworkError: pods are joined to it, or a foreign interface is attached to its bridge.
        """
        from kurma_net_bridge.repair import remove_network

        completed = self._choices.complete(config, choose=False)
        if completed is None:
            return  # never used
        settings = parse_settings(completed)
        records = self._records(settings.name)
        if os.path.isdir(records.directory) or self._has_bridge(settings.bridge):
            remove_network(records, settings.bridge, self._rules_of(records, completed), self._rules)
        self._choices.forget(settings.name)

    def _has_bridge(self, name: str) -> bool:
        with Netlink() as netlink:
            return netlink.link(name) is not None

    # -- check and repair --

    @hookimpl
    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """As :class:`kurma_core.hookspecs.network.NetworkHooks` has it."""
        from kurma_net_bridge.repair import Repair

        return Repair(self._state_dir, self._rules).leaks(configs, pods)

    @hookimpl
    def repair(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """As :class:`kurma_core.hookspecs.network.NetworkHooks` has it."""
        from kurma_net_bridge.repair import Repair

        return Repair(self._state_dir, self._rules).repair(configs, pods)

    def _records(self, network: str) -> NetworkRecords:
        return NetworkRecords(self._state_dir, network)

    @staticmethod
    def _rules_of(records: NetworkRecords, config: Mapping[str, Json]) -> NetworkRules:
        """The network's rules from its record; without a record, from its configuration."""
        record = records.read()
        return network_rules(record or records.wanted(parse_settings(config)))


def _checked_mac(network: str, text: str | None) -> bytes | None:
    """Parses the requested MAC; None: there is none. :raises NetworkError: an interface cannot have it."""
    if not text:
        return None
    try:
        mac = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        mac = b""
    why = "it is no MAC address"
    if len(mac) == 6:
        why = "it is a multicast address" if mac[0] & 1 else "all of it is zero" if not any(mac) else ""
    if why:
        raise NetworkError(
            f'network "{network}" cannot give a pod the MAC address {text}: {why}',
            hint="use a locally administered address, such as 02:00:00:00:00:07",
            network=network,
        )
    return mac


def _result(
    settings: Settings, context: AttachmentContext, addresses: list[tuple[Subnet, int]], mac: bytes
) -> NetworkResult:
    """The result, with the result document of CNI 1.0.0."""
    given = tuple(
        [
            AddressResult(f"{subnet.text(address)}/{subnet.length}", subnet.text(subnet.gateway))
            for subnet, address in addresses
        ]
    )
    routes = tuple([(str(route), text_of(route.family, gateway)) for route, gateway in links.pod_routes(settings)])
    raw = {
        "cniVersion": "1.0.0",
        "interfaces": [
            {"name": settings.bridge},
            {"name": links.host_end(context.pod, context.interface)},
            {"name": context.interface, "mac": mac.hex(":"), "sandbox": context.namespace},
        ],
        "ips": [{"address": one.address, "gateway": one.gateway, "interface": 2} for one in given],
        "routes": [{"dst": destination, "gw": gateway} for destination, gateway in routes],
    }
    return NetworkResult(addresses=given, routes=routes, raw=raw)
