"""``enter``, also called ``exec``: a command inside a running app."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.declare import Argument, Option, Rest, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session

_SHELL = ("/bin/sh",)


@command(
    Argument("pod", "POD", "The pod."),
    Argument("app", "APP", "The app; it may be left out where the pod has one.", required=False),
    Rest("words", "COMMAND..."),
    Option(
        "user",
        "--user",
        "Run as this user, and group, by name or number; the app's own otherwise.",
        metavar="USER[:GROUP]",
    ),
    Option("group", "--group", "Run as this group, by name or number.", metavar="GROUP"),
    Option("env", "--env -e", "Set a variable; NAME alone takes it from here.", metavar="NAME[=VALUE]", many=True),
    Option("workdir", "--workdir", "Run in this directory of the app.", metavar="PATH"),
    root=True,
)
def enter(
    session: Session,
    *,
    pod: str,
    app: str | None,
    words: tuple[str, ...],
    user: str | None,
    group: str | None,
    env: tuple[str, ...],
    workdir: str | None,
) -> int:
    """Run a command inside an app of a running pod.

    COMMAND stands after --; without one it is /bin/sh. Standard input, output and error are this command's, and
    the exit code is the command's: 126 if it cannot be executed, 127 if it is not found.
    """
    import signal

    # Our end is the call-in's SIGTERM, which passes it on.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    user, group = values.user_and_group(user, group)
    return session.client.enter(
        pod,
        app,
        words or _SHELL,
        session.stdio(),
        user=user,
        group=group,
        environment=values.environment(env),
        working_directory=None if workdir is None else values.inner_path(workdir, "--workdir"),
    )
