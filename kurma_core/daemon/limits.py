"""What the daemon takes for itself, and what pods begin with all the same.

It may open as many descriptors as its hard limit says, and is one of the last to be killed when memory runs out.
What it starts would inherit both: the spawner, from which all pods come, gets what the daemon began with.
"""

from __future__ import annotations

import resource
from contextlib import suppress

#: As dockerd and containerd have it; -1000 would make it impossible to get rid of one that leaks.
_OOM_SCORE = -900


class Limits:
    def __init__(self) -> None:
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._score = ""
        with suppress(OSError):
            with open("/proc/self/oom_score_adj") as file:
                self._score = file.read().strip()

    def take(self) -> None:
        hard = self._files[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if self._score and int(self._score) > _OOM_SCORE:
            _write_score("self", str(_OOM_SCORE))

    def give_back(self, pid: int) -> None:
        """Has that process begin with what we began with."""
        with suppress(OSError):  # it has ended, and whoever needs it will hear of that
            resource.prlimit(pid, resource.RLIMIT_NOFILE, self._files)
        if self._score:
            _write_score(str(pid), self._score)


def _write_score(pid: str, score: str) -> None:
    with suppress(OSError):  # only root may lower it, and not in every container
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write(score)


__all__ = ["Limits"]
