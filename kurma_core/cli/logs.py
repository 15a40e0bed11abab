"""``logs``: what the apps of a pod have written."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.declare import Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session


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

    Their standard output comes out on standard output, their standard error on standard error, byte for byte.
    """
    from kurma_core.cli.loglines import LogPrinter
    from kurma_core.cli.reader import WhileRead
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
