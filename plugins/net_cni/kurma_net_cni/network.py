"""The driver: a pod joins and leaves a network by running the plugins of its chain (W7)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from kurma_core.appc.cni_result import parse_result
from kurma_core.errors import NetworkError
from kurma_core.hookspecs.network import AttachmentContext, Leak
from kurma_core.models.network import NetworkResult
from kurma_core.value import replace
from kurma_net_cni.chain import (
    Chain,
    arguments_in_environment,
    document,
    garbage_document,
    parse_chain,
    plain_document,
    types,
)
from kurma_net_cni.discover import discover
from kurma_net_cni.execute import Executor
from kurma_net_cni.namespace import has_interface, intact, is_namespace
from kurma_net_cni.records import Record, Records

if TYPE_CHECKING:
    from kurma_net_cni.care import Care

Json = Any


class CniNetwork:
    """Serves every network whose configuration is CNI's.

    :param executor: runs plugins.
    :param records: what was added.
    :param config_dirs: directories of CNI's own configuration files.
    :param neighbours: where the state directories of this host are known that have networks with GC.
    """

    def __init__(
        self,
        executor: Executor,
        records: Records,
        config_dirs: tuple[str, ...],
        note: Callable[[str], None],
        neighbours: str = "/run/kurma/cni",
    ) -> None:
        self._executor = executor
        self._records = records
        self._config_dirs = config_dirs
        self._note = note
        self._neighbours = neighbours

    # -- what there is --

    def setup(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: the configuration is wrong, names a program that is not there, or a plugin says
        that it is not ready (STATUS, CNI 1.1.0).
        """
        chain = self._chain(config)
        self._find_programs(chain)
        self._ask_status(chain)

    def check_config(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: the configuration is wrong. Whether its programs are there is not asked."""
        parse_chain(config)

    def status(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: as :meth:`setup`, or a plugin does not speak the configuration's version."""
        chain = self._chain(config)
        self._find_programs(chain)
        for kind in types(chain):
            spoken = self._executor.versions(kind, chain.name)
            if chain.version not in spoken:
                raise NetworkError(
                    f'network "{chain.name}" is of CNI {chain.version}, and its plugin {kind} speaks '
                    f"{', '.join(spoken) or 'no version at all'}",
                    hint="cniVersion is to be a version that all of its plugins speak",
                    network=chain.name,
                    plugin=kind,
                )
        self._ask_status(chain)

    def _find_programs(self, chain: Chain) -> None:
        for kind in types(chain):
            self._executor.find(kind, chain.name)

    def _ask_status(self, chain: Chain) -> None:
        if chain.has_gc:
            for plugin in chain.plugins:
                self._executor.execute("STATUS", plugin["type"], plain_document(chain, plugin))

    def _chain(self, config: Mapping[str, Json], version: str = "") -> Chain:
        """The network's chain, in the version that was spoken at ADD, or the highest that all of it speaks."""
        chain = parse_chain(config)
        if version in chain.versions:
            return replace(chain, version=version)
        if len(chain.versions) > 1:
            spoken = [self._executor.versions(kind, chain.name) for kind in types(chain)]
            for one in chain.versions:
                if all(one in each for each in spoken):
                    return replace(chain, version=one)
            raise NetworkError(
                f'network "{chain.name}" is of CNI {", ".join(chain.versions)}, and its plugins have none of '
                "these in common",
                network=chain.name,
            )
        return chain

    def discover(self) -> Mapping[str, Mapping[str, Json]]:
        """The networks of ``config_dirs``, by name."""
        return discover(self._config_dirs, self._note)

    def publishes(self, config: Mapping[str, Json]) -> bool:
        """Whether the network can lead ports of the host into the pod."""
        return parse_chain(config).declares("portMappings")

    def limits(self, config: Mapping[str, Json]) -> bool:
        """Whether the network holds a pod to its rates itself, by the capability ``bandwidth``."""
        from kurma_net_cni.flaws import has_rates

        chain = parse_chain(config)
        return chain.declares("bandwidth") and not any(has_rates(plugin) for plugin in chain.plugins)

    # -- joining and leaving --

    def add(self, context: AttachmentContext) -> NetworkResult:
        """Runs ADD of each plugin, in order; each is told the result so far.

        :raises NetworkError: a plugin failed; ``delete`` undoes what the earlier ones did.
        """
        chain = self._chain(context.attachment.config)
        if context.attachment.ports and not chain.declares("portMappings"):
            raise NetworkError(
                f'network "{chain.name}" cannot publish ports: no plugin of it has the capability portMappings',
                network=chain.name,
            )
        record = _record(context, chain.version)
        if chain.has_gc:
            from kurma_net_cni.neighbours import enrol

            enrol(self._records.state_dir, self._neighbours)
        with self._records.lock():
            self._records.write(record)
            for plugin in chain.plugins:
                try:
                    result = self._execute("ADD", chain, plugin, context, context.namespace, record.result)
                except NetworkError as error:
                    refused = _reason(error) if record.result is None else None
                    self._records.write(replace(record, refused=refused, joined=True))
                    raise
                parsed = parse_result(result, chain.name)
                if not result.get("cniVersion"):  # it is the configuration's then
                    result["cniVersion"] = chain.version
                record = replace(record, result=result, joined=plugin is chain.plugins[-1])
                self._records.write(record)
        return parsed

    def delete(self, context: AttachmentContext) -> None:
        """Runs DEL of each plugin in reverse order; none is left out because another failed.

        :raises NetworkError: a plugin failed: names each.
        """
        with self._records.lock():
            begun = self._records.exists(context)
            known = self._records.read(context)
            try:
                chain = parse_chain(context.attachment.config)
                if not begun and not self._installed(chain):
                    return  # its programs are not there, and none of them has ever run for this pod
                chain = self._chain(context.attachment.config, known.version if known else "")
            except NetworkError:
                if begun:
                    raise
                return  # a configuration that is refused before any program runs: there is nothing to leave
            record = known or _record(context, chain.version)
            if known is not None and (known.leaving or not known.joined):
                from kurma_core.linux import cni_orphans

                cni_orphans.end(context.pod)
            namespace = context.namespace if is_namespace(context.namespace) else ""
            # The plugins' DEL is thorough only the first time, and while the interface is as they made it.
            thorough = known is not None and not known.leaving and intact(context, known.result)
            record = replace(record, leaving=True)
            self._records.write(record)
            record, failures = self._delete_chain(chain, context, namespace, record)
            if failures or not thorough:
                from kurma_net_cni.leftovers import sweep

                sweep(chain.name, context.pod, record.result)
            if failures:  # some stumble over rules that they do not expect, and succeed once these are gone
                record, failures = self._delete_chain(chain, context, namespace, record)
            if failures:
                record, failures = self._delete_baseless(chain, context, namespace, record, failures)
            # A configuration that a plugin does not understand, it understands at DEL no better; nothing was made.
            failures = [one for one in failures if record.refused is None or _reason(one) != record.refused]
            if not begun:
                failures = []  # nothing was there to be left: they were asked to be on the safe side
            if failures:
                raise NetworkError("; ".join([error.message for error in failures]), network=chain.name)
            self._records.remove(context)

    def _installed(self, chain: Chain) -> bool:
        try:
            self._find_programs(chain)
        except NetworkError:
            return False
        return True

    def _delete_chain(
        self, chain: Chain, context: AttachmentContext, namespace: str, record: Record
    ) -> tuple[Record, list[NetworkError]]:
        """DEL of those that have not succeeded yet; the record with those that have, and the failures."""
        failures = []
        for place, plugin in reversed(tuple(enumerate(chain.plugins))):
            if place in record.left:
                continue
            try:
                self._execute("DEL", chain, plugin, context, namespace, record.result if chain.has_check else None)
            except NetworkError as error:
                failures.append(error)
            else:
                record = replace(record, left=(*record.left, place))
                self._records.write(record)
        return record, failures

    def _delete_baseless(
        self,
        chain: Chain,
        context: AttachmentContext,
        namespace: str,
        record: Record,
        failures: list[NetworkError],
    ) -> tuple[Record, list[NetworkError]]:
        """Where the pod's interface is gone with the host's that it was made of, some plugins fail before they
        have given back its addresses: then these are given back in their place.
        """
        from kurma_net_cni.flaws import LINK_ALONE

        plugin = chain.plugins[0]
        if 0 in record.left or plugin["type"] not in LINK_ALONE or has_interface(namespace, context.interface):
            return record, failures
        kind = (plugin.get("ipam") or {}).get("type")
        try:
            if kind:
                previous = record.result if chain.has_check else None
                self._execute("DEL", chain, plugin, context, namespace, previous, program=kind)
        except NetworkError as error:
            return record, [*failures, error]
        record = replace(record, left=(*record.left, 0))
        self._records.write(record)
        return record, failures[:-1]  # the first of the chain was the last to be asked

    def check(self, context: AttachmentContext) -> None:
        """Runs CHECK of each plugin, where the configuration's version has it (0.4.0 on) and wants it.

        :raises NetworkError: nothing was added, or it is not as it was.
        """
        name = context.attachment.network
        record = self._records.read(context)
        if record is None or record.leaving or record.result is None:
            raise NetworkError(f'pod {context.pod} is not joined to network "{name}"', network=name)
        chain = self._chain(context.attachment.config, record.version)
        if chain.has_check and not chain.disable_check:
            for plugin in chain.plugins:
                self._check_plugin(chain, plugin, context, record.result)

    def _check_plugin(
        self, chain: Chain, plugin: Mapping[str, Json], context: AttachmentContext, result: Json
    ) -> None:
        from kurma_net_cni.flaws import cannot_check, ports_stand

        if cannot_check(plugin["type"], document(chain, plugin, context.attachment)):
            return
        try:
            self._execute("CHECK", chain, plugin, context, context.namespace, result)
        except NetworkError:
            ports = context.attachment.ports
            if plugin["type"] != "portmap" or not ports_stand(chain.name, context.pod, ports, result):
                raise

    def _execute(
        self,
        verb: str,
        chain: Chain,
        plugin: Mapping[str, Json],
        context: AttachmentContext,
        namespace: str,
        previous: Json,
        program: str = "",
    ) -> Json:
        from kurma_net_cni.flaws import MAKE_CHAINS
        from kurma_net_cni.neighbours import alone

        with alone(self._neighbours) if verb == "ADD" and plugin["type"] in MAKE_CHAINS else nullcontext():
            return self._executor.execute(
                verb,
                program or plugin["type"],
                document(chain, plugin, context.attachment, previous),
                pod=context.pod,
                namespace=namespace,
                interface=context.interface,
                arguments=arguments_in_environment(chain, context.attachment),
            )

    # -- what pods share --

    def remove(self, config: Mapping[str, Json]) -> None:
        """Takes away the bridge of the network, its empty address reservations, and the base chains of the
        plugins where nothing else is in them.

        :raises NetworkError: pods are joined to it, or something foreign hangs on its bridge.
        """
        chain = parse_chain(config)
        with self._records.lock(alone=True):
            pods = self._records.pods(chain.name)
            if pods:
                raise NetworkError(
                    f'network "{chain.name}" is in use by {", ".join(pods)}',
                    hint="stop and remove these pods first",
                    network=chain.name,
                )
            from kurma_net_cni.shared import remove_shared

            remove_shared(chain)

    # -- what is left behind --

    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Attachments of pods that are gone, and addresses and chains of our pods that they are not joined by."""
        return self._care().leaks(configs, pods)

    def mend(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Leaves, frees, and has plugins of CNI 1.1.0 clean up by GC; what is left."""
        left = self._care().mend(configs, pods)
        return [*left, *(leak for config in configs for leak in self._clean(config, pods))]

    def _care(self) -> Care:
        from kurma_net_cni.care import Care

        return Care(self._records, self.delete, self._note)

    def _clean(self, config: Mapping[str, Json], pods: Collection[str]) -> list[Leak]:
        """GC of one network, whatever fails; the failures.

        Not of networks of CNI's own directory: those are joined by other runtimes too, whose attachments nobody
        tells us.
        """
        if dict(config) in [{**found, "name": name} for name, found in self.discover().items()]:
            return []
        try:
            chain = self._chain(config)
        except NetworkError as error:
            self._note(error.message)
            return []
        if not chain.has_gc or chain.disable_gc:
            return []
        from kurma_net_cni.neighbours import everybody

        failures = []
        with everybody(self._records.state_dir, self._neighbours) as all_records:
            valid = [
                (pod, interface)
                for records in all_records
                for network, pod, interface in records.attachments()
                if network == chain.name and (pod in pods or records is not all_records[0])
            ]
            for plugin in chain.plugins:
                try:
                    self._executor.execute("GC", plugin["type"], garbage_document(chain, plugin, valid))
                except NetworkError as error:
                    self._note(error.message)
                    failures.append(Leak("network", f'network "{chain.name}"', error.message, chain.name))
        return failures


def _record(context: AttachmentContext, version: str) -> Record:
    """The record of an ADD that has not begun."""
    attachment = replace(context.attachment, result=None).to_json()
    return Record(
        network=context.attachment.network,
        pod=context.pod,
        interface=context.interface,
        version=version,
        pod_name=context.pod_name,
        namespace=context.namespace,
        attachment=attachment,
    )


def _reason(error: NetworkError) -> str | None:
    """A plugin's own words, of an error that it has answered as the CNI specification says; None: it has not."""
    if error.data.get("code") is None:
        return None
    return f"{error.data.get('plugin')}{error.message.partition(' failed: ')[2]}"
