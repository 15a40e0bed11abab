"""Pods whose owner has died, the daemon before this one for instance: what lives is adopted, what is dead is taken
down, what is half-made undone. At the daemon's start every pod is looked at, and later whichever has changed."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from kurma_core.daemon.pods.watching import PodWatcher
from kurma_core.daemon.process.threads import Workers
from kurma_core.daemon.process.timetable import Timetable
from kurma_core.errors import KurmaError, PodNotFoundError
from kurma_core.models.pod import ENDED_STATES
from kurma_core.pods.recovery import needs_recovery

if TYPE_CHECKING:
    from kurma_core.daemon.pods.owned import OwnedPods
    from kurma_core.pods.manager import PodManager

_LOG = logging.getLogger("kurmad")
#: Pods that are looked at at a time: what takes long waits for the kernel.
_AT_ONCE = 4
#: Seconds until a dead pod is looked at again that some command takes down at the moment.
_LOOK_AGAIN = 1.0
#: Seconds from the start until remains of pods that were half made, or half removed, are taken away, and how old
#: they must be: it cannot be seen of all whether somebody is still at work on them.
_SWEEP_AFTER, _REMAINS = 2.0, 1.0
_LIVE = ("starting", "running", "stopping")


class Recovery:
    """:param manager: asked for the pod manager at each look: there is another one after a reload.
    :param ended: told of the UUID of each pod that is found to have ended, as often as it is found so.
    :param seen: told of the UUID of each pod that was looked at, whatever has become of it.
    """

    def __init__(
        self,
        manager: Callable[[], PodManager],
        owners: OwnedPods,
        ended: Callable[[str], None] = lambda uuid: None,
        seen: Callable[[str], None] = lambda uuid: None,
    ) -> None:
        self._manager = manager
        self._owners = owners
        self._ended = ended
        self._seen = seen
        self._watching = PodWatcher(manager().store, self.look_soon)
        self._workers = Workers(_AT_ONCE, "recovery")
        self._lock = threading.Lock()
        #: Pods that wait for their look.
        self._waiting: set[str] = set()
        self._closing = False
        self._later = Timetable("look again", 1)
        self._sweeping = threading.Timer(_SWEEP_AFTER, self._sweep)
        self._sweeping.daemon = True
        #: Set once every pod that was there at the start has been looked at.
        self.done = threading.Event()
        self._tell_done: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begins to look at every pod, in the background."""
        self._watching.start()
        self._later.start()
        self._workers.submit(self._look_at_all)
        self._sweeping.start()

    def close(self) -> None:
        """Looks that have begun come to their end."""
        self._closing = True
        self._sweeping.cancel()
        self._later.close()
        self._workers.shutdown(cancel_futures=True)
        self._watching.close()

    def _sweep(self) -> None:
        try:
            self._manager().store.sweep(_REMAINS)
        except OSError as error:
            _LOG.error("remains of half-made pods cannot be taken away: %s", error)

    def _look_at_all(self) -> None:
        looks = [self._workers.submit(self._look, uuid) for uuid in self._manager().store.uuids()]
        left = len(looks)
        if not left:
            self._is_done()

        def one_less(_: object) -> None:
            nonlocal left
            with self._lock:
                left -= 1
                if not left:
                    self._is_done()

        for look in looks:
            look.add_done_callback(one_less)

    def when_done(self, tell: Callable[[], None]) -> None:
        """``tell`` is called once every pod that was there at the start was looked at. Before :meth:`start`."""
        self._tell_done = tell

    def _is_done(self) -> None:
        self.done.set()
        self._tell_done()

    def look_soon(self, uuid: str) -> None:
        """Has that pod looked at."""
        with self._lock:
            if self._closing or uuid in self._waiting:
                return
            self._waiting.add(uuid)
        try:
            self._workers.submit(self._look, uuid)
        except RuntimeError:
            return  # it closes

    def _look(self, uuid: str) -> None:
        with self._lock:
            self._waiting.discard(uuid)
        if self._closing or self._owners.running(uuid) is not None:
            return
        try:
            self._see(uuid)
            self._seen(uuid)
        except PodNotFoundError:
            self._seen(uuid)  # half-made, or ephemeral; or somebody has removed it
        except KurmaError as error:
            # Of that pod alone: the others are looked at all the same.
            _LOG.error("%s", error.message)
        except Exception:  # noqa: BLE001 (the daemon goes on)
            _LOG.exception("pod %s cannot be looked at", uuid)

    def _see(self, uuid: str) -> None:
        manager = self._manager()
        directory = manager.store.directory(uuid)
        # First: what changes from here on is seen.
        self._watching.pod(uuid)
        if needs_recovery(directory):
            pod = manager.adopt(uuid)
            if pod is not None:
                self._owners.take(pod)
                _LOG.info("pod %s goes on with kurmad as its owner", uuid)
                if manager.finish_change(directory):
                    _LOG.info("pod %s is cleared of a half-made change of its apps", uuid)
                return
        state = directory.read_state()
        if state["state"] in ENDED_STATES:
            if manager.is_ephemeral(uuid) and not directory.owned() and not self._owners.holds(uuid):
                manager.remove(uuid)  # its owner has come to no more than to record its end
            else:
                self._ended(uuid)
        elif state["state"] in (*_LIVE, "preparing"):
            pid = state.get("owner")
            if isinstance(pid, int) and pid not in (0, os.getpid()) and not self._watching.owner(uuid, pid):
                # It is dead, and somebody who came by takes it down: whether he does is seen to.
                self._later.at(uuid, _LOOK_AGAIN, lambda: self.look_soon(uuid))


__all__ = ["Recovery"]
