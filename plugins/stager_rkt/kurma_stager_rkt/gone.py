"""Pods in rkt's directories whose directory of Kurma's is gone: removed by hand, say."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from kurma_core.linux.cgroups import CgroupTree
from kurma_stager_rkt import removal
from kurma_stager_rkt.places import Places
from kurma_stager_rkt.podpid import pod_pid
from kurma_stager_rkt.records import COPY, Note

if TYPE_CHECKING:
    from kurma_stager_rkt.entrypoints import Start


def discard(start: Start, places: Places, uuid: str) -> tuple[str, ...] | None:
    """See :class:`kurma_core.hookspecs.stager.CollectorOfRemains`."""
    try:
        place = places.take(uuid)
    except BlockingIOError as error:
        raise BlockingIOError(errno.EAGAIN, f"{_holder(places, uuid)} its lock", error.filename) from None
    if place is None:
        return None
    try:
        note = Note.of_file(f"{place.path}/{COPY}")
        if note is not None:
            # Whatever its stage1 has left there: nobody else would end it.
            cgroup = CgroupTree(note.cgroup)
            cgroup.kill()
            cgroup.remove()
        return tuple(removal.remove(start, place, note))
    finally:
        place.close()


def _holder(places: Places, uuid: str) -> str:
    state = places.find(uuid)
    pid = None if state is None else pod_pid(places.path(state, uuid))
    return "a process holds" if pid is None else f"process {pid}, or one of its stage1, holds"
