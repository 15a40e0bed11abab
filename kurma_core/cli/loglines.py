"""Log lines on their way to the terminal: byte for byte, or with a time or the app's name before each line."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session
    from kurma_core.models.streams import LogText


#: Bytes that are gathered before they are written.
_GATHERED = 1 << 16
#: Bytes of a line in parts that is printed as one.
_LONGEST = 1 << 20


class LogPrinter:
    """Prints each line on the stream that it came from. Parts of a line come out as they come, or, where something
    stands before each line, together: nothing of another stream or app comes in between.

    :param flush: after each line, for what is followed; else at :meth:`flush`, and when there is much.
    :raises OutputClosed: nobody reads any more.
    """

    def __init__(self, session: Session, *, flush: bool, prefix: bool = False, timestamps: bool = False) -> None:
        self._session = session
        self._flush = flush
        self._prefix = prefix
        self._timestamps = timestamps
        self._parts: dict[tuple[str, str], list[LogText]] = {}
        self._held: dict[tuple[str, str], int] = {}
        self._stream = "stdout"
        self._gathered: list[bytes] = []
        self._size = 0

    def __enter__(self) -> LogPrinter:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Nothing more comes: lines that do not end are printed, too."""
        for key in list(self._parts):
            line = self._whole(key)
            self._print(line, self._headed(line))
        self.flush()

    def __call__(self, line: LogText) -> None:
        if not self._prefix and not self._timestamps:
            self._print(line, line.text if line.partial else line.text + b"\n")
            return
        key = (line.app, line.stream)
        if line.partial or key in self._parts:
            self._parts.setdefault(key, []).append(line)
            self._held[key] = self._held.get(key, 0) + len(line.text)
            if line.partial and self._held[key] < _LONGEST:
                return
            line = self._whole(key)
        self._print(line, self._headed(line) + b"\n")

    def _whole(self, key: tuple[str, str]) -> LogText:
        """The line whose parts were held back."""
        self._held.pop(key)
        parts = self._parts.pop(key)
        return parts[0]._replace(text=b"".join([part.text for part in parts]))

    def _print(self, line: LogText, data: bytes) -> None:
        if line.stream != self._stream:
            self.flush()  # keeps the order where both are one terminal
            self._stream = line.stream
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

    def _headed(self, line: LogText) -> bytes:
        head = self._head(line)
        return head + line.text.replace(b"\n", b"\n" + head)

    def _head(self, line: LogText) -> bytes:
        words = [line.at] if self._timestamps and line.at else []
        if self._prefix:
            words.append(f"{line.app}:")
        return "".join(f"{word} " for word in words).encode()
