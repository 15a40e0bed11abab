"""PID 1 of a pod: it holds the pod's PID namespace, and reaps orphans.

Its root is an empty read-only directory, it has no capabilities, cannot be traced or dumped, and its memory does
not grow. The apps are not its children: the stager, outside of the namespace, waits for those itself. PID 1 passes
signals to end (SIGTERM, SIGINT, SIGPWR) on to the stager, which stops the pod.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import fcntl
import os
import time

from kurma_core.linux import capabilities, clone, libc, mounts, namespaces, process
from kurma_stager_default.inside import user_namespace
from kurma_stager_default.inside.pod import memory_trimming

_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_NO_NEW_PRIVS = 38
# Seconds to wait for PID 1's end, and between two checks.
_PATIENCE, _TURN = 2.0, 0.01
#: The namespaces that the apps of a pod share, besides the network namespace.
SHARED = namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC | namespaces.CLONE_NEWUTS
_REQUESTS = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGPWR)
#: A small program that waits in place of the interpreter, where the image has it (``init_program.py``), and the
#: descriptors that it uses.
_PROGRAM = "/opt/stager/bin/kurma-init"
_STOP, _TOLD = 3, 4


def start(stop_fd: int) -> tuple[int, int]:
    """Forks PID 1. The caller has unshared a PID namespace, and has not forked since.

    :param stop_fd: PID 1 writes a byte to it when it gets a signal to end.
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
    """As :func:`start`, with PID, IPC and UTS namespaces that the given user namespace owns. The caller, which has
    unshared none of them, joins them (as to PIDs, its later children do).

    :param namespace: a descriptor of the user namespace.
    :raises OSError: they could not be made.
    """
    ready, told = os.pipe2(os.O_CLOEXEC)
    heard, number = os.pipe2(os.O_CLOEXEC)
    # A process cannot leave a user namespace again. So a helper enters it; CLONE_PARENT makes PID 1 our child.
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
    """As :func:`start`, with PID 1 as the only child of a holder process, which ends with PID 1 or with the
    caller. The caller joins the pod's namespaces.

    :param namespace: a descriptor of the user namespace that owns them; -1: the host's.
    :returns: PID 1, the descriptor for :func:`await_ready`, and PID 1's parent, a child of the caller.
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
    """Reads the PID of PID 1 from ``heard``, closes that, and joins PID 1's namespaces. :returns: the PID.

    :raises OSError: PID 1 was not started; the reason is read from ``ready``.
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
    """Runs PID 1; never returns. Only the stager holds the other end of ``told``: if the stager has ended before
    PR_SET_PDEATHSIG was set, the write to ``told`` fails, and PID 1 ends.
    """
    try:
        code = memory_trimming.program_pages()  # there is no /proc later
        program = _program()
        _prepare()
        if program >= 0:
            _execute(program, stop_fd, told)
        os.write(told, b"R")
        process.close_others({stop_fd})
        # Call each function once now: a first call looks its symbol up in the tables of all libraries.
        _signal.raise_signal(_signal.SIGCHLD)
        _signal.sigwaitinfo([_signal.SIGCHLD])
        _reap_all()
        memory_trimming.drop_pages(code)  # after the report, so that it does not delay the pod's start
        _reap(stop_fd)
    except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
        os.write(told, str(error).encode())
    finally:
        os._exit(1)


def _program() -> int:
    """A descriptor of the program that waits; -1: the image has none. PID 1 may execute the file, and not read it:
    so the kernel keeps apps with CAP_SYS_PTRACE in the pod's user namespace away from the process."""
    try:
        return os.open(_PROGRAM, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def _execute(program: int, stop_fd: int, told: int) -> None:
    """Executes the program, which reports by ``told`` that PID 1 is ready. It keeps the signal mask and ignores
    SIGCHLD, so that the kernel reaps orphans. PR_SET_PDEATHSIG and PR_SET_NO_NEW_PRIVS last beyond the exec.
    """
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _REQUESTS)
    # Above those numbers first, so that no descriptor overwrites another.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _TOLD + 1) for fd in (stop_fd, told, program)]
    for fd, number in zip(high, (_STOP, _TOLD), strict=False):
        os.dup2(fd, number)
    process.close_others({_STOP, _TOLD, high[2]})
    os.execve(high[2], ["kurma-init"], {})  # noqa: S606 - no shell is meant


def await_ready(ready: int) -> None:
    """Waits until PID 1 has its empty root, without which apps could see the host by it; closes ``ready``.

    :raises OSError: PID 1 could not be set up.
    """
    answer = os.read(ready, 4096)
    os.close(ready)
    if answer != b"R":
        raise OSError(f"the pod's PID 1 cannot be set up: {answer.decode(errors='replace')}")


def end(pid: int) -> None:
    """Kills PID 1, and with it every process of the pod, and reaps it.

    It waits a limited time: a process of the pod that hangs in the kernel keeps PID 1 from ending.
    """
    try:
        fd = process.pidfd_open(pid)
    except ProcessLookupError:
        return  # it has ended, and was reaped
    process.pidfd_send_signal(fd, _signal.SIGKILL)
    end = time.monotonic() + _PATIENCE
    # PID 1 ends only after all processes of its namespace, our children among them: reap those.
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
    process.set_pdeathsig(_signal.SIGKILL)  # if the stager ends, PID 1 and all of its namespace end, too
    libc.syscall("prctl", _PR_SET_NAME, b"kurma-init")
    _signal.set_wakeup_fd(-1)
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    for number in _signal.valid_signals() - {_signal.SIGCHLD, _signal.SIGKILL, _signal.SIGSTOP, *_REQUESTS}:
        _signal.signal(number, _signal.SIG_IGN)
    # Blocked signals are queued even if they are ignored.
    _signal.pthread_sigmask(_signal.SIG_SETMASK, (_signal.SIGCHLD, *_REQUESTS))
    # A cgroup namespace, too: a process that enters PID 1's must not find the host's there.
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
                continue  # the pipe is full of requests that the stager has not read yet
        _reap_all()
