"""Clients of kurmad, and how many connections each may have."""

from __future__ import annotations

import threading
from collections import Counter

from kurma_core.errors import BusyError

#: Connections that wait for a request or are served: of all, of all but root, of all pods, of a user, of a pod.
SHORT = (512, 448, 256, 128, 16)
#: Connections that last, as waits for a pod's end, followed logs, and streams: in the same order.
LASTING = (2048, 1920, 1024, 512, 64)


class Peer:
    """The process that has connected.

    :param uid: of its user.
    :param rights: ``full`` or ``read``.
    :param pod: UUID of the pod, and ``app`` name of the app, whose API socket it uses; None: it uses the host's.
    """

    def __init__(self, uid: int, pid: int, rights: str, pod: str | None = None, app: str | None = None) -> None:
        self.uid = uid
        self.pid = pid
        self.rights = rights
        self.pod = pod
        self.app = app

    def __str__(self) -> str:
        whose = "" if self.pod is None else f"pod {self.pod}, app {self.app}, "
        return f"{whose}user {self.uid}, process {self.pid}"


class Quota:
    """Counts connections of one kind, so that no client's connections keep others out.

    :param most: of all, :param others: of all but root, :param pods: of all pods, :param user: of a user,
    :param pod: of a pod.
    """

    def __init__(self, most: int, others: int, pods: int, user: int, pod: int) -> None:
        self._most, self._others, self._pods, self._user, self._pod = most, others, pods, user, pod
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held["all"]

    def take(self, peer: Peer, *, enforce: bool = True) -> None:
        """Counts one more. :param enforce: False: even beyond the limits.

        :raises BusyError: a limit is reached.
        """
        limits = self._limits(peer)
        with self._lock:
            for whose, most in limits:
                if enforce and self._held[whose] >= most:
                    words = "" if whose == "all" else f" of {whose}"
                    raise BusyError(
                        f"kurmad has as many connections{words} as it takes ({most})", hint="try again in a moment"
                    )
            self._held.update(whose for whose, _ in limits)

    def give_back(self, peer: Peer) -> None:
        with self._lock:
            self._held.subtract(whose for whose, _ in self._limits(peer))
            self._held += Counter()  # drops the zeros

    def _limits(self, peer: Peer) -> list[tuple[str, int]]:
        if peer.pod is not None:
            own = [(f"pod {peer.pod}", self._pod), ("pods", self._pods), ("all but root", self._others)]
        elif peer.uid != 0:
            own = [(f"user {peer.uid}", self._user), ("all but root", self._others)]
        else:
            own = []
        return [*own, ("all", self._most)]


__all__ = ["LASTING", "SHORT", "Peer", "Quota"]
