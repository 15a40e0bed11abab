"""A1, A3: every dialect of tar that builders write, and every compression; from GNU tar where it has one."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import subprocess
import tarfile

import pytest
import zstandard

from kurma_core.errors import ArchiveError
from kurma_core.image_store import ImageStore, Limits
from kurma_core.image_store.archive_stream import ArchiveStream
from kurma_core.image_store.tar_entries import Entry
from kurma_core.image_store.tar_reader import TarReader
from tests.kit.archives import MANIFEST, directory, file, hardlink, image, manifest_member, symlink, tar


def read(archive: bytes, *, strict: bool = True) -> list[tuple[Entry, bytes]]:
    limits = Limits()
    with ArchiveStream(io.BytesIO(archive), limits) as stream:
        reader = TarReader(stream, limits, strict=strict)
        return [(entry, b"".join(reader.content_of(entry))) for entry in reader]


def named(archive: bytes) -> dict[bytes, tuple[Entry, bytes]]:
    return {entry.name.rstrip(b"/"): (entry, content) for entry, content in read(archive)}


# --- what the standard library writes ----------------------------------------------------------------------------


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_formats(format: int) -> None:
    long = "rootfs/" + "/".join(["long" * 10] * 3) + "/x"
    found = named(
        image(
            directory("rootfs/d", mode=0o1777),
            file("rootfs/f", b"hello", mode=0o4755, uid=7, gid=8, mtime=123),
            file(long, b"y" * 1000),
            symlink("rootfs/s", "../nowhere"),
            hardlink("rootfs/h", "rootfs/f"),
            format=format,
        )
    )
    entry, content = found[b"rootfs/f"]
    assert (entry.mode, entry.uid, entry.gid, entry.mtime, content) == (0o4755, 7, 8, 123 * 10**9, b"hello")
    assert found[b"rootfs/d"][0].mode == 0o1777
    assert found[long.encode()][1] == b"y" * 1000
    assert found[b"rootfs/s"][0].target == b"../nowhere"
    assert (found[b"rootfs/h"][0].kind, found[b"rootfs/h"][0].target) == ("h", b"rootfs/f")


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_large_numbers(format: int) -> None:
    ((entry, _),) = read(tar([file("f", uid=3_000_000_000, gid=2**31, mtime=-5)], format))
    assert (entry.uid, entry.gid, entry.mtime) == (3_000_000_000, 2**31, -5 * 10**9)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_links(format: int) -> None:
    name, target = "n" * 200 + "/" + "m" * 100, "t" * 300
    ((entry, _),) = read(tar([symlink(name, target)], format))
    assert (entry.name, entry.target) == (name.encode(), target.encode())


def test_names_are_bytes() -> None:
    ((entry, _),) = read(tar([symlink("caf\udce9", "\udcff")], tarfile.GNU_FORMAT))
    assert (entry.name, entry.target) == (b"caf\xe9", b"\xff")


def test_nanoseconds() -> None:
    ((entry, _),) = read(tar([file("f", pax_headers={"mtime": "1.123456789987"})]))
    assert entry.mtime == 1_123_456_789
    ((entry, _),) = read(tar([file("f", pax_headers={"mtime": "-1.5"})]))
    assert entry.mtime == -1_500_000_000


def test_attributes_in_both_ways() -> None:
    headers = {"SCHILY.xattr.user.plain": "a=b\nc", "LIBARCHIVE.xattr.user.per%20cent": "AAEC"}
    ((entry, _),) = read(tar([file("f", pax_headers=headers)]))
    assert entry.attributes == {b"user.plain": b"a=b\nc", b"user.per cent": b"\0\1\2"}


def test_global_headers_hold_until_taken_back() -> None:
    archive = tar([file("a"), file("b", pax_headers={"gid": "9"})], pax_headers={"gid": "77", "comment": "x"})
    assert [entry.gid for entry, _ in read(archive)] == [77, 9]


def test_old_tars_say_directory_with_a_slash() -> None:
    assert [entry.kind for entry, _ in read(tar([file("d/", b"", type=tarfile.AREGTYPE)]))] == ["d"]


def test_content_of_links_is_not_looked_for() -> None:
    """Some writers give a hard link the size of what it links to, and no content."""
    info, _ = hardlink("h", "f")
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = b"00000001750\0"
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    archive = tar([file("f", b"x" * 1000)])[:-8192].rstrip(b"\0")
    archive += bytes(-len(archive) % 512) + bytes(block) + tar([file("after")])
    assert [entry.name for entry, _ in read(archive)] == [b"f", b"h", b"after"]


# --- what GNU tar writes -----------------------------------------------------------------------------------------


def gnu_tar(path: str, *options: str, names: tuple[str, ...] = ("manifest", "rootfs")) -> bytes:
    command = ["tar", "-C", path, *options, "-cf", "-", *names]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


@pytest.fixture
def tree(tmp_path: object) -> str:
    import json

    path = f"{tmp_path}/tree"
    os.makedirs(f"{path}/rootfs/bin")
    with open(f"{path}/manifest", "w") as out:
        json.dump(MANIFEST, out)
    with open(f"{path}/rootfs/bin/tool", "wb") as out:
        out.write(os.urandom(5000))
    os.chmod(f"{path}/rootfs/bin/tool", 0o755)
    os.link(f"{path}/rootfs/bin/tool", f"{path}/rootfs/bin/other")
    os.symlink("bin/tool", f"{path}/rootfs/link")
    os.utime(f"{path}/rootfs/bin/tool", ns=(0, 1_500_000_000_123_456_789))
    return path


def sparse_file(path: str) -> bytes:
    """A file with many stretches, more than a header's four, an odd one, and a hole at its end."""
    with open(path, "wb") as out:
        for number in range(40):
            out.seek(number * 65536)
            out.write(bytes([number + 1]) * 4096)
        out.seek(41 * 65536 + 8192)
        out.write(b"odd")
        out.truncate(50 * 65536 + 1)
    with open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize("format", ["gnu", "oldgnu", "ustar", "posix"])
def test_gnu_tar(format: str, tree: str, store: ImageStore) -> None:
    archive = gnu_tar(tree, f"--format={format}")
    with store.stage_archive(io.BytesIO(archive)) as staged:
        rootfs = f"{os.path.dirname(staged.archive_path)}/layer/rootfs"
        for name in ("bin/tool", "bin/other"):
            with open(f"{rootfs}/{name}", "rb") as found, open(f"{tree}/rootfs/{name}", "rb") as made:
                assert found.read() == made.read()
        assert os.stat(f"{rootfs}/bin/tool").st_ino == os.stat(f"{rootfs}/bin/other").st_ino
        assert os.readlink(f"{rootfs}/link") == "bin/tool"
        nanoseconds = 123_456_789 if format == "posix" else 0
        assert os.stat(f"{rootfs}/bin/tool").st_mtime_ns == 1_500_000_000_000_000_000 + nanoseconds


SPARSE = [
    "--format=gnu",
    "--format=posix --sparse-version=0.0",
    "--format=posix --sparse-version=0.1",
    "--format=posix",
]


@pytest.mark.parametrize("options", SPARSE)
def test_sparse_files(options: str, tree: str, store: ImageStore) -> None:
    content = sparse_file(f"{tree}/rootfs/holes")
    archive = gnu_tar(tree, "--sparse", *options.split())
    assert len(archive) < len(content)
    with store.stage_archive(io.BytesIO(archive)) as staged:
        path = f"{os.path.dirname(staged.archive_path)}/layer/rootfs/holes"
        with open(path, "rb") as file:
            assert file.read() == content
        assert os.stat(path).st_blocks * 512 < len(content) // 2
        from tests.kit.archives import LOCAL

        image_id = staged.commit(LOCAL).id
    store.verify(image_id, deep=True)


@pytest.mark.parametrize("options", SPARSE)
def test_file_that_is_all_hole(options: str, tree: str, store: ImageStore) -> None:
    with open(f"{tree}/rootfs/holes", "wb") as file:
        file.truncate(1 << 20)
    with store.stage_archive(io.BytesIO(gnu_tar(tree, "--sparse", *options.split()))) as staged:
        path = f"{os.path.dirname(staged.archive_path)}/layer/rootfs/holes"
        assert (os.stat(path).st_size, os.stat(path).st_blocks) == (1 << 20, 0)


def test_gnu_attributes(tree: str, store: ImageStore) -> None:
    os.setxattr(f"{tree}/rootfs/bin/tool", "user.note", b"\x00binary\nvalue=")
    archive = gnu_tar(tree, "--format=posix", "--xattrs")
    with store.stage_archive(io.BytesIO(archive)) as staged:
        path = f"{os.path.dirname(staged.archive_path)}/layer/rootfs/bin/tool"
        assert os.getxattr(path, "user.note") == b"\x00binary\nvalue="


def test_dot_prefix_and_any_order(tree: str, store: ImageStore) -> None:
    archive = gnu_tar(tree, names=("./rootfs", "./manifest"))
    with store.stage_archive(io.BytesIO(archive)) as staged:
        assert staged.manifest.name == "example.com/thing"
    with store.stage_archive(io.BytesIO(gnu_tar(tree, names=(".",)))) as staged:
        assert staged.manifest_bytes.startswith(b"{")


# --- compression -------------------------------------------------------------------------------------------------

PACKERS = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "gzip, several members": lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:]),
    "gzip, padded": lambda data: gzip.compress(data) + bytes(1000),
    "bzip2": bz2.compress,
    "bzip2, several streams": lambda data: bz2.compress(data[:1000]) + bz2.compress(data[1000:]),
    "xz": lzma.compress,
    "xz, several streams": lambda data: lzma.compress(data[:1000]) + bytes(4) + lzma.compress(data[1000:]),
    "zstd": zstandard.compress,
    "zstd, several frames": lambda data: zstandard.compress(data[:1000]) + zstandard.compress(data[1000:]),
    "zstd, skippable frame": lambda data: struct.pack("<II", 0x184D2A51, 3) + b"abc" + zstandard.compress(data),
}


@pytest.mark.parametrize("packer", PACKERS)
def test_compression_is_told_by_content(packer: str, store: ImageStore) -> None:
    import hashlib

    archive = image(file("rootfs/f", os.urandom(100_000) + bytes(3_000_000)))
    packed = PACKERS[packer](archive)
    with store.stage_archive(io.BytesIO(packed)) as staged:
        assert staged.id == f"sha512-{hashlib.sha512(archive).hexdigest()}"
        assert staged.size == len(archive)
        with open(staged.archive_path, "rb") as kept:
            assert kept.read() == packed


@pytest.mark.parametrize("packer", PACKERS)
def test_truncated_anywhere(packer: str, store: ImageStore) -> None:
    """Cut off at any interesting place, the archive is refused and nothing stays."""
    archive = image(file("rootfs/f", os.urandom(3000)), file("rootfs/g", b""), symlink("rootfs/" + "l" * 150, "x"))
    end = len(archive.rstrip(b"\0"))
    packed = PACKERS[packer](archive)
    if packer == "plain":
        cuts = {cut for at in range(0, end + 512, 512) for cut in (at, at + 1, at + 511) if cut <= end}
    else:
        whole = packed.rstrip(b"\0") if packer == "gzip, padded" else packed
        cuts = {0, 1, 5, 10, 20, 50, 100, len(whole) // 2, len(whole) - 9, len(whole) - 5, len(whole) - 1}
    for cut in sorted(cuts):
        with pytest.raises(ArchiveError), store.stage_archive(io.BytesIO(packed[:cut])):
            pytest.fail(f"staged although cut off at {cut}")
        assert os.listdir(store.path("tmp")) == []


@pytest.mark.parametrize("packer", ["gzip", "bzip2", "xz", "zstd"])
def test_corrupt_streams(packer: str, store: ImageStore) -> None:
    compress = {**PACKERS, "zstd": zstandard.ZstdCompressor(write_checksum=True).compress}[packer]
    packed = bytearray(compress(image(file("rootfs/f", os.urandom(3000)))))
    packed[len(packed) // 2] ^= 0x55
    with pytest.raises(ArchiveError, match="corrupt"), store.stage_archive(io.BytesIO(bytes(packed))):
        pytest.fail("a corrupt archive was staged")


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (b"", "empty"),
        (b"hello", "neither a tar"),
        (os.urandom(1) * 0 + b"\x00" * 100, "neither a tar"),
        (tar([]), "no `manifest`"),
        (tar([manifest_member()]), "no directory `rootfs`"),
        (tar([manifest_member(), file("rootfs/f")]), "no directory `rootfs`"),
        (tar([directory("rootfs")]), "no `manifest`"),
        (image() + b"more" * 128, "follows its end marker"),
        (gzip.compress(image()) + b"junk", "corrupt"),
        (image(file("rootfs/f", type=b"Z")), "unknown type"),
        (image(file("rootfs/f", pax_headers={"mtime": "soon"})), "bad time"),
        (image(file("rootfs/f", pax_headers={"uid": "-4"})), "bad user or group"),
        (b"\x8c\x0d\x04\x09\x03\x02" + b"x" * 600, "encrypted with OpenPGP"),
        (b"\xc3\x0d\x04\x09\x03\x02" + b"x" * 600, "encrypted with OpenPGP"),
        (b"-----BEGIN PGP MESSAGE-----\n" + b"x" * 600, "encrypted with OpenPGP"),
    ],
)
def test_what_is_no_image(archive: bytes, message: str, store: ImageStore) -> None:
    with pytest.raises(ArchiveError, match=message), store.stage_archive(io.BytesIO(archive)):
        pytest.fail("staged")
    assert os.listdir(store.path("tmp")) == []


def test_a_header_with_a_wrong_checksum(store: ImageStore) -> None:
    archive = bytearray(image(file("rootfs/f")))
    archive[archive.index(b"rootfs/f") + 1] ^= 1
    with pytest.raises(ArchiveError, match="checksum"), store.stage_archive(io.BytesIO(bytes(archive))):
        pytest.fail("staged")


def test_reading_errors_are_the_archives(store: ImageStore) -> None:
    class Broken(io.RawIOBase):
        def read(self, count: int = -1) -> bytes:
            raise ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(ArchiveError, match="cannot read the archive: Connection reset"):
        with store.stage_archive(Broken()):  # type: ignore[arg-type]
            pytest.fail("staged")
    assert os.listdir(store.path("tmp")) == []


def test_an_interrupt_ends_the_thread_and_leaves_nothing(store: ImageStore) -> None:
    import threading

    archive = image(file("rootfs/f", os.urandom(3_000_000)))

    class Interrupted(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            if self.tell() > 1_000_000:
                raise KeyboardInterrupt
            return super().read(count)

    with pytest.raises(KeyboardInterrupt), store.stage_archive(Interrupted(archive)):
        pytest.fail("staged")
    assert os.listdir(store.path("tmp")) == []
    assert [thread.name for thread in threading.enumerate() if thread.name == "kurma-archive"] == []
