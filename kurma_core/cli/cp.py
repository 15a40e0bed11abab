"""``cp``: files from and to apps."""

from __future__ import annotations

from kurma_core.cli.declare import Argument, Option, command
from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session

_SEE = "write POD:/PATH or POD:APP:/PATH for one side; a path of the host with a colon begins with / or ./"


@command(
    Argument("source", "SRC", "What is copied: a path, POD:[APP:]PATH, or - for a tar archive on standard input."),
    Argument("target", "DST", "Where to: the same, - for standard output."),
    Option("archive", "--archive -a", "Copy owners, and all permission bits, too."),
    Option("follow", "--follow-link -L", "If SRC is a link, copy what it leads to."),
    root=True,
    here="it reaches into the app's root and the host's files by itself, and no kurmad does it for others",
)
def cp(session: Session, *, source: str, target: str, archive: bool, follow: bool) -> None:
    """Copy files from an app that runs, or to it.

    One side is POD:PATH, or POD:APP:PATH where the pod has several apps; PATH counts from the app's root, and
    links inside lead nowhere else. Directories are copied with all that is in them: into DST if that is there,
    else under that name; SRC/. is what is in SRC. Links are copied as links; devices, sockets and pipes are left
    out, and nothing takes their place; nor is anything written into the kernel's /dev, /proc and /sys.

    What comes out is the caller's, what goes in is root's in the pod, unless -a is given. Nothing has its name
    before it is whole.
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
    import sys

    pod, app, path = inner
    if target != "-":
        session.client.copy_out(pod, app, path, target, whole=whole, follow=follow)
        return
    if sys.stdout.isatty():
        raise UsageError(
            "cp: an archive is nothing for a terminal", hint="lead standard output to a file, or to tar"
        )
    try:
        session.client.copy_out(pod, app, path, sys.stdout.buffer, whole=whole, follow=follow)
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
