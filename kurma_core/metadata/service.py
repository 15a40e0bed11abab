"""The metadata service: one thread serves all pods of this process, one request of each pod in turn.

It sleeps in ``epoll_wait`` for as long as nobody is connected. Nothing of HTTP is imported before a connection
comes, so that a pod's start does not pay for it; and a pod's socket is made by the thread, while whoever starts
the pod goes on.
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

    from kurma_core.metadata.api import Api
    from kurma_core.metadata.connection import Connection
    from kurma_core.metadata.facts import Facts
    from kurma_core.metadata.listening import Listener

#: Connections that a pod may have at a time; more wait, and the oldest that is idle goes, or one that has been
#: there for so many seconds without a request that had the token.
CONNECTIONS, PROBATION = 32, 0.5
#: Seconds between two looks for connections that take too long, while there are any.
_LOOK = 1.0


class MetadataService:
    """Serves any number of pods. May be used by several threads; makes its own when the first pod comes."""

    def __init__(self) -> None:
        # Held while anything below is touched: by the thread for one round at a time, a request of each pod.
        self._lock = threading.Lock()
        self._pods: dict[str, _Pod] = {}
        #: Those whose listeners are still to be made.
        self._coming: list[_Pod] = []
        self._by_fd: dict[int, _Pod] = {}
        #: Pods with something to do, in the order in which it came.
        self._ready: dict[_Pod, None] = {}
        #: Those that somebody is connected to, or is kept waiting by.
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
        """Serves a pod from now on. :meth:`wait` tells whether it does.

        :param make: its listener, made in the service's thread, which no signal interrupts.
        :param early: the early interface, too, which needs no token.
        :param listener: what ``make`` would make is there already; closed with the rest.
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
        """Until that pod is served. :raises: whatever making its listener has raised."""
        return self._pods[uuid].await_listener()

    def forget(self, uuid: str) -> None:
        """Closes everything of that pod, whose port is then free again. None of that name is success."""
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

    # -- what the pods ask of it, with the lock held --

    def watch(self, fd: int, pod: _Pod, events: int) -> None:
        assert self._epoll is not None
        self._epoll.register(fd, events)
        self._by_fd[fd] = pod

    def change(self, fd: int, events: int) -> None:
        assert self._epoll is not None
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Before it is closed."""
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
                    # What was ready may be gone, its time being over.
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
            # It may have been forgotten meanwhile.
            if pod in self._pods.values():
                pod.begin()
            else:
                pod.close()


def _begin_thread(run: Callable[[], None]) -> None:
    """A thread to which no signal ever comes: they are the main thread's, which waits for them. Neither is waited
    for the thread to begin, nor is anything imported for it: a pod's start goes on."""
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
        #: Descriptors with something to do, in the order in which it came.
        self.ready: dict[int, None] = {}
        #: No more connections are taken for now.
        self.paused = False

    def make(self) -> None:
        try:
            self._listener = self._make()
        except BaseException as error:  # noqa: BLE001 - raised again, for who waits
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
        """One connection taken, or one request answered."""
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
        from kurma_core.metadata.connection import Connection

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
            # This process has no descriptor left, say; tried again at the next look.
            self._pause()
            return
        sock.setblocking(False)
        connection = Connection(sock, self._answering(), now)
        try:
            self._service.watch(connection.fd, self, connection.watched)
        except OSError:
            # Somebody has used up what root may watch.
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
        """Makes place for a new connection. :returns: whether there was one to spare."""
        found = [each for each in self.connections.values() if each.idle]
        if found:
            self._drop(min(found, key=lambda each: each.deadline))
            return True
        # In the host's network, anybody may connect, and say nothing.
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
            return  # tried again at the next look
        self.paused = False

    def look(self, now: float) -> None:
        """Ends connections whose time is over."""
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
