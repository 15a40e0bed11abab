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
    Option("interactive", "--interactive -i", "No terminal, unless -t asks for one."),
    Option("tty", "--tty -t", "Give the command a terminal."),
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
    interactive: bool,
    tty: bool,
    user: str | None,
    group: str | None,
    env: tuple[str, ...],
    workdir: str | None,
) -> int:
    """Run a command inside an app of a running pod.

    COMMAND stands after --; without one it is /bin/sh. Standard input, output and error are relayed, and the exit
    code is the command's: 126 if it cannot be executed, 127 if it is not found.

    Where all three are a terminal, or with -t, the command gets a terminal of its own, which has the size of
    this one; when it ends, so do the processes that it has left in its session. With -i alone it gets pipes:
    what is typed comes line by line, and processes that it leaves behind live on.
    """
    import os

    terminal = tty or (not interactive and all(os.isatty(number) for number in range(3)))
    if not terminal:
        _end_at_once()
    elif not os.isatty(0):
        session.note(
            "standard input is no terminal: the command gets one all the same, with what comes in as typed"
        )
    user, group = values.user_and_group(user, group)
    from kurma_core.api.pods import EnterRequest

    request = EnterRequest(
        app=app,
        exec=words or _SHELL,
        user=user,
        group=group,
        environment=values.environment(env),
        working_directory=None if workdir is None else values.inner_path(workdir, "--workdir"),
        tty=terminal,
    )
    return session.client.enter(pod, request, session.stdio())


def _end_at_once() -> None:
    """Our end is the call-in's SIGTERM, which passes it on."""
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
