"""The call-in ``run APP``: runs a command in an app's namespaces, root and cgroup, with the app's rights.

It reads the command as JSON from descriptor 3 (Kurma Stager Specification, "run"). The call-in starts in the
stager's mount and network namespaces, as root. It exits with the command's exit code, or 128+N if signal N ended
the command.
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
from kurma_stager_default.inside.app import privileges, secret_variables
from kurma_stager_default.inside.errors import SetupError, complain
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
LIMIT = 1 << 20
_LARGEST_ID = 0xFFFFFFFE


def read_document() -> dict[str, Any]:
    """Reads the command. :raises SetupError: it is incomplete after ten seconds, or malformed."""
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
        if len(text) > LIMIT:
            raise SetupError(f"the command is too long: more than {LIMIT >> 20} MiB")
    os.close(_DOCUMENT)
    try:
        value = small_json.decode(text.decode())
    except ValueError as error:
        raise SetupError(f"the command is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise SetupError("the command is no JSON object")
    return value


class Command:
    """The command of a document. The app's values are the defaults.

    :raises SetupError: a value is malformed.
    """

    __slots__ = ("argv", "contained", "directory", "environment", "group", "groups", "terminal", "user")

    def __init__(self, value: dict[str, Any], app: App) -> None:
        argv = value.get("exec")
        if argv is None or argv == []:
            raise SetupError("the command has no exec")
        if not isinstance(argv, list) or not all(map(_is_text, argv)):
            raise SetupError("the command's exec is not a list of words")
        self.argv: list[str] = argv
        # If the command names a user, the app's group is not its default.
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
            raise SetupError("the command's workingDirectory is not an absolute path")
        self.directory: str = directory
        self.environment = _environment(value.get("environment") or [])
        #: the command is in a group of its own, which SIGALRM kills
        self.contained: bool = value.get("contained") is True
        self.terminal: bool = value.get("tty") or False
        if self.terminal is not True and self.terminal is not False:
            raise SetupError("the command's tty is neither true nor false")


def _name(value: dict[str, Any], key: str) -> str:
    name = value[key]
    if not _is_text(name) or not name:
        raise SetupError(f"the command's {key} is not a name, number or path")
    return str(name)


def _environment(pairs: Any) -> list[tuple[str, str]]:
    found = []
    if not isinstance(pairs, list):
        raise SetupError("the command's environment is not a list")
    for pair in pairs:
        name, text = (pair.get("name"), pair.get("value")) if isinstance(pair, dict) else (None, None)
        if not _is_text(name) or not name or "=" in name or not _is_text(text):
            raise SetupError("the command's environment is not a list of names and values")
        found.append((str(name), str(text)))
    return found


def _is_text(value: Any) -> bool:
    """Whether the value is a string that can be passed to a program."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False  # a lone surrogate
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
    """Opens a pidfd of the app's main process.

    :raises SetupError: the app does not run.
    """
    app = apps()[name]
    pid = app.get("pid")
    if pid is None or app.get("startedAt") is None:
        raise SetupError(f"app {name} does not run")
    try:
        fd = process.pidfd_open(pid)
    except ProcessLookupError:
        raise SetupError(f"app {name} does not run any more") from None
    # The supervisor reaps a process before it changes the status: if that is unchanged, the pidfd is the app's.
    again = apps()[name]
    if again.get("pid") != pid or again.get("startedAt") != app.get("startedAt"):
        os.close(fd)
        raise SetupError(f"app {name} has just ended")
    return fd


def end_with_parent(report: int) -> None:
    """Makes the kernel kill this child at its parent's end, and exits if the parent has ended already. getppid(2)
    cannot tell: it returns 0 for a parent outside of our PID namespace.

    :param report: write end of a pipe whose read end only the parent has. The kernel closes that before it signals
        the children of a process that ends.
    """
    process.set_pdeathsig(_signal.SIGKILL)
    poll = select.poll()
    poll.register(report, 0)
    if poll.poll(0):
        os._exit(_FAILED)


def start(
    pod: manifest.Pod,
    app: manifest.App,
    command: Command,
    pidfd: int,
    directories: list[str],
    handover: Handover | None,
) -> tuple[int, int]:
    """Forks the child that becomes the command. :returns: its PID and the read end of its report.

    :param directories: the command's cgroup on each hierarchy.
    :param handover: the command gets a terminal, and the child passes its master by this; None: no terminal.
    """
    flags = namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC | namespaces.CLONE_NEWUTS
    report, told = os.pipe2(os.O_CLOEXEC)
    namespaces.setns(pidfd, flags)
    parent = os.getpid()
    try:
        pid = clone.fork_into(directories)
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
        # The call-in's terminal must not become the command's controlling terminal: the command could push input
        # into it that the call-in, or the user's shell, would read.
        os.setsid()
        os.close(report)
        end_with_parent(told)
        privileges.apply_limits(app.plan)
        namespace = pod.ids.open()
        secrets = secret_variables.read(app)
        namespaces.setns(pidfd, namespaces.CLONE_NEWNS)
        identity = privileges.resolve(command.user, command.group, command.groups)
        if handover is not None:
            handover.give(pod.ids.uid(identity.user.uid))
        given = [*secrets, *command.environment]
        environment = privileges.environment_of(app, identity.user, given, terminal=command.terminal)
        if namespace >= 0:
            pod.ids.check(identity)
            user_namespace.enter(namespace)

        def ready() -> None:
            # The change of user has cleared the parent-death signal, without which the command would outlive a
            # killed caller.
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
    """Forwards signals to the child from now on."""

    def forward(number: int, _: object) -> None:
        try:
            os.kill(pid, number)
        except PermissionError:
            complain("kurma: the signal cannot be sent to the command: permission denied")

    for number in _PASSED_ON:
        _signal.signal(number, forward)


def wait(pid: int) -> int:
    """Forwards signals until the child has ended. :returns: its exit code."""
    pass_on(pid)
    # WNOWAIT does not reap the child, so that its PID is not reused while signals are forwarded.
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
    directories, group = tree.directories(), None
    if command.contained:
        from kurma_stager_default.inside.callins.command_group import CommandGroup

        group = CommandGroup(tree)
        directories = group.directories()
        _signal.signal(_signal.SIGALRM, lambda _number, _frame: group.kill())
    try:
        return _run(pod, app, command, pidfd, tree, directories, handover)
    finally:
        if group is not None:
            group.leave()


def _run(
    pod: manifest.Pod,
    app: manifest.App,
    command: Command,
    pidfd: int,
    tree: CgroupTree,
    directories: list[str],
    handover: Handover | None,
) -> int:
    pid, report = start(pod, app, command, pidfd, directories, handover)
    if handover is None:
        # The command may be running, and may be sent signals to end, before the report has been read.
        pass_on(pid)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _PASSED_ON)
    text = os.read(report, 4096).decode(errors="replace")
    os.close(report)
    if text and _pod_has_ended():
        os.waitpid(pid, 0)
        return _KILLED
    if text:
        complain(f"kurma: app {app.name}: {text}")
    master = None if handover is None else handover.take()
    if text or master is None:
        return wait(pid)
    from kurma_stager_default.inside.callins.terminal_session import Session

    return Session(pid, master, tree.pids).run()


def _pod_has_ended() -> bool:
    """Whether the pod has ended, which explains a failure here, and which the core reports. The kernel kills the
    apps with the supervisor, before the core kills this process."""
    from kurma_stager_default.inside.callins.control_client import supervisor_has_ended

    return supervisor_has_ended()


def main() -> int:
    if len(sys.argv) != 2:
        complain("usage: run APP, with the command on descriptor 3")
        return _USAGE
    try:
        value = read_document()
    except (SetupError, OSError) as error:
        return _failed(error)
    return run_given(sys.argv[1], value)


def run_given(name: str, value: dict[str, Any]) -> int:
    """Runs the command of a document in an app. :returns: the exit code of the call-in."""
    try:
        pod = manifest.load()
        app = pod.app(name)
        if app is None:
            complain(f"kurma: the pod has no app {name!r}")
            return _USAGE
        return run(pod, app, Command(value, app))
    except (SetupError, manifest.ManifestError, OSError) as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    """Prints the error. :returns: the exit code."""
    if _pod_has_ended():
        return _KILLED
    limit = isinstance(error, BlockingIOError)  # EAGAIN of fork(2): the pod's pids.max is reached
    text = "cannot start a process: the pod has as many as its limit allows" if limit else error
    complain(f"kurma: {text}")
    return _FAILED
