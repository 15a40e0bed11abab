"""Runs one script in the network's root, collects its output, and ends it when its time has expired.

This program outlives the Kurma that started it, so that the time limit applies and the locks are held also if
Kurma is killed. On SIGTERM it ends the script at once.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import os
import select
import time

# The modules must be imported before pivot_root(2): later the host's files cannot be reached.
from kurma_core.linux import (
    exec_errors,  # noqa: F401 - see execute
    execute,
    mounts,
    namespaces,
    process,
)
from kurma_core.linux.beneath import open_in_root
from kurma_net_aci.inside import job, offspring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SIGKILL, _SIGTERM = 9, 15
#: Bytes that are kept: the first of standard output (a longer result is an error), the last of standard error.
_STDOUT_MAX, _STDERR_MAX = 1 << 20, 16 << 10
_PIECE = 1 << 16
#: Pieces that are read of each stream after the script's end; another process may go on writing for ever.
_LAST_PIECES = 64
#: Seconds that killed processes may take to end.
_PATIENCE = 5.0


def main(words: list[str]) -> None:
    """Runs the script and writes the report to descriptor 1. :param words: :meth:`job.Job.words`."""
    wanted = job.Job.of_words(words)
    process.close_others({job.STDIN, job.REPORT, 2, *job.LOCKS})
    # The script must not get the report's descriptor; the number 1 is needed for its standard output.
    report = os.dup(job.REPORT)
    process.set_child_subreaper()
    try:
        enter_root(wanted.rootfs)
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
        """Starts the script and waits for its end."""
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
        # The exec closes the pipe: an empty read means that the script has been executed; otherwise it is the
        # error.
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
        """Reads output until the script has ended, its time has expired, or SIGTERM came; returns which."""
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
                    poll.unregister(fd)  # the script has closed the stream, and goes on

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
        # One byte more than allowed is kept, so that the reader notices a result that is too long.
        self._stdout += data[: _STDOUT_MAX + 1 - len(self._stdout)]

    def _to_stderr(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-_STDERR_MAX:]


def _stop_pipe() -> int:
    """Returns a descriptor that becomes readable when SIGTERM arrives."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _signal.signal(_SIGTERM, lambda number, frame: None)
    return reader


def _become(wanted: job.Job, caller: int, out: int, err: int, why: int) -> None:
    """Executes the script in the child: as root with all capabilities, in a session of its own, inside the
    network's root."""
    try:
        os.setsid()
        # The script is killed with this program; its own children may survive.
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


# A reference keeps the import above, which must happen while the host's files can be reached.
_EXPLAINS = execute


#: Directories of the host that are mounted in the root, with present and future mounts below them.
SHOWN = ("proc", "sys", "dev", "run/netns")
_DIRECTORY = os.O_PATH | os.O_DIRECTORY


def enter_root(rootfs: str) -> None:
    """Moves this process into a mount namespace of its own, with ``rootfs`` as its root. The network, IPC, PID and
    UTS namespaces stay the host's (Kurma Network Specification, The Container and The API).

    Later mounts of the host below :data:`SHOWN` propagate into the root, so that a helper of setup finds the
    network namespaces of later pods. Mounts in the root do not propagate to the host.

    :raises OSError: with the path.
    """
    # Before the namespace is copied: a mount that becomes shared only later would not propagate into the copy.
    namespaces.share_directory("/run/netns")
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.mount(None, "/", None, mounts.MS_REC | mounts.MS_SLAVE)
    root = mounts.open_tree(mounts.AT_FDCWD, rootfs, recursive=False)
    # The state directory may be mounted noexec; the image was verified, so its programs may be executed.
    hindrances = mounts.ATTR_NOEXEC | mounts.ATTR_NODEV | mounts.ATTR_NOSUID | mounts.ATTR_RDONLY
    mounts.set_attributes(root, 0, clear=hindrances, recursive=False)
    mounts.move_mount_to(root, rootfs)
    for place in SHOWN:
        source = os.open(f"/{place}", _DIRECTORY | os.O_CLOEXEC)
        mounts.bind(source, _directory(root, place))
    mounts.pivot_root(root)


def _directory(root: int, path: str) -> int:
    """Opens a directory in the image, and makes it if it is missing. Links are resolved inside the image's
    root."""
    at, way = root, ""
    for name in path.split("/"):
        way = f"{way}/{name}"
        try:
            found = open_in_root(root, way, _DIRECTORY)
        except FileNotFoundError:
            try:  # noqa: SIM105 - contextlib is not light
                os.mkdir(name, 0o755, dir_fd=at)
            except FileExistsError:
                pass  # another call has made it; or it is a dangling link, for which the next line raises
            found = open_in_root(root, way, _DIRECTORY)
        except NotADirectoryError:
            raise OSError(errno.ENOTDIR, "is not a directory in the image", way) from None
        at = found
    return at
