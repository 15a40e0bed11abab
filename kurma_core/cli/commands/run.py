"""``kurma run``, ``prepare``, ``run-prepared``, ``start``, ``restart``: run pods here, or leave them to kurmad."""

from __future__ import annotations

import os

from kurma_core.cli.command_line import Argument, Option, command
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
_PREFIX = Option("prefix", "--prefix", "Print the app's name before each line.")
_DETACH = Option(
    "detach",
    "--detach -d",
    "Print the pod's UUID once its programs run, and leave it to kurmad, which is started if need be.",
)


@command(
    *POD_OPTIONS,
    Option("rm", "--rm", "Remove the pod once it has ended."),
    _PREFIX,
    _DETACH,
    root=True,
    makes=True,
)
def run(session: Session, *, rm: bool, prefix: bool, detach: bool, **options: Any) -> int:
    """Run a pod in the foreground, to its end, or by -d in the background.

    The exit code is the app's; with several apps, the first one that is not 0, in the order of the manifest.
    Ctrl-C, SIGTERM and SIGHUP stop the pod; a second signal ends it at once. With -it, the app's own terminal gets
    all input, Ctrl-C included.
    With -d, -i keeps the app's standard input open for attach; the exit code is 0 once the pod runs, 126 or 127 if
    no app's program can be executed, and the pod's own if it fails at once.
    """
    _look_at_detach(session, detach=detach, prefix=prefix)
    if options["tty"] and options["interactive"] and not detach and not os.isatty(0):
        session.note("standard input is no terminal: what comes from there is typed into the app's")
    request = pod_request(options, session.note, ephemeral=rm, detached=detach)
    uuid_file: str | None = options["uuid_file"]
    _check_uuid_file(uuid_file)

    def prepared(record: PodRecord) -> None:
        if uuid_file is not None:
            _write_uuid(uuid_file, record.uuid)
        tell_of_isolators(session, record)

    if detach and uuid_file is None:
        record = session.client.prepare(request, session.progress(), start=True)
        tell_of_isolators(session, record)
        return _tell_up(session, record, ephemeral=rm)
    if detach:
        return _prepare_and_launch(session, request, prepared)
    with _printer(session, prefix) as output:
        record = session.client.run(request, session.stdio(), output, session.progress(), prepared)
    return _end(session, record)


@command(*POD_OPTIONS, root=True, makes=True)
def prepare(session: Session, **options: Any) -> None:
    """Prepare a pod, and print its UUID.

    Decides everything about the pod, and fetches its images; run-prepared runs it.
    """
    request = pod_request(options, session.note)
    _check_uuid_file(options["uuid_file"])
    record = session.client.prepare(request, session.progress())
    if options["uuid_file"] is not None:
        _write_uuid(options["uuid_file"], record.uuid)
    tell_of_isolators(session, record)
    session.line(record.uuid)


@command(_POD, _PREFIX, _DETACH, root=True)
def run_prepared(session: Session, *, pod: str, prefix: bool, detach: bool) -> int:
    """Run a prepared pod in the foreground, to its end, or by -d in the background."""
    _look_at_detach(session, detach=detach, prefix=prefix)
    return _start(session, pod, detach=detach, prefix=prefix)


@command(_POD, _PREFIX, _DETACH, root=True)
def start(session: Session, *, pod: str, prefix: bool, detach: bool) -> int:
    """Run an ended pod again, from a clean copy, under the same UUID.

    It runs in the foreground, as with run; or, with -d, in the background.
    """
    _look_at_detach(session, detach=detach, prefix=prefix)
    return _start(session, pod, detach=detach, prefix=prefix)


@command(_POD, _PREFIX, _DETACH, root=True)
def restart(session: Session, *, pod: str, prefix: bool, detach: bool) -> int:
    """Stop a pod if it runs, and run it again, in the foreground or by -d in the background."""
    _look_at_detach(session, detach=detach, prefix=prefix)
    return _start(session, session.client.stop(pod, again=True).uuid, detach=detach, prefix=prefix)


def _start(session: Session, pod: str, *, detach: bool, prefix: bool) -> int:
    if detach:
        return _launch(session, pod)
    with _printer(session, prefix) as output:
        record = session.client.start(pod, session.stdio(), output)
    return _end(session, record)


def _look_at_detach(session: Session, *, detach: bool, prefix: bool) -> None:
    """:raises UsageError: an option is of use in the foreground only."""
    if not detach:
        return
    if prefix:
        from kurma_core.errors import UsageError

        raise UsageError("--prefix: with --detach nothing is printed", hint="see: kurma logs --prefix")
    session.need_daemon()


def _prepare_and_launch(session: Session, request: PodRequest, prepared: Callable[[PodRecord], None]) -> int:
    """Prepares a pod, calls ``prepared`` with it, and leaves it to kurmad once it is up. An ephemeral pod that
    fails to start is removed."""
    from contextlib import suppress

    from kurma_core.errors import KurmaError

    record = session.client.prepare(request, session.progress())
    try:
        prepared(record)
        return _launch(session, record.uuid, ephemeral=request.ephemeral)
    except BaseException as error:
        if request.ephemeral:
            with suppress(KurmaError):
                session.client.rm(record.uuid)
        elif isinstance(error, KurmaError):
            from kurma_core.client.client import add_unstarted_pod

            add_unstarted_pod(error, record.uuid, session.client.pod)
        raise


def _launch(session: Session, pod: str, *, ephemeral: bool = False) -> int:
    return _tell_up(session, session.client.launch(pod), ephemeral=ephemeral)


def _tell_up(session: Session, record: PodRecord, *, ephemeral: bool) -> int:
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
