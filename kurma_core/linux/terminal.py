"""Terminals: opens pseudo-terminals, sets sizes and modes, restores the user's terminal."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import fcntl
import os
import stat

from kurma_core.linux.beneath import open_beneath
from kurma_core.linux.process import DEFAULT_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TIOCSCTTY = 0x540E
_TIOCGWINSZ = 0x5413
_TIOCSWINSZ = 0x5414
_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
_MULTIPLEXER = os.makedev(5, 2)


def get_size(fd: int) -> tuple[int, int] | None:
    """Rows and columns; None: it is not a terminal, or has no size."""
    try:
        answer = fcntl.ioctl(fd, _TIOCGWINSZ, bytes(8))
    except OSError:
        return None
    rows, columns = (int.from_bytes(answer[at : at + 2], "little") for at in (0, 2))
    return (rows, columns) if rows and columns else None


def set_size(fd: int, rows: int, columns: int) -> None:
    """Sets the size, at most 65535. If it changes, the kernel sends SIGWINCH to the foreground process group."""
    content = b"".join([min(max(number, 0), 0xFFFF).to_bytes(2, "little") for number in (rows, columns, 0, 0)])
    fcntl.ioctl(fd, _TIOCSWINSZ, content)


def open_pair() -> tuple[int, int]:
    """Opens a new pseudo-terminal of the devpts at ``/dev/pts``: the master, which does not block, and the slave.

    It is safe in an app's root: a symbolic link, or a file of another type in its place, is refused without
    blocking.

    :raises OSError: it cannot be made.
    """
    path = "/dev/pts/ptmx"
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        master = open_beneath(root, path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
    finally:
        os.close(root)
    try:
        status = os.fstat(master)
        if not stat.S_ISCHR(status.st_mode) or status.st_rdev != _MULTIPLEXER:
            raise OSError(errno.ENODEV, "it makes no terminals", path)
        fcntl.ioctl(master, _TIOCSPTLCK, bytes(4))
        return master, open_other(master)
    except BaseException:
        os.close(master)
        raise


def open_other(master: int) -> int:
    """A master's slave: by the master, not by a path that another process could replace."""
    return fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def take(slave: int, uid: int) -> None:
    """Make it the controlling terminal of this session, which this process leads, and the user its owner."""
    os.fchown(slave, uid, -1)
    os.fchmod(slave, 0o620)
    fcntl.ioctl(slave, _TIOCSCTTY, 0)


def reopen(fd: int) -> int:
    """Opens a terminal once more, without blocking: its new flags do not affect processes that share ``fd``.

    :raises OSError: it cannot be.
    """
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def cook(fd: int) -> None:
    """Sets the mode of a new terminal: line by line, with echo and keys that send signals.

    :raises OSError: the terminal was hung up.
    """
    import termios

    try:
        mode = termios.tcgetattr(fd)
        mode[0] |= termios.ICRNL | termios.IXON
        mode[1] |= termios.OPOST | termios.ONLCR
        mode[3] |= (
            termios.ISIG | termios.ICANON | termios.IEXTEN | termios.ECHO | termios.ECHOE | termios.ECHOK
            | termios.ECHOCTL | termios.ECHOKE
        )  # fmt: skip
        termios.tcsetattr(fd, termios.TCSANOW, mode)
    except termios.error as error:
        raise OSError(*error.args) from None


class Held:
    """The user's terminal; it saves the settings and restores them.

    :param fd: the caller closes it.
    :raises OSError: it is not a terminal.
    """

    __slots__ = ("_fd", "_saved")

    def __init__(self, fd: int) -> None:
        import termios

        self._fd = fd
        try:
            self._saved: list[Any] = termios.tcgetattr(fd)
        except termios.error as error:
            raise OSError(*error.args) from None

    def raw(self) -> None:
        """Sets raw mode, which passes every byte unchanged. A background process is stopped here until it is in
        the foreground.

        :raises OSError: the terminal was hung up.
        """
        import termios

        mode = [*self._saved[:6], list(self._saved[6])]
        mode[0] &= ~(
            termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP
            | termios.INLCR | termios.IGNCR | termios.ICRNL | termios.IXON
        )  # fmt: skip
        mode[1] &= ~termios.OPOST
        mode[2] = mode[2] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
        mode[3] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, mode)
        except termios.error as error:
            raise OSError(*error.args) from None

    def in_words(self) -> str:
        """The settings in the format of stty(1)."""
        *flags, _, _, characters = self._saved
        codes = [value if isinstance(value, int) else value[0] for value in characters]
        return ":".join([f"{number & 0xFFFFFFFF:x}" for number in (*flags, *codes)])

    def wait_front(self) -> None:
        """Stops a background process until it is in the foreground, as job control does at a change of settings.

        :raises OSError: the terminal was hung up.
        """
        import termios

        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, self._saved)
        except termios.error as error:
            raise OSError(*error.args) from None

    def restore(self) -> None:
        """Restores the saved settings, also from the background. Does nothing if the terminal was hung up."""
        import termios

        # A shell may have taken the terminal back after a kill; its settings must be restored all the same. Block
        # SIGTTOU, which would stop this process in the background.
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGTTOU,))
        try:
            if termios.tcgetattr(self._fd) != self._saved:
                # TCSANOW: do not wait until the output is drained, since it may be stopped.
                termios.tcsetattr(self._fd, termios.TCSANOW, self._saved)
        except termios.error:
            return
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


#: Restores the terminal on descriptor 0, by stty(1), when descriptor 3 ends without a word.
_GUARD = 'read -r _ <&3 || exec stty "$0"'


class RawTerminal:
    """Raw mode for a ``with`` statement. A background process is stopped until it is in the foreground.

    :param fd: the terminal; the caller closes it.
    :raises OSError: it is not a terminal.
    """

    __slots__ = ("_fd", "_guard", "_held", "_pipe")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._held = Held(fd)
        self._guard = self._pipe = -1

    def __enter__(self) -> RawTerminal:
        self._held.wait_front()
        self._start_guard()
        try:
            self._held.raw()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._held.restore()
        if self._pipe >= 0:
            try:  # noqa: SIM105 - contextlib is not light
                os.write(self._pipe, b"\n")
            except OSError:
                pass  # the guard was killed
            os.close(self._pipe)
            self._pipe = -1
        if self._guard > 0:
            try:  # noqa: SIM105
                os.waitpid(self._guard, 0)
            except ChildProcessError:
                pass  # the caller ignores SIGCHLD
            self._guard = -1

    def again(self) -> None:
        """Sets raw mode again, after a shell has used the terminal while this process was stopped.

        :raises OSError: the terminal was hung up.
        """
        self._held.raw()

    def size(self) -> tuple[int, int] | None:
        return get_size(self._fd)

    def _start_guard(self) -> None:
        """Starts a shell that restores the terminal if this process is killed. It is in a session of its own, so
        that a hang-up or a signal to our process group does not end it."""
        read, self._pipe = os.pipe2(os.O_CLOEXEC)
        actions = [
            # In this order, since the terminal may be descriptor 3.
            (os.POSIX_SPAWN_DUP2, self._fd, 0),
            (os.POSIX_SPAWN_DUP2, read, 3),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_RDWR, 0),
            (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_RDWR, 0),
        ]
        argv = ["/bin/sh", "-c", _GUARD, self._held.in_words()]
        try:
            self._guard = os.posix_spawn(
                argv[0],
                argv,
                {"PATH": DEFAULT_PATH},
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=range(1, 32),
            )
        except OSError:
            os.close(self._pipe)
            self._pipe = -1  # a host without a shell: a killed command leaves its terminal raw there
        finally:
            os.close(read)
