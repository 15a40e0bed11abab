"""A cgroup for one command and all processes that it starts, below its app's: so all of them can be killed.

It is made on one hierarchy only, without controllers of its own: limits and accounts are the app's.
"""

from __future__ import annotations

import os
import time

from kurma_core.linux.cgroups import CgroupTree, Layout
from kurma_stager_default.inside.pod.pod_cgroups import end_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.linux.cgroups import Hierarchy

_PREFIX = "command-"
# Hierarchies on which a new cgroup begins without limits, or takes no process before it has settings.
_UNFIT = ("cpu", "cpuset", "memory", "devices", "blkio", "freezer", "net_cls", "hugetlb")
# Seconds that killed processes may take to end.
_DYING = 2.0
_LOOK_AGAIN = 0.005


class CommandGroup:
    """The group of a command that is about to start.

    :param app: the app's cgroup. :raises OSError: it cannot be made.
    """

    def __init__(self, app: CgroupTree) -> None:
        chosen = _hierarchy(app.layout)
        self._app = app
        self._tree = CgroupTree(f"{app.name}/{_PREFIX}{os.getpid()}", Layout([chosen]))
        self._directory = self._tree.directories()[0]
        self._remove_empty()
        try:  # noqa: SIM105 - contextlib costs every command
            os.mkdir(self._directory, 0o755)
        except FileExistsError:
            pass  # of a process with the same PID, whose command has left processes

    def directories(self) -> list[str]:
        """The cgroup of the command on each hierarchy."""
        own = os.path.dirname(self._directory)
        return [self._directory if path == own else path for path in self._app.directories()]

    def kill(self) -> None:
        """Kills all its processes, and waits a limited time for their end."""
        end = time.monotonic() + _DYING
        while end_all(self._tree) and time.monotonic() < end:
            time.sleep(_LOOK_AGAIN)

    def leave(self) -> None:
        """Removes the group, unless the command has left processes."""
        try:  # noqa: SIM105 - contextlib costs every command
            os.rmdir(self._directory)
        except OSError:
            pass

    def _remove_empty(self) -> None:
        """Removes groups of earlier commands, whose last process has ended since; not those that other processes
        have just made, and have not joined yet."""
        parent = os.path.dirname(self._directory)
        for name in os.listdir(parent):
            if name.startswith(_PREFIX) and not _runs(name[len(_PREFIX) :]):
                try:  # noqa: SIM105 - contextlib costs every command
                    os.rmdir(f"{parent}/{name}")
                except OSError:
                    pass


def _runs(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):
        return True
    return True


def _hierarchy(layout: Layout) -> Hierarchy:
    """The hierarchy on which the group is made: v2 if there is one."""
    ordered = sorted(layout.hierarchies, key=lambda one: (-one.version, any(c in _UNFIT for c in one.controllers)))
    return ordered[0]
