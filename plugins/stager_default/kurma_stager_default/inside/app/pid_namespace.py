"""Forks an app's process in another PID namespace than the pod's: one of its own, the host's, or another app's.

The stager itself is in the host's PID namespace, and its children are in the pod's. The app's process is a child
of the stager in any case, which waits for it. A process that is not in the pod's PID namespace does not end with
the pod's PID 1: so the kernel kills it when the stager ends, and the owner of the pod kills the pod's cgroup.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux import clone, namespaces, process
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.manifest import HOST_PID, OF_APP, OWN_PID

TYPE_CHECKING = False
#: The only sysctl of PID namespaces.
_OF_PIDS = "vm.memfd_noexec"
_SIGKILL = 9

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kurma_stager_default.inside.manifest import App
    from kurma_stager_default.inside.pod.app_run import AppRun


def fork(word: str, directories: Iterable[str], main_of: Callable[[str], int]) -> int:
    """As :func:`kurma_core.linux.clone.fork_into`, in the PID namespace that ``word`` names.

    :param word: ``own``, ``host`` or ``app:NAME``.
    :param main_of: the PID of an app's main process, which has not been reaped.
    :raises SetupError: that app does not run. :raises OSError: no child was made.
    """
    if word in (OWN_PID, HOST_PID):
        # The kernel makes a PID namespace only below that of the calling process. So an app's own is beside the
        # pod's.
        flags = namespaces.CLONE_NEWPID if word == OWN_PID else 0
        return _fork_in(os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC), directories, flags)
    name = word.removeprefix(OF_APP)
    try:
        return _fork_in(process.pidfd_open(main_of(name)), directories)
    except OSError as error:
        # ESRCH: it has ended. ENOMEM: PID 1 of its namespace has, too.
        if error.errno in (errno.ESRCH, errno.ENOMEM, errno.EINVAL):
            raise SetupError(f"app {name}, whose PID namespace it shares, does not run any more") from None
        raise


def _fork_in(fd: int, directories: Iterable[str], flags: int = 0) -> int:
    """Forks in the PID namespace of a descriptor, which is closed."""
    ours = os.open("/proc/self/ns/pid_for_children", os.O_RDONLY | os.O_CLOEXEC)
    pid = -1
    try:
        namespaces.setns(fd, namespaces.CLONE_NEWPID)
        pid = clone.fork_into(directories, flags)
    finally:
        if pid != 0:  # the child's own children belong to its namespace
            namespaces.setns(ours, namespaces.CLONE_NEWPID)
        os.close(ours)
        os.close(fd)
    return pid


def settle(app: App, sysctls: dict[str, str]) -> None:
    """Sets the pod's sysctls of PID namespaces in an app's own. Runs in its PID 1, with the stager's ``/proc``."""
    value = sysctls.get(_OF_PIDS)
    if app.pid == OWN_PID and value is not None:
        with open("/proc/sys/" + _OF_PIDS.replace(".", "/"), "w") as file:
            file.write(value)


def end_with_stager(app: App) -> None:
    """Makes the kernel kill the app's process with the stager, if it does not end with the pod's PID 1. Call it
    after the change of user, which clears the setting."""
    if app.pid in (OWN_PID, HOST_PID):
        process.set_pdeathsig(_SIGKILL)


def ordered(runs: list[AppRun]) -> list[AppRun]:
    """The apps in the order in which they are started: one that shares the PID namespace of another after that."""
    waiting = list(runs)
    found: list[AppRun] = []
    while waiting:
        begun = {run.app.name for run in found}
        ready = [run for run in waiting if not run.app.pid.startswith(OF_APP)]
        ready = ready or [run for run in waiting if run.app.pid.removeprefix(OF_APP) in begun]
        # The start of apps that wait for one another, or for an unknown app, tells what is wrong.
        for run in ready or waiting[:]:
            waiting.remove(run)
            found.append(run)
    return found


def note(app: App) -> str | None:
    """A note for the user on an app that sees processes of others; None: it does not."""
    if app.pid == HOST_PID:
        return (
            f"app {app.name}: pid: it sees every process of the host, and may signal those of its user and "
            "capabilities"
        )
    if app.pid.startswith(OF_APP):
        other = app.pid.removeprefix(OF_APP)
        return f"app {app.name}: pid: it sees the processes of app {other}, and ends with those"
    return None
