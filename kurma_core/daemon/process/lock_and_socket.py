"""The lock "one kurmad per state directory" and kurmad's socket, kept in the run directory while it runs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Sequence

from kurma_core.client.remote.start_kurmad import SERVES
from kurma_core.errors import HostError
from kurma_core.linux.files import is_at, others_may_write
from kurma_core.linux.inotify import IN_CREATE, IN_MOVED_FROM, IN_MOVED_TO, Watch

_LOG = logging.getLogger("kurmad")
_GROUP = "kurma"
_IN_DELETE = 0x200
_IN_DELETE_SELF, _IN_MOVE_SELF = 0x400, 0x800
_IN_MASK_ADD = 0x20000000
_CHANGES = IN_CREATE | IN_MOVED_FROM | IN_MOVED_TO | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF
#: Attempts to make a run directory again while another process removes it.
_ATTEMPTS = 10
#: Device and inode of no file.
_NONE = (0, 0)
#: Seconds from the first removal to the next check: removing a directory takes a while.
_SETTLING = 0.3


class RunDirectory:
    """The run directory: holds kurmad's lock and socket.

    :param path: of the socket.
    :param state_dir: the state directory that is served.
    :param hint: names the setting for the run directory.
    """

    def __init__(self, path: str, state_dir: str, hint: str) -> None:
        self.path = path
        self._directory = os.path.dirname(path)
        self._lock_path = f"{self._directory}/{SERVES}"
        self._state_dir = state_dir
        #: Device and inode of the state directory, once it exists.
        self._served: tuple[int, int] | None = None
        self._hint = hint
        self._lock: int | None = None
        self._watch: Watch | None = None
        #: Device and inode of our socket; None: we have made none.
        self._socket: tuple[int, int] | None = None

    def lock(self) -> None:
        """Takes the lock: no other kurmad serves the state directory from here on.

        :raises HostError: another kurmad has the lock; or the run directory cannot be used.
        """
        try:
            self._make_directories()
            status = os.stat(self._directory)
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise HostError(f"a kurmad serves {self._state_dir} already", path=self._lock_path) from None
        self._unlock()
        self._lock = lock
        if others_may_write(status):
            raise HostError(
                f"the run directory {self._directory}: users other than root can write it (owner "
                f"{status.st_uid}, mode "
                f"{stat.S_IMODE(status.st_mode):04o}), and could put another socket in the place of kurmad's",
                hint=f"chown root {self._directory} && chmod go-w {self._directory}",
                path=self._directory,
            )

    def _make_directories(self) -> None:
        """Makes the state directory at the first call only: if it is removed later, it is not made again."""
        if self._served is None:
            os.makedirs(self._directory, mode=0o755, exist_ok=True)
            with contextlib.suppress(OSError):  # a state directory on a read-only file system can be read
                os.makedirs(self._state_dir, exist_ok=True)
            self._served = _identity(self._state_dir)
            return
        self._check_state()
        if os.path.dirname(self._directory) == self._state_dir:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._directory, 0o755)
        else:
            os.makedirs(self._directory, mode=0o755, exist_ok=True)

    def listener(self) -> socket.socket:
        """Makes the socket, which belongs to root and the group.

        :raises HostError: it cannot be made; a file that is not a socket is left in its place.
        """
        if self._socket is not None:
            self._socket = _NONE  # mend() tries again if this attempt fails
        try:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # By its descriptor: the kernel takes no paths of more than 107 bytes.
                self._bind(listener, f"/proc/self/fd/{directory}/{os.path.basename(self.path)}")
            finally:
                os.close(directory)
        except BaseException as error:
            listener.close()
            if isinstance(error, OSError):
                raise self._unusable(error) from None
            raise
        return listener

    def _bind(self, listener: socket.socket, place: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(place).st_mode):
                raise HostError(
                    f"cannot make the socket {self.path}: another file has that name",
                    hint="check that file, and remove it",
                    path=self.path,
                )
            os.unlink(place)  # we hold the lock: the kurmad that made it has ended
        before = os.umask(0o177)
        try:
            listener.bind(place)
        finally:
            os.umask(before)
        os.chown(place, 0, _group())
        os.chmod(place, 0o660)
        self._socket = _identity(place, follow=False) or _NONE  # removed already: mend() sees that

    def _unusable(self, error: OSError) -> HostError:
        return HostError(
            f"kurmad's socket cannot be at {self.path}: {error.strerror}",
            hint=self._hint if error.errno != errno.ENOSPC else "make room there",
            errno=error.errno,
            path=self.path,
        )

    # -- while it runs --

    def watched(self) -> int | None:
        """A descriptor that is readable when something has changed; None: the kernel allows no more watches."""
        self._end_watch()
        try:
            self._watch = Watch(self._directory, _CHANGES)
        except OSError as error:
            _LOG.warning("%s is not watched: %s", self._directory, error.strerror)
            return None
        with contextlib.suppress(OSError):  # it was removed, which mend() detects
            # A directory above it may be moved; and one of these may be the run directory, which has a watch.
            place = os.path.realpath(self._state_dir)
            while place != "/":
                self._watch.add(place, _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_MASK_ADD)
                place = os.path.dirname(place)
        return self._watch.fd

    def mend(self, listen: Callable[[socket.socket], None]) -> None:
        """Takes the lock again, and calls ``listen`` with a new socket, if they were removed or replaced.

        :raises HostError: another kurmad has the lock; or the state directory is gone; or the socket cannot be
            made.
        """
        for left in reversed(range(_ATTEMPTS)):
            try:
                # Until nothing is missing under a watch that sees later changes.
                while self._changed():
                    _LOG.warning("%s was removed: kurmad listens there anew", self.path)
                    listen(self.listener())
                return
            except HostError as error:
                # ENOENT: another process may still be removing the directory.
                if error.data.get("errno") != errno.ENOENT or not left:
                    raise

    def _changed(self) -> bool:
        """Takes the lock again if it was removed. :returns: whether the socket must be made again.

        :raises HostError: another kurmad has taken the lock; or the state directory is gone.
        """
        if self._watch is not None:
            self._watch.drain()
        self._check_state()
        locked = self._lock is None or is_at(self._lock, self._lock_path)
        if locked and not self._lost_socket():
            return False
        time.sleep(_SETTLING)
        self._check_state()
        if not locked:
            self.lock()
        return self._lost_socket()

    def _check_state(self) -> None:
        """:raises HostError: the state directory was removed, moved or replaced."""
        if self._served is not None and _identity(self._state_dir) != self._served:
            raise HostError(f"{self._state_dir}, which kurmad serves, is gone", path=self._state_dir)

    def _lost_socket(self) -> bool:
        return self._socket is not None and _identity(self.path, follow=False) != self._socket

    # -- its end --

    def withdraw(self) -> None:
        """Removes the socket, if it is ours. Repeatable."""
        if self._socket is not None and not self._lost_socket():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self._socket = None

    def close(self) -> None:
        """Removes the socket and releases the lock. Repeatable."""
        self.withdraw()
        self._end_watch()
        self._unlock()

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def passed_sockets(descriptors: Sequence[int]) -> list[socket.socket]:
    """The sockets that the service manager has passed to kurmad.

    :raises HostError: a descriptor is not a unix socket that listens.
    """
    found = []
    for fd in descriptors:
        try:
            listener = socket.socket(fileno=fd)
            if listener.family != socket.AF_UNIX or not listener.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                raise OSError(errno.EINVAL, "it does not listen on a path")
        except OSError as error:
            raise HostError(
                f"descriptor {fd}, which the service manager has handed over, is not a socket for kurmad: "
                f"{error.strerror}",
                hint="ListenStream= of kurmad.socket is a path",
            ) from None
        found.append(listener)
    return found


def _identity(path: str, *, follow: bool = True) -> tuple[int, int] | None:
    """Device and inode; None: it is not there."""
    try:
        status = os.stat(path, follow_symlinks=follow)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _group() -> int:
    """The group whose members may use kurmad; root's own if there is no such group."""
    import grp

    try:
        return grp.getgrnam(_GROUP).gr_gid
    except KeyError:
        return 0
