"""What happens on the way, told to somebody who may read slowly, or not at all: the work goes on all the same.

What is worked at for one may be held for it, a download for instance, that others wait for. So what happens on
the way is told as far as the connection takes it at once. Notes wait for that; how far something is, nobody needs
to know later. Only the end of it waits for the reader.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from kurma_core.daemon.http.exchange import Gone

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

Json = Any
#: Messages that wait for a reader.
_MOST = 1000
#: Words of which the next says the same, and more.
_PASSING = ("progress",)


class Telling:
    """Any thread may tell. Whoever has gone is told nothing, and nobody hears of that here.

    :param connected: where it goes. :param send: sends one message there, and raises Gone.
    """

    def __init__(self, connected: socket.socket, send: Callable[[Json], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: deque[Json] = deque()
        self._lost = 0
        self._gone = self._begun = False
        self._poll = select.poll()
        self._poll.register(connected, select.POLLOUT)

    @property
    def silent(self) -> bool:
        """Whether nothing was told yet: the answer may still be another one."""
        return not (self._begun or self._waiting)

    def tell(self, message: dict[str, Json]) -> None:
        """As much as goes at once."""
        with self._lock:
            if not (message["is"] in _PASSING and (self._waiting or not self._writable())):
                self._waiting.append(message)
            if len(self._waiting) > _MOST:
                self._waiting.popleft()
                self._lost += 1
            try:
                while self._waiting and self._writable():
                    self._begun = True
                    self._send(self._waiting.popleft())
            except Gone:
                self._gone = True

    def end(self, message: dict[str, Json]) -> None:
        """All the rest, and the last message. :raises Gone: nobody reads it."""
        with self._lock:
            if self._lost:
                self._waiting.appendleft({"is": "note", "text": f"{self._lost} notes were not read in time"})
            self._waiting.append(message)
            while self._waiting:
                self._send(self._waiting.popleft())

    def _writable(self) -> bool:
        """Whether there is room for some messages: a unix socket says so while a quarter of it is full at most."""
        return not self._gone and bool(self._poll.poll(0))


__all__ = ["Telling"]
