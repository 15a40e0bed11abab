"""``kurma enter`` and ``exec`` run a command in an app, ``attach`` joins its terminal, ``cp`` copies files."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.command_line import Argument, Option, Rest, command
from kurma_core.errors import UsageError

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

    COMMAND follows --; the default is /bin/sh. Standard input, output and error are relayed, and the exit code is
    the command's: 126 if it cannot be executed, 127 if it is not found.

    If all three are a terminal, or with -t, the command gets a terminal of its own, of the same size; when it
    ends, the processes that it left in its session end, too. With -i alone it gets pipes: input arrives line by
    line, and processes that it leaves behind keep running.
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


@command(
    Argument("pod", "POD", "The pod."),
    Argument("app", "APP", "The app; it may be left out where the pod has one.", required=False),
    Option("no_stdin", "--no-stdin", "Only show output: no input goes to the app."),
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

    Shows output from now on. Several clients can be attached at once: each sees all output, and the app gets the
    input of all. The app's standard input ends when the last client with input has closed it. Apps have a terminal
    or an open standard input by -t and -i of run and app add, or by their annotations kurma.io/terminal and
    kurma.io/stdin.

    The exit code is the app's if it ends meanwhile, 0 after the detach keys. If the app has no terminal, input
    arrives line by line, and Ctrl-C ends this command, not the app.
    """
    if detach_keys is not None:
        _check_keys(detach_keys)
    return session.client.attach(pod, app, session.stdio(), stdin=not no_stdin, detach_keys=detach_keys)


def _check_keys(text: str) -> None:
    from kurma_core.formats import detach_keys

    try:
        detach_keys.parse(text)
    except ValueError as error:
        raise UsageError(
            f"--detach-keys: {error}",
            hint=f"write {detach_keys.HOW}; several with commas: {detach_keys.DEFAULT}",
        ) from None


_SEE = "write POD:/PATH or POD:APP:/PATH for one side; a path of the host with a colon begins with / or ./"


@command(
    Argument("source", "SRC", "The source: a path, POD:[APP:]PATH, or - for a tar archive on standard input."),
    Argument("target", "DST", "The target: likewise, - for standard output."),
    Option("archive", "--archive -a", "Copy owners, and all permission bits, too."),
    Option("follow", "--follow-link -L", "If SRC is a link, copy what it leads to."),
    root=True,
    here="it reaches into the app's root and the host's files by itself, and no kurmad does it for others",
)
def cp(session: Session, *, source: str, target: str, archive: bool, follow: bool) -> None:
    """Copy files from an app that runs, or to it.

    One side is POD:PATH, or POD:APP:PATH if the pod has several apps. PATH begins at the app's root, and links in
    the app cannot lead out of it. A directory is copied with its contents: into DST if that exists, else under the
    name DST; SRC/. copies only the contents of SRC. Links are copied as links. Devices, sockets and pipes are
    neither copied nor replaced, and nothing is written to the kernel's /dev, /proc and /sys.

    Copies to the host belong to the caller, copies to the pod to its root, unless -a is given. A file gets its
    name once it is complete.
    """
    inner, outer = _place(source), _place(target)
    if (inner is None) == (outer is None):
        raise UsageError(f"cp: {'neither' if inner is None else 'each'} of both is a path in a pod", hint=_SEE)
    if inner is not None:
        _out(session, inner, target, whole=archive, follow=follow)
        return
    assert outer is not None
    pod, app, path = outer
    import sys

    session.client.copy_in(
        pod, app, sys.stdin.buffer if source == "-" else source, path, whole=archive, follow=follow
    )


def _out(session: Session, inner: tuple[str, str | None, str], target: str, *, whole: bool, follow: bool) -> None:
    pod, app, path = inner
    if target != "-":
        session.client.copy_out(pod, app, path, target, whole=whole, follow=follow)
        return
    if session.out.isatty():
        raise UsageError(
            "cp: an archive is nothing for a terminal", hint="lead standard output to a file, or to tar"
        )
    try:
        session.client.copy_out(pod, app, path, session.out.buffer, whole=whole, follow=follow)
        session.flush()
    except BrokenPipeError:
        from kurma_core.cli.session import OutputClosed

        raise OutputClosed from None


def _place(text: str) -> tuple[str, str | None, str] | None:
    """Pod, app and path; None: it is a path of the host.

    :raises UsageError: a part is empty.
    """
    pod, colon, rest = text.partition(":")
    if not colon or text.startswith(("/", ".")):
        return None
    app: str | None = None
    if not rest.startswith("/") and ":" in rest:
        app, _, rest = rest.partition(":")
    if not pod or app == "" or not rest:
        raise UsageError(f"cp: malformed {text!r}", hint=_SEE)
    return pod, app, rest
