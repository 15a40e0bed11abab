"""Reads and writes the caller's standard input, output and error, for a relay to a program in a pod."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat

from kurma_core.errors import HostError, UsageError

#: Errors of a pipe or socket without a reader, and of a terminal that was hung up.
_NOBODY_READS = (errno.EPIPE, errno.ECONNRESET, errno.EIO, errno.ENXIO)


def reader(fd: int) -> int:
    """A new descriptor to read from the caller's ``fd``; -1: ``fd`` cannot be read from.

    A pipe or a terminal is opened again, without blocking: another process may take the data first, and the flags
    of the caller's own file description must not change. For a file, the position is shared with the caller.

    :raises IsADirectoryError: it is a directory.
    """
    try:
        mode = os.fstat(fd).st_mode
        # nohup(1) opens /dev/null for writing, as standard input.
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            return -1
    except OSError:
        return -1
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if stat.S_ISFIFO(mode) or os.isatty(fd):
        try:
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            pass  # not permitted: a copy is read when poll(2) reports data
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def open_input(fd: int) -> int:
    """As :func:`reader`, for the caller's standard input. :raises UsageError: it cannot be read."""
    try:
        return reader(fd)
    except OSError as error:
        raise UsageError(f"cannot read standard input: {error.strerror}", errno=error.errno) from None


def read(fd: int, most: int) -> bytes | None:
    """Reads input. :returns: empty: the end; None: no data now."""
    try:
        return os.read(fd, most)
    except BlockingIOError:
        return None
    except OSError:
        return b""  # a terminal that was hung up


def write(fd: int, data: bytes) -> None:
    """Writes all data, however long that takes.

    :raises BrokenPipeError: the reader has closed its end. :raises OSError: the data cannot be written.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            # Another process has set O_NONBLOCK on the shared file description.
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
        except OSError as error:
            if error.errno in _NOBODY_READS:
                raise BrokenPipeError(error.errno, error.strerror) from None
            raise


class Outputs:
    """The caller's standard output (1) and error (2), and the first error of writing to them.

    :attr:`raw`: the caller's terminal is in raw mode. The command's output comes from its terminal then; only the
    stager's own lines come for standard error, and they need a carriage return.
    """

    def __init__(self, stdout: int, stderr: int) -> None:
        self.fds = {1: stdout, 2: stderr}
        self.raw = False
        self._error: HostError | None = None

    def write(self, number: int, data: bytes) -> None:
        """Writes data. :raises BrokenPipeError: the stream is broken; :meth:`check` tells whether that is an
        error.
        """
        if number == 2 and self.raw:
            data = data.replace(b"\n", b"\r\n")
        try:
            write(self.fds[number], data)
        except BrokenPipeError:
            raise
        except OSError as error:
            what = "output" if number == 1 else "error"
            self._error = self._error or HostError(
                f"cannot write standard {what}: {error.strerror}", errno=error.errno
            )
            raise BrokenPipeError from None

    def check(self) -> None:
        """:raises HostError: output could not be written for another reason than that its reader has gone."""
        if self._error is not None:
            raise self._error
