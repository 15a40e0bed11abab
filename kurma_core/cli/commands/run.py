"""``kurma run``, ``prepare``, ``run-prepared``, ``start``, ``restart``: run pods here, or leave them to kurmad."""

from __future__ import annotations

import os

from kurma_core.cli.command_line import MANAGED, TIMEOUT, Argument, Option, command
from kurma_core.cli.pod_options import POD_OPTIONS, pod_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_core.api.pods import PodRequest
    from kurma_core.cli.commands.logs import LogPrinter
    from kurma_core.cli.session import Session
    from kurma_core.models.pod import PodRecord

_POD = Argument("pod", "POD", "The pod.")
_PODS = Argument("pods", "POD", "The pods; several run in the background.", many=True)
_PREFIX = Option("prefix", "--prefix", "Print the app's name before each line.")
_DETACH = Option(
    "detach",
    "--detach -d",
    "Run the pod in the background, under kurmad, and print its UUID once its apps run.",
)
_ATTACH = Option("attach", "--attach -a", "Run the pod in the foreground, as run does without -d.")
_INTERACTIVE = Option("interactive", "--interactive -i", "Do the same as -a.")


@command(
    *POD_OPTIONS,
    Option("rm", "--rm", "Remove the pod after its end."),
    _PREFIX,
    _DETACH,
    root=True,
    makes=True,
    example="kurma run -d --name web -p 8080:80 example.com/web:1.0",
)
def run(session: Session, *, rm: bool, prefix: bool, detach: bool, **options: Any) -> int:
    """Create a pod and run it; with -d, in the background.

    The exit code is the app's. With several apps, it is the first exit code other than 0, in the order of the
    manifest. Ctrl-C, SIGTERM and SIGHUP stop the pod; a second signal kills it. With -it, the app's terminal gets
    all input, also Ctrl-C. With -d, the exit code is 0 once the pod runs, 126 or 127 if no app's program can be
    executed, and the pod's if it ends at once; -i keeps the app's standard input open for attach.
    """
    if detach:
        _leave_to_kurmad(session, prefix=prefix)
    if options["tty"] and options["interactive"] and not detach and not os.isatty(0):
        session.note("standard input is not a terminal: the input is typed into the app's terminal")
    request = pod_request(options, session.note, ephemeral=rm, foreground=not detach)
    uuid_file: str | None = options["uuid_file"]
    _check_uuid_file(uuid_file)

    def prepared(record: PodRecord) -> None:
        if uuid_file is not None:
            _write_uuid(uuid_file, record.uuid)
        tell_of_isolators(session, record)

    if detach and uuid_file is None:
        record = session.client.prepare(request, session.progress(), start=True)
        tell_of_isolators(session, record)
        return _report_started(session, record, ephemeral=rm)
    if detach:
        return _prepare_and_launch(session, request, prepared)
    with _printer(session, prefix) as output:
        record = session.client.run(request, session.stdio(), output, session.progress(), prepared)
    return _end(session, record)


@command(*POD_OPTIONS, root=True, makes=True, example="kurma prepare --name web example.com/web:1.0")
def prepare(session: Session, **options: Any) -> None:
    """Create a pod without running it, and print its UUID.

    Fetches the pod's images, and fixes its manifest and networks. kurma run-prepared runs the pod.
    """
    request = pod_request(options, session.note)
    _check_uuid_file(options["uuid_file"])
    record = session.client.prepare(request, session.progress())
    if options["uuid_file"] is not None:
        _write_uuid(options["uuid_file"], record.uuid)
    tell_of_isolators(session, record)
    session.line(record.uuid)


@command(_POD, _PREFIX, _DETACH, MANAGED, root=True, example="kurma run-prepared -d web")
def run_prepared(session: Session, *, pod: str, prefix: bool, detach: bool, force: bool) -> int:
    """Run a prepared pod; with -d, in the background."""
    if detach:
        _leave_to_kurmad(session, prefix=prefix)
        return _launch(session, pod, managed=force)
    return _run_here(session, pod, prefix=prefix, managed=force)


@command(_PODS, _ATTACH, _INTERACTIVE, _PREFIX, _DETACH, MANAGED, root=True, example="kurma start web")
def start(
    session: Session,
    *,
    pods: tuple[str, ...],
    attach: bool,
    interactive: bool,
    prefix: bool,
    detach: bool,
    force: bool,
) -> int:
    """Run ended pods again, with clean root filesystems.

    A pod keeps its UUID. It runs as it was made: in the background after run -d or create, in the foreground after
    run without -d. With -a it runs in the foreground, with -d in the background.
    """
    if _in_foreground(session, pods, attach=attach or interactive, detach=detach):
        return _run_here(session, pods[0], prefix=prefix, managed=force)
    _leave_to_kurmad(session, prefix=prefix)
    return session.each(pods, lambda pod: _launch(session, pod, managed=force))


@command(
    _PODS,
    _ATTACH,
    _INTERACTIVE,
    TIMEOUT,
    _PREFIX,
    _DETACH,
    MANAGED,
    root=True,
    example="kurma restart web",
)
def restart(
    session: Session,
    *,
    pods: tuple[str, ...],
    attach: bool,
    interactive: bool,
    timeout: str | None,
    prefix: bool,
    detach: bool,
    force: bool,
) -> int:
    """Stop pods that run, then run them again.

    A pod runs as it was made: in the background after run -d or create, in the foreground after run without -d.
    With -a it runs in the foreground, with -d in the background.
    """
    from kurma_core.cli import values

    patience = None if timeout is None else values.seconds(timeout, "--timeout")
    if _in_foreground(session, pods, attach=attach or interactive, detach=detach):
        uuid = session.client.stop(pods[0], timeout=patience, again=True, managed=force).uuid
        return _run_here(session, uuid, prefix=prefix, managed=force)
    _leave_to_kurmad(session, prefix=prefix)

    def one(pod: str) -> int:
        stopped = session.client.stop(pod, timeout=patience, again=True, managed=force)
        return _launch(session, stopped.uuid, managed=force)

    return session.each(pods, one)


def _in_foreground(session: Session, pods: tuple[str, ...], *, attach: bool, detach: bool) -> bool:
    """Whether to run the pod here; several pods always run in the background.

    :raises UsageError: the options contradict each other, or several pods are to run here.
    """
    if attach and (detach or len(pods) > 1):
        from kurma_core.errors import UsageError

        if detach:
            raise UsageError("-a and -d: a pod runs in the foreground or in the background")
        raise UsageError("-a: only one pod runs in the foreground", hint="leave out -a, or start them one by one")
    return attach or (not detach and len(pods) == 1 and session.client.pod(pods[0]).foreground)


def _run_here(session: Session, pod: str, *, prefix: bool, managed: bool) -> int:
    with _printer(session, prefix) as output:
        record = session.client.start(pod, session.stdio(), output, managed=managed)
    return _end(session, record)


def _leave_to_kurmad(session: Session, *, prefix: bool) -> None:
    """:raises UsageError: --prefix was given, which is of use in the foreground only."""
    if prefix:
        from kurma_core.errors import UsageError

        raise UsageError("--prefix: a pod in the background prints nothing", hint="see: kurma logs --prefix")
    session.need_daemon()


def _prepare_and_launch(session: Session, request: PodRequest, prepared: Callable[[PodRecord], None]) -> int:
    """Prepares a pod, calls ``prepared`` with it, and leaves it to kurmad once it is up. An ephemeral pod that
    fails to start is removed; so is a pod of which nothing was started, because its port was taken for instance.
    """
    from contextlib import suppress

    from kurma_core.errors import KurmaError

    record = session.client.prepare(request, session.progress())
    try:
        prepared(record)
        return _launch(session, record.uuid, ephemeral=request.ephemeral, managed=True)
    except BaseException as error:
        with suppress(KurmaError):
            if request.ephemeral or session.client.pod(record.uuid).state == "prepared":
                session.client.rm(record.uuid, managed=True)
        if not request.ephemeral and isinstance(error, KurmaError):
            from kurma_core.client.client import add_unstarted_pod

            add_unstarted_pod(error, record.uuid, session.client.pod)
        raise


def _launch(session: Session, pod: str, *, managed: bool, ephemeral: bool = False) -> int:
    return _report_started(session, session.client.launch(pod, managed=managed), ephemeral=ephemeral)


def _report_started(session: Session, record: PodRecord, *, ephemeral: bool) -> int:
    """Prints the pod's UUID; reports which apps could not be executed, or why the pod has ended already.

    :returns: the exit code: of the first app that could not be executed, if no other app runs; or the failed
        pod's.
    """
    for app in record.unstarted:
        session.note(f"app {app.name}: {app.told}")
    up = not record.unstarted or not all(app.exited for app in record.apps)
    failed = up and record.state == "errored"
    if failed:
        session.note(f"pod {record.name}: {record.reason}")
    if (up and not failed) or not ephemeral:
        session.line(record.uuid)
    if failed:
        return exit_code(record)
    if up and os.isatty(2):  # a script waits for nothing
        from kurma_core.cli.commands.logs import report_ended

        report_ended(session, record, ephemeral=ephemeral)
    return 0 if up else record.unstarted[0].exit_code or 125


def _printer(session: Session, prefix: bool) -> LogPrinter:
    from kurma_core.cli.commands.logs import LogPrinter

    return LogPrinter(session, flush=False, prefix=prefix)


def _write_uuid(path: str, uuid: str) -> None:
    from kurma_core.named_files import written

    with written(path) as stream:
        stream.write(uuid.encode() + b"\n")


def _check_uuid_file(path: str | None) -> None:
    """Checks the UUID file before the pod is made: only a file that contains a UUID may be replaced."""
    if path is None:
        return
    from kurma_core.errors import UsageError
    from kurma_core.named_files import opened, writable

    writable(path)
    if os.path.exists(path):
        with opened(path) as stream:
            text = stream.read(64).strip()
        if text and not (len(text) == 36 and text.count(b"-") == 4):
            hint = "name a new file, or one that holds a pod's UUID"
            raise UsageError(f"--uuid-file: {path}: is there, and holds no UUID", hint=hint)


def tell_of_isolators(session: Session, record: PodRecord, app: str | None = None) -> None:
    """Notes isolators that were requested and are not fully enforced; ``show`` lists all.

    :param app: notes only the isolators of this app.
    """
    for report in record.isolators:
        if app in (None, report.scope) and report.outcome != "enforced" and not report.default:
            of = f" of app {report.scope}" if report.scope else ""
            why = f": {report.note}" if report.note else ""
            session.note(f"isolator {report.name}{of} is {report.outcome}{why}")


def _end(session: Session, record: PodRecord) -> int:
    """Notes how apps and pod have ended. :returns: the exit code."""
    for app in record.apps:
        if app.told:
            session.note(f"app {app.name}: {app.told}")
    if record.state == "errored" and record.reason:
        session.note(f"pod {record.name}: {record.reason}")
    return exit_code(record)


def exit_code(record: PodRecord) -> int:
    """The pod's exit code; 125 where it has ended without one."""
    if record.exit_code is None or (record.state == "errored" and record.exit_code == 0):
        return 125
    return record.exit_code
