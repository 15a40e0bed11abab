"""``kurma app``: lists, adds, starts, stops and removes apps of a running pod."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.command_line import FORMAT, NO_LEGEND, Argument, Option, command
from kurma_core.cli.pod_options import app_options, app_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session

_POD = Argument("pod", "POD", "The pod.")
_APPS = Argument("apps", "APP", "The apps.", many=True)


@command(_POD, FORMAT, NO_LEGEND)
def list_(session: Session, *, pod: str) -> None:
    """List the apps of a pod.

    States: created (never started), starting, running, restarting, or how it ended: exited, killed, oom,
    start-failed.
    """
    from kurma_core.api.pods import AppRow

    record = session.client.pod(pod)
    columns: list[Column] = [
        ("APP", "name"),
        ("IMAGE", lambda app: app.image_name or (app.image or "")[:20]),
        "state",
        "pid",
        "restarts",
        ("EXIT", "exit_code"),
    ]
    session.listing([AppRow.of(record, app) for app in record.apps], columns)


@command(_POD, *app_options(), Option("start", "--start", "Start the app, too."), root=True)
def add(session: Session, *, pod: str, start: bool, **options: Any) -> None:
    """Add an app to a pod that runs.

    It shares the pod's namespaces and may mount the pod's volumes. It runs once it is started.
    """
    from kurma_core.cli.commands.run import tell_of_isolators

    request = app_request(options, session.note)
    name = request.template.pod.apps[0].name
    record = session.client.app_add(pod, request, start=start, progress=session.progress())
    tell_of_isolators(session, record, name)
    session.line(name)


@command(_POD, _APPS, root=True)
def start(session: Session, *, pod: str, apps: tuple[str, ...]) -> int:
    """Start apps that were added or have ended, each from a clean root.

    Returns once they run.
    """
    return session.each(apps, lambda app: session.client.app_start(pod, app))


@command(
    _POD,
    _APPS,
    Option("timeout", "--timeout", "How long they have before they are ended by force.", metavar="TIME"),
    Option("force", "--force", "End them at once."),
    root=True,
)
def stop(session: Session, *, pod: str, apps: tuple[str, ...], timeout: str | None, force: bool) -> int:
    """Stop apps; the rest of the pod goes on.

    Their restart policy does not start them again. A pod that was made with apps ends with its last app.
    """
    patience = None if timeout is None else values.seconds(timeout, "--timeout")
    return session.each(apps, lambda app: session.client.app_stop(pod, app, timeout=patience, force=force))


@command(_POD, _APPS, Option("force", "--force -f", "Stop those that run, at once."), root=True)
def rm(session: Session, *, pod: str, apps: tuple[str, ...], force: bool) -> int:
    """Remove apps that do not run from a pod that does.

    Removes their logs, too, and the volumes that came with them.
    """
    return session.each(apps, lambda app: session.client.app_rm(pod, app, force=force))
