"""Runs a script of a network's image in a helper program, which holds the network's locks and reports the
result."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import kurma_core
from kurma_core.errors import NetworkError
from kurma_core.linux.programs import one_line
from kurma_net_aci.inside import job
from kurma_net_aci.inside.job import Report

#: Seconds that the program itself may take beyond the script's time limit.
_MARGIN = 30.0
#: Seconds that the program may take to end the script when the call is interrupted.
_STOPPING = 10.0
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(job.__file__)), "program.py")
_CORE = os.path.dirname(os.path.dirname(os.path.abspath(kurma_core.__file__)))
_OWN = _PROGRAM.removesuffix("/kurma_net_aci/inside/program.py")
#: Signals reset to their defaults in the program: ignored signals would be inherited.
_RESET = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


def run(
    rootfs: str,
    command: list[str],
    *,
    stdin: bytes,
    environment: Mapping[str, str],
    timeout: float,
    keep: bool = False,
    locks: Sequence[int] = (),
) -> job.Report:
    """Runs a script to its end, as root, in the network's root.

    The script runs in a session of its own, so that a Ctrl-C meant for Kurma does not reach it. If this wait is
    interrupted, the script is ended.

    :param timeout: seconds.
    :param keep: processes that the script leaves running stay if it succeeds; otherwise they are killed.
    :param locks: descriptors of locks, which stay held until the script has ended, also if Kurma is killed
        meanwhile.
    :raises NetworkError: it could not be started, or its program was killed.
    """
    wanted = job.Job(rootfs, timeout, keep, dict(environment), command)
    argv = [getattr(sys, "_base_executable", "") or sys.executable, "-I", "-S", _PROGRAM, _CORE, _OWN]
    # Files in memory and not pipes: a process that keeps one open cannot block its reader or writer.
    files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("configuration", "report")]
    try:
        os.pwrite(files[0], stdin, 0)
        actions = _moves(dict(zip((job.STDIN, job.REPORT, *job.LOCKS), (*files, *locks), strict=False)))
        try:
            pid = os.posix_spawn(
                argv[0],
                [*argv, *wanted.words()],
                {"LC_ALL": "C.UTF-8"},
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=_RESET,
            )
        except OSError as error:
            raise NetworkError(
                f"cannot run {argv[0]}: {error.strerror}", path=argv[0], errno=error.errno
            ) from None
        _wait(pid, timeout + _MARGIN)
        report = job.Report.of_bytes(_content(files[1]))
        if report is None:
            raise NetworkError("the program that runs it was killed", command=command[0])
        return report
    finally:
        for fd in files:
            os.close(fd)


def _moves(places: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Returns the file actions that move descriptors to other numbers in the new program; the numbers may
    overlap."""
    free = max(*places, *places.values()) + 1
    actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, fd, free + number) for number, fd in places.items()]
    for number in places:
        actions += [(os.POSIX_SPAWN_DUP2, free + number, number), (os.POSIX_SPAWN_CLOSE, free + number)]
    return actions


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _wait(pid: int, timeout: float) -> None:
    """Waits until the program has ended; if the wait is interrupted or the time expires, ends the program."""
    held = os.pidfd_open(pid)
    ended = False
    try:
        poll = select.poll()
        poll.register(held, select.POLLIN)
        try:
            ended = bool(poll.poll(timeout * 1000))
        finally:
            if not ended:  # the wait was interrupted, or the program hangs
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                if not poll.poll(_STOPPING * 1000):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
    finally:
        os.close(held)


def what_happened(report: Report, timeout: float) -> str:
    """Returns the rest of a sentence that begins with the script's name, for a script that failed."""
    said = one_line(report.stderr + b" " + report.stdout)
    if report.how == job.NOT_EXECUTED:
        return f"cannot be executed: {said}"
    if report.how == job.NO_ROOT:
        return f"has no root to run in: {said}"
    if report.how == job.TIMEOUT:
        return f"was killed: it took longer than {timeout:g} seconds" + (f": {said}" if said else "")
    if report.how == job.STOPPED:
        return "was killed: its end was asked for"
    how = f"signal {report.number}" if report.how == job.KILLED else f"status {report.number}"
    return f"failed with {how}: {said}" if said else f"failed with {how}, and said nothing"
