"""Lists pods from their records, reading each file once; proves whether an earlier listing is still true.

Start-up latency matters most here: a table of pods is made without importing the code that starts and ends pods,
and without asking a stager. The code that takes down dead pods is imported only if there is a dead pod.
"""

from __future__ import annotations

import os
import time

from kurma_core.errors import KurmaError, PodNotFoundError
from kurma_core.models.summary import NetworkSummary, PodSummary
from kurma_core.pods.record.document import read_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    from kurma_core.models.network import Attachment
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_store import PodDirectory, PodStore
    from kurma_core.pods.record.state import PodState

    Json = Any
    T = TypeVar("T")
    Recover = Callable[[PodDirectory], None]


def records(directory: PodDirectory, recover: Recover | None) -> tuple[PodDocument, PodState]:
    """Reads the pod's definition and its state.

    :param recover: takes down a dead pod that has no owner; None: dead pods are left as they are.
    :raises PodNotFoundError: it does not exist, or is not wholly made.
    :raises KurmaError: its records cannot be read.
    """
    try:
        state = directory.read_state()
    except PodNotFoundError:
        if recover is None or directory.owned():
            raise
        recover(directory)
        state = directory.read_state()
    else:
        if recover is not None and state.unsettled and not directory.owned():
            recover(directory)
            state = directory.read_state()
    return read_document(directory), state


def each(
    store: PodStore,
    recover: Recover,
    tell: Callable[[PodDirectory, Recover | None], T],
    broken: Callable[[PodDirectory, str, str], T],
) -> Iterator[T]:
    """Calls ``tell`` for every pod, in no order; a broken pod never hides the others.

    :param tell: its second argument is for :func:`records`.
    :param broken: called instead for a pod whose records cannot be read, with its state and the reason.
    """
    for uuid in store.uuids():
        directory = store.directory(uuid)
        try:
            yield tell(directory, recover)
            continue
        except KurmaError as first:
            error = first
        try:
            # Another process may have finished or removed it meanwhile.
            yield tell(directory, None)
        except KurmaError:
            if os.path.isdir(directory.path) and not _unmade(directory, error):
                yield broken(directory, "preparing" if directory.owned() else "errored", error.message)


def _unmade(directory: PodDirectory, error: KurmaError) -> bool:
    """Whether a living process is about to make the pod: it has no record yet, and was never started."""
    return isinstance(error, PodNotFoundError) and directory.owned() and not os.path.lexists(directory.file("pod"))


def summaries(store: PodStore, recover: Recover) -> list[PodSummary]:
    """Summaries of all pods, oldest first, for a table. Dead pods are taken down on the way.

    :param recover: takes down a dead pod, and raises nothing.
    """

    def tell(directory: PodDirectory, recover: Recover | None) -> PodSummary:
        return summary(directory, *records(directory, recover))

    return sorted(each(store, recover, tell, broken_summary), key=lambda one: one.created_at)


def summary(directory: PodDirectory, document: PodDocument, state: PodState) -> PodSummary:
    networks = [_network(one) for one in state.attachments]
    if not networks:
        networks = [NetworkSummary(one.network, one.interface, ()) for one in document.attachments]
    return PodSummary(
        uuid=document.uuid,
        name=document.name,
        state=state.state,
        created_at=document.created_at,
        apps=tuple(document.app_names),
        networks=tuple(networks),
    )


def _network(attachment: Attachment) -> NetworkSummary:
    addresses = () if attachment.result is None else attachment.result.addresses
    return NetworkSummary(attachment.network, attachment.interface, tuple([one.address for one in addresses]))


def broken_summary(directory: PodDirectory, state: str, why: str) -> PodSummary:
    """The summary of a pod whose records cannot be read."""
    return PodSummary(uuid=directory.uuid, name="-", state=state, created_at="")


#: The files that decide the contents of a pod's record; the last is written by the stager.
_FILES = ("pod.json", "state.json", "pod/status.json")
#: Seconds for which a file must have been unchanged: a second change within one tick of the kernel's coarse clock
#: might leave the time stamp as it was. Some file systems store whole seconds only.
_TICK = 2.0
_Stamp = tuple[tuple[int, ...] | None, ...]


class Proof:
    """Proof that a pod's files are unchanged since they were read, so that reading them again would give the same.

    :param stamp: device, inode, size, and times of the last changes of each file. Replacing a file gives it
        another inode; writing to it changes its ctime, which no process can set back.
    """

    __slots__ = ("_stamp",)

    def __init__(self, stamp: _Stamp) -> None:
        self._stamp = stamp

    @classmethod
    def take(cls, directory: PodDirectory) -> Proof | None:
        """Must be called before the files are read. None: there can be no proof, since a file has just changed, or
        cannot be read."""
        stamp = _stamp(directory.path)
        if stamp is None:
            return None
        now = time.time_ns()
        newest = max(each[-1] for each in stamp if each is not None)
        return cls(stamp) if now - newest > _TICK * 1e9 else None

    def holds(self, directory: PodDirectory) -> bool:
        """Whether the files are unchanged."""
        return _stamp(directory.path) == self._stamp


def _stamp(path: str) -> _Stamp | None:
    found: list[tuple[int, ...] | None] = []
    for name in _FILES:
        try:
            status = os.lstat(f"{path}/{name}")
        except OSError as error:
            # Every pod has the two records; only a started pod whose stager writes one has a status.json.
            if name in _FILES[:2] or not isinstance(error, FileNotFoundError | NotADirectoryError):
                return None
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return tuple(found)
