"""The network driver ``bridge``: joins pods to a bridge and takes them out, by netlink."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kurma_core.errors import NetworkError
from kurma_core.hookspecs.network import AttachmentContext, Leak
from kurma_core.linux.netlink import Link, Netlink, NetlinkError
from kurma_core.models.network import AddressResult, NetworkResult
from kurma_net_bridge import links
from kurma_net_bridge.addresses import owner_name
from kurma_net_bridge.links import Owner
from kurma_net_bridge.namespace import inside, open_namespace, refused
from kurma_net_bridge.records import NetworkRecords, Record, network_rules
from kurma_net_bridge.settings import Settings, parse_settings
from kurma_net_bridge.subnets import Subnet, text_of

if TYPE_CHECKING:
    from kurma_net_bridge.packet_filter.network_rules import NetworkRules
    from kurma_net_bridge.packet_filter.rules import Rules

Json = Any


class BridgeNetwork:
    """Serves every network of this kind. May be used by several threads, for different pods.

    :param state_dir: of this driver. :param note: tells the user something in one line.
    """

    def __init__(self, state_dir: str, note: Callable[[str], None]) -> None:
        self._state_dir = state_dir
        self._note = note
        self._made: Rules | None = None

    @property
    def _rules(self) -> Rules:
        if self._made is None:
            from kurma_net_bridge.packet_filter.rules import Rules

            self._made = Rules(self._note)
        return self._made

    # -- configuration --

    def setup(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: the configuration is wrong."""
        parse_settings(config)

    def check_config(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: the configuration is wrong."""
        parse_settings(config)

    def publishes(self, config: Mapping[str, Json]) -> bool:
        """Every bridge can lead ports of the host to its pods."""
        return True

    def status(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: pods could not join now, and why."""
        from kurma_net_bridge.repair import status

        status(self._records(config["name"]), parse_settings(config), self._rules)

    # -- joining and leaving --

    def add(self, context: AttachmentContext) -> NetworkResult:
        """Everything is on record before it is in the kernel.

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
        """The pair of interfaces, and what the pod's has. :returns: its MAC."""
        owner = Owner(records.id(), context.pod, context.interface)
        namespace = open_namespace(context)
        try:
            try:
                links.make_pair(netlink, settings, bridge, owner, namespace, mac)
            except NetlinkError as error:
                # Of a join that was broken off: the name is this pod's alone.
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
        """The configuration has had other subnets."""
        from kurma_net_bridge.repair import retire

        return retire(netlink, records, settings, record)

    @staticmethod
    def _put_back(netlink: Netlink, records: NetworkRecords, settings: Settings, bridge: Link) -> None:
        """The bridge was made anew: pods that were on the one before are off the network until they are on it."""
        from kurma_net_bridge.repair import put_back

        put_back(netlink, records, settings, bridge)

    def _publish_again(self, netlink: Netlink, records: NetworkRecords, rules: NetworkRules) -> None:
        """Publishes the ports of other pods again after a flush of the rules."""
        for owner in records.publishers():
            pod, _, interface = owner.partition(":")
            published = records.published(owner)
            if published is not None and netlink.link(links.host_end(pod, interface)) is not None:
                self._rules.publish(rules, pod, *published)

    def delete(self, context: AttachmentContext) -> None:
        """From what is on record, and from nothing; whatever there is goes, whether its namespace is there or not.

        :raises NetworkError: something is left.
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
        """Of a join that failed before there was anything of the network, nothing stays on record."""
        record = records.read()
        if record is None:
            return
        with Netlink() as netlink:
            bridge = netlink.link(record.bridge)
        if bridge is None or not links.is_ours(bridge, record.id):
            from kurma_net_bridge.repair import forget_unmade

            forget_unmade(records, self._rules)

    def check(self, context: AttachmentContext) -> None:
        """:raises NetworkError: the pod is not joined, or not as it was."""
        from kurma_net_bridge.repair import check

        settings = parse_settings(context.attachment.config)
        found = check(self._records(settings.name), settings, context, lambda: self._rules)
        if found:
            raise NetworkError(
                f'network "{settings.name}" of pod {context.pod}: {"; ".join(found)}', network=settings.name
            )

    # -- the network itself --

    def remove(self, config: Mapping[str, Json]) -> None:
        """Removes the network's rules, bridge and records.

        :raises NetworkError: pods are joined to it, or a foreign interface is attached to its bridge.
        """
        from kurma_net_bridge.repair import remove_network

        settings = parse_settings(config)
        records = self._records(settings.name)
        if os.path.isdir(records.directory) or self._has_bridge(settings.bridge):
            remove_network(records, settings.bridge, self._rules_of(records, config), self._rules)

    def _has_bridge(self, name: str) -> bool:
        with Netlink() as netlink:
            return netlink.link(name) is not None

    # -- looking after it --

    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """As :class:`kurma_core.hookspecs.network.NetworkCare` has it."""
        from kurma_net_bridge.repair import Repair

        return Repair(self._state_dir, self._rules).leaks(configs, pods)

    def mend(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """As :class:`kurma_core.hookspecs.network.NetworkCare` has it."""
        from kurma_net_bridge.repair import Repair

        return Repair(self._state_dir, self._rules).mend(configs, pods)

    def _records(self, network: str) -> NetworkRecords:
        return NetworkRecords(self._state_dir, network)

    @staticmethod
    def _rules_of(records: NetworkRecords, config: Mapping[str, Json]) -> NetworkRules:
        """As the network was when it was used last; where that is not on record, as it is configured."""
        record = records.read()
        return network_rules(record or records.wanted(parse_settings(config)))


def _checked_mac(network: str, text: str | None) -> bytes | None:
    """None: none is asked for. :raises NetworkError: no interface can have it."""
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
            hint="one that nobody else has begins with 02, e.g. 02:00:00:00:00:07",
            network=network,
        )
    return mac


def _result(
    settings: Settings, context: AttachmentContext, addresses: list[tuple[Subnet, int]], mac: bytes
) -> NetworkResult:
    """As CNI 1.0.0 would say it, too."""
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
