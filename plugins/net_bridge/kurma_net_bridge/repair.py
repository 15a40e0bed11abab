"""Checks bridge networks and repairs them: status, leaks of pods that are gone, bridges and rules to restore."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kurma_core.errors import KurmaError, NetworkError
from kurma_core.hookspecs.network import AttachmentContext, Leak
from kurma_core.linux.netlink import Link, Netlink, NetlinkError
from kurma_net_bridge import links
from kurma_net_bridge.addresses import describe, owner_name
from kurma_net_bridge.links import Owner
from kurma_net_bridge.namespace import inside, refused
from kurma_net_bridge.records import NetworkRecords, Record, known_networks, network_rules
from kurma_net_bridge.settings import Settings, parse_settings
from kurma_net_bridge.subnets import Subnet, parse_cidr

if TYPE_CHECKING:
    from kurma_net_bridge.packet_filter.network_rules import NetworkRules
    from kurma_net_bridge.packet_filter.rules import Rules

Json = Any


def status(records: NetworkRecords, settings: Settings, rules: Rules) -> None:
    """Checks whether pods can join the network now. :raises NetworkError: they cannot; has the reason."""
    taken = records.addresses.taken()
    for subnet in settings.subnets:
        first, last = subnet.usable
        if sum(family == subnet.family and first <= number <= last for family, number in taken) > last - first:
            raise NetworkError(
                f'network "{settings.name}": no address of {subnet} is free',
                hint="remove pods; `kurma gc` frees addresses of missing pods",
                network=settings.name,
            )
        if subnet.family == 6 and not os.path.exists("/proc/net/if_inet6"):
            raise NetworkError(
                f'network "{settings.name}": this host has no IPv6, which {subnet} needs', network=settings.name
            )
    try:
        with Netlink() as netlink:
            links.find_bridge(netlink, settings, records.id())
    except NetlinkError as error:
        raise refused(settings.name, error) from error
    rules.check(network_rules(records.wanted(settings)))


def check(
    records: NetworkRecords, settings: Settings, context: AttachmentContext, rules: Callable[[], Rules]
) -> list[str]:
    """Describes each problem of a pod's attachment; empty: there is none.

    :raises NetworkError: the check itself failed.
    """
    addresses = records.addresses.of(owner_name(context.pod, context.interface))
    if not addresses:
        return ["it is not joined"]
    network_id = records.id()
    try:
        with Netlink() as netlink:
            bridge = links.find_bridge(netlink, settings, network_id)
            name = links.host_end(context.pod, context.interface)
            port = netlink.link(name)
            found = [
                f"bridge {settings.bridge} is {problem}"
                for problem in links.bridge_problems(netlink, settings, network_id, bridge)
            ]
        if bridge is not None and not links.port_is_right(port, settings, bridge):
            found.append(f"interface {name} is " + ("missing" if port is None else "not as it was"))
        found += inside(context, lambda: links.furnishing_problems(settings, context.interface, addresses))
    except NetlinkError as error:
        raise refused(settings.name, error) from error
    if context.attachment.ports:
        ours = {pod for each, pod, _ in rules().found() if each == network_id}
        if not {"", context.pod} <= ours:
            found.append("rules are missing of its ports")
    return found


def retire(netlink: Netlink, records: NetworkRecords, settings: Settings, record: Record) -> Record:
    """Removes the gateways of former subnets from the bridge, except of those in which pods still have addresses.

    :returns: the new record.
    """
    taken = records.addresses.taken()
    gone = [each for each in _subnets(record.former) if not _users(settings, each, taken)]
    if not gone:
        return record
    bridge = netlink.link(record.bridge)
    if bridge is not None and links.is_ours(bridge, record.id):
        links.take_gateways_off(netlink, bridge, gone)
    return records.retire(record, [str(each) for each in gone])


def _subnets(texts: Iterable[str]) -> list[Subnet]:
    parsed = [parse_cidr(each) for each in texts]
    return [Subnet(*each) for each in parsed if each is not None]


def _users(
    settings: Settings, former: Subnet, taken: Mapping[tuple[int, int], str]
) -> list[tuple[tuple[int, int], str]]:
    """The addresses that need the gateway of a former subnet, with their owners."""
    now = settings.subnet(former.family)
    found = []
    for (family, number), owner in sorted(taken.items()):
        if owner and family == former.family and former.contains(number):
            served = now is not None and now.contains(number) and now.gateway == former.gateway
            found += [] if served else [((family, number), owner)]
    return found


def put_back(netlink: Netlink, records: NetworkRecords, settings: Settings, bridge: Link) -> None:
    """Attaches pods' interfaces to the bridge again, and restores their settings."""
    for owner, link in _living(netlink, records):
        if not links.port_is_right(link, settings, bridge):
            try:
                links.restore_port(netlink, settings, owner, bridge)
            except NetlinkError as error:
                if error.errno != errno.ENODEV:  # the pod has left meanwhile
                    raise
    if not bridge.alias:
        links.tell_of_bridge(netlink, settings, records.id())


def forget_unmade(records: NetworkRecords, rules: Rules) -> None:
    """Removes the records of a network without pods that has nothing in the kernel."""
    with records.lock(alone=True), Netlink() as netlink:
        record = records.read()
        if record is None or records.addresses.taken() or records.publishers():
            return
        bridge = netlink.link(record.bridge)
        made = bridge is not None and links.is_ours(bridge, record.id)
        if not made and all(network_id != record.id for network_id, _, _ in rules.found()):
            records.forget()


def remove_network(records: NetworkRecords, bridge: str, network: NetworkRules, rules: Rules) -> None:
    """Removes the rules, bridge and records of a network without pods.

    :raises NetworkError: pods are joined, or a foreign interface is attached to the bridge.
    """
    with records.lock(alone=True):
        owners = sorted({owner.partition(":")[0] for owner in records.addresses.taken().values()})
        if owners:
            who = ", ".join([owner or "something that is not Kurma's" for owner in owners])
            raise NetworkError(
                f'network "{records.network}" is in use by {who}',
                hint="stop and remove these pods first; `kurma gc` frees addresses of missing pods",
                network=records.network,
            )
        try:
            with Netlink() as netlink:
                _remove_bridge(netlink, records.network, bridge, network.id)
        except NetlinkError as error:
            raise refused(records.network, error) from error
        rules.remove(network)
        records.forget()


def _remove_bridge(netlink: Netlink, network: str, bridge: str, network_id: str) -> None:
    link = netlink.link(bridge)
    if link is None or link.name != bridge or not links.is_ours(link, network_id):
        return  # another program's bridge stays
    ports = netlink.links(master=link.index)
    if ports:
        names = ", ".join([one.name for one in ports])
        raise NetworkError(f'network "{network}": its bridge {bridge} is in use by {names}', network=network)
    netlink.delete_link(bridge)


class Repair:
    """Checks and repairs all bridge networks of a state directory."""

    def __init__(self, state_dir: str, rules: Rules) -> None:
        self._state_dir = state_dir
        self._rules = rules

    # -- check --

    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> list[Leak]:
        """Lists the leaks. :raises NetworkError: the check itself failed."""
        with Netlink() as netlink:
            pairs = netlink.links(kind="veth")
        found = list(self._rules.found())
        networks = {name: NetworkRecords(self._state_dir, name) for name in self._names(configs)}
        ids = {records.id(): name for name, records in networks.items()}
        return [
            *self._address_leaks(networks, pods),
            *self._interface_leaks(networks, ids, pairs, pods),
            *self._rule_leaks(networks, ids, found, pods),
            *self._damages(configs, networks, ids, found),
            *self._forgotten(configs, networks),
        ]

    def _names(self, configs: Sequence[Mapping[str, Json]]) -> list[str]:
        return sorted({*known_networks(self._state_dir), *(config["name"] for config in configs)})

    @staticmethod
    def _address_leaks(networks: Mapping[str, NetworkRecords], pods: Collection[str]) -> Iterator[Leak]:
        for name, records in networks.items():
            for address, owner in sorted(records.addresses.taken().items()):
                pod = owner.partition(":")[0]
                if owner and pod not in pods:
                    yield Leak("address", describe(address), f"its pod {pod} is gone", name, pod)

    @staticmethod
    def _interface_leaks(
        networks: Mapping[str, NetworkRecords],
        ids: Mapping[str, str],
        pairs: Sequence[Link],
        pods: Collection[str],
    ) -> Iterator[Leak]:
        """Finds interfaces by alias; and, if the maker was killed before it set one, by the name from the
        record."""
        names: dict[str, tuple[str, str]] = {}
        for network, records in networks.items():
            for owner in records.addresses.taken().values():
                pod, _, interface = owner.partition(":")
                names[links.host_end(pod, interface)] = network, pod
        for link in pairs:
            owner_said = links.owner_of(link)
            if owner_said is not None and owner_said.network_id in ids:
                names[link.name] = ids[owner_said.network_id], owner_said.pod
            network, pod = names.get(link.name, ("", ""))
            if pod and pod not in pods:
                yield Leak("interface", f"interface {link.name}", f"its pod {pod} is gone", network, pod)

    @staticmethod
    def _rule_leaks(
        networks: Mapping[str, NetworkRecords],
        ids: Mapping[str, str],
        found: Sequence[tuple[str, str, str]],
        pods: Collection[str],
    ) -> Iterator[Leak]:
        for network_id, pod, what in found:
            if network_id in ids and pod and pod not in pods:
                yield Leak("rule", what, f"its pod {pod} is gone", ids[network_id], pod)
        for name, records in networks.items():
            for owner in records.publishers():
                pod = owner.partition(":")[0]
                if pod not in pods:
                    yield Leak("record", f"published ports of {owner}", f"its pod {pod} is gone", name, pod)

    def _damages(
        self,
        configs: Sequence[Mapping[str, Json]],
        networks: Mapping[str, NetworkRecords],
        ids: Mapping[str, str],
        found: Sequence[tuple[str, str, str]],
    ) -> Iterator[Leak]:
        """The damages of networks with pods whose interfaces exist: after a reboot there is nothing to repair."""
        ruled = {network_id for network_id, _, _ in found}
        published = {(network_id, pod) for network_id, pod, _ in found}
        for settings, records in _configured(configs, networks):
            network_id = records.id()
            with Netlink() as netlink:
                living = _living(netlink, records)
                yield from _old_subnets(netlink, settings, records, living)
                if not living:
                    continue
                try:
                    bridge = links.find_bridge(netlink, settings, network_id)
                except NetworkError as error:
                    yield Leak("bridge", f"bridge {settings.bridge}", error.message, settings.name)
                    continue
                for problem in links.bridge_problems(netlink, settings, network_id, bridge):
                    yield Leak("bridge", f"bridge {settings.bridge}", f"it is {problem}", settings.name)
                for owner, link in living:
                    if bridge is None or not links.port_is_right(link, settings, bridge):
                        why = "it is not on its bridge as it should be"
                        yield Leak("interface", f"interface {link.name}", why, settings.name, owner.pod)
            if network_id not in ruled:
                yield Leak("rule", f"rules of network {settings.name}", "they are missing", settings.name)
            for owner, _ in living:
                name = owner_name(owner.pod, owner.interface)
                if records.published(name) is not None and (network_id, owner.pod) not in published:
                    what = f"rules of the ports of pod {owner.pod}"
                    yield Leak("rule", what, "they are missing", settings.name, owner.pod)

    @staticmethod
    def _forgotten(
        configs: Sequence[Mapping[str, Json]], networks: Mapping[str, NetworkRecords]
    ) -> Iterator[Leak]:
        """Networks that are no longer configured and have no pods."""
        names = {config["name"] for config in configs}
        for name, records in networks.items():
            record = records.read()
            if name not in names and record is not None and not records.addresses.taken():
                why = "the network is configured no more"
                yield Leak("network", f"bridge {record.bridge}, its rules and its record", why, name)

    # -- repair --

    def repair(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> list[Leak]:
        """Repairs leaks. :returns: the remaining ones. :raises NetworkError: the check itself failed."""
        networks = {name: NetworkRecords(self._state_dir, name) for name in self._names(configs)}
        for leak in self.leaks(configs, pods):
            records = networks[leak.network]
            try:
                if leak.pod and leak.pod not in pods:
                    self._free(records, leak)
                elif leak.kind == "network":
                    self._remove(records)
            except KurmaError:
                continue  # the leak is reported below, since it still exists
        for settings, records in _configured(configs, networks):
            try:
                self._restore(settings, records)
            except (KurmaError, NetlinkError):
                continue
        return self.leaks(configs, pods)

    def _free(self, records: NetworkRecords, leak: Leak) -> None:
        """Removes the resources of a pod that is gone from a network: rules, then interfaces, then records."""
        # If the record is torn, the rules are found by the network's id only.
        record = records.read() or Record(records.id(), records.network, "torn", (), False, False)
        owners = {each for each in records.addresses.taken().values() if each.partition(":")[0] == leak.pod}
        owners |= {each for each in records.publishers() if each.partition(":")[0] == leak.pod}
        for each in owners:
            records.settle(each)
        self._rules.withdraw(network_rules(record), leak.pod)
        with Netlink() as netlink:
            for link in netlink.links(kind="veth"):
                owner = links.owner_of(link)
                if owner is not None and (owner.network_id, owner.pod) == (records.id(), leak.pod):
                    netlink.delete_link(link.name)
            for each in owners:
                pod, _, interface = each.partition(":")
                netlink.delete_link(links.host_end(pod, interface))
        with records.lock():
            for each in owners:
                records.addresses.free(each)
                records.withdraw(each)

    def _remove(self, records: NetworkRecords) -> None:
        record = records.read()
        if record is not None:
            remove_network(records, record.bridge, network_rules(record), self._rules)

    def _restore(self, settings: Settings, records: NetworkRecords) -> None:
        """Restores bridge, ports and rules of a network with pods, where they were removed or flushed."""
        with records.lock(), Netlink() as netlink:
            living = _living(netlink, records)
            if not living and not records.wanted(settings).former:
                return
            record = retire(netlink, records, settings, records.keep(settings))
            if not living:
                return
            bridge, _ = links.ensure_bridge(netlink, settings, record.id)
            put_back(netlink, records, settings, bridge)
            rules = network_rules(record)
            self._rules.ensure(rules)
            for owner, _ in living:
                published = records.published(owner_name(owner.pod, owner.interface))
                if published is not None:
                    self._rules.publish(rules, owner.pod, *published)


def _configured(
    configs: Sequence[Mapping[str, Json]], networks: Mapping[str, NetworkRecords]
) -> Iterator[tuple[Settings, NetworkRecords]]:
    """The networks with a valid configuration; errors of the others are reported when they are used."""
    for config in configs:
        try:
            settings = parse_settings(config)
        except NetworkError:
            continue
        yield settings, networks[settings.name]


def _old_subnets(
    netlink: Netlink, settings: Settings, records: NetworkRecords, living: Sequence[tuple[Owner, Link]]
) -> Iterator[Leak]:
    """Leaks of subnets that the network had before its configuration changed."""
    record = records.wanted(settings)
    bridge = netlink.link(settings.bridge)
    names = {owner_name(owner.pod, owner.interface) for owner, _ in living}
    taken = {address: owner for address, owner in records.addresses.taken().items() if owner in names}
    for former in _subnets(record.former):
        why = f"{former} is not a subnet of the network any more"
        users = _users(settings, former, taken)
        for address, owner in users:
            pod = owner.partition(":")[0]
            advice = f"{why}: `kurma restart {pod}` gives its pod another"
            yield Leak("address", describe(address), advice, settings.name, pod)
        if users or bridge is None or not links.is_ours(bridge, record.id):
            continue
        if links.held_gateways(netlink, bridge, [former]):
            what = f"address {former.text(former.gateway)} of bridge {settings.bridge}"
            yield Leak("bridge", what, why, settings.name)


def _living(netlink: Netlink, records: NetworkRecords) -> list[tuple[Owner, Link]]:
    """The pods' interfaces that are recorded and exist in the kernel."""
    found = []
    network_id = records.id()
    for each in sorted(set(records.addresses.taken().values()) - {""}):
        pod, _, interface = each.partition(":")
        link = netlink.link(links.host_end(pod, interface))
        if link is not None:
            found.append((Owner(network_id, pod, interface), link))
    return found
