"""The sockets that apps have which may use the API (``host/api-access``): each in a directory of its own, with the
rights that grants give the app. They are there while a pod runs and a daemon serves its state directory, whoever
owns the pod."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import threading
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError, PodNotFoundError
from kurma_core.pods import api
from kurma_core.pods.records import read_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.daemon.http.server import Server
    from kurma_core.pods.document import PodDocument
    from kurma_core.pods.services import Services

_LOG = logging.getLogger("kurmad")
_LIVE = ("starting", "running", "stopping")
_FRESH = f".{api.SOCKET}"
#: Of the sockets: whoever the app runs as. Nobody else comes by.
_MODE = 0o666


class _AppSocket:
    """:param place: device and inode of the socket."""

    def __init__(self, directory: str, rights: str, place: tuple[int, int]) -> None:
        self.directory, self.rights, self._place = directory, rights, place

    def is_there(self) -> bool:
        try:
            status = os.lstat(f"{self.directory}/{api.SOCKET}")
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._place


class AppSockets:
    """:param services: asked for anew each time: there are others after a reload."""

    def __init__(self, server: Server, services: Callable[[], Services]) -> None:
        self._server = server
        self._services = services
        self._lock = threading.Lock()
        #: By pod, then by app. A pod is here as long as it runs, whether or not its apps are granted anything.
        self._doors: dict[str, dict[str, _AppSocket]] = {}
        self._closing = False

    def changed(self, document: PodDocument, directory: str) -> None:
        """Opens what the apps of a pod are to have, and closes what they are not to have any more.

        :param directory: the pod's.
        """
        users = api.users(document)
        if not users and document.uuid not in self._doors:
            return
        with self._lock:
            if self._closing:
                return
            doors = self._doors.setdefault(document.uuid, {})
            rights = {app: self._rights(document, app) for app in users}
            for app, door in list(doors.items()):
                if rights.get(app) != door.rights or not door.is_there():
                    self._shut(document.uuid, app, doors.pop(app))
            for app, wanted in rights.items():
                if wanted is not None and app not in doors:
                    self._open(document, directory, app, wanted)

    def see(self, reference: str) -> None:
        """Looks at a pod: at its apps while it runs; else it has none of all this any more."""
        try:
            found = self._services().store.find(reference)
            document = read_document(found) if found.read_state()["state"] in _LIVE else None
        except PodNotFoundError:
            self.close(reference)
        except KurmaError:
            return  # it is damaged, which is told elsewhere
        else:
            if document is not None:
                self.changed(document, found.path)
            else:
                self.close(found.uuid)

    def refresh(self) -> None:
        """After a reload: grants may be others."""
        for uuid in list(self._doors):
            self.see(uuid)

    def close(self, uuid: str) -> None:
        """Of that pod. May be repeated."""
        with self._lock:
            for app, door in self._doors.pop(uuid, {}).items():
                self._shut(uuid, app, door)

    def close_all(self) -> None:
        """At the daemon's end. May be repeated."""
        self._closing = True
        for uuid in list(self._doors):
            self.close(uuid)

    def _rights(self, document: PodDocument, app: str) -> str | None:
        try:
            return api.rights(document, self._services(), app)
        except KurmaError as error:
            _LOG.warning("app %s of pod %s has no API: %s", app, document.uuid, error.message)
            return None

    def _open(self, document: PodDocument, pod: str, app: str, rights: str) -> None:
        directory = api.directory(pod, app)
        try:
            listener, place = _bound(directory)
        except FileNotFoundError:
            return  # it is just starting: there will be another look
        except OSError as error:
            what = f"app {app} of pod {document.uuid} has no API"
            _LOG.warning("%s: no socket can be made in %s: %s", what, directory, error.strerror)
            return
        self._doors[document.uuid][app] = _AppSocket(directory, rights, place)
        self._server.listen(listener, rights, document.uuid, app)
        _LOG.info("app %s of pod %s has the API (%s)", app, document.uuid, rights)

    def _shut(self, uuid: str, app: str, door: _AppSocket) -> None:
        if door.is_there():
            with contextlib.suppress(OSError):
                os.unlink(f"{door.directory}/{api.SOCKET}")
        self._server.listen_no_more(uuid, app)


def _bound(directory: str) -> tuple[socket.socket, tuple[int, int]]:
    """A socket that listens there, in place of a dead daemon's; device and inode of it.

    By descriptors: an app with CAP_SYS_ADMIN may make the directory its own to write, and the kernel takes no
    paths of more than 107 bytes.
    """
    with contextlib.ExitStack() as stack:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_FRESH, dir_fd=fd)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        kept = stack.enter_context(contextlib.ExitStack())
        kept.callback(listener.close)
        listener.bind(f"/proc/self/fd/{fd}/{_FRESH}")
        made = os.open(_FRESH, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        stack.callback(os.close, made)
        status = os.fstat(made)
        if not stat.S_ISSOCK(status.st_mode):
            raise OSError(0, "somebody has put something else in its place")
        os.chmod(f"/proc/self/fd/{made}", _MODE)
        listener.listen()
        # Whoever looks for it finds the one or the other.
        os.rename(_FRESH, api.SOCKET, src_dir_fd=fd, dst_dir_fd=fd)
        kept.pop_all()
        return listener, (status.st_dev, status.st_ino)


__all__ = ["AppSockets"]
