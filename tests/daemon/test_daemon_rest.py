"""A daemon that has done something gives back what that took."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from kurma_core.daemon.process.lifecycle import MemoryTrimmer
from tests.kit.waiting import until


class _Knot:
    """Holds itself."""

    def __init__(self) -> None:
        self.knot = self


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing is collected but by who is tested."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def rest() -> Iterator[MemoryTrimmer]:
    made = MemoryTrimmer(0.01)
    made.start()
    yield made
    made.close()


def _gone(knot: weakref.ref[_Knot]) -> bool:
    return until(lambda: knot() is None, "the end of what nobody holds", 60)


def test_garbage_goes_after_work_each_time(uncollected: None, rest: MemoryTrimmer) -> None:
    for _ in range(3):
        knot = weakref.ref(_Knot())
        assert knot() is not None
        rest.trim_later()
        assert _gone(knot)


def test_work_makes_tired_whichever_thread_has_done_it(uncollected: None, rest: MemoryTrimmer) -> None:
    knot = weakref.ref(_Knot())
    threads = [threading.Thread(target=rest.trim_later) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _gone(knot)


def test_who_waits_for_its_rest_ends_at_once() -> None:
    patient = MemoryTrimmer(1e6)
    patient.start()
    patient.trim_later()
    patient.close()
    patient.close()


def test_one_that_never_began_ends() -> None:
    MemoryTrimmer().close()
