"""``kurma app``: lists, adds, starts, stops and removes apps of a running pod."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.command_line import FORMAT, MANAGED, NO_LEGEND, Argument, Option, command
from kurma_core.cli.isolator_options import OPTIONS, isolators
from kurma_core.cli.pod_options import app_options, app_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session

_POD = Argument("pod", "POD", "The pod.")
_APPS = Argument("apps", "APP", "The apps.", many=True)


@command(_POD, FORMAT, NO_LEGEND, example="kurma app list shop")
def list_(session: Session, *, pod: str) -> None:
    """List the apps of a pod.

    States: created (never started), starting, running, restarting, or how it ended: exited, killed, oom,
    start-failed.
    """
    from kurma_core.api.pods import AppRow
    from kurma_core.cli.output import without_directory

    record = session.client.pod(pod)
    columns: list[Column] = [
        ("APP", "name"),
        ("IMAGE", lambda app: without_directory(app.image_name or (app.image or "")[:20]), (1, -12)),
        "state",
        "pid",
        "restarts",
        ("EXIT", "exit_code"),
    ]
    session.listing([AppRow.of(record, app) for app in record.apps], columns)


@command(
    _POD,
    *app_options(),
    Option("start", "--start", "Also start the app."),
    MANAGED,
    root=True,
    example="kurma app add --start --name debug shop ./tools.aci sleep 1000",
)
def add(session: Session, *, pod: str, start: bool, force: bool, **options: Any) -> None:
    """Add an app to a running pod.

    The app shares the pod's namespaces and may mount the pod's volumes. kurma app start or --start runs it.
    """
    from kurma_core.cli.commands.run import tell_of_isolators

    request = app_request(options, session.note)
    name = request.template.pod.apps[0].name
    record = session.client.app_add(pod, request, start=start, managed=force, progress=session.progress())
    tell_of_isolators(session, record, name)
    session.line(name)


@command(_POD, _APPS, MANAGED, root=True, example="kurma app start shop debug")
def start(session: Session, *, pod: str, apps: tuple[str, ...], force: bool) -> int:
    """Start added or ended apps of a running pod.

    Each app gets a clean root filesystem. Returns once the apps run.
    """
    return session.each(apps, lambda app: session.client.app_start(pod, app, managed=force))


@command(
    _POD,
    _APPS,
    Option("timeout", "--timeout", "Kill apps that still run after TIME.", metavar="TIME"),
    Option("force", "--force", "Kill the apps at once, or after --timeout, also if a program manages the pod."),
    root=True,
    example="kurma app stop shop debug",
)
def stop(session: Session, *, pod: str, apps: tuple[str, ...], timeout: str | None, force: bool) -> int:
    """Stop apps of a running pod.

    The restart policy does not start stopped apps again. The other apps keep running. A pod that was created with
    apps ends with its last app.
    """
    patience = None if timeout is None else values.seconds(timeout, "--timeout")
    at_once = force and patience is None
    return session.each(
        apps, lambda app: session.client.app_stop(pod, app, timeout=patience, force=at_once, managed=force)
    )


@command(_POD, _APPS, MANAGED, root=True, example="kurma app reopen-log shop web")
def reopen_log(session: Session, *, pod: str, apps: tuple[str, ...], force: bool) -> int:
    """Continue the logs of apps in new files.

    For a pod with --log-dir: rename the log file first. When the command returns, the new file exists, and the old
    file gets no more output.
    """

    def reopen(app: str) -> None:
        session.client.app_reopen_log(pod, app, managed=force)

    return session.each(apps, reopen)


@command(
    _POD,
    _APPS,
    Option("force", "--force -f", "Kill running apps first; also change a pod that a program manages."),
    root=True,
    example="kurma app rm shop debug",
)
def rm(session: Session, *, pod: str, apps: tuple[str, ...], force: bool) -> int:
    """Remove ended apps from a pod.

    The pod runs or has ended. Also removes their logs, and the volumes that kurma app add created for them.
    """
    return session.each(apps, lambda app: session.client.app_rm(pod, app, force=force, managed=force))


@command(
    _POD,
    Argument("app", "APP", "The app."),
    *(option for option in OPTIONS if option.name in ("memory", "cpus", "isolator")),
    MANAGED,
    root=True,
    example="kurma app update --memory 512Mi shop web",
)
def update(session: Session, *, pod: str, app: str, force: bool, **options: Any) -> None:
    """Change the resources of an app.

    A running app has them at once, and a later start keeps them. If the kernel refuses one, all stay as they were.
    Isolators are those of processors, memory, processes and devices, and os/linux/oom-score-adj.
    """
    from kurma_core.cli.commands.run import tell_of_isolators

    wanted = dict(isolators({"caps_retain": (), "caps_remove": (), "device": (), "ulimit": (), **options}))
    tell_of_isolators(session, session.client.app_update(pod, app, wanted, managed=force), app)
