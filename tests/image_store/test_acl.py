"""A3: POSIX access control lists."""

from __future__ import annotations

import io
import os
import struct

import pytest

from kurma_core.errors import ArchiveError
from kurma_core.image_store import ImageStore
from kurma_core.image_store.acl import fitting, from_text
from tests.image_store.making import LOCAL, file, image

TEXT = "user::rw-,user:1000:rwx,group::r--,mask::rwx,other::---"
ENTRIES = [(1, 6, 0xFFFFFFFF), (2, 7, 1000), (4, 4, 0xFFFFFFFF), (0x10, 7, 0xFFFFFFFF), (0x20, 0, 0xFFFFFFFF)]
VALUE = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in ENTRIES)


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        TEXT.replace(",", "\n"),
        "o::---,m::rwx,g::r--,u:1000:rwx,u::rw-",
        TEXT.replace("1000:rwx", "lisa:rwx:1000"),
    ],
)
def test_text(text: str) -> None:
    assert from_text(text.encode()) == VALUE


@pytest.mark.parametrize("text", ["nonsense", "user:lisa:rwx", "user::rwz", "friend::rwx", "user::", "mask:3:rwx"])
def test_malformed(text: str) -> None:
    if text == "user::":
        assert from_text(text.encode())[4:] == struct.pack("<HHI", 1, 0, 0xFFFFFFFF)
        return
    with pytest.raises(ArchiveError, match="access control list"):
        from_text(text.encode())


def test_the_mode_wins() -> None:
    assert fitting(VALUE, 0o670) == VALUE
    assert fitting(VALUE, 0o640)[4 + 3 * 8 :][:8] == struct.pack("<HHI", 0x10, 4, 0xFFFFFFFF)  # type: ignore[index]
    assert fitting(from_text(b"user::rw-,group::r--,other::r--"), 0o644) is None


def test_extracted(tmp_path: object) -> None:
    store = ImageStore(f"{tmp_path}/images")
    archive = image(file("rootfs/f", mode=0o670, pax_headers={"SCHILY.acl.access": TEXT}))
    with store.stage_archive(io.BytesIO(archive)) as staged:
        image_id = staged.commit(LOCAL).id
    (layer,) = store.layers(image_id)
    assert os.getxattr(f"{layer.path}/f", "system.posix_acl_access") == VALUE
    assert os.stat(f"{layer.path}/f").st_mode & 0o7777 == 0o670
    store.verify(image_id, deep=True)
