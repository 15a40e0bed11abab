"""A pod's PID 1 whose stager ends before it could ask to be told of that."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

import pytest
from kurma_stager_default.inside.pod import pid1

from kurma_core.linux import namespaces

pytestmark = pytest.mark.root


def plain(stop: int) -> None:
    namespaces.unshare(pid1.SHARED)
    pid1.start(stop)


def held(stop: int) -> None:
    pid1.start_held(-1, stop)


@pytest.mark.parametrize("start", [plain, held])
def test_it_ends_too(start: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    come, coming = os.pipe()
    went, going = os.pipe()
    alive, living = os.pipe()
    prepare = pid1._prepare

    def late() -> None:
        os.close(alive)
        os.write(coming, b".")
        os.read(went, 1)
        prepare()

    monkeypatch.setattr(pid1, "_prepare", late)
    stager = os.fork()
    if stager == 0:
        try:
            start(living)
        finally:
            os._exit(1)
    os.close(living)
    try:
        assert os.read(come, 1) == b"."
    finally:
        os.kill(stager, signal.SIGKILL)
        os.waitpid(stager, 0)
        os.write(going, b".")
    # PID 1 has the other end of this, and closes all others, until it ends.
    poll = select.poll()
    poll.register(alive, select.POLLIN)
    assert poll.poll(20_000)
    for fd in (come, coming, went, going, alive):
        os.close(fd)
