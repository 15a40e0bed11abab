"""Recovers pods without an owner: kurmad adopts living ones, takes down dead ones, and undoes half-made ones.

It checks every pod when it starts, and later each pod that other processes change.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kurma_core.daemon.process.threads import Poller, Timetable, Workers, pause_after
from kurma_core.errors import FormatVersionError, KurmaError, PodNotFoundError
from kurma_core.linux.inotify import IN_CREATE, IN_IGNORED, IN_MOVED_TO, IN_Q_OVERFLOW, Watch
from kurma_core.linux.process import pidfd_open
from kurma_core.models.pod import ENDED_STATES

if TYPE_CHECKING:
    from kurma_core.daemon.pods.owned import OwnedPods
    from kurma_core.pods.daemon_interface import DaemonInterface

_LOG = logging.getLogger("kurmad")
#: Pods that are checked at a time. A slow check waits for the kernel, not for the CPU.
_AT_ONCE = 4
#: Seconds from the start until remains of half-made and half-removed pods are removed, and their age in seconds:
#: of some remains it cannot be seen whether a process is at work on them.
_SWEEP_AFTER, _REMAINS = 2.0, 1.0
#: Seconds from the first event to a look: one change of a pod causes many events.
_SETTLING = 0.2


class Recovery:
    """Checks pods, and recovers those without an owner.

    :param ended: called with the UUID of each pod that has ended, at each check.
    :param seen: called with the UUID of each checked pod.
    """

    def __init__(
        self,
        pods: DaemonInterface,
        owners: OwnedPods,
        ended: Callable[[str], None] = lambda uuid: None,
        seen: Callable[[str], None] = lambda uuid: None,
    ) -> None:
        self._pods = pods
        self._owners = owners
        self._ended = ended
        self._seen = seen
        self._watcher = PodWatcher(pods, self.look_soon)
        self._workers = Workers(_AT_ONCE, "recovery")
        self._lock = threading.Lock()
        #: UUIDs of pods to check.
        self._waiting: set[str] = set()
        #: By UUID: the number of looks in a row that had to be repeated.
        self._attempts: dict[str, int] = {}
        #: By UUID: when the pause after a failed look ends.
        self._pauses: dict[str, float] = {}
        #: UUIDs of pods that a newer version has written, and which the log names.
        self._newer: set[str] = set()
        self._closing = False
        self._later = Timetable("later", 2)
        #: Set once every pod that existed at the start has been checked.
        self.done = threading.Event()
        #: Called then.
        self.on_done: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begins to look at every pod, in the background."""
        self._watcher.start()
        self._later.start()
        self._workers.submit(self._look_at_all)
        self._later.at("sweep", _SWEEP_AFTER, self._sweep)

    def close(self) -> None:
        """Waits for looks that have begun."""
        self._closing = True
        self._later.close()
        self._workers.shutdown(cancel_futures=True)
        self._watcher.close()

    def _sweep(self) -> None:
        try:
            self._pods.sweep(_REMAINS)
        except OSError as error:
            _LOG.error("cannot remove remains of unfinished pods: %s", error)

    def _look_at_all(self) -> None:
        looks = [self._workers.submit(self._look, uuid) for uuid in self._pods.uuids()]
        left = len(looks)

        def one_less(_: object) -> None:
            nonlocal left
            with self._lock:
                left -= 1
                if not left:
                    self._is_done()

        for look in looks:
            look.add_done_callback(one_less)
        if not looks:
            self._is_done()

    def _is_done(self) -> None:
        self.done.set()
        self.on_done()

    def look_soon(self, uuid: str) -> None:
        """Looks at that pod, in the background; after a failure only when its pause is over, since the failed look
        has changed the pod's directory, which is watched."""
        with self._lock:
            if self._closing or uuid in self._waiting or time.monotonic() < self._pauses.get(uuid, 0.0):
                return
            self._waiting.add(uuid)
        with suppress(RuntimeError):  # it closes
            self._workers.submit(self._look, uuid)

    def _look(self, uuid: str) -> None:
        with self._lock:
            self._waiting.discard(uuid)
        if self._closing or self._owners.running(uuid) is not None:
            return
        try:
            again = self._see(uuid)
            self._seen(uuid)
        except PodNotFoundError:
            again = False
            self._seen(uuid)  # it was half-made or ephemeral, or another process has removed it
        except FormatVersionError as error:
            # Looking again would not help. A change of the pod's files by that newer version is another event.
            with self._lock:
                known = uuid in self._newer
                self._newer.add(uuid)
            if not known:
                _LOG.error("%s: it is left alone", error.message)
            return
        except KurmaError as error:
            # The error concerns this pod only: the others are checked all the same.
            _LOG.error("%s", error.message)
            self._look_again(uuid, pausing=True)
            return
        except Exception:  # noqa: BLE001 (the daemon goes on)
            _LOG.exception("pod %s cannot be looked at", uuid)
            self._look_again(uuid, pausing=True)
            return
        if again:
            self._look_again(uuid)
        else:
            with self._lock:
                self._attempts.pop(uuid, None)
                self._pauses.pop(uuid, None)

    def _look_again(self, uuid: str, *, pausing: bool = False) -> None:
        """Plans another look, after a pause that grows with each.

        :param pausing: changes of the pod cause no look during the pause.
        """
        with self._lock:
            attempts = self._attempts[uuid] = self._attempts.get(uuid, -1) + 1
            pause = pause_after(attempts)
            if pausing:
                self._pauses[uuid] = time.monotonic() + pause
        self._later.at(uuid, pause, lambda: self._look_now(uuid))

    def _look_now(self, uuid: str) -> None:
        with self._lock:
            self._pauses.pop(uuid, None)
        self.look_soon(uuid)

    def _see(self, uuid: str) -> bool:
        """:returns: whether to look again: the owner is dead, and another process takes the pod down."""
        pods = self._pods
        # First, so that later changes are seen.
        self._watcher.watch_pod(uuid)
        if pods.needs_recovery(uuid):
            pod = pods.adopt(uuid)
            if pod is not None:
                self._owners.take(pod)
                _LOG.info("pod %s goes on with kurmad as its owner", uuid)
                if pods.finish_change(uuid):
                    _LOG.info("pod %s is cleared of a half-made change of its apps", uuid)
                return False
        state = pods.state(uuid)
        if state.state in ENDED_STATES:
            if pods.is_ephemeral(uuid) and not pods.is_owned(uuid) and not self._owners.holds(uuid):
                pods.remove(uuid)  # its owner has recorded its end and died before removing it
            else:
                self._ended(uuid)
        elif state.live or state.state == "preparing":
            pid = state.owner
            return (
                isinstance(pid, int) and pid not in (0, os.getpid()) and not self._watcher.watch_owner(uuid, pid)
            )
        return False


class PodWatcher:
    """Watches the directories of pods by inotify, and processes that own pods by pidfds.

    :param look: called, by the watching thread, with the UUID of each pod that is new or has changed, or whose
        owner has died. It must return soon.
    """

    def __init__(self, pods: DaemonInterface, look: Callable[[str], None]) -> None:
        self._pods = pods
        self._look = look
        self._lock = threading.Lock()
        self._poller = Poller("watching")
        self._closing = threading.Event()
        self._watch: Watch | None = None
        self._root = -1
        #: UUID by the number of its watch, and the other way round.
        self._uuids: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        #: (UUID, PID) by the pidfd of a living owner.
        self._owners: dict[int, tuple[str, int]] = {}

    def start(self) -> None:
        """Logs it if the kernel allows no more watches."""
        try:
            # Directories of pods appear by a rename.
            self._watch = Watch(self._pods.root(), IN_MOVED_TO | IN_CREATE)
        except OSError as error:
            _LOG.warning("pods of other processes are not watched: %s", error.strerror)
        else:
            (self._root,) = self._watch.numbers()
            self._poller.add(self._watch.fd, self._look_at_changed)
        self._poller.start()

    def close(self) -> None:
        self._closing.set()
        self._poller.close()
        for fd in self._owners:
            os.close(fd)
        self._owners.clear()
        if self._watch is not None:
            self._watch.close()

    def watch_pod(self, uuid: str) -> None:
        """Watches the pod's directory. Repeatable."""
        with self._lock:
            if self._watch is None or uuid in self._numbers:
                return
            try:
                number = self._watch.add(self._pods.path(uuid), IN_MOVED_TO)
            except FileNotFoundError:
                return
            except OSError as error:
                _LOG.warning("pod %s is not watched: %s", uuid, error.strerror)
                return
            self._uuids[number] = uuid
            self._numbers[uuid] = number

    def watch_owner(self, uuid: str, pid: int) -> bool:
        """Watches a process that owns the pod. :returns: whether it lives."""
        with self._lock:
            if (uuid, pid) in self._owners.values():
                return True
            try:
                fd = pidfd_open(pid)
            except ProcessLookupError:
                return False
            self._owners[fd] = uuid, pid
            self._poller.add(fd, lambda: self._owner_died(fd))
            return True

    # -- the thread --

    def _owner_died(self, fd: int) -> None:
        with self._lock:
            uuid, _ = self._owners.pop(fd)
            self._poller.remove(fd)
            os.close(fd)
        self._look(uuid)

    def _look_at_changed(self) -> None:
        # One change causes many events; and a pod that kurmad makes and starts at once is its own then.
        if not self._closing.wait(_SETTLING):
            for uuid in self._changed():
                self._look(uuid)

    def _changed(self) -> set[str]:
        assert self._watch is not None
        found: set[str] = set()
        with self._lock:
            while events := self._watch.events():
                for number, kinds, name in events:
                    if kinds & IN_Q_OVERFLOW:
                        found.update(self._pods.uuids())
                    elif number == self._root and len(name) == 36:  # other entries are not directories of pods
                        found.add(name)
                    elif kinds & IN_IGNORED:
                        # A new directory of that name may have another watch.
                        uuid = self._uuids.pop(number, "")
                        if self._numbers.get(uuid) == number:
                            del self._numbers[uuid]
                    elif name == "state.json":
                        with suppress(KeyError):
                            found.add(self._uuids[number])
        return found
