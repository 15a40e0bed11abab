"""Log lines on their way to the terminal: byte for byte, or with a time or the app's name before each line."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session
    from kurma_core.models import LogText


#: Bytes that are gathered before they are written.
_GATHERED = 1 << 16


class LogPrinter:
    """Prints each line on the stream that it came from. A line in parts comes out as one.

    :param flush: after each line, for what is followed; else at :meth:`flush`, and when there is much.
    :raises OutputClosed: nobody reads any more.
    """

    def __init__(self, session: Session, *, flush: bool, prefix: bool = False, timestamps: bool = False) -> None:
        self._session = session
        self._flush = flush
        self._prefix = prefix
        self._timestamps = timestamps
        self._open: set[tuple[str, str]] = set()
        self._stream = "stdout"
        self._gathered: list[bytes] = []
        self._size = 0

    def __enter__(self) -> LogPrinter:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def __call__(self, line: LogText) -> None:
        if line.stream != self._stream:
            self.flush()  # keeps the order where both are one terminal
            self._stream = line.stream
        data = line.text if line.partial else line.text + b"\n"
        if self._prefix or self._timestamps:
            data = self._headed(line, data)
        self._gathered.append(data)
        self._size += len(data)
        if self._flush or self._size > _GATHERED:
            self.flush()

    def flush(self) -> None:
        """Writes what was gathered."""
        if self._gathered:
            data = b"".join(self._gathered)
            self._gathered.clear()
            self._size = 0
            self._session.write(self._stream, data, flush=True)

    def _headed(self, line: LogText, data: bytes) -> bytes:
        """``data`` with what stands before a line, unless it goes on with one."""
        key = (line.app, line.stream)
        begins = key not in self._open
        if line.partial:
            self._open.add(key)
        else:
            self._open.discard(key)
        head = self._head(line)
        more = data[:-1].replace(b"\n", b"\n" + head) + data[-1:]
        return head + more if begins else more

    def _head(self, line: LogText) -> bytes:
        words = [line.at] if self._timestamps else []
        if self._prefix:
            words.append(f"{line.app}:")
        return (" ".join(words) + " ").encode()
