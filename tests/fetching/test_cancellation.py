"""Operations: cancelled from any thread, each alone; what knows nothing of it is left to itself."""

from __future__ import annotations

import fcntl
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kurma_testing import bound

from kurma_core import cancellation
from kurma_core.cancellation import GRACE, Cancellation, CancellationFd, abandoning, current, governing, shielded
from kurma_core.errors import Cancelled, FetchError, KurmaError
from kurma_core.fetching import Fetching
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.fetcher import FetcherHooks, FetchRequest, RemoteArchive, RemoteBlobHooks

REQUEST = FetchRequest("linux", "amd64")


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """What waits for it goes on at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def cancelled_soon(call: Callable[[], object], after: float = 0.1) -> float:
    """Runs it as an operation that is cancelled by another thread; seconds from there to its end."""
    operation = Cancellation()
    moment: list[float] = []

    def cancel() -> None:
        moment.append(time.monotonic())
        operation.cancel()

    timer = threading.Timer(after, cancel)
    timer.start()
    with governing(operation), pytest.raises(Cancelled):
        call()
    timer.join()
    return time.monotonic() - moment[0]


# --- waits ---


def test_the_descriptors_of_an_operation_that_was_cancelled_before_are_closed() -> None:
    """A socket that is not closed is a warning, and thus fails the test."""
    operation = Cancellation()
    operation.cancel()
    with governing(operation), pytest.raises(Cancelled), CancellationFd():
        pytest.fail("the block runs")


def test_a_pause_ends() -> None:
    assert cancelled_soon(lambda: cancellation.pause(20)) < 0.2
    began = time.monotonic()
    cancellation.pause(0.1)
    assert time.monotonic() - began >= 0.1


def test_waiting_for_a_file_ends(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    fcntl.flock(first, fcntl.LOCK_EX)
    assert cancelled_soon(lambda: cancellation.lock(second, fcntl.LOCK_SH)) < 0.2
    threading.Timer(0.1, os.close, (first,)).start()
    cancellation.lock(second, fcntl.LOCK_EX)
    os.close(second)


def test_no_kind_of_failure_passes_over_it() -> None:
    assert not issubclass(Cancelled, Exception)
    assert not issubclass(Cancelled, KurmaError)


def test_a_failure_that_the_waking_made_is_not_told(held: threading.Event) -> None:
    def call() -> None:
        with current().waking(held.set):
            held.wait(20)
            raise OSError("the connection broke")

    assert cancelled_soon(call) < 0.2


def test_what_cannot_be_woken_hinders_nobody_else(held: threading.Event) -> None:
    def refuse() -> None:
        raise ValueError("too late")

    def call() -> None:
        with current().waking(refuse), current().waking(held.set):
            held.wait(20)

    assert cancelled_soon(call) < 0.2


def test_parts_end_with_the_whole_and_not_the_other_way_round() -> None:
    whole = Cancellation()
    with whole.part() as one, whole.part() as two:
        one.cancel()
        assert not two.cancelled
        assert not whole.cancelled
        with two.part() as below:
            pass
        assert below.cancelled, "at its end"
    with pytest.raises(Cancelled), whole.part() as one:
        whole.cancel()
    assert one.cancelled
    with pytest.raises(Cancelled), whole.part():
        raise AssertionError("it was cancelled before")


def test_what_undoes_is_done_all_the_same() -> None:
    operation = Cancellation()
    operation.cancel()
    with governing(operation):
        with shielded():
            cancellation.check()
            cancellation.pause(0)
        with pytest.raises(Cancelled):
            cancellation.check()


def test_threads_and_contexts_have_their_own() -> None:
    mine = Cancellation()
    seen: list[Cancellation] = []
    with governing(mine):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        assert current() is mine
    assert mine not in seen
    assert current() is not mine


# --- calls that know nothing of it ---


def test_a_call_returns_and_raises_as_if_it_were_made_here() -> None:
    assert abandoning(lambda: 5) == 5
    with pytest.raises(FetchError, match="gone"):
        abandoning(lambda: (_ for _ in ()).throw(FetchError("gone")))


def test_a_call_that_does_not_end_is_left_and_its_result_thrown_away(held: threading.Event) -> None:
    thrown: list[object] = []
    over = threading.Event()

    def call() -> str:
        held.wait(20)
        return "late"

    def dispose(result: str) -> None:
        thrown.append(result)
        over.set()

    assert GRACE <= cancelled_soon(lambda: abandoning(call, dispose)) < GRACE + 0.3
    assert not thrown
    held.set()
    assert over.wait(5)
    assert thrown == ["late"]


def test_a_call_that_knows_of_it_ends_first(held: threading.Event) -> None:
    """In its grace: nothing of it is left when the operation ends."""
    ended: list[bool] = []

    def call() -> None:
        try:
            cancellation.pause(20)
        finally:
            ended.append(True)

    assert cancelled_soon(lambda: abandoning(call)) < GRACE
    assert ended


def test_ctrl_c_leaves_it_too(held: threading.Event) -> None:
    """The signal is felt although the call is in another thread, and the call is told."""
    import signal

    told = threading.Event()

    def call() -> None:
        with current().waking(told.set):
            held.wait(20)

    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        abandoning(call)
    assert time.monotonic() - began < 0.1 + GRACE + 0.3
    assert told.is_set()


# --- a fetcher of a stranger's ---


class Stranger:
    """Waits in one of its methods, and knows nothing of operations."""

    def __init__(self, held: threading.Event, waits_in: str) -> None:
        self._held = held
        self._waits_in = waits_in
        self.closed = threading.Event()

    def wait(self, where: str) -> None:
        if where == self._waits_in:
            self._held.wait(20)

    @hookimpl
    def resolve(self, locator: str) -> RemoteArchive:
        self.wait("resolve")
        return RemoteArchive(locator, locator, "https", StrangersBlob(self))

    def read(self, size: int = -1) -> bytes:
        if self._waits_in == "read":
            assert self.closed.wait(20)
            raise OSError("it was closed")
        return b""

    def close(self) -> None:
        self.closed.set()
        if self._waits_in == "read":
            self._held.wait(20)  # and this may not hold up anybody


class StrangersBlob(RemoteBlobHooks):
    key, size, digest = "key", None, None

    def __init__(self, stranger: Stranger) -> None:
        self._stranger = stranger

    @hookimpl
    def open(self) -> Any:
        self._stranger.wait("open")
        return self._stranger

    @hookimpl
    def signature(self) -> None:
        self._stranger.wait("signature")


@pytest.mark.parametrize("where", ["resolve", "signature", "open", "read"])
def test_a_fetcher_that_knows_nothing_of_it(held: threading.Event, tmp_path: Path, where: str) -> None:
    stranger = Stranger(held, where)
    fetching = Fetching(lambda scheme: bound(FetcherHooks, stranger), str(tmp_path), kind={"x": "address"}.get)

    def fetch() -> None:
        remote = fetching.resolve("x://y", REQUEST)
        assert isinstance(remote, RemoteArchive)
        fetching.signature(remote)
        with fetching.download(remote.blob, "y") as download:
            download.read()

    if where == "read":  # who reads ends by itself in the end: as it is closed
        timer = threading.Timer(0.3, held.set)
        timer.start()
        assert cancelled_soon(fetch) < 1
        timer.join()
    else:
        assert cancelled_soon(fetch) < GRACE + 0.3
    with fetching.download(io_blob(), "y") as download:  # its lock is free
        assert download.read() == b"content"


def io_blob() -> Any:
    class Blob(RemoteBlobHooks):
        key, size, digest = "key", 7, None

        def open(self, offset: int) -> io.BytesIO:
            return io.BytesIO(b"content"[offset:])

    return Blob()


def test_what_came_before_is_kept(tmp_path: Path) -> None:
    operation = Cancellation()
    asked: list[int] = []

    class Blob(RemoteBlobHooks):
        key, size, digest = "key", 12, None

        def open(self, offset: int) -> io.BytesIO:
            asked.append(offset)
            return io.BytesIO(b"contentafter"[offset:])

    fetching = Fetching(lambda scheme: None, str(tmp_path))  # type: ignore[arg-type,return-value]

    def begin() -> None:
        with governing(operation), fetching.download(Blob(), "y") as download:
            assert download.read(7) == b"content"
            operation.cancel()
            download.read(7)

    with pytest.raises(Cancelled):
        begin()
    with fetching.download(Blob(), "y") as download:
        assert download.read() == b"contentafter"
    assert asked == [0, 7]
    assert os.listdir(tmp_path) == []
