"""``stop``, ``kill``, ``rm``, ``gc``: the ends of pods."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.declare import Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session

_PODS = Argument("pods", "POD", "The pods.", many=True)


@command(
    _PODS,
    Option("timeout", "--timeout", "How long the apps have before they are ended by force.", metavar="TIME"),
    Option("force", "--force", "End them at once."),
    root=True,
)
def stop(session: Session, *, pods: tuple[str, ...], timeout: str | None, force: bool) -> int:
    """Stop pods."""
    patience = None if timeout is None else values.seconds(timeout, "--timeout")
    return session.each(pods, lambda pod: session.client.stop(pod, timeout=patience, force=force))


@command(
    Argument("pod", "POD", "The pod."),
    Argument("app", "APP", "Only this app.", required=False),
    Option("signal", "--signal -s", "The signal, by name or number.", metavar="SIGNAL", default="TERM"),
    root=True,
)
def kill(session: Session, *, pod: str, app: str | None, signal: str) -> None:
    """Send a signal to the apps of a pod."""
    session.client.kill(pod, values.signal_number(signal), app)


@command(_PODS, Option("force", "--force -f", "Stop those that run, at once."), root=True)
def rm(session: Session, *, pods: tuple[str, ...], force: bool) -> int:
    """Remove pods that do not run.

    Their logs and empty volumes go with them.
    """
    return session.each(pods, lambda pod: session.client.rm(pod, force=force))


@command(
    Option(
        "grace_period",
        "--grace-period",
        "Keep pods that ended less than TIME ago.",
        metavar="TIME",
        default="30m",
    ),
    Option("dry_run", "--dry-run", "Only say what would be done."),
    root=True,
)
def gc(session: Session, *, grace_period: str, dry_run: bool) -> int:
    """Take down what is dead, and remove pods that ended a while ago.

    What a killed command or a crash has left is made clean whatever its age: also addresses, interfaces, rules and
    namespaces of pods that are gone. The exit code is 125 when something was left because of an error.
    """
    grace = values.seconds(grace_period, "--grace-period")
    collected = session.client.gc(grace=grace, dry_run=dry_run)
    for line in collected.lines:
        session.line(line)
    return 125 if collected.failed else 0
