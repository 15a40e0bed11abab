"""Decides whether an app is restarted, and when: its restart policy, with pauses that double up to a minute."""

from __future__ import annotations

import time

from kurma_stager_default.inside.app.child import SETUP_FAILED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Execution(Protocol):
        """An execution that has ended."""

        began: float
        code: int | None
        reason: str | None


#: Seconds: the pause before the first restart, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 60.0
#: Seconds after which the end of an execution no longer counts as a failure of its start.
_SETTLED = 10.0


class Restarts:
    """The restarts of one app. :attr:`count`: how often its policy has started it again."""

    __slots__ = ("_pause", "count")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Resets the counters, when the app is started on request."""
        self.count = 0
        self._pause = _FIRST_PAUSE

    def next_pause(self, policy: str, instance: Execution | None, *, first: bool) -> float | None:
        """Seconds until the restart of the app; None: its policy does not restart it.

        :param instance: the last execution; ``first``: it is the only one.
        """
        if instance is None or policy == "never":
            return None
        if instance.reason == "start-failed" and (instance.code != SETUP_FAILED or first):
            return None  # a missing program, or a first start that failed, would fail again
        if policy == "on-failure" and instance.code == 0:
            return None
        if time.monotonic() - instance.began >= _SETTLED:
            self._pause = _FIRST_PAUSE
        pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
        return pause
