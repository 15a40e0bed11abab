"""``kurma enter`` and ``exec`` run a command in an app, ``attach`` joins its terminal, ``cp`` copies files, and
``diff`` lists changed ones."""

from __future__ import annotations

from kurma_core.api import pod_file
from kurma_core.cli import values
from kurma_core.cli.command_line import APP, FORMAT, NO_LEGEND, POD_OR_APP, Argument, Option, Rest, command
from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.cli.session import Session


_SHELL = ("/bin/sh",)


_ENTER_OPTIONS = (
    APP,
    Option("interactive", "--interactive -i", "Connect standard input without a terminal, unless -t is given."),
    Option("tty", "--tty -t", "Allocate a terminal for the command."),
    Option(
        "user",
        "--user -u",
        "Run as this user and group, by name or number; default: the app's.",
        metavar="USER[:GROUP]",
    ),
    Option("group", "--group", "Run as this group, by name or number.", metavar="GROUP"),
    Option(
        "env",
        "--env -e",
        "Set an environment variable; NAME alone copies the caller's.",
        metavar="NAME[=VALUE]",
        many=True,
    ),
    Option("workdir", "--workdir -w", "Run in this directory of the app's root.", metavar="PATH"),
    Option("timeout", "--timeout", "Kill the command, and all that it has started, after TIME.", metavar="TIME"),
)


@command(POD_OR_APP, Rest("words", "COMMAND..."), *_ENTER_OPTIONS, root=True, example="kurma enter shop/web")
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
    timeout: str | None,
) -> int:
    """Run a shell or a command in an app of a running pod.

    The default of COMMAND is /bin/sh. Write options before COMMAND: all words after it belong to it. Kurma relays
    standard input, output and error. The exit code is the command's, 126 if it cannot be executed, 127 if it is
    not found, and 124 if it was killed after the time of --timeout.

    If all three are a terminal, or with -t, the command gets a terminal of the same size. When the command ends,
    the kernel ends the other processes of its session. With -i alone the command gets pipes: input arrives line by
    line, and processes in the background keep running.
    """
    return _run_inside(session, pod, app, words or _SHELL, interactive, tty, user, group, env, workdir, timeout)


@command(
    POD_OR_APP,
    Rest("words", "COMMAND...", required=True),
    *_ENTER_OPTIONS,
    root=True,
    example="kurma exec shop/web ls -l /srv",
)
def exec_(session: Session, **given: Any) -> int:
    """Run a command in an app of a running pod.

    Works like kurma enter, but COMMAND has no default.
    """
    return _run_inside(session, **given)


def _run_inside(
    session: Session,
    pod: str,
    app: str | None,
    words: tuple[str, ...],
    interactive: bool,
    tty: bool,
    user: str | None,
    group: str | None,
    env: tuple[str, ...],
    workdir: str | None,
    timeout: str | None,
) -> int:
    import os

    pod, app = values.find_pod_and_app(session.client, pod, app)
    terminal = tty or (not interactive and all(os.isatty(number) for number in range(3)))
    if not terminal:
        _end_at_once()
    elif not os.isatty(0):
        session.note(
            "standard input is not a terminal: the command gets a terminal, and the input is typed into it"
        )
    user, group = values.user_and_group(user, group)
    from kurma_core.api.pods import EnterRequest

    request = EnterRequest(
        app=app,
        exec=words,
        user=user,
        group=group,
        environment=pod_file.environment(env),
        working_directory=None if workdir is None else values.inner_path(workdir, "--workdir"),
        tty=terminal,
        timeout=None if timeout is None else values.seconds(timeout, "--timeout"),
    )
    return session.client.enter(pod, request, session.stdio())


def _end_at_once() -> None:
    """Our end is the call-in's SIGTERM, which passes it on."""
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@command(
    POD_OR_APP,
    APP,
    Option("no_stdin", "--no-stdin", "Show output only; send the app no input."),
    Option(
        "detach_keys",
        "--detach-keys",
        "Detach from the app's terminal by these keys; default: ctrl-p,ctrl-q; empty: none.",
        metavar="KEYS",
    ),
    root=True,
    example="kurma attach web",
)
def attach(session: Session, *, pod: str, app: str | None, no_stdin: bool, detach_keys: str | None) -> int:
    """Attach to an app's output and standard input.

    Shows new output. Several clients can be attached at once: each sees all output, and the app gets the input of
    all. The app's standard input ends when the last client with input has closed it. -t and -i of kurma run and
    kurma app add, or the annotations kurma.io/terminal and kurma.io/stdin, give an app a terminal or an open
    standard input.

    The exit code is 0 after the detach keys, and the app's if the app ends first. Without a terminal, input
    arrives line by line, and Ctrl-C ends this command, not the app.
    """
    if detach_keys is not None:
        _check_keys(detach_keys)
    pod, app = values.find_pod_and_app(session.client, pod, app)
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


_SEE = "write POD:/PATH or POD/APP:/PATH for one side; a path of the host with a colon begins with / or ./"


@command(
    Argument(
        "source",
        "SRC",
        "The source: a path of the host, POD[/APP]:PATH, or - for a tar archive on standard input.",
    ),
    Argument(
        "target",
        "DST",
        "The target: a path of the host, POD[/APP]:PATH, or - for a tar archive on standard output.",
    ),
    Option("archive", "--archive -a", "Also copy owners and all permission bits."),
    Option("follow", "--follow-link -L", "Copy the target of SRC if SRC is a symbolic link."),
    root=True,
    here="it reaches into the app's root and the host's files by itself, and no kurmad does it for others",
    example="kurma cp web:/etc/nginx/nginx.conf .",
)
def cp(session: Session, *, source: str, target: str, archive: bool, follow: bool) -> None:
    """Copy files to a running app or from it.

    One side is POD:PATH, or POD/APP:PATH if the pod has several apps. PATH is relative to the app's root, and
    links in the app cannot lead out of it. If DST is a directory, SRC is copied into it, else to the name DST;
    SRC/. copies only the contents of SRC. Links are copied as links. Devices, sockets and pipes are neither copied
    nor replaced, and nothing is written to /dev, /proc and /sys of the kernel.

    Copies on the host belong to the caller, and copies in the pod to its root user, unless -a is given. A file
    appears under its name when it is complete.
    """
    inner, outer = _place(source), _place(target)
    if (inner is None) == (outer is None):
        raise UsageError(f"cp: {'neither' if inner is None else 'each'} of the two is a path in a pod", hint=_SEE)
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
            "cp: cannot write an archive to a terminal",
            hint="redirect standard output to a file, or pipe it to tar",
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
    if not pod or not rest or rest.startswith(":"):
        raise UsageError(f"cp: malformed {text!r}", hint=_SEE)
    pod, app = values.pod_and_app(pod, None)
    return pod, app, rest


@command(
    POD_OR_APP,
    APP,
    FORMAT,
    NO_LEGEND,
    root=True,
    here="it reads the pod's directory by itself, and no kurmad does it for others",
    example="kurma diff shop/web",
)
def diff(session: Session, *, pod: str, app: str | None) -> None:
    """List what an app has changed in its root.

    Compares the root of the last execution with the app's image. The pod runs, or it has ended and keeps its roots
    (--keep-root). Volumes, and the files that Kurma makes in every root, are left out.
    """
    session.listing(session.client.root_changes(*values.pod_and_app(pod, app)), ["kind", "path"])
