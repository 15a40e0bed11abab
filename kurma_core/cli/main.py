"""``kurma``: reads the command line, runs the command, prints an error in one line, returns the exit code."""

from __future__ import annotations

import os
import sys

from kurma_core.cli.command_line import SESSION_OPTIONS, parse
from kurma_core.cli.session import OutputClosed, ReaderGone, Session, flush, silence
from kurma_core.signals import raise_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from kurma_core.cli.command_line import Call
    from kurma_core.cli.session import Connect
    from kurma_core.daemon.process.service_manager import Service
    from kurma_core.errors import KurmaError

#: Kurma failed (exit codes 126 and 127 are of commands that were to be run, 2 of usage errors).
FAILED = 125
INTERRUPTED = 130
#: The exit code that a shell reports for a program that SIGPIPE ended.
NOBODY_READS = 141


def main(
    words: Sequence[str] | None = None,
    *,
    connect: Connect | None = None,
    program: Callable[[Sequence[str]], Sequence[str]] = lambda words: words,
) -> int:
    """Runs one command line; its exit code.

    :param words: without the program's name; None: the process's own.
    :param connect: makes the client; None: :func:`kurma_core.client.connect`.
    :param program: turns the process's own words into words of ``kurma``.
    """
    ours = words is None
    if words is None:
        words = program(sys.argv[1:])
        _fill_standard_descriptors()
        _open_standard_streams()
        # With a looser umask, other users could write to new state directories, which kurma would then refuse.
        os.umask(os.umask(0o022) | 0o022)
    service = None
    if "NOTIFY_SOCKET" in os.environ or "LISTEN_FDS" in os.environ:
        from kurma_core.daemon.process import service_manager

        service = service_manager.take(os.environ)
    runner = _Runner(connect, service)
    return _guarded(lambda: _read_and_run(words, runner), runner, raising=ours)


def _fill_standard_descriptors() -> None:
    """Opens ``/dev/null`` as descriptors 0, 1 and 2 if they are closed. Otherwise the next open file, such as a
    socket to the spawner, would get such a number, and become the standard input of an app.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open("/dev/null", os.O_RDWR), True)


def _open_standard_streams() -> None:
    """Opens the standard streams that Python has left out because their descriptors were closed at its start."""
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (for as long as we run)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _read_and_run(words: Sequence[str], runner: _Runner) -> int:
    call: Call | int | None = parse(words)
    if call is None:
        from kurma_core.cli import typer_app

        call = typer_app.read(words, typer_app.root(runner.session))
    return call if isinstance(call, int) else runner(call)


class _Runner:
    """Runs a parsed call. ``debug`` is known once there is a session; ``over``: the command has ended."""

    def __init__(self, connect: Connect | None, service: Service | None = None) -> None:
        self._connect = connect
        self._service = service
        self.debug = False
        self.over = False

    def session(self, globals: Mapping[str, Any]) -> Session:
        """:param globals: the options before the command."""
        self.debug = bool(globals["debug"])
        return Session(globals, self._connect, self._service)

    def __call__(self, call: Call) -> int:
        _check_words(call)
        session = self.session(call.globals)
        session.makes = call.command.makes
        for option in SESSION_OPTIONS:
            if option in call.command.options:
                setattr(session, option.name, call.values.pop(option.name))
        with session:
            if call.command.root and os.geteuid() != 0:
                _check_power(call, session)
            return call.command.function(session, **call.values) or 0


_AS_ROOT = "run it as root, with sudo for instance"


def _check_power(call: Call, session: Session) -> None:
    """:raises PrivilegeError: we are not root, and there is no daemon that could do the command for us."""
    from kurma_core.errors import KurmaError, PrivilegeError

    if isinstance(call.command.here, str):
        raise PrivilegeError(f"only root can run kurma {' '.join(call.path)}: {call.command.here}", hint=_AS_ROOT)
    if call.command.here:
        try:
            hint = _way_to_kurmad(session)
        except KurmaError:  # the configuration may be nothing for us to read
            hint = _AS_ROOT
        raise PrivilegeError("only root can run kurmad", hint=hint)
    client = session.client
    if not client.remote:
        raise PrivilegeError(f"only root can run kurma {' '.join(call.path)}", hint=client.here.way_to_power())


def _way_to_kurmad(session: Session) -> str:
    """The hint for a caller who may not use kurmad."""
    client = session.client
    if client.remote:
        return f"there is no need to: one serves {client.config.state_dir} already, and does what you ask"
    return client.here.way_to_power()


def _check_words(call: Call) -> None:
    """:raises UsageError: an argument is empty, as of a variable that a script has not set."""
    for argument in call.command.arguments:
        value = call.values[argument.name]
        if value == "" or (argument.many and "" in value):
            from kurma_core.errors import UsageError

            raise UsageError(f"{argument.metavar} is empty", hint=f"see: kurma {' '.join(call.path)} --help")


def _guarded(run: object, runner: _Runner, *, raising: bool) -> int:
    """:param raising: signals raise while the command runs; before, they end the program in silence, and while its
    end is reported they do nothing.
    """
    from kurma_core.errors import HostError, Interrupted, KurmaError

    try:
        try:
            if raising:
                raise_signals(lambda: runner.over)
            code: int = run()  # type: ignore[operator]
            flush(sys.stdout)
        finally:
            # An assignment, not a call: Python runs signal handlers at calls, and until here they raise.
            runner.over = True
        return code
    except KurmaError as error:
        _tell(error.message, _hint(error), runner.debug, error.data.get("call"))
        return error.exit_code
    except (OutputClosed, ReaderGone):
        silence(1)
        return NOBODY_READS
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 (nothing is above us: the user gets one line)
        known = HostError.of_shortage(error)
        if known is not None:
            _tell(known.message, _hint(known), runner.debug)
            return FAILED
        if isinstance(error, OSError):
            _tell(_os_words(error), _root_hint(error) or _room_hint(error) or _disk_hint(error), runner.debug)
            return FAILED
        kind = type(error).__name__
        hint = None if runner.debug else "this is a mistake in Kurma or a plugin; kurma --debug … shows where"
        _tell(f"internal error: {kind}: {' '.join(str(error).split())}", hint, runner.debug)
        return FAILED
    except Interrupted as error:
        _tell(str(error), None, runner.debug)
        return 128 + error.number


def _os_words(error: OSError) -> str:
    what = (error.strerror or str(error) or type(error).__name__).strip()
    path = error.filename if error.filename2 is None else error.filename2
    return what[:1].lower() + what[1:] + (f": {os.fsdecode(path)}" if isinstance(path, str | bytes) else "")


def _hint(error: KurmaError) -> str | None:
    from kurma_core.client.client import unstarted_pod_hint

    found = error.hint or _root_hint(error) or _disk_hint(error)
    return "; ".join(one for one in (found, unstarted_pod_hint(error)) if one) or None


def _root_hint(error: KurmaError | OSError) -> str | None:
    """The hint for a user other than root after a permission error."""
    if os.geteuid() == 0:
        return None
    if isinstance(error, OSError):
        denied = isinstance(error, PermissionError)
    else:
        denied = error.data.get("errno") in (1, 13) or isinstance(error.__cause__, PermissionError)
    return _AS_ROOT if denied else None


def _disk_hint(error: KurmaError | OSError) -> str | None:
    """The hint for a read-only file system."""
    import errno

    if isinstance(error, OSError):
        found = error.errno if error.filename is not None else None  # else it is an output
    else:
        cause = error.__cause__ or error.__context__
        found = cause.errno if isinstance(cause, OSError) else error.data.get("errno")  # type: ignore[assignment]
    if found != errno.EROFS:
        return None
    return "it is mounted read-only; for another state directory: --dir, KURMA_DIR or `state_dir` in kurma.yml"


def _room_hint(error: OSError) -> str | None:
    import errno

    if error.filename is not None and error.errno == errno.EDQUOT:  # else it is an output
        return "make room; `kurma gc` and `kurma image gc` do in the state directory"
    return None


def _tell(message: str, hint: str | None, debug: bool, call: object = None) -> None:
    """Prints the message in one line, and the hint; with ``debug`` the trace first, and the call of a plugin that
    failed."""
    if debug:
        import traceback

        traceback.print_exc()
    from kurma_core.cli.output import one_line

    print(f"kurma: {one_line(message)}", file=sys.stderr)
    if debug and call:
        print(f"  in the plugin's call: {one_line(str(call))}", file=sys.stderr)
    if hint:
        print(f"  hint: {one_line(hint)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
