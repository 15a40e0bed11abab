"""Pods that are over are started again where their policy asks for it, after a pause that grows.

What is decided stands in ``state.json``: a daemon that comes after this one goes on with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kurma_core.daemon.process.timetable import Timetable
from kurma_core.errors import KurmaError, PodNotFoundError
from kurma_core.models.pod import ENDED_STATES
from kurma_core.pods import restarts
from kurma_core.pods.records import read_document

if TYPE_CHECKING:
    from kurma_core.pods.manager import PodManager

_LOG = logging.getLogger("kurmad")
#: Pods that are started at a time.
_AT_ONCE = 4


class Restarts:
    """:param manager: asked for the pod manager each time: there is another one after a reload.
    :param start: starts a pod of that UUID again.
    """

    def __init__(self, manager: Callable[[], PodManager], start: Callable[[str], object]) -> None:
        self._manager = manager
        self._start = start
        #: What is still to be done.
        self.times = Timetable("restart", _AT_ONCE)

    def close(self) -> None:
        self.times.close()

    def look(self, uuid: str) -> None:
        """Of a pod that has ended: plans its next start, if there is to be one. May be repeated."""
        try:
            self._plan(uuid, failed=False)
        except PodNotFoundError:
            return
        except KurmaError as error:
            _LOG.error("%s", error.message)

    def _plan(self, uuid: str, *, failed: bool) -> None:
        manager = self._manager()
        directory = manager.store.directory(uuid)
        document = read_document(directory)
        with directory.op_lock():
            state = directory.read_state()
            if not manager.to_restart(document, state):
                return
            at = restarts.next_of(state)
            if at is None or failed:
                delay, tries = restarts.pause(state, failed=failed)
                directory.write_state({**state, "restart": restarts.planned(state, delay, tries)})
            else:
                delay = restarts.left(state, at)
        self.times.at(uuid, delay, lambda: self._attempt(uuid))

    def _attempt(self, uuid: str) -> None:
        directory = self._manager().store.directory(uuid)
        try:
            document, state = read_document(directory), directory.read_state()
            if not self._manager().to_restart(document, state):
                return  # somebody has stopped it, or started it, meanwhile
            self._manager().events.tell("restarting", document)
            self._start(uuid)
        except PodNotFoundError:
            return
        except KurmaError as error:
            _LOG.error("pod %s cannot be started again: %s", uuid, error.message)
            self._plan_anew(uuid)
        except Exception:  # noqa: BLE001 (a mistake is one today, and may be none tomorrow)
            _LOG.exception("pod %s cannot be started again: a mistake in kurmad", uuid)
            self._plan_anew(uuid)
        else:
            _LOG.info("pod %s is started again: its policy is %s", document.name, restarts.policy_of(document))

    def _plan_anew(self, uuid: str) -> None:
        """After a start that has failed."""
        try:
            if self._manager().store.directory(uuid).read_state()["state"] in ENDED_STATES:
                self._plan(uuid, failed=True)
        except KurmaError:
            return  # it is gone


__all__ = ["Restarts"]
