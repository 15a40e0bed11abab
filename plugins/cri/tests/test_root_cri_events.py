"""GetContainerEvents over the socket of a real kurmad (C13)."""

import queue
import threading

import grpc
import pytest
from kurma_cri.events import Queue
from kurma_cri.proto import runtime_pb2 as cri

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled
from tests.kit.waiting import until

KINDS = ("created", "started", "stopped", "deleted")


class Reader:
    """Collects the events of a stream, in a thread."""

    def __init__(self, node):
        self.call = node.runtime.GetContainerEvents(cri.GetEventsRequest())
        self.call.initial_metadata()
        self.events = queue.Queue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        try:
            for event in self.call:
                self.events.put(event)
        except grpc.RpcError:
            return  # the test ends it

    def next(self):
        return self.events.get(timeout=20)

    def close(self):
        self.call.cancel()
        self._thread.join(20)


def told(event):
    return event.container_id, KINDS[event.container_event_type]


@pytest.mark.root
def test_events_of_sandboxes_and_containers(node):
    reader, idle = Reader(node), node.runtime.GetContainerEvents(cri.GetEventsRequest())
    idle.initial_metadata()
    sandbox = node.run(node.sandbox_config("web", labels={"app": "web"}))
    container = node.started(sandbox, "sh", "-c", "exit 7")
    found = [reader.next() for _ in range(5)]
    assert [told(event) for event in found] == [
        (sandbox, "created"), (sandbox, "started"), (container, "created"), (container, "started"),
        (container, "stopped"),
    ]  # fmt: skip
    for event in found:
        status = event.pod_sandbox_status
        assert (status.id, status.metadata.name, status.labels) == (sandbox, "web", {"app": "web"})
        assert event.created_at >= status.created_at > 0
    assert [event.created_at for event in found] == sorted(event.created_at for event in found)
    (ended,) = found[-1].containers_statuses
    assert (ended.id, ended.state, ended.exit_code) == (container, cri.CONTAINER_EXITED, 7)
    assert (ended.metadata.name, ended.reason) == ("main", "Error")

    other = node.started(sandbox, "sleep", "1000", name="other")
    assert [told(reader.next()) for _ in range(2)] == [(other, "created"), (other, "started")]
    node.runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
    removed = reader.next()
    assert told(removed) == (container, "deleted")
    assert [one.id for one in removed.containers_statuses] == [other]
    node.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    node.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    last = [reader.next() for _ in range(4)]
    assert [told(event) for event in last] == [
        (other, "stopped"), (sandbox, "stopped"), (other, "deleted"), (sandbox, "deleted"),
    ]  # fmt: skip
    assert last[-1].pod_sandbox_status.metadata.name == "web"
    assert last[-1].pod_sandbox_status.state == cri.SANDBOX_NOTREADY
    reader.close()
    # A reader that reads late has everything.
    assert [told(next(idle)) for _ in range(12)] == [told(event) for event in found] + [
        (other, "created"), (other, "started"), (container, "deleted"), *[told(event) for event in last],
    ]  # fmt: skip
    idle.cancel()


@pytest.mark.root
@pytest.mark.full
def test_pods_outside_kubernetes_are_not_told(node):
    reader = Reader(node)
    with node.house.running("exec sleep 1000"):
        sandbox = node.run()
        assert [told(reader.next()) for _ in range(2)] == [(sandbox, "created"), (sandbox, "started")]
    node.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    assert [told(reader.next()) for _ in range(2)] == [(sandbox, "stopped"), (sandbox, "deleted")]
    reader.close()


def event(id, number):
    return cri.ContainerEventResponse(container_id=id, created_at=number)


def test_a_queue_that_is_not_read_keeps_the_latest_of_each_container():
    waiting = Queue()
    for number in range(100_000):
        waiting.put(event(f"c{number % 7}", number))
    waiting.put(event("last", 100_000))
    found = []
    with governing(Cancellation()):
        while not found or found[-1].container_id != "last":
            found.append(waiting.next())
    assert len(found) < 2000
    assert {one.container_id: one.created_at for one in found[:-1]} == {
        f"c{number % 7}": number for number in range(100_000 - 7, 100_000)
    }
    assert [one.created_at for one in found] == sorted(one.created_at for one in found)


def test_a_queue_of_very_many_containers_is_bounded():
    waiting = Queue()
    for number in range(50_000):
        waiting.put(event(str(number), number))
    with governing(Cancellation()):
        assert waiting.next().created_at >= 50_000 - 45_000


def test_a_reader_that_goes_ends_its_wait():
    waiting, operation, ended = Queue(), Cancellation(), threading.Event()

    def read():
        with governing(operation), pytest.raises(Cancelled):
            waiting.next()
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    operation.cancel()
    until(ended.is_set, "its end")
    thread.join()
