"""A3: POSIX access control lists."""

from __future__ import annotations

import io
import os
import struct

import pytest

from kurma_core.errors import ArchiveError
from kurma_core.image_store import ImageStore, Limits
from kurma_core.image_store.archive_stream import ArchiveStream
from kurma_core.image_store.extended_headers import ACL_ACCESS, acl_from_text, fitting_acl
from kurma_core.image_store.tar_reader import TarReader
from tests.kit.archives import LOCAL, file, image

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
    assert acl_from_text(text.encode()) == VALUE


@pytest.mark.parametrize("text", ["nonsense", "user:lisa:rwx", "user::rwz", "friend::rwx", "user::", "mask:3:rwx"])
def test_malformed(text: str) -> None:
    if text == "user::":
        assert acl_from_text(text.encode())[4:] == struct.pack("<HHI", 1, 0, 0xFFFFFFFF)
        return
    with pytest.raises(ArchiveError, match="access control list"):
        acl_from_text(text.encode())


def test_names() -> None:
    """``root`` and the entry's own owner are known; of anybody else the numbers must be there."""
    text = "user::rw-\nuser:root:r--\nuser:lisa:rwx\ngroup::r--\n"
    text += "group:root:r--\ngroup:staff:rw-\nmask::rwx\nother::---"
    known = acl_from_text(text.encode(), {b"root": 0, b"lisa": 1000}, {b"root": 0, b"staff": 50})
    assert known == acl_from_text(
        text.replace("lisa", "1000").replace("staff", "50").replace("root", "0").encode()
    )
    with pytest.raises(ArchiveError, match="access control list for 'lisa'") as caught:
        acl_from_text(text.encode())
    assert "--xattrs" in (caught.value.hint or "")

    def read(**values: object) -> bytes | None:
        archive = image(file("rootfs/f", mode=0o670, **values))
        with ArchiveStream(io.BytesIO(archive), Limits()) as stream:
            *_, entry = TarReader(stream, Limits(), strict=True)
        return entry.attributes.get(ACL_ACCESS)

    headers = {"SCHILY.acl.access": text}
    assert read(uname="lisa", gname="staff", uid=1000, gid=50, pax_headers=headers) == known
    # What has a long name is in the extended header too.
    long = {"SCHILY.acl.access": text.replace("lisa", "l" * 40), "uname": "l" * 40}
    assert read(uname="lisa", gname="staff", uid=1000, gid=50, pax_headers=long) == known
    with pytest.raises(ArchiveError, match="for 'staff'"):
        read(uname="lisa", gname="users", uid=1000, gid=50, pax_headers=headers)
    # GNU tar with --acls and --xattrs writes both.
    both = {**headers, "SCHILY.xattr.system.posix_acl_access": known.decode("utf-8", "surrogateescape")}
    assert read(pax_headers=both) == known


def test_the_mode_wins() -> None:
    assert fitting_acl(VALUE, 0o670) == VALUE
    assert fitting_acl(VALUE, 0o640)[4 + 3 * 8 :][:8] == struct.pack("<HHI", 0x10, 4, 0xFFFFFFFF)  # type: ignore[index]
    assert fitting_acl(acl_from_text(b"user::rw-,group::r--,other::r--"), 0o644) is None


def test_extracted(tmp_path: object) -> None:
    store = ImageStore(f"{tmp_path}/images")
    archive = image(file("rootfs/f", mode=0o670, pax_headers={"SCHILY.acl.access": TEXT}))
    with store.stage_archive(io.BytesIO(archive)) as staged:
        image_id = staged.commit(LOCAL).id
    (layer,) = store.layers(image_id)
    assert os.getxattr(f"{layer.path}/f", "system.posix_acl_access") == VALUE
    assert os.stat(f"{layer.path}/f").st_mode & 0o7777 == 0o670
    store.verify(image_id, deep=True)
