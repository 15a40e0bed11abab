"""The root of a living stager: the one way in which things are bound into it, and taken out again (G10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import StagerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kurma_core.hookspecs.stager import RunningStager
    from kurma_core.spawn_plan import Operation, Starter


class LiveRoot:
    """:param running: the stager, whose descriptor guards against a reused PID."""

    def __init__(self, spawner: Starter, running: RunningStager) -> None:
        self._spawner = spawner
        self._running = running

    def bind(self, operations: Sequence[Operation]) -> None:
        """Carries out mount operations in it, in order: sources are the host's paths, targets its own.

        :raises HostError: one failed, or the stager has ended; those before it stay.
        """
        if operations:
            self._spawner.bind_into(self._running.pid, operations, pidfd=self._running.fileno())

    def unbind(self, targets: Iterable[str]) -> None:
        """Takes away what is mounted at these paths, and the places. Repeatable.

        :raises HostError: one cannot be, or the stager has ended.
        """
        paths = list(targets)
        if paths:
            self._spawner.unbind_from(self._running.pid, paths, pidfd=self._running.fileno())

    def bound(self, directory: str) -> set[str]:
        """Names of what is mounted right below a directory of it, as the kernel has them.

        :raises StagerError: it has ended.
        """
        from kurma_core.linux.mounts import mountinfo

        try:
            targets = [mount.target for mount in mountinfo(self._running.pid)]
        except OSError:
            targets = []
        if not self._running.alive():
            # Else the number might have been another process's already.
            raise StagerError("the pod's stager has ended")
        ways = [target.rpartition("/") for target in targets]
        return {name for way, _, name in ways if way == directory}
