"""``/opt/stager/run APP``: a command in an app's namespaces, root and cgroup, with no more power than the app has.

The command comes as JSON on descriptor 3 (Kurma Stager Specification, "run"). The call-in starts in the stager's
mount and network namespaces, as root; it ends as the command ends: with its exit code, 128+N for signal N.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import sys
import time

from kurma_core.formats import small_json
from kurma_core.linux import clone, namespaces, process
from kurma_core.linux.execute import ExecuteError
from kurma_stager_default.inside import manifest, user_namespace
from kurma_stager_default.inside.app import privileges
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.pod.pod_cgroups import PodGroups
from kurma_stager_default.inside.pod.status_file import apps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.linux.cgroups import CgroupTree
    from kurma_stager_default.inside.manifest import App
    from kurma_stager_default.inside.streams.app_terminal import Handover

_DOCUMENT = 3
_DEADLINE = 10.0
_LIMIT = 1 << 20
_LARGEST_ID = 0xFFFFFFFE


def read_document() -> dict[str, Any]:
    """:raises SetupError: it is not whole within ten seconds, or is no such document."""
    end = time.monotonic() + _DEADLINE
    poll = select.poll()
    poll.register(_DOCUMENT, select.POLLIN)
    text = bytearray()
    while True:
        left = end - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise SetupError(f"the command was not given whole within {_DEADLINE:g} s")
        try:
            data = os.read(_DOCUMENT, 65536)
        except OSError as error:
            raise SetupError(f"the command cannot be read from descriptor 3: {error.strerror}") from None
        if not data:
            break
        text += data
        if len(text) > _LIMIT:
            raise SetupError(f"the command is too long: more than {_LIMIT >> 20} MiB")
    os.close(_DOCUMENT)
    try:
        value = small_json.decode(text.decode())
    except ValueError as error:
        raise SetupError(f"the command is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise SetupError("the command is no JSON object")
    return value


class Command:
    """The document, as far as it is understood; what it leaves out is as the app has it.

    :raises SetupError: a part of it is none that a command can have.
    """

    __slots__ = ("argv", "directory", "environment", "group", "groups", "terminal", "user")

    def __init__(self, value: dict[str, Any], app: App) -> None:
        argv = value.get("exec")
        if argv is None or argv == []:
            raise SetupError("the command has no exec")
        if not isinstance(argv, list) or not all(map(_is_text, argv)):
            raise SetupError("the command's exec is no list of words")
        self.argv: list[str] = argv
        # Another user does not keep the app's group, unless it says so itself.
        own = value.get("user") is None
        self.user = app.user if own else _name(value, "user")
        if value.get("group") is None:
            self.group = app.group if own else ""
        else:
            self.group = _name(value, "group")
        groups = value.get("supplementaryGIDs")
        if groups is None:
            groups = app.groups if own else []
        if not isinstance(groups, list) or not all(map(_is_id, groups)):
            raise SetupError("the command's supplementaryGIDs are no list of group IDs")
        self.groups: list[int] = groups
        directory = value.get("workingDirectory") or app.working_directory
        if not _is_text(directory) or not directory.startswith("/"):
            raise SetupError("the command's workingDirectory is no absolute path")
        self.directory: str = directory
        self.environment = _environment(value.get("environment") or [])
        self.terminal: bool = value.get("tty") or False
        if self.terminal is not True and self.terminal is not False:
            raise SetupError("the command's tty is neither true nor false")


def _name(value: dict[str, Any], key: str) -> str:
    name = value[key]
    if not _is_text(name) or not name:
        raise SetupError(f"the command's {key} is no name, number or path")
    return str(name)


def _environment(pairs: Any) -> list[tuple[str, str]]:
    found = []
    if not isinstance(pairs, list):
        raise SetupError("the command's environment is no list")
    for pair in pairs:
        name, text = (pair.get("name"), pair.get("value")) if isinstance(pair, dict) else (None, None)
        if not _is_text(name) or not name or "=" in name or not _is_text(text):
            raise SetupError("the command's environment is no list of names and values")
        found.append((str(name), str(text)))
    return found


def _is_text(value: Any) -> bool:
    """A string that can be handed to a program."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False  # half of a character
    return True


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_ID


_USAGE = 2
_FAILED = 125
_KILLED = 137
_PASSED_ON = (
    _signal.SIGTERM,
    _signal.SIGINT,
    _signal.SIGHUP,
    _signal.SIGQUIT,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGWINCH,
    _signal.SIGCONT,
)


def hold(name: str) -> int:
    """A pidfd of the app's main process.

    :raises SetupError: it does not run.
    """
    app = apps()[name]
    pid = app.get("pid")
    if pid is None or app.get("startedAt") is None:
        raise SetupError(f"app {name} does not run")
    try:
        fd = process.pidfd_open(pid)
    except ProcessLookupError:
        raise SetupError(f"app {name} does not run any more") from None
    # The supervisor reaps the process before it changes the file: unchanged now, the descriptor is the app's.
    again = apps()[name]
    if again.get("pid") != pid or again.get("startedAt") != app.get("startedAt"):
        os.close(fd)
        raise SetupError(f"app {name} has just ended")
    return fd


def end_with_parent(report: int) -> None:
    """This child is killed as its parent ends; and ends now, if that has ended already: it is outside of our PID
    namespace, and ``getppid`` says 0 in any case.

    :param report: write end of a pipe, of which the parent alone has the read end: closed before its children are
        told of its end.
    """
    process.set_pdeathsig(_signal.SIGKILL)
    poll = select.poll()
    poll.register(report, 0)
    if poll.poll(0):
        os._exit(_FAILED)


def start(
    pod: manifest.Pod, app: manifest.App, command: Command, pidfd: int, tree: CgroupTree, handover: Handover | None
) -> tuple[int, int]:
    """Fork the child that becomes the command. :returns: its PID and the read end of its report.

    :param handover: the command gets a terminal, and its master comes by this.
    """
    flags = namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC | namespaces.CLONE_NEWUTS
    report, told = os.pipe2(os.O_CLOEXEC)
    namespaces.setns(pidfd, flags)
    parent = os.getpid()
    try:
        pid = clone.fork_into(tree.directories())
    except BaseException:
        if os.getpid() == parent:
            raise
        os.write(told, b"the app's cgroup cannot be joined")
        os._exit(_FAILED)
    if pid:
        os.close(told)
        return pid, report
    code = _FAILED
    try:
        privileges.clean_process()
        # The call-in's terminal must not be the command's own: it could type there what the call-in reads.
        os.setsid()
        os.close(report)
        end_with_parent(told)
        privileges.apply_limits(app.plan)
        namespace = pod.ids.open()
        namespaces.setns(pidfd, namespaces.CLONE_NEWNS)
        identity = privileges.resolve(command.user, command.group, command.groups)
        if handover is not None:
            handover.give(pod.ids.uid(identity.user.uid))
        environment = privileges.environment_of(app, identity.user, command.environment, terminal=command.terminal)
        if namespace >= 0:
            pod.ids.check(identity)
            user_namespace.enter(namespace)

        def ready() -> None:
            # Cleared by the change of user; without it, the command would outlive a caller that is killed.
            end_with_parent(told)

        privileges.become(app, command.argv, identity, environment, command.directory, ready)
    except ExecuteError as error:
        code = error.exit_code
        os.write(told, str(error).encode(errors="replace"))
    except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
        os.write(told, str(error).encode(errors="replace"))
    finally:
        os._exit(code)


def pass_on(pid: int) -> None:
    """From here on the child gets the signals that come."""

    def forward(number: int, _: object) -> None:
        try:
            os.kill(pid, number)
        except PermissionError:
            os.write(2, b"kurma: the signal cannot be sent to the command: permission denied\n")

    for number in _PASSED_ON:
        _signal.signal(number, forward)


def wait(pid: int) -> int:
    """Passes signals on until the child has ended; its exit code."""
    pass_on(pid)
    # Not reaped by this, so that the PID is its own for as long as signals are passed on.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    for number in _PASSED_ON:
        _signal.signal(number, _signal.SIG_IGN)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def run(pod: manifest.Pod, app: manifest.App, command: Command) -> int:
    """:returns: the command's exit code."""
    pidfd = hold(app.name)
    handover = None
    if command.terminal:
        from kurma_core.linux import terminal
        from kurma_stager_default.inside.streams.app_terminal import Handover

        handover = Handover(terminal.get_size(0) or terminal.get_size(1))
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _PASSED_ON)  # not in the child: see clean_process
    tree = PodGroups().app(app.name)
    pid, report = start(pod, app, command, pidfd, tree, handover)
    if handover is None:
        # The command may say that it runs, and be told to end, before we hear of that.
        pass_on(pid)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _PASSED_ON)
    text = os.read(report, 4096).decode(errors="replace")
    os.close(report)
    if text and _pod_has_ended():
        os.waitpid(pid, 0)
        return _KILLED
    if text:
        print(f"kurma: app {app.name}: {text}", file=sys.stderr, flush=True)
    master = None if handover is None else handover.take()
    if text or master is None:
        return wait(pid)
    from kurma_stager_default.inside.callins.terminal_session import Session

    return Session(pid, master, tree.pids).run()


def _pod_has_ended() -> bool:
    """Whether what failed did so because the pod has ended, which the core reports: the kernel kills the apps with
    the supervisor, before the core kills this process."""
    from kurma_stager_default.inside.callins.control_client import supervisor_has_ended

    return supervisor_has_ended()


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: run APP, with the command on descriptor 3", file=sys.stderr, flush=True)
        return _USAGE
    name = sys.argv[1]
    try:
        value = read_document()
        pod = manifest.load()
        app = pod.app(name)
        if app is None:
            print(f"kurma: the pod has no app {name!r}", file=sys.stderr, flush=True)
            return _USAGE
        return run(pod, app, Command(value, app))
    except (SetupError, manifest.ManifestError, OSError) as error:
        if _pod_has_ended():
            return _KILLED
        limit = isinstance(error, BlockingIOError)  # of fork(2), which the pod's pids.max refuses
        text = "cannot start a process: the pod has as many as its limit allows" if limit else error
        print(f"kurma: {text}", file=sys.stderr, flush=True)
        return _FAILED
