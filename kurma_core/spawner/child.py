"""What happens in a new process between the fork and the exec. Runs in the spawner's program; light.

Each step runs as root; who we are and where we stand is said at each.
"""

from __future__ import annotations

import fcntl
import os

from kurma_core.formats import exec_errors  # noqa: F401 - see execute
from kurma_core.linux import execute, mounts, namespaces, process
from kurma_core.spawner import root
from kurma_core.spawner.root import StepError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Request = dict[str, Any]

_TIOCSCTTY = 0x540E


def step(name: str, path: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function``; its :class:`OSError` becomes a :class:`StepError` of that name and path."""
    try:
        return function(*args)
    except OSError as error:
        raise StepError(name, path, error) from None


def start(request: Request, fds: dict[int, int]) -> None:
    """Become the program of a ``SpawnPlan``; returns only by :class:`StepError`."""
    reset()
    if request["netns_path"] is not None:
        # Before /sys is mounted, which shows the network namespace of who mounts it.
        step("join", request["netns_path"], namespaces.enter_netns, request["netns_path"])
    flags = 0
    for name in request["namespaces"]:
        if name != "pid":  # that one was made by the fork
            flags |= namespaces.FLAGS[name]
    if request["root"] is not None:
        flags |= namespaces.CLONE_NEWNS
    if flags:
        step("unshare", "namespaces", namespaces.unshare, flags)
    if flags & namespaces.CLONE_NEWNS:
        step("mount", "/", mounts.make_private)
    if request["hostname"] is not None:
        step("hostname", request["hostname"], namespaces.set_hostname, request["hostname"])
    if request["root"] is not None:
        root_fd = root.build(request["root"])
        step("pivot", "/", mounts.pivot_root, root_fd)
        os.close(root_fd)
    become(request, fds)


def enter(request: Request, fds: dict[int, int], pidfd: int, root_fd: int) -> None:
    """Become the program of an ``EnterPlan``; returns only by :class:`StepError`.

    :param pidfd: holds the process whose namespaces are joined.
    :param root_fd: that process's root.
    """
    reset()
    flags = 0
    for name in request["namespaces"]:
        if name != "pid":
            flags |= namespaces.FLAGS[name]
    if flags:
        step("join", f"process {request['pid']}", namespaces.setns, pidfd, flags)
    # Joining a mount namespace leads to its root; the process may have another.
    step("enter", f"process {request['pid']}", os.fchdir, root_fd)
    step("enter", f"process {request['pid']}", os.chroot, ".")
    become(request, fds)


def reset() -> None:
    """No signal ignored or blocked, a usual umask: a program must not see what its starter was."""
    process.reset_signals()
    os.umask(0o022)


def become(request: Request, fds: dict[int, int]) -> None:
    """The last steps, inside the new root: session, user, directory, descriptors, exec."""
    if request["new_session"]:
        step("session", "setsid", os.setsid)
    arrange(fds)
    if request["controlling_tty"]:
        step("terminal", "descriptor 0", fcntl.ioctl, 0, _TIOCSCTTY, 0)
    step("user", str(request["uid"]), _become_user, request)
    step("directory", request["cwd"], os.chdir, request["cwd"])
    if request["parent_death_signal"] is not None:
        step("signal", "parent death", process.set_pdeathsig, request["parent_death_signal"])
        if request["child_of_caller"] and os.getppid() not in (request["parent"], 0):
            os._exit(125)  # it died before we asked to be told (0: it is outside of our PID namespace)
    try:
        execute.execute(request["argv"], request["environment"])
    except execute.ExecuteError as error:
        raise StepError("exec", str(error.filename), error, error.exit_code) from None


def _become_user(request: Request) -> None:
    uid, gid = request["uid"], request["gid"]
    os.setgroups(request["groups"])
    if gid:
        os.setresgid(gid, gid, gid)
    if uid:
        os.setresuid(uid, uid, uid)


def arrange(fds: dict[int, int]) -> None:
    """Give descriptors their numbers; every other one closes at exec, the pipe that reports failures included.

    Must come after whatever needs a descriptor by its old number.
    """
    above = max(fds) + 1
    moved = {target: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for target, fd in fds.items()}
    for target, fd in moved.items():
        os.dup2(fd, target, inheritable=True)
    process.close_others(set(fds), on_exec=True)
