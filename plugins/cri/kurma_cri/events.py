"""Events of sandboxes and containers (GetContainerEvents), from kurmad's events of pods and apps.

One thread follows kurmad's events, reads the sandbox of each as it is then, and hands the event to all readers.
Each reader has a queue of its own, so that a slow one holds up no other.
"""

from __future__ import annotations

import collections
import logging
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kurma_core.cancellation import Cancellation, current, governing
from kurma_core.errors import Cancelled, KurmaError, PodNotFoundError
from kurma_core.formats.timestamps import moment
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import containers_of, sandbox_of
from kurma_cri.statuses import container_status, sandbox_status

if TYPE_CHECKING:
    from kurma_core.api.host import Event
    from kurma_core.api.operations import Api
    from kurma_cri.records import Records, Sandbox

_APPS = {
    "created": cri.CONTAINER_CREATED_EVENT,
    "started": cri.CONTAINER_STARTED_EVENT,
    "stopped": cri.CONTAINER_STOPPED_EVENT,
    "removed": cri.CONTAINER_DELETED_EVENT,
}
#: A sandbox exists for its callers once its pod runs.
_PODS = {
    "running": (cri.CONTAINER_CREATED_EVENT, cri.CONTAINER_STARTED_EVENT),
    "stopped": (cri.CONTAINER_STOPPED_EVENT,),
    "errored": (cri.CONTAINER_STOPPED_EVENT,),
    "removed": (cri.CONTAINER_DELETED_EVENT,),
}
#: Events that wait for one reader before older ones of the same container give way, and at most.
_WAITING, _MOST = 1000, 20_000
#: Seconds until the events are followed again after a failure.
_PAUSE = 1.0


class Queue:
    """The events that wait for one reader.

    Each event has the whole state of its sandbox. So if very many wait, the latest of each container is enough.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: collections.deque[cri.ContainerEventResponse] = collections.deque()
        self._due = _WAITING

    def put(self, event: cri.ContainerEventResponse) -> None:
        with self._changed:
            self._events.append(event)
            if len(self._events) >= self._due:
                self._thin_out()
            self._changed.notify_all()

    def _thin_out(self) -> None:
        latest = {event.container_id: event for event in self._events}
        # In order of the events that stay.
        kept = [event for event in self._events if latest[event.container_id] is event]
        self._events = collections.deque(kept, maxlen=_MOST)
        self._due = max(_WAITING, 2 * len(kept))

    def next(self) -> cri.ContainerEventResponse:
        """Waits for the next event. :raises Cancelled: the reader has gone."""
        operation = current()
        with operation.waking(self._wake):
            with self._changed:
                while not self._events and not operation.cancelled:
                    self._changed.wait()
                if self._events:
                    return self._events.popleft()
            operation.check()
        raise Cancelled

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class ContainerEvents:
    """Hands events to readers, from :meth:`start` to :meth:`stop`.

    :param client: has kurmad's events. :param records: finds sandboxes.
    """

    def __init__(self, client: Api, records: Records, log: logging.Logger) -> None:
        self._client = client
        self._records = records
        self._log = log
        self._lock = threading.Lock()
        #: A queue lives as long as its reader's iterator.
        self._queues: weakref.WeakSet[Queue] = weakref.WeakSet()
        #: The last known state of each sandbox, by the UUID of its pod, while there are readers: for the event of
        #: its removal.
        self._known: dict[str, Sandbox] = {}
        self._operation = Cancellation()
        self._thread = threading.Thread(target=self._follow, name="cri events")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._operation.cancel()
        self._thread.join()

    def read(self) -> Iterator[cri.ContainerEventResponse]:
        """All events from this call on. It ends only with the reader's call."""
        queue = Queue()
        with self._lock:
            self._queues.add(queue)
        try:
            for sandbox in self._records.sandboxes():
                self._known.setdefault(sandbox.pod.uuid, sandbox)
        except KurmaError as error:
            self._log.warning("sandboxes cannot be listed: %s", error.message)
        return _answers(queue)

    # -- kurmad's events --

    def _follow(self) -> None:
        since: int | None = None
        while not self._operation.cancelled:
            try:
                with governing(self._operation):
                    for event in self._client.events(since, follow=True, subject=("pod", "app")):
                        since = event.seq
                        self._tell(event)
            except Cancelled:
                return
            except KurmaError as error:
                self._log.warning("events cannot be followed: %s", error.message)
            except Exception:  # noqa: BLE001 - the stream goes on
                self._log.exception("events: a mistake in kurma-cri")
            try:
                self._operation.pause(_PAUSE)
            except Cancelled:
                return

    def _tell(self, event: Event) -> None:
        kinds = _PODS.get(event.kind, ()) if event.subject == "pod" else (_APPS[event.kind],)
        if not kinds or event.id is None:
            return
        with self._lock:
            queues = list(self._queues)
            if not queues:
                self._known.clear()
                return
        if (event.subject, event.kind) == ("pod", "removed"):
            sandbox = self._known.pop(event.id, None)
        else:
            sandbox = self._sandbox(event.id)
        if sandbox is None:
            return
        for kind in kinds:
            message = _message(event, kind, sandbox)
            for queue in queues:
                queue.put(message)

    def _sandbox(self, uuid: str) -> Sandbox | None:
        """The sandbox as it is now, or as it was last known; None: the pod is another one."""
        try:
            found = sandbox_of(self._client.pod(uuid))
        except PodNotFoundError:
            return self._known.get(uuid)
        if found is None or self._is_unborn(found):
            return None
        self._known[uuid] = found
        return found

    def _is_unborn(self, sandbox: Sandbox) -> bool:
        """Whether RunPodSandbox makes it: if that fails, it has never existed for callers."""
        return self._records.is_being_made(sandbox.id) and not sandbox.ready


def _answers(queue: Queue) -> Iterator[cri.ContainerEventResponse]:
    while True:
        yield queue.next()


def _message(event: Event, kind: cri.ContainerEventType, sandbox: Sandbox) -> cri.ContainerEventResponse:
    gone = (event.subject, event.kind) == ("pod", "removed")
    status = sandbox_status(sandbox)
    if gone:
        status.state = cri.SANDBOX_NOTREADY
    return cri.ContainerEventResponse(
        container_id=sandbox.id if event.subject == "pod" else event.name,
        container_event_type=kind,
        created_at=moment(event.at),
        pod_sandbox_status=status,
        containers_statuses=[
            container_status(one)
            for one in (() if gone else containers_of(sandbox))
            if (event.subject, event.kind) != ("app", "removed") or one.id != event.name
        ],
    )
