"""Logs outside of the pod's directory, and apps without a log.

A pod may have its logs in a directory of the host, which the core mounts at the path that the manifest names.
Other programs rename, remove and read the files there, so that no link below that directory is followed.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux.beneath import open_beneath, open_regular
from kurma_stager_default.inside.streams.app_log import AppLog, remove

#: The log of an app without one, while a call-in is attached: bytes and files.
_SIZE, _COUNT = 1 << 20, 2
_ATTACHED = "/run/kurma/attached"
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_APPEND = os.O_WRONLY | os.O_APPEND
_TRIES = 8


def open_log(root: str, path: str) -> int:
    """Opens a log file to append to it; makes the file and the directories on its path.

    :param root: the directory of the logs; links in this path are followed.
    :param path: relative to it, without ``..``.
    :raises OSError: a link or something else than a file is in the way; or it cannot be made.
    """
    at = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *parents, name = path.split("/")
    try:
        for parent in parents:
            try:  # noqa: SIM105 - contextlib costs every start
                os.mkdir(parent, 0o755, dir_fd=at)
            except FileExistsError:
                pass
            below = open_beneath(at, parent, _DIRECTORY)
            os.close(at)
            at = below
        for _ in range(_TRIES):
            try:
                return open_regular(at, name, _APPEND)
            except FileNotFoundError:
                pass
            try:
                return open_beneath(at, name, _APPEND | os.O_CREAT | os.O_EXCL, 0o640)
            except FileExistsError:
                pass  # another process has made it meanwhile
        raise OSError(errno.EAGAIN, "another process makes and removes it again and again", path)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), f"log {path}") from None
    finally:
        os.close(at)


def outside_log(root: str, path: str) -> AppLog:
    """The log of an app in that directory. It is neither rotated nor removed here.

    :raises OSError: it cannot be opened.
    """
    log = AppLog(f"{root}/{path}", 0, 1, lambda: open_log(root, path))
    if log.closed:
        log.reopen()  # raises the error
    return log


class NoLog:
    """Takes the output of an app without a log. While call-ins are attached, they get it by a small log in the
    stager's memory."""

    __slots__ = ("_attached", "_name", "changed", "dropped_in_all")

    def __init__(self, name: str) -> None:
        self._name = name
        self._attached: AppLog | None = None
        self.changed = False
        self.dropped_in_all = 0

    @property
    def path(self) -> str:
        """The path of the log for attached call-ins, which is made now if it does not exist."""
        path = f"{_ATTACHED}/{self._name}.log"
        if self._attached is None:
            os.makedirs(_ATTACHED, 0o700, exist_ok=True)
            remove(path)  # that of an earlier execution
            self._attached = AppLog(path, _SIZE, _COUNT)
        return path

    def write(self, stream: bytes, data: bytes) -> None:
        if self._attached is not None:
            self._attached.write(stream, data)

    def leave(self) -> None:
        """No call-in is attached any more."""
        if self._attached is not None:
            self._attached.close()
            remove(self._attached.path)
            self._attached = None

    def reopen(self) -> None:
        """Does nothing: there is no file."""

    def close(self) -> None:
        if self._attached is not None:
            self._attached.close()
