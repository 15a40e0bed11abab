"""Pods that the daemon does not own: what becomes of them by others' doing is seen as it happens, and asked of
nobody. The directory of pods, and that of each, are watched by inotify; owners that live, by their pidfds."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kurma_core.linux.inotify import IN_CREATE, IN_IGNORED, IN_MOVED_TO, IN_Q_OVERFLOW, Watch
from kurma_core.linux.process import pidfd_open

if TYPE_CHECKING:
    from kurma_core.pod_store import PodStore

_LOG = logging.getLogger("kurmad")
#: Seconds from the first event to a look: one change of a pod is many events.
_SETTLING = 0.2


class PodWatcher:
    """:param store: the pods.
    :param look: told, by the watching thread, of the UUID of each pod that is to be looked at: it is new, or
        something about it has changed, or its owner has died. It must not take long.
    """

    def __init__(self, store: PodStore, look: Callable[[str], None]) -> None:
        self._store = store
        self._look = look
        self._lock = threading.Lock()
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._watch: Watch | None = None
        self._root = -1
        #: UUID by the number of its watch, and the other way round.
        self._uuids: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        #: (UUID, PID) by the pidfd of an owner that lives.
        self._owners: dict[int, tuple[str, int]] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="watching", daemon=True)

    def start(self) -> None:
        """From here on nothing goes unseen. Where the kernel lets nobody watch any more, the log says so."""
        try:
            self._store.make()
            # A pod's directory comes by a rename; one whose name is not its UUID is none.
            self._watch = Watch(self._store.root, IN_MOVED_TO | IN_CREATE)
        except OSError as error:
            _LOG.warning("pods of other processes are not watched: %s", error.strerror)
        else:
            (self._root,) = self._watch.numbers()
            self._poll.register(self._watch.fd, select.EPOLLIN)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        for fd in self._owners:
            os.close(fd)
        self._owners.clear()
        if self._watch is not None:
            self._watch.close()
        self._poll.close()
        os.close(self._wake)

    def pod(self, uuid: str) -> None:
        """Watches that pod's state. May be repeated."""
        with self._lock:
            if self._watch is None or uuid in self._numbers:
                return
            try:
                number = self._watch.add(self._store.directory(uuid).path, IN_MOVED_TO)
            except FileNotFoundError:
                return
            except OSError as error:
                _LOG.warning("pod %s is not watched: %s", uuid, error.strerror)
                return
            self._uuids[number] = uuid
            self._numbers[uuid] = number

    def owner(self, uuid: str, pid: int) -> bool:
        """Watches a process that owns that pod. :returns: whether it lives."""
        with self._lock:
            if (uuid, pid) in self._owners.values():
                return True
            try:
                fd = pidfd_open(pid)
            except ProcessLookupError:
                return False
            self._owners[fd] = uuid, pid
            self._poll.register(fd, select.EPOLLIN)
            return True

    # -- the thread --

    def _run(self) -> None:
        while True:
            found = self._ready([fd for fd, _ in self._poll.poll()])
            if self._closing:
                return
            if found is None:
                # One change is many events; and what this daemon makes and starts at once is its own by then.
                if self._wait_for_more():
                    return
                found = self._changed()
            for uuid in found:
                self._look(uuid)

    def _wait_for_more(self) -> bool:
        """:returns: whether it closes."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        return bool(poll.poll(_SETTLING * 1000))

    def _ready(self, ready: list[int]) -> set[str] | None:
        """Pods whose owners have died; None: only something has changed."""
        found = set()
        with self._lock:
            for fd in ready:
                if fd in self._owners:
                    uuid, _ = self._owners.pop(fd)
                    self._poll.unregister(fd)
                    os.close(fd)
                    found.add(uuid)
        return found or None

    def _changed(self) -> set[str]:
        assert self._watch is not None
        found: set[str] = set()
        with self._lock:
            while events := self._watch.events():
                for number, kinds, name in events:
                    if kinds & IN_Q_OVERFLOW:
                        found.update(self._store.uuids())
                    elif number == self._root and len(name) == 36:
                        found.add(name)
                    elif kinds & IN_IGNORED:
                        # Another directory of that name may have come since.
                        uuid = self._uuids.pop(number, "")
                        if self._numbers.get(uuid) == number:
                            del self._numbers[uuid]
                    elif name == "state.json":
                        with suppress(KeyError):
                            found.add(self._uuids[number])
        return found


__all__ = ["PodWatcher"]
