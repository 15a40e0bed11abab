"""``/opt/stager/run APP``: a command in an app's namespaces, root and cgroup, with no more power than the app has.

The command comes as JSON on descriptor 3 (Kurma Stager Specification, "run"). The call-in starts in the stager's
mount and network namespaces, as root; it ends as the command ends: with its exit code, 128+N for signal N.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import sys

from kurma_core.linux import clone, namespaces, process
from kurma_core.linux.execute import ExecuteError
from kurma_stager_default.inside import become, manifest, userns
from kurma_stager_default.inside.command import Command, read_document
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.podgroups import PodGroups
from kurma_stager_default.inside.statusfile import apps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.linux.cgroups import CgroupTree
    from kurma_stager_default.inside.handover import Handover

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
        become.clean_process()
        # The call-in's terminal must not be the command's own: it could type there what the call-in reads.
        os.setsid()
        os.close(report)
        end_with_parent(told)
        become.apply_limits(app.plan)
        namespace = pod.ids.open()
        namespaces.setns(pidfd, namespaces.CLONE_NEWNS)
        identity = become.resolve(command.user, command.group, command.groups)
        if handover is not None:
            handover.give(pod.ids.uid(identity.user.uid))
        environment = become.environment_of(app, identity.user, command.environment, terminal=command.terminal)
        if namespace >= 0:
            pod.ids.check(identity)
            userns.enter(namespace)

        def ready() -> None:
            # Cleared by the change of user; without it, the command would outlive a caller that is killed.
            end_with_parent(told)

        become.become(app, command.argv, identity, environment, command.directory, ready)
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
        from kurma_stager_default.inside.handover import Handover

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
    from kurma_stager_default.inside.session import Session

    return Session(pid, master, tree.pids).run()


def _pod_has_ended() -> bool:
    """Whether what failed did so because the pod has ended, which the core reports: the kernel kills the apps with
    the supervisor, before the core kills this process."""
    from kurma_stager_default.inside.asking import supervisor_has_ended

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
