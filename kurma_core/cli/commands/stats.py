"""``kurma stats``, ``top``: CPU, memory, I/O and network use of pods and apps, and the processes of a pod."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kurma_core.cli import output, values
from kurma_core.cli.command_line import APP, FORMAT, NO_LEGEND, NO_TRUNC, Argument, Option, command
from kurma_core.errors import PodNotFoundError, PodStateError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, TextIO

    from kurma_core.api.pods import Process, Usage
    from kurma_core.api.pods import ResourceUsage as Counted
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session


_INTERVAL = Option("interval", "--interval", "Measure again after TIME.", metavar="TIME", default="1s")
_NO_STREAM = Option("no_stream", "--no-stream", "Print one measurement, over one interval, and exit.")
#: Seconds; a shorter interval shows nothing useful.
_SHORTEST = 0.1


@command(
    Argument("pods", "POD", "Show only these pods.", required=False, many=True),
    _NO_STREAM,
    _INTERVAL,
    Option("apps", "--apps", "Also show each app."),
    FORMAT,
    NO_LEGEND,
    example="kurma stats --no-stream",
)
def stats(
    session: Session,
    *,
    pods: tuple[str, ...],
    no_stream: bool,
    interval: str,
    apps: bool,
) -> None:
    """Show the resource usage of pods, continuously.

    Without POD, shows all running pods. CPU of 100% is one processor, 200% are two. MEMORY excludes memory that
    the kernel can reclaim at once. On a terminal, each measurement replaces the one before; other outputs get all
    rows, and with --format json one list per line. The command exits when the named pods have ended.
    """

    Figures(session, _seconds(interval), apps=apps).show(pods, once=no_stream)


@command(
    Argument(
        "pod",
        "POD[/APP]",
        "The pod or app whose processes are shown; default: all pods.",
        required=False,
    ),
    APP,
    _NO_STREAM,
    _INTERVAL,
    FORMAT,
    NO_TRUNC,
    NO_LEGEND,
    example="kurma top shop/web",
)
def top(
    session: Session,
    *,
    pod: str | None,
    app: str | None,
    no_stream: bool,
    interval: str,
) -> None:
    """Show the processes of a pod, or the busiest pods.

    PID is the process's number on the host, INSIDE its number in the pod. CPU is its processor time divided by its
    age. Processes without an app belong to the stager. Without POD, the command shows kurma stats, with the
    busiest pods first; only then do --interval and --no-stream have an effect.
    """
    seconds = _seconds(interval)
    if pod is None:
        if app is not None:
            raise UsageError("--app: the pod is missing", hint="kurma top POD/APP")
        Figures(session, seconds, busiest=True).show((), once=no_stream)
        return
    session.listing(session.client.processes(*values.find_pod_and_app(session.client, pod, app)), _PROCESS_COLUMNS)


def _seconds(text: str) -> float:
    found = values.seconds(text, "--interval")
    if found < _SHORTEST:
        raise UsageError(f"--interval: {text!r} is less than {_SHORTEST} s")
    return found


def _time(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{rest:05.2f}" if hours else f"{minutes}:{rest:05.2f}"


def _part(one: Process) -> str:
    return f"{100 * one.cpu / one.elapsed:.1f}%" if one.elapsed else ""


def _user(one: Process) -> str:
    return one.user or ("" if one.uid is None else str(one.uid))


def _command(one: Any) -> str:
    return " ".join(one.command) if one.command else f"[{one.name}]"


_PROCESS_COLUMNS: list[Column] = [
    "pid",
    ("INSIDE", "inner_pid"),
    "app",
    ("USER", _user),
    "state",
    ("CPU", _part),
    ("MEMORY", lambda one: _size(one.memory)),
    ("TIME", lambda one: _time(one.cpu)),
    ("COMMAND", _command, (1, 16)),
]


Json = Any


class _Row(NamedTuple):
    """:param app: None: the pod.
    :param cpu: per cent; None: there is no earlier measurement.
    """

    pod: Usage
    app: str | None
    counted: Counted
    cpu: float | None


class Figures:
    """:param interval: seconds between two looks. :param busiest: the order; else as they were made."""

    def __init__(self, session: Session, interval: float, *, apps: bool = False, busiest: bool = False) -> None:
        self._session = session
        self._interval = interval
        self._apps = apps
        self._legend = not session.no_legend
        self._busiest = busiest
        self._before: dict[str, Usage] = {}

    def show(self, pods: Sequence[str], *, once: bool) -> None:
        """:param pods: empty: all that run.

        :raises KurmaError: one of them does not run, or is not there, at the beginning.
        """
        screen = Screen.of(self._session.out) if self._session.format == "table" and not once else None
        found = self._session.client.usage(pods)
        named = [one.uuid for one in found] if pods else []
        try:
            if screen is not None:
                screen.show(self._table(found, screen.width))
            while True:
                self._before = {one.uuid: one for one in found}
                time.sleep(self._interval)
                found = self._look(named)
                if pods and not found and not once:
                    return
                if screen is not None:
                    screen.show(self._table(found, screen.width))
                else:
                    self._print(found)
                if once:
                    return
        finally:
            if screen is not None:
                screen.leave()

    def _look(self, named: Sequence[str]) -> list[Usage]:
        """Those of them that still run."""
        try:
            return self._session.client.usage(named)
        except (PodNotFoundError, PodStateError):
            return [one for one in self._session.client.usage() if one.uuid in named]

    def _print(self, found: list[Usage]) -> None:
        if self._session.format == "table":
            for line in self._table(found, self._session.width()):
                self._session.line(line)
            self._legend = False
        elif self._session.format == "json":
            self._session.line(json.dumps([self._json(one) for one in found], ensure_ascii=False))
        elif self._session.format != "yaml":
            self._session.listing([self._json(one) for one in found], ())
        else:
            self._session.line(
                "---\n" + output.formatted(self._session.format, [self._json(one) for one in found])
            )
        self._session.flush()

    def _rows(self, found: list[Usage]) -> Iterator[_Row]:
        rows = [_Row(one, None, one.total, self._percent(one)) for one in found]
        if self._busiest:
            rows.sort(key=lambda row: -(row.cpu or 0.0))
        for row in rows:
            yield row
            if self._apps:
                for name, counted in row.pod.apps.items():
                    yield _Row(row.pod, name, counted, self._percent(row.pod, name))

    def _percent(self, one: Usage, app: str | None = None) -> float | None:
        """Of one processor, since the last look."""
        before = self._before.get(one.uuid)
        if before is None:
            return None
        then, now = (each.total if app is None else each.apps.get(app) for each in (before, one))
        time_between = one.clock - before.clock
        if then is None or now is None or then.cpu is None or now.cpu is None or time_between <= 0:
            return None
        # A pod that was started again counts from nought.
        return 100 * (now.cpu - then.cpu) / time_between if now.cpu >= then.cpu else None

    def _table(self, found: list[Usage], width: int) -> Iterator[str]:
        columns = [column for column in _USAGE_COLUMNS if self._apps or column[0] != "APP"]
        return output.table(self._rows(found), columns, legend=self._legend, width=width)

    def _json(self, one: Usage) -> Json:
        value = one.to_json()
        value["cpuPercent"] = self._percent(one)
        for name, each in value["apps"].items():
            each["cpuPercent"] = self._percent(one, name)
        return value


def _size(count: int | None) -> str:
    return "" if count is None else output.size(count)


def _memory(one: Counted) -> str:
    return "" if one.memory is None else output.size(max(0, one.memory - (one.memory_reclaimable or 0)))


def _of_pod(row: _Row, value: int | None) -> str:
    return _size(value) if row.app is None else ""


_USAGE_COLUMNS: list[Column] = [
    ("UUID", lambda row: row.pod.uuid[:8], (1, 0)),
    ("NAME", lambda row: row.pod.display_name or row.pod.name, (3, 12)),
    ("APP", "app", (4, 8)),
    ("CPU", lambda row: "" if row.cpu is None else f"{row.cpu:.1f}%"),
    ("MEMORY", lambda row: _memory(row.counted)),
    ("LIMIT", lambda row: _size(row.counted.memory_limit), (2, 0)),
    ("PIDS", "counted.pids"),
    ("READ", lambda row: _size(row.counted.block_read), (5, 0)),
    ("WRITTEN", lambda row: _size(row.counted.block_written), (6, 0)),
    ("RECEIVED", lambda row: _of_pod(row, row.pod.network_received), (7, 0)),
    ("SENT", lambda row: _of_pod(row, row.pod.network_sent), (8, 0)),
]


# ECMA-48: up so many lines, to the beginning; erase to the end of the line; erase all below.
_UP, _REST_OF_LINE, _REST = "\x1b[{}F", "\x1b[K", "\x1b[J"


class Screen:
    """Shows lines in place on a terminal, as many and as much of each as fit. The last ones stay."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._drawn = 0

    @classmethod
    def of(cls, out: TextIO) -> Screen | None:
        """None: the output is not a terminal, or one that cannot move its cursor."""
        return cls(out) if out.isatty() and os.environ.get("TERM") not in (None, "", "dumb") else None

    @property
    def width(self) -> int:
        """Columns of a line; 0: no limit."""
        return max(0, os.get_terminal_size(self._out.fileno()).columns - 1)

    def show(self, lines: Iterable[str]) -> None:
        width, height = os.get_terminal_size(self._out.fileno())
        found = list(lines)
        # The cursor is one line below the table. A terminal that reports no size is treated as unlimited.
        room = height - 1 if height > 1 else len(found)
        if len(found) > room:
            found[room - 1 :] = [f"… and {len(found) - room + 1} more"]
        up = _UP.format(self._drawn) if self._drawn else ""
        kept = [output.cut(line, width - 1) if width > 1 else line for line in found]
        self._out.write(up + "".join(f"{line}{_REST_OF_LINE}\n" for line in kept) + _REST)
        self._out.flush()
        self._drawn = len(kept)

    def leave(self) -> None:
        """Ends drawing. After Ctrl-C the cursor's line may hold a ``^C``."""
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            self._out.write("\n")
            self._out.flush()
