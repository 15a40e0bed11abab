"""A download is checked, goes on after any kind of death, and is made once by whoever asks at once (S5)."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled, FetchDigestError, FetchError, FetchTruncatedError, StoreError
from kurma_core.fetching import Fetching
from kurma_core.hookspecs.fetcher import FetcherHooks, RemoteBlobHooks

CONTENT = bytes(range(250)) * 4000


class Blob(RemoteBlobHooks):
    """A source in memory that remembers from where it was read, and may break."""

    def __init__(self, content: bytes = CONTENT, *, key: str | None = "blob", cut: int | None = None) -> None:
        self.content = content
        self.key = key
        self.size: int | None = len(content)
        self.digest: str | None = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.cut = cut
        self.offsets: list[int] = []

    def open(self, offset: int) -> BinaryIO:
        self.offsets.append(offset)
        return _Stream(self.content[offset:], self.cut)


class _Stream(io.BytesIO):
    def __init__(self, content: bytes, cut: int | None) -> None:
        super().__init__(content if cut is None else content[:cut])
        self._cut = cut is not None

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if not data and self._cut:
            raise FetchTruncatedError("the connection broke")
        return data


def no_driver(scheme: str) -> FetcherHooks:
    raise AssertionError(scheme)


@pytest.fixture
def fetching(tmp_path: Path) -> Fetching:
    return Fetching(no_driver, str(tmp_path / "partial"))


def partials(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "partial").iterdir()) if (tmp_path / "partial").exists() else []


def test_bytes_come_through_and_nothing_stays(fetching: Fetching, tmp_path: Path) -> None:
    with fetching.download(Blob(), "blob") as download:
        assert download.read() == CONTENT
        assert not download.waited
    assert partials(tmp_path) == []


def test_what_a_broken_download_left_is_used(fetching: Fetching, tmp_path: Path) -> None:
    with pytest.raises(FetchTruncatedError), fetching.download(Blob(cut=300_000), "blob") as download:
        download.read()
    assert [file.stat().st_size for file in partials(tmp_path)] == [300_000]
    again = Blob()
    with fetching.download(again, "blob") as download:
        assert download.read() == CONTENT
    assert again.offsets == [300_000]
    assert partials(tmp_path) == []


def test_what_is_whole_already_is_not_asked_for(fetching: Fetching, tmp_path: Path) -> None:
    with pytest.raises(StoreError), fetching.download(Blob(), "blob") as download:  # noqa: PT012
        for _ in range(len(CONTENT) // 1000):
            download.read(1000)
        raise StoreError("the store's disk is full")
    again = Blob()
    with fetching.download(again, "blob") as download:
        assert download.read() == CONTENT
    assert again.offsets == []


def test_checked_bytes_do_not_wait_for_the_disk(fetching: Fetching, tmp_path: Path) -> None:
    """The partial file is empty once all was read, and stays locked until the bytes are stored."""
    with fetching.download(Blob(), "blob") as download:
        download.read()
        (partial,) = partials(tmp_path)
        assert partial.stat().st_size == 0


def test_a_killed_process_leaves_what_it_had(tmp_path: Path) -> None:
    """kill -9 between two reads: no clean-up of any kind runs."""
    script = """
import os, sys
sys.path.insert(0, sys.argv[2])
from test_download import Blob, Fetching, no_driver
with Fetching(no_driver, sys.argv[1]).download(Blob(), "blob") as download:
    download.read(200_000)
    os.kill(os.getpid(), 9)
"""
    here = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "partial"), here], check=False)
    assert done.returncode == -9
    again = Blob()
    with Fetching(no_driver, str(tmp_path / "partial")).download(again, "blob") as download:
        assert download.read() == CONTENT
    assert again.offsets == [200_000]


def test_wrong_bytes_are_not_taken_and_not_kept(fetching: Fetching, tmp_path: Path) -> None:
    blob = Blob()
    blob.content = CONTENT[:-1] + b"?"
    taken = []
    with (  # noqa: PT012
        pytest.raises(FetchDigestError, match="its digest is sha256:"),
        fetching.download(blob, "blob") as download,
    ):
        while data := download.read(1 << 16):
            taken.append(data)
        taken.append(b"the end")
    assert b"the end" not in taken, "the reader must not see an end as of good bytes"
    assert partials(tmp_path) == []


def test_a_partial_file_that_was_tampered_with_is_found_out(fetching: Fetching, tmp_path: Path) -> None:
    with pytest.raises(FetchTruncatedError), fetching.download(Blob(cut=1000), "blob") as download:
        download.read()
    partials(tmp_path)[0].write_bytes(b"x" * 1000)
    with pytest.raises(FetchDigestError), fetching.download(Blob(), "blob") as download:
        download.read()
    with fetching.download(Blob(), "blob") as download:
        assert download.read() == CONTENT


def test_too_long_and_too_short(fetching: Fetching) -> None:
    long, short = Blob(digest_free := CONTENT), Blob(CONTENT)
    long.digest = short.digest = None
    long.size, short.size = len(digest_free) - 1, len(CONTENT) + 1
    with pytest.raises(FetchDigestError, match="longer than"), fetching.download(long, "b") as download:
        download.read()
    with pytest.raises(FetchTruncatedError, match="ended after"), fetching.download(short, "b") as download:
        download.read()


def test_finish_checks_what_the_reader_left(fetching: Fetching) -> None:
    blob = Blob()
    blob.content = CONTENT[:-1] + b"?"
    with pytest.raises(FetchDigestError), fetching.download(blob, "blob") as download:  # noqa: PT012
        download.read(10)
        download.finish()


def test_a_source_that_changed_is_read_from_the_start(fetching: Fetching) -> None:
    class Changed(Blob):
        def open(self, offset: int) -> BinaryIO:
            if offset:
                raise FetchTruncatedError("changed", changed=True)
            return super().open(offset)

    first = Blob(CONTENT[::-1], cut=1000)
    with pytest.raises(FetchTruncatedError), fetching.download(first, "blob") as download:
        download.read()
    with fetching.download(Changed(), "blob") as download:
        assert download.read() == CONTENT


def test_who_asks_meanwhile_waits(fetching: Fetching) -> None:
    order: list[str] = []
    inside = threading.Event()

    def second() -> None:
        inside.wait()
        with fetching.download(Blob(), "blob") as download:
            order.append(f"second, waited {download.waited}")

    thread = threading.Thread(target=second)
    thread.start()
    with fetching.download(Blob(), "blob") as download:
        inside.set()
        time.sleep(0.15)
        download.read()
        order.append("first")
    thread.join()
    assert order == ["first", "second, waited True"]


def test_waiting_can_be_given_up(fetching: Fetching) -> None:
    operation = Cancellation()
    waits = threading.Event()
    fetching.note = lambda text: waits.set()
    caught: list[BaseException] = []

    def second() -> None:
        with governing(operation):
            try:
                with fetching.download(Blob(), "blob"):
                    pass
            except Cancelled as error:
                caught.append(error)

    with fetching.download(Blob(), "blob") as first:
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(5)
        operation.cancel()
        thread.join(1)
        assert not thread.is_alive()
        assert first.read() == CONTENT, "who had it is not concerned"
    assert len(caught) == 1


def test_files_of_this_machine_leave_no_partial(fetching: Fetching, tmp_path: Path) -> None:
    with pytest.raises(FetchTruncatedError), fetching.download(Blob(cut=10), "blob", keep=False) as download:
        download.read()
    assert partials(tmp_path) == []


def test_progress_has_the_size_and_counts_all_bytes(fetching: Fetching) -> None:
    class Counter:
        def __init__(self) -> None:
            self.calls: list[object] = []
            self.count = 0

        def start(self, what: str, total: int | None, kind: str = "bytes") -> None:
            self.calls.append((what, total))

        def skip(self, count: int) -> None:
            self.calls.append(count)

        def advance(self, count: int) -> None:
            self.count += count

        def finish(self) -> None:
            self.calls.append("finish")

    counter = Counter()
    with fetching.download(Blob(), "blob", progress=counter) as download:
        download.read()
    assert counter.calls == [("blob", len(CONTENT)), "finish"]
    assert counter.count == len(CONTENT)
    with pytest.raises(FetchTruncatedError), fetching.download(Blob(cut=10), "blob") as download:
        download.read()
    counter = Counter()
    with fetching.download(Blob(), "blob", progress=counter) as download:
        download.read()
    assert counter.calls == [("blob", len(CONTENT)), 10, "finish"], "what was there is told apart"
    assert counter.count == len(CONTENT) - 10


def test_names_say_how_else_an_image_may_be_had(tmp_path: Path) -> None:
    """By the examples that the installed fetchers declare."""
    from kurma_core.hookspecs.fetcher import FetchRequest

    examples = ("memo:NAME", "https://HOST/FILE.aci", "https://HOST/FILE.aci")
    fetching = Fetching(no_driver, str(tmp_path / "partial"), examples=lambda: examples, names="appc")
    with pytest.raises(FetchError, match="no plugin finds images by name") as caught:
        fetching.resolve("example.com/app:1.0", FetchRequest("linux", "amd64"))
    assert caught.value.hint == "name a path or an address: ./FILE.aci, memo:NAME, https://HOST/FILE.aci"
