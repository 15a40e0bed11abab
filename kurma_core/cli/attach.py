"""``attach``: an app's output from now on, and its standard input."""

from __future__ import annotations

from kurma_core.cli.declare import Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session


@command(
    Argument("pod", "POD", "The pod."),
    Argument("app", "APP", "The app; it may be left out where the pod has one.", required=False),
    Option("no_stdin", "--no-stdin", "Only look on: nothing that is typed goes to the app."),
    Option(
        "detach_keys",
        "--detach-keys",
        "The keys to leave an app's terminal by; ctrl-p,ctrl-q unless given, none where it is empty.",
        metavar="KEYS",
    ),
    root=True,
)
def attach(session: Session, *, pod: str, app: str | None, no_stdin: bool, detach_keys: str | None) -> int:
    """Join an app of a running pod: its output, and its standard input.

    Its output from now on, that is. Any number may be attached at once; each sees everything, and the input of
    all goes to the app. Its standard input ends once the last of those who gave any has come to an end. Apps have
    a terminal or an open standard input by -t and -i of run and app add, or by their annotations
    kurma.io/terminal and kurma.io/stdin.

    The exit code is the app's if it ends meanwhile, 0 after the detach keys. Where the app has no terminal, what
    is typed comes line by line, and Ctrl-C ends this command, not the app.
    """
    if detach_keys is not None:
        _check_keys(detach_keys)
    return session.client.attach(pod, app, session.stdio(), stdin=not no_stdin, detach_keys=detach_keys)


def _check_keys(text: str) -> None:
    from kurma_core.errors import UsageError
    from kurma_core.linux import detach_keys

    try:
        detach_keys.parse(text)
    except ValueError as error:
        raise UsageError(
            f"--detach-keys: {error}",
            hint=f"write {detach_keys.HOW}; several with commas: {detach_keys.DEFAULT}",
        ) from None
