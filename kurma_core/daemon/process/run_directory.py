"""Where the daemon is found: its lock and its socket in the run directory, kept there for as long as it runs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import time
from collections.abc import Sequence

from kurma_core.errors import HostError
from kurma_core.linux.files import others_may_write
from kurma_core.linux.inotify import IN_CREATE, IN_MOVED_FROM, IN_MOVED_TO, Watch
from kurma_core.linux.lockfile import is_at

_LOG = logging.getLogger("kurmad")
_GROUP = "kurma"
_IN_DELETE = 0x200
_IN_DELETE_SELF, _IN_MOVE_SELF = 0x400, 0x800
_IN_MASK_ADD = 0x20000000
_CHANGES = IN_CREATE | IN_MOVED_FROM | IN_MOVED_TO | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF
#: Device and inode of no file.
_NONE = (0, 0)
#: Seconds from the first thing that is gone to a look at what is left: who removes a directory takes a while.
_SETTLING = 0.3


class RunDirectory:
    """:param path: of the socket. :param state_dir: what is served.
    :param hint: who says where the run directory is.
    """

    def __init__(self, path: str, state_dir: str, hint: str) -> None:
        self.path = path
        self._directory = os.path.dirname(path)
        self._lock_path = f"{self._directory}/kurmad.lock"
        self._state_dir = state_dir
        #: Device and inode of the state directory, once it is there.
        self._served: tuple[int, int] | None = None
        self._hint = hint
        self._lock: int | None = None
        self._watch: Watch | None = None
        #: Device and inode of the socket that is ours.
        self._ours: tuple[int, int] | None = None

    def take(self) -> None:
        """Nobody else serves the state directory from here on.

        :raises HostError: somebody does; or the run directory cannot be used.
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
        self._give_up_lock()
        self._lock = lock
        if others_may_write(status):
            raise HostError(
                f"the run directory {self._directory}: others than root may write it (owner {status.st_uid}, mode "
                f"{stat.S_IMODE(status.st_mode):04o}), and could put another socket in the place of kurmad's",
                hint=f"chown root {self._directory} && chmod go-w {self._directory}",
                path=self._directory,
            )

    def _make_directories(self) -> None:
        """The state directory once, and never anew."""
        if self._served is None:
            os.makedirs(self._directory, mode=0o755, exist_ok=True)
            with contextlib.suppress(OSError):  # what cannot be written can be read
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
        """The socket, root's and the group's.

        :raises HostError: it cannot be made; what is no socket is left where it is.
        """
        if self._ours is not None:
            self._ours = _NONE  # until there is another one: where none can be made, that is seen to
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
        except OSError as error:
            listener.close()
            raise self._unusable(error) from None
        except HostError:
            listener.close()
            raise
        return listener

    def _bind(self, listener: socket.socket, place: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(place).st_mode):
                raise HostError(
                    f"{self.path} is in the way: it is no socket",
                    hint="look what it is, and remove it",
                    path=self.path,
                )
            os.unlink(place)  # whoever was here before has cleaned up, or has died
        before = os.umask(0o177)
        try:
            listener.bind(place)
        finally:
            os.umask(before)
        os.chown(place, 0, _group())
        os.chmod(place, 0o660)
        status = os.lstat(place)
        self._ours = status.st_dev, status.st_ino

    def _unusable(self, error: OSError) -> HostError:
        return HostError(
            f"kurmad's socket cannot be at {self.path}: {error.strerror}",
            hint=self._hint if error.errno != errno.ENOSPC else "make room there",
            errno=error.errno,
            path=self.path,
        )

    # -- while it runs --

    def watched(self) -> int | None:
        """A descriptor that is readable when something has changed there; None: the kernel lets nobody watch."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        try:
            self._watch = Watch(self._directory, _CHANGES)
        except OSError as error:
            _LOG.warning("%s is not watched: %s", self._directory, error.strerror)
            return None
        with contextlib.suppress(OSError):  # it is gone, which a look shows
            # It may be moved with what it is in; and that may be the run directory, which is watched already.
            place = os.path.realpath(self._state_dir)
            while place != "/":
                self._watch.add(place, _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_MASK_ADD)
                place = os.path.dirname(place)
        return self._watch.fd

    def changed(self) -> bool:
        """Whether the socket has to be made anew: somebody has removed it, or put another in its place. The lock
        is taken again if that is gone.

        :raises HostError: another daemon has come meanwhile; or what is served is gone.
        """
        if self._watch is not None:
            self._watch.drain()
        self._check_state()
        locked = self._lock is None or is_at(self._lock, self._lock_path)
        if locked and (self._ours is None or self._is_ours()):
            return False
        time.sleep(_SETTLING)
        self._check_state()
        if not locked:
            self.take()
        return self._ours is not None and not self._is_ours()

    def _check_state(self) -> None:
        """:raises HostError: it was removed, or moved; whatever may be in its place is not what is served."""
        if self._served is not None and _identity(self._state_dir) != self._served:
            raise HostError(f"{self._state_dir}, which kurmad serves, is gone", path=self._state_dir)

    def _is_ours(self) -> bool:
        try:
            status = os.lstat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._ours

    # -- its end --

    def withdraw(self) -> None:
        """Removes the socket, if it is ours. May be repeated."""
        if self._ours is not None and self._is_ours():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self._ours = None

    def close(self) -> None:
        """Another daemon may come. May be repeated."""
        self.withdraw()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._give_up_lock()

    def _give_up_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def passed_sockets(descriptors: Sequence[int]) -> list[socket.socket]:
    """Sockets that a service manager has made for us, as they are.

    :raises HostError: one is no unix socket that listens.
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
                f"descriptor {fd}, which the service manager has handed over, is no socket for kurmad: "
                f"{error.strerror}",
                hint="ListenStream= of kurmad.socket is a path",
            ) from None
        found.append(listener)
    return found


def _identity(directory: str) -> tuple[int, int] | None:
    """Device and inode; None: it is not there."""
    try:
        status = os.stat(directory)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _group() -> int:
    """Of those who may use the daemon besides root; root's own where there is no such group."""
    import grp

    try:
        return grp.getgrnam(_GROUP).gr_gid
    except KeyError:
        return 0


__all__ = ["RunDirectory", "passed_sockets"]
