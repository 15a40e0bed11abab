"""Logs outside of the pod's directory, and apps without a log.

A pod may have its logs in a directory of the host, which the core mounts at the path that the manifest names.
Other programs rename, remove and read the files there, so that no link below that directory is followed.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux.beneath import open_beneath, open_regular
from kurma_stager_default.inside.streams.app_log import AppLog, remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    #: Called once the new file is there; else with the reason.
    Done = Callable[[str], None]

#: The log of an app without one, while a call-in is attached: bytes and files.
_SIZE, _COUNT = 1 << 20, 2
_ATTACHED = "/run/kurma/attached"
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_APPEND = os.O_WRONLY | os.O_APPEND
_TRIES = 8
#: Most bytes of output that wait for the new file.
_HELD = 1 << 20


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


def outside_log(root: str, path: str) -> OutsideLog:
    """The log of an app in that directory. It is neither rotated nor removed here.

    :raises OSError: it cannot be opened.
    """
    log = OutsideLog(f"{root}/{path}", 0, 1, lambda: open_log(root, path))
    if log.closed:
        log.reopen()  # raises the error
    return log


class OutsideLog(AppLog):
    """A log that another program rotates: it renames the file, and asks for a new one.

    The old file gets the rest of the lines that have begun in it. Output after these lines waits for the new file.
    """

    __slots__ = ("_asked", "_held", "_held_bytes")

    def __init__(self, path: str, size: int, count: int, opener: Callable[[], int]) -> None:
        self._asked: list[Done] = []
        self._held: list[tuple[bytes, bytes]] = []
        self._held_bytes = 0
        super().__init__(path, size, count, opener)

    def ask(self, done: Done) -> bool:
        """Asks for a new file, once no line of this one is open.

        :returns: whether it is there already. Else the caller calls :meth:`turn_over` a moment later.
        :raises OSError: the new file cannot be made; output still goes to the old one.
        """
        if not self._open_lines:
            self.reopen()
            done("")
            return True
        self._asked.append(done)
        return False

    def write(self, stream: bytes, data: bytes) -> None:
        if self._asked:
            if stream in self._open_lines:
                end = data.find(b"\n") + 1 or len(data)
                super().write(stream, data[:end])
                data = data[end:]
            if data:
                self._held.append((stream, data))
                self._held_bytes += len(data)
            if not self._open_lines or self._held_bytes >= _HELD:
                self.turn_over()
            return
        super().write(stream, data)

    def turn_over(self) -> None:
        """Goes on with the new file now, if one was asked for."""
        if not self._asked:
            return
        why = ""
        try:
            self.reopen()
        except OSError as error:
            why = f"{error.filename}: {error.strerror}"
        self._answer(why)

    def _answer(self, why: str) -> None:
        asked, self._asked = self._asked, []
        held, self._held, self._held_bytes = self._held, [], 0
        for stream, data in held:
            super().write(stream, data)
        for done in asked:
            done(why)

    def close(self) -> None:
        """Closes the log. A new file that was asked for is not made: the app has ended."""
        self._answer("the app has ended")
        super().close()


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

    def close(self) -> None:
        if self._attached is not None:
            self._attached.close()
