"""Whether what was told of a pod is still true: its files say so, which any process may have replaced since."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kurma_core.pod_store import PodDirectory

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
