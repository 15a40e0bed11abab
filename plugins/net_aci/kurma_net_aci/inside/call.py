"""One call of a script: started in the network's root, listened to, ended when its time is over.

This program outlives the Kurma that started it: the time limit holds, and the locks are held, whatever becomes of
that. SIGTERM makes it end the script at once.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import time

# All that is needed once the host's files are out of sight is imported before.
from kurma_core.formats import exec_errors  # noqa: F401 - see execute
from kurma_core.linux import execute, process
from kurma_net_aci.inside import job, offspring, root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SIGKILL, _SIGTERM = 9, 15
#: Bytes that are kept: of standard output the first (a result that is longer is none), of standard error the last.
_STDOUT_MAX, _STDERR_MAX = 1 << 20, 16 << 10
_PIECE = 1 << 16
#: Pieces that are read of each stream once the script has ended; somebody else may go on writing for ever.
_LAST_PIECES = 64
#: Seconds that killed processes may take to be gone.
_PATIENCE = 5.0


def main(words: list[str]) -> None:
    """:param words: :meth:`job.Job.words`. The report goes to descriptor 1."""
    wanted = job.Job.of_words(words)
    process.close_others({job.STDIN, job.REPORT, 2, *job.LOCKS})
    # Not for the script's eyes; the report's number is free for its output.
    report = os.dup(job.REPORT)
    process.set_child_subreaper()
    try:
        root.enter(wanted.rootfs)
    except OSError as error:
        path = error.filename or wanted.rootfs
        text = f"{error.strerror}: {path}"
        found = job.Report(job.NO_ROOT, stderr=text.encode(errors="surrogateescape"))
    else:
        found = Call(wanted).run()
    data = memoryview(found.to_bytes())
    while data:
        data = data[os.write(report, data) :]
    os._exit(0)


class Call:
    """One script, from its start to its end."""

    def __init__(self, wanted: job.Job) -> None:
        self._job = wanted
        self._stdout = b""
        self._stderr = b""

    def run(self) -> job.Report:
        """Starts it and sees it end."""
        stop = _stop_pipe()
        out, out_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        err, err_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        why, why_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(out_end, True)
        os.set_blocking(err_end, True)
        us = os.getpid()
        child = os.fork()
        if child == 0:
            _become(self._job, us, out_end, err_end, why_end)
        for fd in (out_end, err_end, why_end):
            os.close(fd)
        held = process.pidfd_open(child)
        # It is over before the script is anything: the error, or nothing when the script has been executed.
        reason = os.read(why, 4096)
        how = self._listen(held, stop, {out: self._to_stdout, err: self._to_stderr})
        number = 0
        if how == job.EXITED:
            _, status = os.waitpid(child, 0)
            number = os.waitstatus_to_exitcode(status)
            if number < 0:
                how, number = job.KILLED, -number
        if reason:
            how, self._stderr = job.NOT_EXECUTED, reason
        if not (self._job.keep and how == job.EXITED and number == 0):
            self._end_all()
        self._read_rest(out, self._to_stdout)
        self._read_rest(err, self._to_stderr)
        return job.Report(how, number, self._stdout, self._stderr)

    def _listen(self, held: int, stop: int, streams: dict[int, Callable[[bytes], None]]) -> str:
        """Until the script has ended, its time is over, or somebody wants it ended; how it was."""
        poll = select.poll()
        for fd in (held, stop, *streams):
            poll.register(fd, select.POLLIN)
        end = time.monotonic() + self._job.timeout
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return job.TIMEOUT
            ready = [fd for fd, _ in poll.poll(left * 1000)]
            if stop in ready:
                return job.STOPPED
            if held in ready:
                return job.EXITED
            for fd in ready:
                data = os.read(fd, _PIECE)
                if data:
                    streams[fd](data)
                else:
                    poll.unregister(fd)  # it has closed the stream, and goes on

    def _end_all(self) -> None:
        left = offspring.end_all(_PATIENCE)
        if left:
            text = f" (processes that it started do not die: {', '.join([str(pid) for pid in left])})"
            self._to_stderr(text.encode())

    @staticmethod
    def _read_rest(fd: int, to: Callable[[bytes], None]) -> None:
        for _ in range(_LAST_PIECES):
            try:
                data = os.read(fd, _PIECE)
            except BlockingIOError:
                return
            if not data:
                return
            to(data)

    def _to_stdout(self, data: bytes) -> None:
        # One byte more than is allowed tells that there was more.
        self._stdout += data[: _STDOUT_MAX + 1 - len(self._stdout)]

    def _to_stderr(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-_STDERR_MAX:]


def _stop_pipe() -> int:
    """A descriptor that can be read once SIGTERM has come."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _signal.signal(_SIGTERM, lambda number, frame: None)
    return reader


def _become(wanted: job.Job, caller: int, out: int, err: int, why: int) -> None:
    """The child: root with all that root may (inside the network's root already), in a session of its own."""
    try:
        os.setsid()
        # It does not outlive this program, should that be killed; its own children might.
        process.set_pdeathsig(_SIGKILL)
        if os.getppid() != caller:
            os._exit(execute.NOT_FOUND)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        os.umask(0o022)
        os.dup2(out, 1)
        os.dup2(err, 2)
        process.close_others({0, 1, 2, why})
        process.reset_signals()
        execute.execute(wanted.command, wanted.environment)
    except OSError as error:
        os.write(why, str(error.strerror or error).encode(errors="surrogateescape"))
    finally:
        os._exit(execute.NOT_FOUND)


# Named, so that it is loaded while its file can still be seen.
_EXPLAINS = execute
