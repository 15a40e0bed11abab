"""The order of stops, and their failures."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from kurma_compose import stopping
from kurma_compose.stopping import Stops

from kurma_core.errors import HostError, KurmaError, PodStateError


def test_pods_that_do_not_depend_on_each_other_stop_at_the_same_time() -> None:
    together = threading.Barrier(3)
    with Stops(lambda _: together.wait(60), {"a": [], "b": [], "c": []}) as stops:
        for name in ("a", "b", "c"):
            stops.wait(name)


def test_a_pod_stops_after_those_that_depend_on_it() -> None:
    """The names come in another order than the stops."""
    ended: list[str] = []
    after = {"db": ["web", "worker"], "cache": ["web"], "web": ["proxy"], "worker": [], "proxy": []}
    with Stops(ended.append, after) as stops:
        for name in after:
            stops.wait(name)
            assert set(after[name]) <= set(ended)
    assert sorted(ended) == sorted(after)


def test_a_failure_keeps_the_pods_that_it_depends_on() -> None:
    ended: list[str] = []

    def stop(name: str) -> None:
        if name == "web":
            raise HostError("no")
        ended.append(name)

    with Stops(stop, {"disk": ["db"], "db": ["web"], "web": [], "other": []}) as stops:
        stops.wait("other")
        with pytest.raises(HostError, match="no"):
            stops.wait("web")
        with pytest.raises(PodStateError, match="pod db is left, since pod web, which depends on it"):
            stops.wait("db")
        with pytest.raises(PodStateError, match="pod disk is left, since pod db"):
            stops.wait("disk")
    assert ended == ["other"]


def test_a_circle_is_stopped() -> None:
    ended: list[str] = []
    with Stops(ended.append, {"a": ["b"], "b": ["a"], "c": ["c"]}) as stops:
        for name in ("a", "b", "c"):
            stops.wait(name)
    assert sorted(ended) == ["a", "b", "c"]


def test_there_are_only_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_AT_ONCE", 2)
    lock, at_work, most = threading.Lock(), 0, 0

    def stop(_: str) -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        with lock:
            at_work -= 1

    names = [str(number) for number in range(50)]
    with Stops(stop, dict.fromkeys(names, ())) as stops:
        for name in names:
            stops.wait(name)
    assert most <= 2


def test_to_leave_begins_no_further_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_AT_ONCE", 1)
    gate, begun = threading.Event(), threading.Event()
    names: list[str] = []

    def stop(name: str) -> None:
        names.append(name)
        begun.set()
        gate.wait(60)

    before = set(threading.enumerate())
    with suppress(KurmaError), Stops(stop, {"a": [], "b": []}):
        assert begun.wait(60)
        raise HostError("no")
    gate.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert names == ["a"]


def test_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's limit is reached."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    ended: list[str] = []
    with Stops(ended.append, {"db": ["web"], "web": []}) as stops:
        stops.wait("db")
    assert ended == ["web", "db"]
