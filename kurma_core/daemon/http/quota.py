"""How many connections there may be: in all, and of each who connects, so that nobody's keep others out."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from kurma_core.errors import BusyError

if TYPE_CHECKING:
    from kurma_core.daemon.http.exchange import Peer

#: Connections that wait for a request, or are served: in all, of all but root, of all pods, of a user, of a pod.
MOST, OTHERS, PODS, USER, POD = 512, 448, 256, 128, 16
#: Those that last, as waiting for a pod's end, following its logs, and streams: in the same order.
LASTING = (2048, 1920, 1024, 512, 64)


class Quota:
    """Of one sort of connections."""

    def __init__(self, most: int, others: int, pods: int, user: int, pod: int) -> None:
        self._most, self._others, self._pods, self._user, self._pod = most, others, pods, user, pod
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held["all"]

    def take(self, peer: Peer) -> None:
        """:raises BusyError: there are as many as there may be."""
        limits = self._limits(peer)
        with self._lock:
            for whose, most in limits:
                if self._held[whose] >= most:
                    words = "" if whose == "all" else f" of {whose}"
                    raise BusyError(
                        f"kurmad has as many connections{words} as it takes ({most})", hint="try again in a moment"
                    )
            self._held.update(whose for whose, _ in limits)

    def put_back(self, peer: Peer) -> None:
        """One that was taken, and given back for a while: however many there are."""
        with self._lock:
            self._held.update(whose for whose, _ in self._limits(peer))

    def give_back(self, peer: Peer) -> None:
        with self._lock:
            self._held.subtract(whose for whose, _ in self._limits(peer))
            self._held += Counter()  # without those of whom there are none

    def _limits(self, peer: Peer) -> list[tuple[str, int]]:
        if peer.pod is not None:
            own = [(f"pod {peer.pod}", self._pod), ("pods", self._pods), ("all but root", self._others)]
        elif peer.uid != 0:
            own = [(f"user {peer.uid}", self._user), ("all but root", self._others)]
        else:
            own = []
        return [*own, ("all", self._most)]


__all__ = ["LASTING", "MOST", "OTHERS", "POD", "PODS", "USER", "Quota"]
