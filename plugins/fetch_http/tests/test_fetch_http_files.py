"""Archives in files: what is no plain file is refused, and nothing blocks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kurma_fetch_http.file_archive import FileBlob, local_archive

from kurma_core.errors import FetchError, FetchNotFoundError


def test_a_files_key_changes_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "image.aci"
    file.write_bytes(b"one")
    before = FileBlob.of(os.fsencode(file)).key
    assert FileBlob.of(os.fsencode(file)).key == before
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert FileBlob.of(os.fsencode(file)).key != before


def test_names_need_not_be_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.aci"
    with open(path, "wb") as file:
        file.write(b"content")
    archive = local_archive(f"file://{tmp_path}/%FF.aci")
    with archive.blob.open(0) as stream:
        assert stream.read() == b"content"


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "image.aci"
    if kind == "directory":
        place.mkdir()
    else:
        os.mkfifo(place)
    with pytest.raises(FetchError, match=r"image\.aci: (a directory|not a regular file)") as caught:
        local_archive(f"file://{place}")
    assert "of keys" in str(caught.value.hint)


def test_the_signature_is_the_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "image.aci").write_bytes(b"image")
    archive = local_archive(f"file://{tmp_path}/image.aci")
    assert archive.blob.signature() is None
    (tmp_path / "image.aci.asc").write_bytes(b"signature")
    found = archive.blob.signature()
    assert found is not None
    assert (found.data, found.over) == (b"signature", "archive")


def test_early_signatures_are_over_the_tar_and_come_last(tmp_path: Path) -> None:
    (tmp_path / "image.aci").write_bytes(b"image")
    for name, over in (("image.aci.sig", "tar"), ("image.sig", "tar"), ("image.aci.asc", "archive")):
        (tmp_path / name).write_bytes(name.encode())
        found = local_archive(f"file://{tmp_path}/image.aci").blob.signature()
        assert found is not None
        assert (found.data, found.over, found.url) == (name.encode(), over, f"{tmp_path}/{name}")


def test_something_huge_is_no_signature(tmp_path: Path) -> None:
    (tmp_path / "image.aci").write_bytes(b"image")
    with open(tmp_path / "image.aci.asc", "wb") as file:
        file.truncate(2 << 20)
    with pytest.raises(FetchError, match="larger than a signature can be"):
        local_archive(f"file://{tmp_path}/image.aci").blob.signature()


def test_a_part_of_the_path_that_is_a_file_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FetchNotFoundError, match="no such file"):
        local_archive(f"file://{tmp_path}/file/image.aci")
