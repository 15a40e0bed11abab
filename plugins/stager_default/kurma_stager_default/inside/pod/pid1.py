"""PID 1 of a pod: it holds the pod's PID namespace, reaps what was orphaned, and has nothing worth taking.

Its root is an empty read-only directory, it has no capability, cannot be traced or dumped, and stays as large as
it was. The apps are not its children; the stager, outside of the namespace, waits for those itself. A request to
end (SIGTERM, SIGINT, SIGPWR) is passed on to the stager, which stops the pod.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import time

from kurma_core.linux import capabilities, clone, libc, mounts, namespaces, process
from kurma_stager_default.inside import user_namespace
from kurma_stager_default.inside.pod import memory_trimming

_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_NO_NEW_PRIVS = 38
# Seconds.
_PATIENCE, _TURN = 2.0, 0.01
#: What the apps of a pod share besides the network.
SHARED = namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC | namespaces.CLONE_NEWUTS
_REQUESTS = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGPWR)


def start(stop_fd: int) -> tuple[int, int]:
    """Fork it. The caller has unshared a PID namespace and not forked since.

    :param stop_fd: a byte is written there when somebody asks PID 1 to end.
    :returns: its PID, as the caller sees it, and a descriptor for :func:`await_ready`.
    """
    ready, told = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid:
        os.close(told)
        return pid, ready
    os.close(ready)
    _be(stop_fd, told)
    raise AssertionError("PID 1 has returned")


def start_under(namespace: int, stop_fd: int) -> tuple[int, int]:
    """As :func:`start`, under the user namespace behind a descriptor: the pod's PID, IPC and UTS namespaces belong
    to it, and the caller is in them from now on (its children, as to PIDs). The caller has unshared none of them.

    :raises OSError: they could not be made.
    """
    ready, told = os.pipe2(os.O_CLOEXEC)
    heard, number = os.pipe2(os.O_CLOEXEC)
    # Who enters a user namespace does not come back: so somebody else does, and leaves PID 1 to us as our child.
    helper = os.fork()
    if helper == 0:
        try:
            os.close(ready)
            user_namespace.enter(namespace)
            namespaces.unshare(SHARED)
            pid, _ = clone.clone(clone.CLONE_PARENT)
            if pid == 0:
                _be(stop_fd, told)
            os.write(number, str(pid).encode())
        except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
            os.write(told, str(error).encode())
        finally:
            os._exit(0)
    os.close(told)
    os.close(number)
    os.waitpid(helper, 0)
    return _join(heard, ready), ready


def start_held(namespace: int, stop_fd: int) -> tuple[int, int, int]:
    """As :func:`start`, where PID 1 is to be the only child of its parent: of a process that does nothing else,
    and ends as PID 1 does, or as we do. The caller is in the pod's namespaces from now on.

    :param namespace: a descriptor of the user namespace that they are to belong to; -1: the host's.
    :returns: PID 1, the descriptor for :func:`await_ready`, and PID 1's parent, a child of ours.
    :raises OSError: they could not be made.
    """
    ready, told = os.pipe2(os.O_CLOEXEC)
    heard, number = os.pipe2(os.O_CLOEXEC)
    us = os.getpid()
    holder = os.fork()
    if holder == 0:
        try:
            os.close(ready)
            if namespace >= 0:
                user_namespace.enter(namespace)
            process.set_pdeathsig(_signal.SIGKILL)
            if os.getppid() != us:
                os._exit(1)
            libc.syscall("prctl", _PR_SET_NAME, b"kurma-holder")
            namespaces.unshare(SHARED)
            pid = os.fork()
            if pid == 0:
                _be(stop_fd, told)
            os.write(number, str(pid).encode())
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            process.close_others(set())
            os.waitpid(pid, 0)
        except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
            os.write(told, str(error).encode())
        finally:
            os._exit(0)
    os.close(told)
    os.close(number)
    return _join(heard, ready), ready, holder


def _join(heard: int, ready: int) -> int:
    """Enters the namespaces of the PID 1 whose number comes by ``heard``, which is closed. :returns: that number.

    :raises OSError: there is none; why is told by ``ready``.
    """
    said = os.read(heard, 32)
    os.close(heard)
    if not said:
        await_ready(ready)
    pid = int(said)
    fd = process.pidfd_open(pid)
    namespaces.setns(fd, SHARED)
    os.close(fd)
    return pid


def _be(stop_fd: int, told: int) -> None:
    """PID 1 itself; never returns. Nobody but the stager has the other end of ``told``: PID 1 ends here where that
    has ended before it could ask to be told of it.
    """
    try:
        code = memory_trimming.program_pages()  # there is no /proc later
        _prepare()
        os.write(told, b"R")
        process.close_others({stop_fd})
        # What it will call has been called before: to look for it takes the tables of all libraries.
        _signal.raise_signal(_signal.SIGCHLD)
        _signal.sigwaitinfo([_signal.SIGCHLD])
        _reap_all()
        memory_trimming.drop_pages(code)  # once it is nobody's start that waits
        _reap(stop_fd)
    except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
        os.write(told, str(error).encode())
    finally:
        os._exit(1)


def await_ready(ready: int) -> None:
    """Wait until its root is the empty one, before which no app may be there to see another; closes ``ready``.

    :raises OSError: it could not be set up.
    """
    answer = os.read(ready, 4096)
    os.close(ready)
    if answer != b"R":
        raise OSError(f"the pod's PID 1 cannot be set up: {answer.decode(errors='replace')}")


def end(pid: int) -> None:
    """End PID 1, and with it every process of the pod; reap it, so that nobody else has to.

    Bounded: a process of the pod that hangs in the kernel keeps PID 1 from ending.
    """
    try:
        fd = process.pidfd_open(pid)
    except ProcessLookupError:
        return  # it has ended, and was waited for
    process.pidfd_send_signal(fd, _signal.SIGKILL)
    end = time.monotonic() + _PATIENCE
    # It waits for all that is in its namespace, our own children there too: those that ended are for us to reap.
    while time.monotonic() < end:
        ended = process.wait_pidfd(fd, _TURN)
        _reap_all()
        if ended:
            break
    os.close(fd)


def _reap_all() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _prepare() -> None:
    process.set_pdeathsig(_signal.SIGKILL)  # and all of the namespace with us: the stager's end is the pod's
    libc.syscall("prctl", _PR_SET_NAME, b"kurma-init")
    _signal.set_wakeup_fd(-1)
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    for number in _signal.valid_signals() - {_signal.SIGCHLD, _signal.SIGKILL, _signal.SIGSTOP, *_REQUESTS}:
        _signal.signal(number, _signal.SIG_IGN)
    # What is blocked queues up, ignored or not.
    _signal.pthread_sigmask(_signal.SIG_SETMASK, (_signal.SIGCHLD, *_REQUESTS))
    # A cgroup namespace too: whoever may enter ours must not find the host's there.
    namespaces.unshare(namespaces.CLONE_NEWNS | namespaces.CLONE_NEWCGROUP)
    mounts.make_private("/")
    none: frozenset[int] = frozenset()
    capabilities.drop_bounding(none)
    root = mounts.new_filesystem("tmpfs", {"mode": "0555", "size": "4k", "nr_inodes": "2"}, _ATTRIBUTES)
    mounts.move_mount_to(root, "/run")
    mounts.pivot_root(root)
    os.close(root)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    capabilities.set_ambient(none)
    capabilities.set_(none, none, none)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


_ATTRIBUTES = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV | mounts.ATTR_NOEXEC


def _reap(stop_fd: int) -> None:
    signals = [_signal.SIGCHLD, *_REQUESTS]
    while True:
        number = _signal.sigwaitinfo(signals).si_signo
        if number in _REQUESTS:
            try:
                os.write(stop_fd, b"s")
            except OSError:
                continue  # full: it has been asked often enough
        _reap_all()
