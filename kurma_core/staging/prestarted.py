"""Prestarted stagers, which wait for their pod (annotation ``kurma.io/stager/waits``).

The process that has prestarted a stager holds the write end of the stager's descriptor 5. If that process ends,
the stager ends, so that it need not be found again. One byte on the descriptor says that the root, cgroup and
network of the pod are in place. After any error the stager is discarded, and not used for another pod.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from kurma_core.errors import StagerError
from kurma_core.linux import process
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.spawn_plan import RootPlan
from kurma_core.staging.stager_process import OWN_CGROUP, Begun, StagerImage, begin
from kurma_core.staging.stager_root import places_of_pod, waiting_root
from kurma_core.value import frozen, replace

if TYPE_CHECKING:
    from kurma_core.hookspecs.pod_setup import PodSetup
    from kurma_core.spawn_plan import Starter

#: Seconds to wait for the end of a killed stager.
_KILL_PATIENCE = 10.0
_GO = b"."
# Rounds of a move between cgroups: the stager may still be starting, and fork during the move.
_ROUNDS = 8


@frozen
class PrestartPlace:
    """The directory, cgroup and network namespace of a prestarted stager. The caller makes them, and removes those
    that no pod has taken over.

    :param directory: for its output; on the same file system as the pods' directories, to which the file is moved.
    :param cgroup: relative to the root of each hierarchy. It should be the cgroup of the later pod: a move to
        another one costs some ten milliseconds.
    :param network_namespace: path of the pod's network namespace; None: the host's.
    :param own: the later pod's directory, which has a subdirectory ``pod`` and may be renamed; ``cgroup`` is the
        pod's then. The stager sees both from its start. Empty: it sees neither before its pod is known.
    """

    directory: str
    cgroup: str
    network_namespace: str | None
    own: str = ""


class PrestartedStager:
    """A prestarted stager. It is handed over once, or discarded; both close it."""

    def __init__(self, image: StagerImage, place: PrestartPlace, begun: Begun) -> None:
        self.image = image.id
        self.place = place
        self.identity = begun.process.identity
        self.pidfd = begun.process.pidfd
        self._ready = begun.ready
        self._go = begun.go

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def output(self) -> str:
        """The path of its output."""
        return f"{self.place.directory}/output"

    def printed_to(self, directory: str) -> None:
        """Notes that the directory of its output was renamed."""
        self.place = replace(self.place, directory=directory)

    def fileno(self) -> int:
        """The pidfd, which is readable when the stager has ended."""
        return self.pidfd

    def alive(self) -> bool:
        return self._go is not None and not process.wait_pidfd(self.pidfd, 0)

    def go(self) -> tuple[int, int]:
        """Tells the stager that its pod is in place. :returns: its pidfd and the read end of its descriptor 4,
        which the caller closes.

        :raises StagerError: the stager has ended.
        """
        assert self._go is not None, "a waiting stager is handed over once"
        try:
            os.write(self._go, _GO)
        except BrokenPipeError:
            raise StagerError("the waiting stager has ended") from None
        os.close(self._go)
        self._go = None
        return self.pidfd, self._ready

    def discard(self) -> None:
        """Kills the stager with all its processes, and waits for their end. It does nothing after a hand-over."""
        if self._go is None:
            return
        os.close(self._go)
        self._go = None
        try:  # noqa: SIM105 - contextlib is not light
            process.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait_pidfd(self.pidfd, _KILL_PATIENCE)
        process.exit_status(self.pidfd)
        os.close(self.pidfd)
        os.close(self._ready)
        CgroupTree(self.place.cgroup).kill()

    def why_not(self, pod: PodSetup) -> str | None:
        """The reason why it cannot be the stager of that pod; None: it can."""
        if not self.alive():
            return "it has ended"
        if any(app.interactive for app in pod.apps):
            return "the pod's standard input is its caller's, and a waiting stager has its own already"
        if pod.userns is not None:
            return "the pod has a user namespace, which its other namespaces are made under"
        if not _same_namespace(self.pid, pod.network_namespace):
            return "it waits in another network namespace"
        return None

    def move_to(self, cgroup: str) -> None:
        """Moves the stager and its children to the pod's cgroup. Their own one stays (:meth:`remove_cgroup`)."""
        if cgroup == self.place.cgroup:
            return
        mine, home = CgroupTree(self.place.cgroup), CgroupTree(cgroup).leaf(OWN_CGROUP)
        for _ in range(_ROUNDS):
            pids = mine.pids()
            if not pids:
                break
            for directory in home:
                for pid in pids:
                    _move(pid, directory)

    def remove_cgroup(self) -> None:
        """Removes the cgroup that it has waited in, after :meth:`move_to`. :raises OSError: it is still in use."""
        CgroupTree(self.place.cgroup).remove()


def _move(pid: int, directory: str) -> None:
    """Moves a process to a cgroup. Does nothing if it has ended: while it starts, the stager has children that end
    soon."""
    try:
        with open(f"{directory}/cgroup.procs", "w") as file:
            file.write(str(pid))
    except ProcessLookupError:
        pass


def prestart(spawner: Starter, name: str, image: StagerImage, place: PrestartPlace) -> PrestartedStager:
    """Prestarts a stager. :raises StagerError: its image does not declare that it can wait; or as
    :func:`begin`."""
    if not image.waits:
        raise StagerError(f"stager {name}: its image {image.manifest.name} does not wait for its pod")
    own = places_of_pod(place.own, CgroupTree(place.cgroup)) if place.own else ()
    begun = begin(
        spawner,
        name,
        image,
        root=RootPlan((*waiting_root(image.path).operations, *own)),
        network_namespace=place.network_namespace,
        cgroup=place.cgroup,
        output=f"{place.directory}/output",
        waits=True,
    )
    return PrestartedStager(image, place, begun)


def _same_namespace(pid: int, path: str | None) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/ns/net", path or "/proc/self/ns/net")
    except OSError:
        return False
