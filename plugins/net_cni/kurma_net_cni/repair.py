"""Finds and removes resources that CNI plugins have left on the host for pods that are gone, and their records.

A resource is ours if a record of this state directory names it, or if it has the UUID of one of its pods. Other
runtimes use the same plugins, files and chains: all other resources are theirs, and are neither reported nor
changed.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kurma_cni.chain import Chain, parse_chain
from kurma_cni.errors import CniError
from kurma_cni.iptables import Table, families

from kurma_core.errors import KurmaError, NetworkError
from kurma_core.hookspecs.network import AttachmentContext, Leak
from kurma_core.linux import programs
from kurma_core.value import frozen
from kurma_net_cni.links import has_address
from kurma_net_cni.quirks import host_links
from kurma_net_cni.records import Record, Records
from kurma_net_cni.shared import address_directory, is_address

Json = Any
GONE = "its pod is gone"


class Repair:
    """Finds and repairs leaks. :param delete: the driver's function to leave a network.
    :param note: shows the user a line.
    """

    def __init__(
        self, records: Records, delete: Callable[[AttachmentContext], None], note: Callable[[str], None]
    ) -> None:
        self._records = records
        self._delete = delete
        self._note = note

    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> list[Leak]:
        """Lists leaks of pods that are gone, and of pods that are not joined to that network. It changes
        nothing."""
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

    def repair(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> list[Leak]:
        """Leaves networks for pods that are gone, and frees resources that no DEL can free any more."""
        known = {str(config.get("name")): config for config in configs}
        with self._records.lock(alone=True, name="repair"):  # two would kill each other's plugins as orphans
            for record in self._records.all():
                if record.pod not in pods:
                    self._leave(record, known.get(record.network))
        if not self.leaks(configs, pods):
            return []
        with self._records.lock(alone=True):  # no ADD runs meanwhile, so a missing record stays missing
            for trace, why in self._ours(self._find(configs), self._records.all(), pods):
                if why is not GONE:
                    free(trace)
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
        """Finds traces in the configured networks, and in those of the records."""
        told = [record.context() for record in self._records.all()]
        chains: dict[str, Chain] = {}
        for config in (*configs, *(one.attachment.config for one in told if one is not None)):
            try:
                chain = parse_chain(config)
            except CniError:
                continue  # the error is reported when a pod joins it
            chains.setdefault(f"{chain.name} {chain.plugins}", chain)
        return find_traces(chains.values())

    @staticmethod
    def _ours(found: Sequence[Trace], records: Sequence[Record], pods: Collection[str]) -> list[tuple[Trace, str]]:
        """Our own superfluous traces, each with the reason."""
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


@frozen
class Trace:
    """A chain or an address of a container. :param kind: ``chain`` or ``address``. :param place: a chain's family,
    an address's file. :param network: the network that it names. :param container: the container that it names.
    """

    kind: str
    what: str
    place: str
    network: str
    container: str


def find_traces(chains: Iterable[Chain]) -> list[Trace]:
    """Finds traces. :param chains: networks whose address records are read."""
    directories = {}
    for chain in chains:
        for plugin in chain.plugins:
            ipam = plugin.get("ipam") or {}
            if ipam.get("type") == "host-local":
                directories[address_directory(chain.name, ipam)] = chain.name
    found = [trace for directory, network in directories.items() for trace in _addresses(directory, network)]
    for family in families(programs):
        found += _chains(family)
    return found


def free(trace: Trace) -> None:
    """Removes a trace; succeeds if it is gone.

    :raises NetworkError: it cannot be removed.
    """
    if trace.kind == "chain":
        table = Table(programs, trace.place, "nat")
        table.drop(trace.what)
        table.commit()
        return
    try:
        with _held(os.path.dirname(trace.place)):
            if _owner(trace.place) == trace.container:
                os.unlink(trace.place)
    except FileNotFoundError:
        return
    except OSError as error:
        raise NetworkError(
            f"cannot free the address {trace.what}: {error.strerror}: {trace.place}",
            network=trace.network,
            path=trace.place,
            errno=error.errno,
        ) from error


def _chains(family: str) -> list[Trace]:
    """The chains of pods, by the rules that jump to them, whose comments name network and container: for ports
    (portmap) and for masquerading (bridge, ptp)."""
    found = {}
    for rules in Table(programs, family, "nat").chains.values():
        for rule in rules:
            try:
                words = shlex.split(rule)
            except ValueError:
                continue
            options = dict(itertools.pairwise(words))
            target = options.get("-j", "")
            name, identity = _named(options.get("--comment", ""))
            if target.startswith("CNI-") and identity:
                found[target] = Trace("chain", target, family, name, identity)
    return list(found.values())


def _named(comment: str) -> tuple[str, str]:
    """Network and container of ``name: "NETWORK" id: "CONTAINER"``; portmap's comments have the prefix
    ``dnat``."""
    try:
        words = shlex.split(comment)
    except ValueError:
        return "", ""
    said: Mapping[str, str] = dict(itertools.pairwise(words))
    return said.get("name:", ""), said.get("id:", "")


def _addresses(directory: str, network: str) -> list[Trace]:
    """Traces from the files of host-local, which are named by the address, and have the container in the first
    line."""
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name in names:
        path = os.path.join(directory, name)
        if is_address(name) and (owner := _owner(path)):
            found.append(Trace("address", name, path, network, owner))
    return found


def _owner(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).partition("\n")[0].strip()
    except FileNotFoundError:
        return ""


class _held:
    """Holds host-local's lock on its directory."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "lock")
        self._fd = -1

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            os.close(self._fd)
