"""``kurma logs``: prints the output of apps, follows it, and puts times and names of apps before its lines.

:func:`report_ended` prints the last lines of apps that ended soon after the start of their pod.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import select
import stat
import sys

from kurma_core.cli import values
from kurma_core.cli.command_line import APP, Argument, Option, command
from kurma_core.cli.session import ReaderGone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session
    from kurma_core.models.pod import AppEnd, AppStatus, PodRecord
    from kurma_core.models.streams import LogText


@command(
    Argument("pod", "POD[/APP]", "The pod, or one of its apps."),
    APP,
    Option("follow", "--follow -f", "Print new output until the pod ends."),
    Option("tail", "--tail -n", "Print only the last COUNT lines.", metavar="COUNT", number=True),
    Option(
        "since", "--since", "Print only lines since TIME: a point in time, or how long ago (10m).", metavar="TIME"
    ),
    Option("stream", "--stream", "Print only this stream.", choices=("stdout", "stderr")),
    Option(
        "instance",
        "--instance",
        "Print only execution NUMBER of the app, as `kurma show` counts them.",
        metavar="NUMBER",
        number=True,
    ),
    Option("previous", "--previous", "Print only the app's execution before the last."),
    Option("timestamps", "--timestamps -t", "Print the time before each line."),
    Option("prefix", "--prefix", "Print the app's name before each line."),
    example="kurma logs -f --tail 20 shop/web",
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
    """Print the output of a pod's apps.

    Prints the apps' standard output on standard output and their standard error on standard error, byte for byte.
    """
    from kurma_core.errors import UsageError

    if tail is not None and tail < 0:
        raise UsageError("--tail: the number of lines must not be negative")
    if instance is not None and instance < 1:
        raise UsageError("--instance: must be 1 or more")
    if previous and (instance is not None or follow):
        raise UsageError(
            f"--previous cannot be combined with {'--instance' if instance is not None else '--follow'}"
        )
    pod, app = values.find_pod_and_app(session.client, pod, app)
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


#: Seconds in which a person at a terminal is told that an app of a new pod has ended; and between two looks.
_AT_ONCE, _LOOK = 0.5, 0.05
#: The last lines that are shown of an app that has ended.
_LAST = 5
_KEEP = "without --rm, the pod stays, and kurma logs prints its output"
_SHELLS = ("sh", "ash", "bash", "dash", "zsh", "busybox")
#: Hints by texts in the last lines of an app that failed.
_CAUSES = (
    (b"Address already in use", "another program of its network namespace has that port"),
    (b"Read-only file system", "give it a volume where it writes: -v NAME:PATH"),
    (b"Permission denied", "kurma show POD has its user, volumes and isolators"),
    (b"Operation not permitted", "kurma show POD has its user, volumes and isolators"),
)


def report_ended(session: Session, record: PodRecord, *, ephemeral: bool) -> None:
    """Reports the apps that have ended although their pod was left to run: how, their last lines, and what to do.

    Waits half a second for such an end.
    """
    from kurma_core.errors import KurmaError, PodNotFoundError

    try:
        record = _watched(session, record)
    except PodNotFoundError:
        session.note(f"pod {record.name} has ended and was removed (--rm)")
        print(f"  hint: {_KEEP}", file=sys.stderr)
        return
    except KurmaError:
        return  # the pod runs, which is the answer to the command
    for app in record.apps:
        end = _end_of(app)
        if end is not None and end.reason != "start-failed":
            _tell_end(session, record, app, end, ephemeral=ephemeral)


def _watched(session: Session, record: PodRecord) -> PodRecord:
    """The pod after :data:`_AT_ONCE`, or once an app has ended."""
    import time

    from kurma_core import cancellation

    deadline = time.monotonic() + _AT_ONCE
    while not any(map(_end_of, record.apps)) and time.monotonic() < deadline:
        cancellation.pause(_LOOK)
        record = session.client.pod(record.uuid)
    return record


def _end_of(app: AppStatus) -> AppEnd | None:
    """Its end, or that of its last execution if its restart policy starts it again; None: it runs."""
    if app.exited or app.restarting:
        return app
    return app.earlier[-1] if app.restarts and app.earlier else None


def _tell_end(session: Session, record: PodRecord, app: AppStatus, end: AppEnd, *, ephemeral: bool) -> None:
    from kurma_core.cli.output import for_terminal
    from kurma_core.errors import KurmaError

    pod = record.name if len(record.apps) == 1 else f"{record.name}/{app.name}"
    instance = app.instance if end is app else end.instance  # type: ignore[attr-defined]
    try:
        last = list(session.client.logs(record.uuid, app.name, tail=_LAST, instance=instance))
    except KurmaError:
        last = []
    output = b"".join([one.text if one.partial else one.text + b"\n" for one in last])
    again = ", and is started again" if end is not app or app.restarting else ""
    session.note(f"app {app.name} has ended: {_how(end)}{again}" + ("; its last lines:" if output else ""))
    for line in output.splitlines():
        print(f"  | {for_terminal(line.decode(errors='backslashreplace'))}", file=sys.stderr)
    hints = [*_hints(record, app, end, output), _KEEP if ephemeral else f"all of its output: kurma logs {pod}"]
    print(f"  hint: {'; '.join(hints)}", file=sys.stderr)


def _how(end: AppEnd) -> str:
    if end.told:
        return end.told
    if end.signal is None:
        return f"exit code {end.exit_code}"
    import signal

    try:
        return f"killed by {signal.Signals(end.signal).name}"
    except ValueError:
        return f"killed by signal {end.signal}"


def _hints(record: PodRecord, app: AppStatus, end: AppEnd, output: bytes) -> list[str]:
    if end.reason == "oom":
        return ["--memory gives it more"]
    if end.exit_code:
        return [hint.replace("POD", record.name) for text, hint in _CAUSES if text in output][:1]
    for one in record.manifest.get("apps", ()):
        command = (one.get("app") or {}).get("exec") or [""]
        if one["name"] == app.name and len(command) == 1 and os.path.basename(command[0]) in _SHELLS:
            return ["a shell ends when its standard input does: -it gives it a terminal"]
    return []


#: The system ignores it by default, and nothing else in Kurma uses it.
_SIGNAL = _signal.SIGURG


class WhileRead:
    """A ``with`` statement, in the main thread, that ends when standard output is a pipe or a socket whose reader
    has closed it, even if nothing is written.

    :param wanted: False: it does nothing.
    :raises ReaderGone: the reader has closed it.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted and _is_read()
        self._over = False

    def __enter__(self) -> None:
        if self._wanted:
            from kurma_core.linux.process import start_thread

            self._stop, self._stopper = os.pipe2(os.O_CLOEXEC)
            self._old = _signal.signal(_SIGNAL, self._came)
            start_thread(self._watch, _thread.get_ident())

    def __exit__(self, *_: object) -> None:
        self._over = True
        if self._wanted:
            _signal.signal(_SIGNAL, self._old)
            os.close(self._stopper)

    def _came(self, *_: object) -> None:
        if not self._over:
            raise ReaderGone

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
