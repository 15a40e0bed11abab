"""Makes an app's terminal: a forked child opens it in the app's root, and passes its master to the parent."""

from __future__ import annotations

import _socket
import errno
import os
import stat

from kurma_core.linux import mounts, terminal
from kurma_core.linux.beneath import open_beneath
from kurma_core.linux.descriptor_passing import packed, unpacked
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.pod.control_socket import ROOM


class Handover:
    """Passes a terminal's master from a child to its parent. Make it before the fork.

    :param size: rows and columns of the new terminal; None: not known yet.
    """

    __slots__ = ("_ours", "_size", "_theirs")

    def __init__(self, size: tuple[int, int] | None) -> None:
        self._size = size
        kind = _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC
        self._ours, self._theirs = _socket.socketpair(_socket.AF_UNIX, kind)
        self._ours.setblocking(False)

    def give(self, uid: int) -> int:
        """Opens the terminal, connects standard input, output and error to it, and passes its master. Runs in the
        child, with all rights, in the app's root.

        :returns: another descriptor of the slave.
        :raises SetupError: the terminal cannot be made.
        """
        try:
            master, slave = terminal.open_pair()
            if self._size is not None and all(self._size):
                terminal.set_size(master, *self._size)
            terminal.take(slave, uid)
            self._theirs.sendmsg([b"t"], packed([master]))
        except OSError as error:
            raise SetupError(f"its terminal cannot be made: {error.strerror}") from None
        os.close(master)
        for number in (0, 1, 2):
            os.dup2(slave, number)
        return slave

    @staticmethod
    def show_console(slave: int) -> None:
        """Binds the terminal to ``/dev/console``. Runs in the app's root with all rights, and follows no links.

        :raises SetupError: it cannot be bound.
        """
        try:
            root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            dev = open_beneath(root, "/dev", os.O_PATH | os.O_DIRECTORY)
            os.close(root)
            try:  # noqa: SIM105 - contextlib costs every pod's start
                os.mknod("console", stat.S_IFREG | 0o644, dir_fd=dev)
            except FileExistsError:
                pass  # a handler has run before in this root
            place = open_beneath(dev, "console", os.O_PATH)
            os.close(dev)
            mounts.bind(slave, place, recursive=False)
            os.close(place)
        except OSError as error:
            why = "a symbolic link is there" if error.errno == errno.ELOOP else error.strerror
            raise SetupError(f"its terminal cannot be its console: /dev/console: {why}") from None
        os.close(slave)

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`take` can take the master."""
        return self._ours.fileno()

    def take(self) -> int | None:
        """Takes the master, once, in the parent; None: the child has not sent it."""
        try:
            _, beside, _, _ = self._ours.recvmsg(1, ROOM, _socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        fds = unpacked(beside)
        return fds[0] if fds else None

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()
