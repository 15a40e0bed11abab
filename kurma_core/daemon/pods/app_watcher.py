"""Watches the status files of the pods that kurmad owns, and tells each start and end of an app at once."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from kurma_core.daemon.process.threads import Poller
from kurma_core.linux.inotify import IN_CLOSE_WRITE, IN_MOVED_TO, IN_Q_OVERFLOW, Watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from kurma_core.models.pod import AppStatus
    from kurma_core.pods.daemon_interface import OwnedPod

    class RunningPod(Protocol):
        """The part of :class:`.owned.RunningPod` that is used here."""

        uuid: str
        directory: str
        pod: OwnedPod


_LOG = logging.getLogger("kurmad")
_FILE = "status.json"


class AppWatcher:
    """One inotify instance for all pods: a host has few.

    :ivar looked: called, by its thread, with a pod and the present statuses of its apps.
    """

    def __init__(self) -> None:
        self.looked: Callable[[Any, tuple[AppStatus, ...]], None] = lambda running, statuses: None
        self._lock = threading.Lock()
        self._poller = Poller("apps", self._tell_new)
        self._watch: Watch | None = None
        #: By the number of its watch.
        self._pods: dict[int, RunningPod] = {}
        #: Pods whose watch has just begun: what has happened before is told by the thread.
        self._new: list[RunningPod] = []

    def start(self) -> None:
        self._poller.start()

    def close(self) -> None:
        self._poller.close()
        if self._watch is not None:
            self._watch.close()

    def add(self, running: RunningPod) -> None:
        """Watches a pod. Without it, the events of its apps are told at the pod's end."""
        path, mask = f"{running.directory}/pod", IN_MOVED_TO | IN_CLOSE_WRITE
        try:
            with self._lock:
                if self._watch is None:
                    self._watch = Watch(path, mask)
                    self._poller.add(self._watch.fd, self._look)
                self._pods[self._watch.add(path, mask)] = running
        except FileNotFoundError:
            return  # its directory was removed: the pod ends
        except OSError as error:
            _LOG.warning("the apps of pod %s are not watched: %s", running.uuid, error.strerror)
        with self._lock:
            self._new.append(running)
        self._poller.wake()

    def _tell_new(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        for running in new:
            self._tell(running)

    def _tell(self, running: RunningPod) -> None:
        statuses = running.pod.tell_apps()
        if statuses:
            self.looked(running, statuses)

    def remove(self, running: RunningPod) -> None:
        """Repeatable."""
        with self._lock:
            for number in [number for number, one in self._pods.items() if one is running]:
                del self._pods[number]
                if self._watch is not None:
                    self._watch.remove(number)

    def _look(self) -> None:
        assert self._watch is not None
        changed: dict[int, RunningPod] = {}
        while events := self._watch.events():
            with self._lock:
                for number, kinds, name in events:
                    if kinds & IN_Q_OVERFLOW:
                        changed.update(self._pods)
                    elif name == _FILE and number in self._pods:
                        changed[number] = self._pods[number]
        for running in changed.values():
            self._tell(running)
