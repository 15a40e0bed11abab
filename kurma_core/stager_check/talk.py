"""The check's end of a probe's socket: what an app tells, and what it is asked. Untrusted, what comes."""

from __future__ import annotations

import marshal
import socket
import struct
from typing import Any

from kurma_core.linux.smalljson import decode
from kurma_core.stager_check.lines import Wrong, shortened

Json = Any
#: More than this from an app is nonsense.
_LIMIT = 1 << 20


class Probe:
    """The other end of a probe's socket.

    :ivar facts: what it found, as :mod:`probe` tells it.
    :ivar pid: of its process, as seen from here.
    """

    def __init__(self, connection: socket.socket, patience: float) -> None:
        self._socket = connection
        self._patience = patience
        connection.settimeout(patience)
        self._rest = b""
        self.signals: list[int] = []
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid = struct.unpack("iii", credentials)[0]
        self.facts: dict[str, Json] = self._hear()
        self.name = str(self.facts.get("name"))

    def _hear(self) -> dict[str, Json]:
        while b"\n" not in self._rest:
            try:
                more = self._socket.recv(1 << 16)
            except OSError as error:
                raise Wrong(f"an app does not answer: {error}") from None
            if not more or len(self._rest) > _LIMIT:
                raise Wrong("an app ended, or talks nonsense, where it should answer")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        value = decode(line)
        if not isinstance(value, dict):
            raise Wrong(f"an app answers {shortened(value)}")
        return value

    def ask(self, *what: Json) -> Json:
        """What the probe answers. :raises Wrong: it does not."""
        self.tell(*what)
        while True:
            heard = self._hear()
            if "answer" in heard:
                return heard["answer"]
            self.signals.append(heard["signal"])

    def tell(self, *what: Json) -> None:
        """Asks, and does not wait."""
        data = marshal.dumps(list(what))
        try:
            self._socket.sendall(len(data).to_bytes(4, "little") + data)
        except OSError as error:
            raise Wrong(f"the app is gone: {error}") from None

    def signal(self) -> int:
        """The next signal that came. :raises Wrong: none does."""
        while not self.signals:
            heard = self._hear()
            if "signal" in heard:
                self.signals.append(heard["signal"])
        return self.signals.pop(0)

    def must(self, *what: Json) -> Json:
        """As :meth:`ask`. :raises Wrong: it could not."""
        answer = self.ask(*what)
        if isinstance(answer, dict) and "error" in answer:
            raise Wrong(f"{what[0]} {what[1] if len(what) > 1 else ''}: {answer['error']}")
        return answer

    def close(self) -> None:
        self._socket.close()
