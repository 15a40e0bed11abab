"""``stats``, ``top``: what pods use, and the processes that do."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.declare import FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.api.pods import Process
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session

_INTERVAL = Option("interval", "--interval", "Look again after TIME.", metavar="TIME", default="1s")
_NO_STREAM = Option("no_stream", "--no-stream", "Print it once: over one interval.")
#: Seconds; nothing is seen in less.
_SHORTEST = 0.1


@command(
    Argument("pods", "POD", "Only these pods.", required=False, many=True),
    _NO_STREAM,
    _INTERVAL,
    Option("apps", "--apps", "Also what each app uses."),
    FORMAT,
    NO_LEGEND,
)
def stats(
    session: Session,
    *,
    pods: tuple[str, ...],
    no_stream: bool,
    interval: str,
    apps: bool,
    format: str,
    no_legend: bool,
) -> None:
    """Show what pods use, again and again.

    Without POD, of all that run. CPU is of one processor: 200% are two. MEMORY is without what the kernel can have
    back at once. A terminal shows the last figures in place; elsewhere come rows, and with --format json a list in
    each line. It ends with the last of the pods that are named.
    """
    from kurma_core.cli.live import Figures

    Figures(session, _seconds(interval), format, apps=apps, no_legend=no_legend).show(pods, once=no_stream)


@command(
    Argument("pod", "POD", "The pod whose processes are shown; without it, what all pods use.", required=False),
    Argument("app", "APP", "Only the processes of this app.", required=False),
    _NO_STREAM,
    _INTERVAL,
    FORMAT,
    NO_LEGEND,
)
def top(
    session: Session,
    *,
    pod: str | None,
    app: str | None,
    no_stream: bool,
    interval: str,
    format: str,
    no_legend: bool,
) -> None:
    """Show the processes of a pod; without POD, what pods use, the busiest first.

    PID is the host's number of a process, INSIDE its own in the pod. CPU is the part of its life that it had a
    processor. Processes without an app are the stager's. Without POD it is kurma stats in another order, and only
    then --interval and --no-stream count.
    """
    seconds = _seconds(interval)
    if pod is None:
        from kurma_core.cli.live import Figures

        Figures(session, seconds, format, no_legend=no_legend, busiest=True).show((), once=no_stream)
        return
    session.listing(format, session.client.processes(pod, app), _COLUMNS, no_legend=no_legend)


def _seconds(text: str) -> float:
    from kurma_core.errors import UsageError

    found = values.seconds(text, "--interval")
    if found < _SHORTEST:
        raise UsageError(f"--interval: {text!r} is less than {_SHORTEST} s")
    return found


def _size(count: int) -> str:
    from kurma_core.cli.output import size

    return size(count)


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


_COLUMNS: list[Column] = [
    ("PID", lambda one: str(one.pid)),
    ("INSIDE", lambda one: str(one.inner_pid)),
    ("APP", lambda one: one.app or ""),
    ("USER", _user),
    ("STATE", lambda one: one.state),
    ("CPU", _part),
    ("MEMORY", lambda one: _size(one.memory)),
    ("TIME", lambda one: _time(one.cpu)),
    ("COMMAND", _command),
]
