"""Removes a pod that has ended: runs its ``gc`` entrypoint, unmounts, deletes its directory."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError
from kurma_core.linux.cgroups import CgroupTree
from kurma_stager_rkt import entrypoints, roots
from kurma_stager_rkt.pod_directories import EXITED_GARBAGE, GARBAGE, RUN, Places
from kurma_stager_rkt.pod_processes import pod_pid
from kurma_stager_rkt.records import COPY, Note
from kurma_stager_rkt.unmount import unmount_below

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_stager_rkt.entrypoints import Start
    from kurma_stager_rkt.pod_directories import PodPlace
    from kurma_stager_rkt.records import Note


def remove(start: entrypoints.Start, place: PodPlace, note: Note | None) -> Iterator[str]:
    """Removes a pod that does not run, and whose lock we hold. It can be repeated. :returns: notes for the user.

    :raises OSError: a part cannot be removed; the pod stays in a directory for removal.
    """
    ran = place.state in (RUN, EXITED_GARBAGE)
    if ran:
        if place.state == RUN:
            place.move(EXITED_GARBAGE)
        yield from _call(start, place, note)
    unmount_below(place.path)
    if not ran and place.state != GARBAGE:
        place.move(GARBAGE)
    place.remove()


def _call(start: entrypoints.Start, place: PodPlace, note: Note | None) -> Iterator[str]:
    """Runs the ``gc`` entrypoint; reports its failures and goes on."""
    if note is None:
        yield "its gc entrypoint was not run: its record is gone"
        return
    if "gc" not in note.stage1.entrypoints:
        yield f"stage1 image {note.stage1.name} has no gc entrypoint: what else it has made may be left"
        return
    output = os.memfd_create("gc", os.MFD_CLOEXEC)
    try:
        roots.show_again(place.path, note.image, note.path)
        code = _run(start, place, note, output)
        if code != 0:
            how = f"did not end within {note.patience} s" if code is None else f"ended with status {code}"
            yield f"its gc entrypoint {how}{entrypoints.said(output)}"
    except (KurmaError, OSError) as error:
        yield f"its gc entrypoint was not run: {error.message if isinstance(error, KurmaError) else why(error)}"
    finally:
        os.close(output)


def why(error: OSError) -> str:
    """The error's path, if known, and its reason."""
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


def _run(start: entrypoints.Start, place: PodPlace, note: Note, output: int) -> int | None:
    """Runs it in a cgroup of its own, so that its processes end with it or at its time limit, and so do those of
    an earlier caller that was killed."""
    cgroup = CgroupTree(f"{note.cgroup}-gc")
    cgroup.kill()
    cgroup.create()
    try:
        started = entrypoints.begin(
            start,
            note,
            place.path,
            "gc",
            gc_arguments(note, place.uuid, place.path),
            fds={1: output, 2: output},
            cgroup=cgroup.name,
        )
        return entrypoints.finish(started, note.patience)
    finally:
        cgroup.kill()
        cgroup.remove()


def gc_arguments(note: Note, uuid: str, place: str) -> tuple[str, ...]:
    """The arguments of the ``gc`` entrypoint. :param place: the pod's current directory."""
    found = ["--debug"] if note.debug else []
    if note.stage1.version >= 5:
        found += ["--local-config", os.path.join(place, note.local_config)]
    return (*found, uuid)


def discard(start: Start, places: Places, uuid: str) -> tuple[str, ...] | None:
    """See :class:`kurma_core.hookspecs.stager.AnyStagerHooks`."""
    try:
        place = places.take(uuid)
    except BlockingIOError as error:
        raise BlockingIOError(errno.EAGAIN, f"{_holder(places, uuid)} its lock", error.filename) from None
    if place is None:
        return None
    try:
        note = Note.of_file(f"{place.path}/{COPY}")
        if note is not None:
            # Processes that its stage1 has left there: no other program would end them.
            cgroup = CgroupTree(note.cgroup)
            cgroup.kill()
            cgroup.remove()
        return tuple(remove(start, place, note))
    finally:
        place.close()


def _holder(places: Places, uuid: str) -> str:
    state = places.find(uuid)
    pid = None if state is None else pod_pid(places.path(state, uuid))
    return "a process holds" if pid is None else f"process {pid}, or one of its stage1, holds"
