"""The API sockets of apps (``host/api-access``), each with the rights that grants give the app.

They exist while the pod runs and kurmad serves its state directory, whichever process owns the pod.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import select
import socket
import stat
import threading
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError, PodNotFoundError
from kurma_core.linux.cgroups import GUEST
from kurma_core.pods.daemon_interface import API_SOCKET

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.pods.daemon_interface import DaemonInterface, PodDocument

    #: See :meth:`kurma_core.daemon.http.server.Server.listen_for_app`.
    Listen = Callable[[socket.socket, str, tuple[str, str], Callable[[socket.socket, int], bool]], None]

_LOG = logging.getLogger("kurmad")
_FRESH = f".{API_SOCKET}"
#: Of the sockets: the app may run as any user, and only the app can reach the directory.
_MODE = 0o666
#: Of Linux 6.5: a pidfd of the process that has connected.
_SO_PEERPIDFD = getattr(socket, "SO_PEERPIDFD", 77)


class _ApiSocket:
    """:param directory: of the socket. :param inode: its device and inode."""

    def __init__(self, directory: str, rights: str, inode: tuple[int, int]) -> None:
        self.directory, self.rights, self._inode = directory, rights, inode

    def is_there(self) -> bool:
        try:
            status = os.lstat(f"{self.directory}/{API_SOCKET}")
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._inode


class AppApiSockets:
    """:param stop_listening: closes an app's socket and its connections. Repeatable."""

    def __init__(
        self, pods: DaemonInterface, listen: Listen, stop_listening: Callable[[tuple[str, str]], None]
    ) -> None:
        self._pods = pods
        self._listen = listen
        self._stop_listening = stop_listening
        self._lock = threading.Lock()
        #: By pod, then by app. A pod is here while it runs, even if its apps are granted nothing.
        self._sockets: dict[str, dict[str, _ApiSocket]] = {}
        self._closing = False

    def changed(self, document: PodDocument, directory: str) -> None:
        """Opens the sockets of the pod's apps that have API access, and closes the others.

        :param directory: the pod's.
        """
        users = self._pods.api_apps(document)
        if not users and document.uuid not in self._sockets:
            return
        with self._lock:
            if self._closing:
                return
            sockets = self._sockets.setdefault(document.uuid, {})
            rights = {app: self._rights(document, app) for app in users}
            for app, one in list(sockets.items()):
                if rights.get(app) != one.rights or not one.is_there():
                    self._shut(document.uuid, app, sockets.pop(app))
            for app, wanted in rights.items():
                if wanted is not None and app not in sockets:
                    self._open(document, directory, app, wanted)

    def see(self, reference: str) -> None:
        """Opens the sockets of a pod that runs, and closes those of any other."""
        pods = self._pods
        try:
            uuid = pods.find(reference)
            if pods.state(uuid).live:
                self.changed(pods.document(uuid), pods.path(uuid))
            else:
                self.close(uuid)
        except PodNotFoundError:
            self.close(reference)
        except KurmaError:
            return  # its record is damaged: recovery logs that

    def refresh(self) -> None:
        """After a reload: grants may have changed."""
        for uuid in list(self._sockets):
            self.see(uuid)

    def close(self, uuid: str) -> None:
        """Closes the sockets of that pod. Repeatable."""
        with self._lock:
            for app, one in self._sockets.pop(uuid, {}).items():
                self._shut(uuid, app, one)

    def close_all(self) -> None:
        """At the daemon's end. Repeatable."""
        self._closing = True
        for uuid in list(self._sockets):
            self.close(uuid)

    def _rights(self, document: PodDocument, app: str) -> str | None:
        try:
            return self._pods.api_rights(document, app)
        except KurmaError as error:
            _LOG.warning("app %s of pod %s has no API: %s", app, document.uuid, error.message)
            return None

    def _open(self, document: PodDocument, pod: str, app: str, rights: str) -> None:
        uuid, directory = document.uuid, self._pods.api_directory(pod, app)
        try:
            listener, inode = _bound(directory)
        except FileNotFoundError:
            return  # the pod is just starting: recovery looks again
        except OSError as error:
            what = f"app {app} of pod {uuid} has no API"
            _LOG.warning("%s: no socket can be made in %s: %s", what, directory, error.strerror)
            return
        self._sockets[uuid][app] = _ApiSocket(directory, rights, inode)
        self._listen(
            listener, rights, (uuid, app), lambda connected, pid: belongs_to_other_pod(connected, pid, uuid)
        )
        _LOG.info("app %s of pod %s has the API (%s)", app, uuid, rights)

    def _shut(self, uuid: str, app: str, one: _ApiSocket) -> None:
        if one.is_there():
            with contextlib.suppress(OSError):
                os.unlink(f"{one.directory}/{API_SOCKET}")
        self._stop_listening((uuid, app))


def _bound(directory: str) -> tuple[socket.socket, tuple[int, int]]:
    """Makes a socket there that listens, in place of a dead kurmad's. :returns: it, and its device and inode.

    By descriptors: an app with CAP_SYS_ADMIN may make the directory writable for itself, and the kernel takes no
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
            raise OSError(0, "an app has put another file in its place")
        os.chmod(f"/proc/self/fd/{made}", _MODE)
        listener.listen()
        # By a rename: a client finds the old socket or the new one.
        os.rename(_FRESH, API_SOCKET, src_dir_fd=fd, dst_dir_fd=fd)
        kept.pop_all()
        return listener, (status.st_dev, status.st_ino)


def belongs_to_other_pod(connected: socket.socket, pid: int, pod: str) -> bool:
    """Whether the process that has connected belongs to another pod, whose volume may contain this socket.

    A process outside of all pods is the host's: only root's can reach the socket. A process that has ended is
    refused. A pidfd keeps a reused PID from being taken for the process; before Linux 6.5 only from here on.
    """
    try:
        pidfd = _pidfd(connected, pid)
    except OSError:
        return True
    try:
        theirs = _pods(pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if poll.poll(0):
            return True
        # kurmad may run in a pod itself, together with all processes that it sees.
        return pod not in theirs and bool(theirs - _pods(os.getpid()))
    except OSError:
        return True
    finally:
        os.close(pidfd)


def _pidfd(connected: socket.socket, pid: int) -> int:
    """:raises OSError: the process has ended, or is in another PID namespace."""
    try:
        found = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        return os.pidfd_open(pid)
    os.set_inheritable(found, False)
    return found


def _pods(pid: int) -> set[str]:
    """UUIDs of the pods whose cgroups contain the process."""
    with open(f"/proc/{pid}/cgroup", errors="surrogateescape") as file:
        paths = [line.rstrip("\n").split(":", 2)[2].split("/") for line in file]
    own = {name for parts in paths for above, name in itertools.pairwise(parts) if above == "kurma"}
    return own | {name.removeprefix(GUEST) for parts in paths for name in parts if name.startswith(GUEST)}
