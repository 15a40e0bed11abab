"""The metadata service: one thread serves all pods of this process, one request of each pod in turn.

It sleeps in ``epoll_wait`` while there is no connection. To keep a pod's start short, the modules for HTTP are
imported only at the first connection, and the thread makes the pod's socket while the start goes on.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import select
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from kurma_core.metadata.api import Api, Facts
    from kurma_core.metadata.http import Connection
    from kurma_core.metadata.listening import Listener

#: Connections that a pod may have at a time. Beyond that the service closes the oldest idle one, or one that has
#: not sent the token for PROBATION seconds; otherwise the new connection waits.
CONNECTIONS, PROBATION = 32, 0.5
#: Seconds between two checks for expired connections, while there are any.
_LOOK = 1.0


class MetadataService:
    """Serves any number of pods. Safe to use from several threads; it starts its own thread for the first pod."""

    def __init__(self) -> None:
        # Guards all attributes. The service's thread holds it for one round at a time: one request of each pod.
        self._lock = threading.Lock()
        self._pods: dict[str, _Pod] = {}
        #: Pods whose listeners are not made yet.
        self._coming: list[_Pod] = []
        self._by_fd: dict[int, _Pod] = {}
        #: Pods with pending events, in the order of the events.
        self._ready: dict[_Pod, None] = {}
        #: Pods with connections, or with connections that wait to be accepted.
        self._busy: set[_Pod] = set()
        self._next_look = 0.0
        self._epoll: select.epoll | None = None
        self._wake = -1
        self._serving = False
        self._over = threading.Event()

    def serve(
        self,
        make: Callable[[], Listener],
        token: str,
        facts: Facts,
        *,
        early: bool,
        listener: Listener | None = None,
    ) -> None:
        """Starts to serve a pod. :meth:`wait` raises if that fails.

        :param make: makes the pod's listener; called in the service's thread, which no signal interrupts.
        :param early: also serves the early interface, which needs no token.
        :param listener: an existing listener in place of ``make``'s; the service closes it.
        """
        pod = _Pod(self, make, token, facts, early)
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                self._epoll.register(self._wake, select.EPOLLIN)
            self._pods[facts.uuid] = pod
            if listener is None:
                self._coming.append(pod)
            else:
                pod.take(listener)
            if not self._serving:
                _begin_thread(self._live)
                self._serving = True
            elif listener is None:
                os.eventfd_write(self._wake, 1)

    def wait(self, uuid: str) -> Listener:
        """Waits until that pod is served. :raises BaseException: the error of making its listener."""
        return self._pods[uuid].await_listener()

    def forget(self, uuid: str) -> None:
        """Closes the pod's listener and connections, which frees its port. Does nothing if the pod is not
        served."""
        with self._lock:
            pod = self._pods.pop(uuid, None)
            if pod is not None:
                self._ready.pop(pod, None)
                self._busy.discard(pod)
                pod.close()

    def close(self) -> None:
        """Forgets all pods and ends the thread. May be repeated."""
        for uuid in list(self._pods):
            self.forget(uuid)
        with self._lock:
            serving, self._serving = self._serving, False
            if serving:
                os.eventfd_write(self._wake, 1)
        if serving:
            self._over.wait()
            self._over.clear()
            assert self._epoll is not None
            self._epoll.close()
            os.close(self._wake)
            self._epoll, self._wake = None, -1

    # -- called by the pods, with the lock held --

    def watch(self, fd: int, pod: _Pod, events: int) -> None:
        assert self._epoll is not None
        self._epoll.register(fd, events)
        self._by_fd[fd] = pod

    def change(self, fd: int, events: int) -> None:
        assert self._epoll is not None
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Ends watching a descriptor; must be called before it is closed."""
        assert self._epoll is not None
        if self._by_fd.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def mark_busy(self, pod: _Pod) -> None:
        self._busy.add(pod)

    # -- the thread --

    def _live(self) -> None:
        assert self._epoll is not None
        try:
            self._run(self._epoll)
        finally:
            self._over.set()

    def _run(self, epoll: select.epoll) -> None:
        while True:
            while self._coming:
                self._begin(self._coming.pop(0))
            events = epoll.poll(0 if self._ready else _LOOK if self._busy else None)
            with self._lock:
                if not self._serving:
                    return
                for fd, _ in events:
                    if fd == self._wake:
                        os.eventfd_read(fd)
                    pod = self._by_fd.get(fd)
                    if pod is not None:
                        pod.ready[fd] = None
                        self._ready[pod] = None
                now = time.monotonic()
                for pod in list(self._ready):
                    # A ready connection may have expired and been closed.
                    if pod.ready:
                        pod.step(now)
                    if not pod.ready:
                        del self._ready[pod]
                if now >= self._next_look:
                    self._next_look = now + _LOOK
                    for pod in list(self._busy):
                        pod.look(now)
                        if not pod.connections and not pod.paused:
                            self._busy.discard(pod)

    def _begin(self, pod: _Pod) -> None:
        pod.make()
        with self._lock:
            # Another thread may have called ``forget`` meanwhile.
            if pod in self._pods.values():
                pod.begin()
            else:
                pod.close()


def _begin_thread(run: Callable[[], None]) -> None:
    """Starts a thread with all signals blocked, so that they go to the main thread, which waits for them. It does
    not wait for the thread to begin and imports no module, to keep a pod's start short."""
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        _thread.start_new_thread(run, ())
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


class _Pod:
    """One pod's listener and connections."""

    def __init__(
        self, service: MetadataService, make: Callable[[], Listener], token: str, facts: Facts, early: bool
    ) -> None:
        self._service = service
        self._make = make
        self._listener: Listener | None = None
        self._failure: BaseException | None = None
        self._settled = threading.Event()
        self._api: Api | None = None
        self._make_api = (token, facts, early)
        self.connections: dict[int, Connection] = {}
        #: Descriptors with pending events, in the order of the events.
        self.ready: dict[int, None] = {}
        #: No connections are accepted for now.
        self.paused = False

    def make(self) -> None:
        try:
            self._listener = self._make()
        except BaseException as error:  # noqa: BLE001 - raised again in await_listener
            self._failure = error

    def take(self, listener: Listener) -> None:
        self._listener = listener
        self.begin()

    def begin(self) -> None:
        if self._listener is not None:
            try:
                self._service.watch(self._socket.fileno(), self, select.EPOLLIN)
            except OSError as error:
                from kurma_core.errors import HostError

                self._failure = HostError(f"cannot wait for the metadata service's connections: {error.strerror}")
        self._settled.set()

    def await_listener(self) -> Listener:
        self._settled.wait()
        if self._failure is not None:
            raise self._failure
        assert self._listener is not None
        return self._listener

    @property
    def _socket(self) -> socket.socket:
        assert self._listener is not None
        return self._listener.socket

    def step(self, now: float) -> None:
        """Accepts one connection, or answers one request."""
        fd = next(iter(self.ready))
        del self.ready[fd]
        if fd == self._socket.fileno():
            self._accept(now)
            return
        connection = self.connections.get(fd)
        if connection is None:
            return
        if connection.advance(now):
            self.ready[fd] = None
        self._settle(connection)

    def _settle(self, connection: Connection) -> None:
        if connection.closed:
            self._drop(connection)
        elif connection.interest != connection.watched:
            self._service.change(connection.fd, connection.interest)
            connection.watched = connection.interest

    def _accept(self, now: float) -> None:
        from kurma_core.metadata.http import Connection

        if self.paused:
            return
        self._service.mark_busy(self)
        if len(self.connections) >= CONNECTIONS and not self._drop_one(now):
            self._pause()
            return
        try:
            sock, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # For example, the process has no descriptor left; tried again at the next check.
            self._pause()
            return
        sock.setblocking(False)
        connection = Connection(sock, self._answering(), now)
        try:
            self._service.watch(connection.fd, self, connection.watched)
        except OSError:
            # The limit of epoll watches for root is reached (fs.epoll.max_user_watches).
            connection.close()
            self._pause()
            return
        self.connections[connection.fd] = connection

    def _answering(self) -> Api:
        if self._api is None:
            from kurma_core.metadata.api import Api

            self._api = Api(*self._make_api)
        return self._api

    def _drop_one(self, now: float) -> bool:
        """Closes a connection to make room for a new one. :returns: whether there was one to close."""
        found = [each for each in self.connections.values() if each.idle]
        if found:
            self._drop(min(found, key=lambda each: each.deadline))
            return True
        # In the host's network, any process may connect and send nothing.
        found = [each for each in self.connections.values() if not each.trusted and now - each.begun >= PROBATION]
        if found:
            self._drop(min(found, key=lambda each: each.begun))
        return bool(found)

    def _pause(self) -> None:
        self.paused = True
        self._service.unwatch(self._socket.fileno())

    def _drop(self, connection: Connection) -> None:
        self._service.unwatch(connection.fd)
        self.ready.pop(connection.fd, None)
        del self.connections[connection.fd]
        connection.close()
        if self.paused:
            self._resume()

    def _resume(self) -> None:
        try:
            self._service.watch(self._socket.fileno(), self, select.EPOLLIN)
        except OSError:
            return  # tried again at the next check
        self.paused = False

    def look(self, now: float) -> None:
        """Ends expired connections."""
        for connection in [each for each in self.connections.values() if each.deadline <= now]:
            connection.expire(now)
            self._settle(connection)
        if self.paused and (len(self.connections) < CONNECTIONS or self._drop_one(now)) and self.paused:
            self._resume()

    def close(self) -> None:
        for connection in list(self.connections.values()):
            self._service.unwatch(connection.fd)
            connection.close()
        self.connections.clear()
        if self._listener is not None:
            self._service.unwatch(self._socket.fileno())
            self._listener.close()
        self._settled.set()
