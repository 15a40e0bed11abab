"""Runs a call-in of the checked stager in the background and collects its output, with limits of time and size."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError
from kurma_core.models.streams import Stdio
from kurma_core.stager_check.report import Wrong, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.staging.callin import CallIn

#: Most bytes that are read of a call-in's output.
_LIMIT = 1 << 20


class Call:
    """A running call-in.

    :param begin: starts it with these streams.
    :param patience: seconds within which it must answer.
    """

    def __init__(
        self,
        verb: str,
        begin: Callable[[Stdio], CallIn],
        patience: float,
        *,
        stdin: bytes,
        fd: int,
        terminal: int,
    ) -> None:
        self._patience = patience
        self.verb = verb
        self._output: list[_Collector] = []
        source = fd if fd >= 0 else os.memfd_create("stdin", os.MFD_CLOEXEC)
        if fd < 0:
            os.pwrite(source, stdin, 0)
        ends = []
        try:
            for _ in range(2):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                ends.append(writer)
                self._output.append(_Collector(reader))
            self._call = begin(Stdio(source, *(ends if terminal < 0 else (terminal, terminal))))
        finally:
            for end in ends:
                os.close(end)
            if fd < 0:
                os.close(source)
        self._code: int | None = None
        self._error: KurmaError | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self._code = self._call.wait(2 * self._patience)
        except KurmaError as error:
            self._error = error

    @property
    def pid(self) -> int:
        return self._call.pid

    @property
    def out(self) -> str:
        return self._output[0].text()

    @property
    def err(self) -> str:
        return self._output[1].text()

    def code(self) -> int:
        """Waits for its end and both outputs, and returns the exit code.

        :raises Wrong: it does not end. :raises KurmaError: it broke the protocol.
        """
        self._thread.join(2 * self._patience + 5)
        if self._error is not None:
            raise self._error
        if self._code is None:
            raise Wrong(f"the call-in {self.verb} does not end")
        for each in self._output:
            each.finish(1.0)
        return self._code

    def ended(self, seconds: float) -> bool:
        """Whether it ends within that time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def prints(self, text: str) -> None:
        """Waits until it has printed the text. :raises Wrong: it does not."""
        until = time.monotonic() + self._patience
        while text not in self.out:
            if time.monotonic() > until:
                raise Wrong(f"{self.verb} printed {shortened(self.out)}, without {shortened(text)}")
            time.sleep(0.01)

    def close(self) -> None:
        self._thread.join(2 * self._patience + 5)
        for each in self._output:
            each.close()


class _Collector:
    """Reads a pipe in a thread, up to a limit.

    :param fd: the thread closes it at the end.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with open(self._fd, "rb", buffering=0) as stream:
            while len(self._data) <= _LIMIT and not self._stop.is_set():
                if not select.select([stream], [], [], 0.2)[0]:
                    continue
                more = stream.read(1 << 16)
                if not more:
                    return
                self._data += more

    def text(self) -> str:
        return bytes(self._data).decode(errors="replace")

    def finish(self, seconds: float) -> None:
        self._thread.join(seconds)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
