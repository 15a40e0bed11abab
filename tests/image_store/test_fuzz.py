"""A5: whatever an archive holds, the answer is an image or an error of ours, and nothing stays behind."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kurma_testing.graphs import examples

from kurma_core.errors import ImageError, KurmaError
from kurma_core.image_store import ImageStore, Limits
from tests.kit.archives import directory, everything_below, file, hardlink, image, symlink, validate

SPARSE = {
    "GNU.sparse.major": "0",
    "GNU.sparse.minor": "1",
    "GNU.sparse.map": "0,3,4096,2",
    "GNU.sparse.size": "9000",
}
SEED = image(
    directory("rootfs/d", pax_headers={"SCHILY.xattr.user.x": "1", "mtime": "1.5"}),
    file("rootfs/d/f", b"hello" * 200),
    symlink("rootfs/l", "d/f"),
    hardlink("rootfs/h", "rootfs/d/f"),
    file("rootfs/s", b"abcde", pax_headers=SPARSE),
    file("rootfs/" + "n" * 120, b""),
    file("rootfs/last", pax_headers={"SCHILY.acl.access": "user::rw-,user:7:r--,group::r--,mask::r--,other::r--"}),
)
HEADERS = [at for at in range(0, len(SEED), 512) if SEED[at + 257 : at + 262] == b"ustar"]
SMALL = Limits(total_size=1 << 24, entries=100)

CHANGES = st.lists(
    st.tuples(st.sampled_from(HEADERS), st.integers(0, 1023), st.binary(min_size=1, max_size=12)),
    min_size=1,
    max_size=4,
)


def changed(changes: list[tuple[int, int, bytes]]) -> bytes:
    """The seed with some bytes replaced, and checksums put right, so that the change is not noticed by those."""
    archive = bytearray(SEED)
    for header, offset, content in changes:
        archive[header + offset : header + offset + len(content)] = content
    for header in HEADERS:
        block = archive[header : header + 512]
        block[148:156] = b"        "
        archive[header + 148 : header + 156] = b"%06o\0 " % sum(block)
    return bytes(archive)


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    path = tempfile.mkdtemp()
    yield path
    shutil.rmtree(path)


@settings(max_examples=examples(25), deadline=None)
@given(CHANGES)
def test_changed_headers(place: str, changes: list[tuple[int, int, bytes]]) -> None:
    archive = changed(changes)
    store = ImageStore(f"{place}/images", limits=SMALL)
    taken = _error_of(lambda: _stage(store, archive))
    assert os.listdir(store.path("tmp")) == []
    assert set(everything_below(place)) == {"images", *(f"images/{name}" for name in os.listdir(store.root))}
    valid = _error_of(lambda: validate(io.BytesIO(archive), SMALL))
    for error in (taken, valid):
        assert error is None or "\n" not in str(error)
    # What validation refuses is never taken; only the file system can refuse more.
    assert valid is None or taken is not None


def _stage(store: ImageStore, archive: bytes) -> None:
    with store.stage_archive(io.BytesIO(archive)):
        pass


def _error_of(action: Callable[[], object]) -> KurmaError | None:
    try:
        action()
    except KurmaError as error:
        return error
    return None


@settings(max_examples=examples(40), deadline=None)
@given(st.binary(max_size=3000), st.sampled_from(["", "gzip", "bzip2", "xz", "zstd", "tar"]))
def test_any_bytes(place: str, content: bytes, kind: str) -> None:
    magic = {
        "gzip": b"\x1f\x8b\x08\0",
        "bzip2": b"BZh9",
        "xz": b"\xfd7zXZ\0",
        "zstd": b"\x28\xb5\x2f\xfd",
        "tar": SEED[:2048],
    }
    archive = magic.get(kind, b"") + content
    store = ImageStore(f"{place}/images", limits=SMALL)
    with pytest.raises(ImageError), store.stage_archive(io.BytesIO(archive)):
        pytest.fail("staged")
    assert os.listdir(store.path("tmp")) == []
