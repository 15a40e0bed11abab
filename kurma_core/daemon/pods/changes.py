"""Counts the changes of the files of pods, so that a listing reads no file that is unchanged.

The kernel reports each change by inotify, also those of other processes: a change that was done before
:meth:`Changes.look` is counted by it. No thread is needed: a look is one system call while nothing changes.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from kurma_core.linux.inotify import (
    IN_CREATE,
    IN_DELETE,
    IN_IGNORED,
    IN_MODIFY,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_Q_OVERFLOW,
    Watch,
)

if TYPE_CHECKING:
    from collections.abc import Callable

#: Changes of a directory's entries, and of its files.
_ENTRIES = IN_CREATE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE
_FILES = _ENTRIES | IN_MODIFY
#: The files that decide the contents of a pod's record: in its directory; in ``pod/``, where the stager writes.
_RECORDS, _INSIDE, _STATUS = ("pod.json", "state.json", "health.json"), "pod", "status.json"


class _Watched:
    """A watched pod.

    :ivar count: the count at its last change. :ivar directory: number of the watch of its directory.
    :ivar inside: that of ``pod/``; None: it did not exist.
    """

    __slots__ = ("count", "directory", "inside", "uuid")

    def __init__(self, uuid: str, count: int, directory: int) -> None:
        self.uuid = uuid
        self.count = count
        self.directory = directory
        self.inside: int | None = None


class Changes:
    """Any thread may use it.

    :param root: tells the directory of all pods; raises an OSError if it does not exist.
    """

    def __init__(self, root: Callable[[], str]) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        #: The number of the watch of the directory of all pods.
        self._all = 0
        self._path = ""
        self._count = 0
        self._pods: dict[str, _Watched] = {}
        self._by_number: dict[int, _Watched] = {}

    def close(self) -> None:
        """Repeatable."""
        with self._lock:
            self._end()

    def look(self) -> int | None:
        """The number of changes so far. None: changes cannot be seen, since the host has no inotify instance left,
        or there is no directory of pods."""
        with self._lock:
            if self._watch is None and not self._begin():
                return None
            while self._watch is not None and (events := self._watch.events()):
                for number, kinds, name in events:
                    self._note(number, kinds, name)
            return self._count if self._watch is not None or self._begin() else None

    def of(self, uuid: str) -> int | None:
        """The number of changes at the last change of a pod, which is watched from now on. None: it cannot be
        watched."""
        with self._lock:
            if self._watch is None:
                return None
            pod = self._pods.get(uuid)
            try:
                if pod is None:
                    number = self._watch.add(f"{self._path}/{uuid}", _FILES)
                    pod = self._pods[uuid] = self._by_number[number] = _Watched(uuid, self._count, number)
                if pod.inside is None:
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        pod.inside = self._watch.add(f"{self._path}/{uuid}/{_INSIDE}", _FILES)
                        self._by_number[pod.inside] = pod
            except OSError:
                return None  # the pod is gone, or the host has no watches left
            return pod.count

    def _begin(self) -> bool:
        with contextlib.suppress(OSError):
            self._path = self._root()
            self._watch = Watch(self._path, _ENTRIES)
            (self._all,) = self._watch.numbers()
            self._count += 1
            return True
        return False

    def _end(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = None
        self._pods.clear()
        self._by_number.clear()

    def _note(self, number: int, kinds: int, name: str) -> None:
        if kinds & IN_Q_OVERFLOW or (number == self._all and kinds & IN_IGNORED):
            self._end()
        elif number == self._all:
            # A directory that begins with a dot is no pod: it becomes one by a renaming.
            if not name.startswith("."):
                self._count += 1
                self._drop(self._pods.get(name))
        elif (pod := self._by_number.get(number)) is not None:
            if number == pod.directory:
                if kinds & IN_IGNORED:
                    self._count += 1
                    self._drop(pod)
                elif name == _INSIDE:
                    self._changed(pod)
                    self._drop_inside(pod)
                elif name in _RECORDS:
                    self._changed(pod)
            elif kinds & IN_IGNORED:
                self._changed(pod)
                self._drop_inside(pod)
            elif name == _STATUS:
                self._changed(pod)

    def _changed(self, pod: _Watched) -> None:
        self._count += 1
        pod.count = self._count

    def _drop(self, pod: _Watched | None) -> None:
        if pod is not None:
            self._drop_inside(pod)
            self._remove(pod.directory)
            del self._pods[pod.uuid]

    def _drop_inside(self, pod: _Watched) -> None:
        if pod.inside is not None:
            self._remove(pod.inside)
            pod.inside = None

    def _remove(self, number: int) -> None:
        del self._by_number[number]
        if self._watch is not None:
            self._watch.remove(number)
