"""Metrics of kurmad and its pods, in the text format of Prometheus (version 0.0.4)."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kurma_core import VERSION
from kurma_core.fetching.download import received
from kurma_core.models.pod import STATES

if TYPE_CHECKING:
    from kurma_core.models.pod import PodRecord

#: Upper ends, in seconds, of the classes of starts.
_STARTS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
Sample = tuple[dict[str, str], float]


class Metrics:
    """Counts requests and starts, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.time()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._starts = [0] * (len(_STARTS) + 1)
        self._start_seconds = 0.0

    def requested(self, name: str, status: int) -> None:
        """:param status: of the answer; 0: the client went away before it."""
        with self._lock:
            self._requests[name, status] += 1

    def started(self, seconds: float) -> None:
        """Counts a prepared pod that has started, with the time that it took."""
        place = next((at for at, end in enumerate(_STARTS) if seconds <= end), len(_STARTS))
        with self._lock:
            self._starts[place] += 1
            self._start_seconds += seconds

    def text(self, pods: list[PodRecord], connections: tuple[int, int]) -> str:
        """All present metrics, as text.

        :param connections: see :attr:`Server.held`.
        """
        return "\n".join([*self._of_pods(pods), *self._of_daemon(*connections)]) + "\n"

    def _of_pods(self, records: list[PodRecord]) -> Iterator[str]:
        from kurma_core.pods.inside.usage import usage

        states = Counter(record.state for record in records)
        by_state: list[Sample] = [({"state": state}, states[state]) for state in STATES]
        yield from _metric("kurma_pods", "gauge", "pods, by their state", by_state)
        yield from self._start_times()
        running = usage(records)
        for name, kind, about, figure in (
            ("kurma_pod_memory_bytes", "gauge", "memory of a pod", "memory"),
            ("kurma_pod_memory_limit_bytes", "gauge", "what a pod may have of memory", "memory_limit"),
            ("kurma_pod_cpu_seconds_total", "counter", "time that a pod had processors", "cpu"),
            ("kurma_pod_pids", "gauge", "processes and threads of a pod", "pids"),
        ):
            of_pods = [(one, getattr(one.total, figure)) for one in running]
            samples = [({"pod": one.uuid, "name": one.name}, v) for one, v in of_pods if v is not None]
            yield from _metric(name, kind, about, samples)

    def _start_times(self) -> Iterator[str]:
        """The histogram of starts."""
        with self._lock:
            counts, seconds = list(self._starts), self._start_seconds
        name, total = "kurma_pod_start_seconds", 0
        yield from _head(name, "histogram", "time in which a pod that was prepared has come up, its apps started")
        for end, count in zip((*map(str, _STARTS), "+Inf"), counts, strict=True):
            total += count
            yield _line(f"{name}_bucket", {"le": end}, total)
        yield _line(f"{name}_sum", {}, seconds)
        yield _line(f"{name}_count", {}, total)

    def _of_daemon(self, short: int, lasting: int) -> Iterator[str]:
        held: list[Sample] = [({"kind": "short"}, short), ({"kind": "lasting"}, lasting)]
        yield from _metric("kurma_connections", "gauge", "connections, by whether they last", held)
        with self._lock:
            requests = sorted(self._requests.items())
        about = "requests, by operation and status of the answer (0: nobody waited for it)"
        answers: list[Sample] = [({"operation": name, "status": str(status)}, n) for (name, status), n in requests]
        yield from _metric("kurma_requests_total", "counter", about, answers)
        yield from _metric("kurma_fetched_bytes_total", "counter", "bytes fetched of images", [({}, received())])
        yield from _metric("kurma_info", "gauge", "the version of kurmad", [({"version": VERSION}, 1)])
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        for name, about, value in (
            ("process_resident_memory_bytes", "memory of kurmad", pages * os.sysconf("SC_PAGE_SIZE")),
            ("process_open_fds", "descriptors of kurmad", len(os.listdir("/proc/self/fd"))),
            ("process_threads", "threads of kurmad", len(os.listdir("/proc/self/task"))),
            ("process_start_time_seconds", "when kurmad was started, since 1970", self._began),
        ):
            yield from _metric(name, "gauge", about, [({}, value)])
        times = os.times()
        about, seconds = "time that kurmad had processors", times.user + times.system
        yield from _metric("process_cpu_seconds_total", "counter", about, [({}, seconds)])


def _metric(name: str, kind: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield from _head(name, kind, about)
    for labels, value in samples:
        yield _line(name, labels, value)


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value!r}" if inside else f"{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
