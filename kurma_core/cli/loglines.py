"""Log lines on their way to the terminal: byte for byte, or with a time or the app's name before each line."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session
    from kurma_core.models import LogLine


class LogPrinter:
    """Prints each line on the stream that it came from. A line in parts comes out as one.

    :param flush: after each line, for what is followed.
    :raises OutputClosed: nobody reads any more.
    """

    def __init__(self, session: Session, *, flush: bool, prefix: bool = False, timestamps: bool = False) -> None:
        self._session = session
        self._flush = flush
        self._prefix = prefix
        self._timestamps = timestamps
        self._open: set[tuple[str, str]] = set()
        self._last = ""

    def __call__(self, line: LogLine) -> None:
        if line.stream != self._last and self._last and not self._flush:
            self._session.write(self._last, b"", flush=True)  # keeps the order where both are one terminal
        self._last = line.stream
        key = (line.app, line.stream)
        data = line.text if line.partial else line.text + b"\n"
        if key not in self._open and (self._prefix or self._timestamps):
            data = self._head(line) + data
        if line.partial:
            self._open.add(key)
        else:
            self._open.discard(key)
        self._session.write(line.stream, data, flush=self._flush)

    def _head(self, line: LogLine) -> bytes:
        words = [line.at] if self._timestamps else []
        if self._prefix:
            words.append(f"{line.app}:")
        return (" ".join(words) + " ").encode()
