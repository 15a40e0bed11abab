"""The driver: a pod joins and leaves a network by running the plugins of its chain (W7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kurma_core.appc.cni_result import parse_result
from kurma_core.errors import NetworkError
from kurma_core.hookspecs import AttachmentContext
from kurma_core.models import NetworkResult
from kurma_core.value import replace
from kurma_net_cni.chain import Chain, arguments_in_environment, document, parse_chain, types
from kurma_net_cni.discover import discover
from kurma_net_cni.execute import Executor
from kurma_net_cni.namespace import intact, is_namespace
from kurma_net_cni.records import Record, Records

Json = Any


class CniNetwork:
    """Serves every network whose configuration is CNI's.

    :param executor: runs plugins.
    :param records: what was added.
    :param config_dirs: directories of CNI's own configuration files.
    """

    def __init__(
        self, executor: Executor, records: Records, config_dirs: tuple[str, ...], note: Callable[[str], None]
    ) -> None:
        self._executor = executor
        self._records = records
        self._config_dirs = config_dirs
        self._note = note

    # -- what there is --

    def setup(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: the configuration is wrong, or names a program that is not there."""
        chain = parse_chain(config)
        for kind in types(chain):
            self._executor.find(kind, chain.name)

    def discover(self) -> Mapping[str, Mapping[str, Json]]:
        """The networks of ``config_dirs``, by name."""
        return discover(self._config_dirs, self._note)

    def publishes(self, config: Mapping[str, Json]) -> bool:
        """Whether the network can lead ports of the host into the pod."""
        return parse_chain(config).declares("portMappings")

    # -- joining and leaving --

    def add(self, context: AttachmentContext) -> NetworkResult:
        """Runs ADD of each plugin, in order; each is told the result so far.

        :raises NetworkError: a plugin failed; ``delete`` undoes what the earlier ones did.
        """
        chain = parse_chain(context.attachment.config)
        if context.attachment.ports and not chain.declares("portMappings"):
            raise NetworkError(
                f'network "{chain.name}" cannot publish ports: no plugin of it has the capability portMappings',
                network=chain.name,
            )
        record = Record(chain.name, context.pod, context.interface)
        with self._records.lock():
            self._records.write(record)
            for plugin in chain.plugins:
                try:
                    result = self._execute("ADD", chain, plugin, context, context.namespace, record.result)
                except NetworkError as error:
                    if record.result is None:
                        self._records.write(replace(record, refused=_reason(error)))
                    raise
                record = replace(record, result=result)
                self._records.write(record)
        return parse_result(record.result, chain.name)

    def delete(self, context: AttachmentContext) -> None:
        """Runs DEL of each plugin in reverse order; none is left out because another failed.

        :raises NetworkError: a plugin failed: names each.
        """
        chain = parse_chain(context.attachment.config)
        with self._records.lock():
            begun = self._records.exists(context)
            known = self._records.read(context)
            if known is None and not self._installed(chain):
                return  # its programs are not there, and none of them has ever run for this pod
            record = known or Record(chain.name, context.pod, context.interface)
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
            # A configuration that a plugin does not understand, it understands at DEL no better; nothing was made.
            failures = [one for one in failures if record.refused is None or _reason(one) != record.refused]
            if not begun:
                failures = []  # nothing was there to be left: they were asked to be on the safe side
            if failures:
                raise NetworkError("; ".join([error.message for error in failures]), network=chain.name)
            self._records.remove(context)

    def _installed(self, chain: Chain) -> bool:
        try:
            self.setup({"name": chain.name, "cniVersion": chain.version, "plugins": chain.plugins})
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

    def check(self, context: AttachmentContext) -> None:
        """Runs CHECK of each plugin, where the configuration's version has it (0.4.0 on) and wants it.

        :raises NetworkError: nothing was added, or it is not as it was.
        """
        chain = parse_chain(context.attachment.config)
        record = self._records.read(context)
        if record is None or record.leaving or record.result is None:
            raise NetworkError(f'pod {context.pod} is not joined to network "{chain.name}"', network=chain.name)
        if chain.has_check and not chain.disable_check:
            for plugin in chain.plugins:
                self._execute("CHECK", chain, plugin, context, context.namespace, record.result)

    def _execute(
        self,
        verb: str,
        chain: Chain,
        plugin: Mapping[str, Json],
        context: AttachmentContext,
        namespace: str,
        previous: Json,
    ) -> Json:
        return self._executor.execute(
            verb,
            plugin["type"],
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


def _reason(error: NetworkError) -> str | None:
    """A plugin's own words, of an error that it has answered as the CNI specification says; None: it has not."""
    if error.data.get("code") is None:
        return None
    return f"{error.data.get('plugin')}{error.message.partition(' failed: ')[2]}"
