"""``kurma logs``: prints the output of apps, follows it, and puts times and names of apps before its lines."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import select
import stat

from kurma_core.cli import values
from kurma_core.cli.command_line import Argument, Option, command
from kurma_core.cli.session import OutputClosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from kurma_core.cli.session import Session
    from kurma_core.models.streams import LogText


@command(
    Argument("pod", "POD", "The pod."),
    Argument("app", "APP", "Only this app.", required=False),
    Option("follow", "--follow -f", "Go on until the pod ends."),
    Option("tail", "--tail -n", "Only the last COUNT lines.", metavar="COUNT", number=True),
    Option("since", "--since", "Only lines since a time, or of the last while (10m).", metavar="TIME"),
    Option("stream", "--stream", "Only this stream.", choices=("stdout", "stderr")),
    Option(
        "instance",
        "--instance",
        "Only execution NUMBER of the app, as `kurma show` counts them.",
        metavar="NUMBER",
        number=True,
    ),
    Option("previous", "--previous", "Only the execution of the app before the last."),
    Option("timestamps", "--timestamps", "Print the time before each line."),
    Option("prefix", "--prefix", "Print the app's name before each line."),
)
def logs(
    session: Session,
    *,
    pod: str,
    app: str | None,
    follow: bool,
    tail: int | None,
    since: str | None,
    stream: str | None,
    instance: int | None,
    previous: bool,
    timestamps: bool,
    prefix: bool,
) -> None:
    """Print what the apps of a pod have written.

    Their standard output is printed on standard output, their standard error on standard error, byte for byte.
    """
    from kurma_core.errors import UsageError

    if tail is not None and tail < 0:
        raise UsageError("--tail: a number of lines is not negative")
    if instance is not None and instance < 1:
        raise UsageError("--instance: executions are counted from 1")
    if previous and (instance is not None or follow):
        raise UsageError(f"--previous goes without {'--instance' if instance is not None else '--follow'}")
    lines = session.client.logs(
        pod,
        app,
        follow=follow,
        tail=tail,
        since=None if since is None else values.since(since),
        stream=stream,
        instance=-1 if previous else instance,
    )
    printer = LogPrinter(session, flush=follow, prefix=prefix, timestamps=timestamps)
    with WhileRead(follow):
        for line in lines:
            printer(line)
        printer.end()


#: Bytes that are gathered before they are written.
_GATHERED = 1 << 16
#: Bytes of a line in parts that is printed as one.
_LONGEST = 1 << 20


class LogPrinter:
    """Prints each line on the stream that it came from. Parts of a line are printed as they arrive; with times or
    names before lines they are joined first, so that no other stream or app interrupts the line.

    :param flush: after each line, if logs are followed; else at :meth:`flush`, and when the buffer is large.
    :raises OutputClosed: standard output has no reader any more.
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
        """Prints lines that have not ended, too."""
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
        """The line, joined from the parts that were held back."""
        self._held.pop(key)
        parts = self._parts.pop(key)
        return parts[0]._replace(text=b"".join([part.text for part in parts]))

    def _print(self, line: LogText, data: bytes) -> None:
        if line.stream != self._stream:
            self.flush()  # keeps the order if both streams are the same terminal
            self._stream = line.stream
        self._gathered.append(data)
        self._size += len(data)
        if self._flush or self._size > _GATHERED:
            self.flush()

    def flush(self) -> None:
        """Writes the buffer."""
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


#: The system ignores it by default, and nothing else in Kurma uses it.
_SIGNAL = _signal.SIGURG


class _Gone(BaseException):
    """Not an OSError, so that handlers of system errors do not catch it."""


class WhileRead:
    """A ``with`` statement, in the main thread, that ends when standard output is a pipe or a socket whose reader
    has closed it, even if nothing is written.

    :param wanted: False: it does nothing.
    :raises OutputClosed: the reader has closed it.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted and _is_read()
        self._over = False

    def __enter__(self) -> None:
        if self._wanted:
            self._stop, self._stopper = os.pipe2(os.O_CLOEXEC)
            self._old = _signal.signal(_SIGNAL, self._came)
            _thread.start_new_thread(self._watch, (_thread.get_ident(),))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if self._wanted:
            _signal.signal(_SIGNAL, self._old)
            os.close(self._stopper)
        if kind is _Gone:
            raise OutputClosed from None

    def _came(self, *_: object) -> None:
        if not self._over:
            raise _Gone

    def _watch(self, main: int) -> None:
        poll = select.poll()
        poll.register(1, 0)
        poll.register(self._stop, select.POLLHUP)
        ready = [fd for fd, _ in poll.poll()]
        os.close(self._stop)
        if self._stop not in ready:
            _signal.pthread_kill(main, _SIGNAL)


def _is_read() -> bool:
    try:
        mode = os.fstat(1).st_mode
    except OSError:
        return False  # it is closed
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
