"""Looking after what is on the host: attachments of pods that are gone, and what was left of others (W12).

Ours is what a record of this state directory tells of, or what bears the UUID of one of its pods. Everything else
is another runtime's, and is neither told of nor touched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kurma_core.errors import KurmaError, NetworkError
from kurma_core.hookspecs.network import AttachmentContext, Leak
from kurma_net_cni import traces
from kurma_net_cni.chain import Chain, parse_chain
from kurma_net_cni.leftovers import host_links
from kurma_net_cni.links import has_address
from kurma_net_cni.records import Record, Records
from kurma_net_cni.traces import Trace

Json = Any
GONE = "its pod is gone"


class Care:
    """:param delete: leaves a network, as the driver does.
    :param note: tells the user something in one line.
    """

    def __init__(
        self, records: Records, delete: Callable[[AttachmentContext], None], note: Callable[[str], None]
    ) -> None:
        self._records = records
        self._delete = delete
        self._note = note

    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> list[Leak]:
        """What belongs to no pod, or to a pod that is not joined there. Changes nothing."""
        found = self._find(configs)
        records = self._records.all()
        leaks = []
        for record in records:
            if record.pod not in pods:
                leaks.append(_leak("record", f"interface {record.interface} of a pod", GONE, record))
                for name, mac in host_links(record.result):
                    if has_address(name, mac):
                        leaks.append(_leak("interface", f"interface {name}", GONE, record))
        for trace, why in self._ours(found, records, pods):
            what = f"{trace.kind} {trace.what}"
            if trace.kind == "chain":
                what += f" of {trace.place}"
            leaks.append(Leak(trace.kind, what, why, trace.network, trace.container))
        return leaks

    def mend(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> list[Leak]:
        """Leaves networks in the name of pods that are gone, and frees what no DEL reaches any more."""
        known = {str(config.get("name")): config for config in configs}
        with self._records.lock(alone=True, name="mending"):  # two would take each other's plugins for orphans
            for record in self._records.all():
                if record.pod not in pods:
                    self._leave(record, known.get(record.network))
        if not self.leaks(configs, pods):
            return []
        with self._records.lock(alone=True):  # nobody adds meanwhile: what has no record now has none
            for trace, why in self._ours(self._find(configs), self._records.all(), pods):
                if why is not GONE:
                    traces.free(trace)
        return self.leaks(configs, pods)

    def _leave(self, record: Record, config: Mapping[str, Json] | None) -> None:
        context = record.context(config)
        if context is None:
            self._note(
                f"{record.interface} of pod {record.pod}: its record is damaged, and network "
                f'"{record.network}" is not configured'
            )
            return
        try:
            self._delete(context)
        except KurmaError as error:
            self._note(error.message)

    def _find(self, configs: Sequence[Mapping[str, Json]]) -> list[Trace]:
        """Traces in the networks that are configured, and in those that records tell of."""
        told = [record.context() for record in self._records.all()]
        chains: dict[str, Chain] = {}
        for config in (*configs, *(one.attachment.config for one in told if one is not None)):
            try:
                chain = parse_chain(config)
            except NetworkError:
                continue  # who joins it is told what is wrong
            chains.setdefault(f"{chain.name} {chain.plugins}", chain)
        return traces.find(chains.values())

    @staticmethod
    def _ours(found: Sequence[Trace], records: Sequence[Record], pods: Collection[str]) -> list[tuple[Trace, str]]:
        """Those of our own that are too many, and why."""
        joined = {(record.network, record.pod) for record in records}
        of_records = {record.pod for record in records}
        ours = []
        for trace in found:
            if trace.container in pods:
                if (trace.network, trace.container) not in joined:
                    ours.append((trace, "its pod is not joined to that network"))
            elif trace.container in of_records:
                ours.append((trace, GONE))
        return ours


def _leak(kind: str, what: str, why: str, record: Record) -> Leak:
    return Leak(kind, what, why, record.network, record.pod)
