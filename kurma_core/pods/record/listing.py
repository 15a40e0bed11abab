"""Lists pods from their records, each file read once; tells whether a listing is still true.

Start-up latency is the product: a table of pods is made without the code that starts and ends them, and no stager
is asked. What takes down dead pods is imported only where a pod is dead.
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
    """What the pod is, and how it is.

    :param recover: takes down what is dead, where nobody owns it; None: nobody does.
    :raises PodNotFoundError: it is not there, or not wholly made.
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
    """Of every pod, in no order, what is to be told of it; a broken one never hides the rest.

    :param tell: its second argument is for :func:`records`.
    :param broken: tells of a pod whose records cannot be read: what state that is, and why.
    """
    for uuid in store.uuids():
        directory = store.directory(uuid)
        try:
            yield tell(directory, recover)
            continue
        except KurmaError as first:
            error = first
        try:
            # It may have been made whole, or been removed, while we looked.
            yield tell(directory, None)
        except KurmaError:
            if os.path.isdir(directory.path) and not _unmade(directory, error):
                yield broken(directory, "preparing" if directory.owned() else "errored", error.message)


def _unmade(directory: PodDirectory, error: KurmaError) -> bool:
    """Whether a living process is about to make the pod: it has no record yet, and was never started."""
    return isinstance(error, PodNotFoundError) and directory.owned() and not os.path.lexists(directory.file("pod"))


def summaries(store: PodStore, recover: Recover) -> list[PodSummary]:
    """Every pod, oldest first, as a table shows it. Dead ones are taken down on the way.

    :param recover: takes down what is dead, and raises nothing.
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
    """A pod whose records cannot be read."""
    return PodSummary(uuid=directory.uuid, name="-", state=state, created_at="")


#: Whose contents decide what is told of a pod; the last is the stager's.
_FILES = ("pod.json", "state.json", "pod/status.json")
#: Seconds for which a file must have been as it is: a second change within a tick of the clock by which the kernel
#: stamps files might leave the stamp as it was. Some file systems stamp in whole seconds.
_TICK = 2.0
_Stamp = tuple[tuple[int, ...] | None, ...]


class Proof:
    """How a pod's files were before they were read: whoever finds them so again would read the same.

    :param stamp: device, inode, size, and times of the last changes of each. Whoever replaces a file makes another
        inode, and whoever writes to one changes its times, which nobody can set back.
    """

    __slots__ = ("_stamp",)

    def __init__(self, stamp: _Stamp) -> None:
        self._stamp = stamp

    @classmethod
    def take(cls, directory: PodDirectory) -> Proof | None:
        """To be taken before the files are read. None: nothing would prove it: a file has just changed, or cannot
        be looked at.
        """
        stamp = _stamp(directory.path)
        if stamp is None:
            return None
        now = time.time_ns()
        newest = max(each[-1] for each in stamp if each is not None)
        return cls(stamp) if now - newest > _TICK * 1e9 else None

    def holds(self, directory: PodDirectory) -> bool:
        """Whether the files are as they were."""
        return _stamp(directory.path) == self._stamp


def _stamp(path: str) -> _Stamp | None:
    found: list[tuple[int, ...] | None] = []
    for name in _FILES:
        try:
            status = os.lstat(f"{path}/{name}")
        except OSError as error:
            # A stager may keep no such file, and a pod that was not started has none; all have records.
            if name in _FILES[:2] or not isinstance(error, FileNotFoundError | NotADirectoryError):
                return None
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return tuple(found)
