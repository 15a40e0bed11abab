"""A3, A4, A6: what is built from a tree and extracted again is that tree; and the same bytes each time."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kurma_testing.graphs import examples

from kurma_core.errors import ArchiveError, UsageError
from kurma_core.image_store import ImageStore
from kurma_core.image_store.builder import TarWriter, add_manifest, build_archive
from kurma_core.image_store.tar_entries import CHARACTER, DIRECTORY, FILE, HARDLINK, SYMLINK, Entry
from tests.kit.archives import LOCAL, MANIFEST, stage_and_commit, validate

NAMES = st.one_of(
    st.sampled_from(
        [b"a", b"b", b"x" * 90, b"y" * 255, b"caf\xc3\xa9", b"caf\xe9", b"new\nline", b"back\\n", b" "]
    ),
    st.binary(min_size=1, max_size=12).filter(
        lambda name: name not in (b".", b"..") and not set(name) & set(b"/\0")
    ),
)
TIMES = st.integers(min_value=-(2**31) * 10**9, max_value=2**33 * 10**9)
ATTRIBUTES = st.dictionaries(
    st.sampled_from([b"user.a", b"user.b c=d", b"user.%3D%25", b"user.caf\xc3\xa9"]),
    st.binary(max_size=40),
    max_size=2,
)
FILES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["file", "file", "link", "hard", "fifo", "directory"]),
        "content": st.binary(max_size=2000),
        "mode": st.integers(min_value=0, max_value=0o7777),
        "time": TIMES,
        "target": st.binary(min_size=1, max_size=150).filter(lambda target: 0 not in target),
        "attributes": ATTRIBUTES,
        "inner": st.dictionaries(NAMES, st.binary(max_size=10), max_size=3),
    }
)


def make(root: str, tree: dict[bytes, dict[str, object]]) -> None:
    """Make a tree; modes last, since they may forbid more."""
    top = os.fsencode(root)
    plain: list[bytes] = []
    for name, what in tree.items():
        path = os.path.join(top, name)
        kind = what["kind"]
        if kind == "link":
            os.symlink(what["target"], path)  # type: ignore[arg-type]
            os.utime(path, ns=(0, what["time"]), follow_symlinks=False)  # type: ignore[arg-type]
            continue
        if kind == "hard" and plain:
            os.link(plain[-1], path)
            continue
        if kind == "directory":
            os.mkdir(path)
            for inner, content in what["inner"].items():  # type: ignore[attr-defined]
                with open(os.path.join(path, inner), "wb") as file:
                    file.write(content)
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            with open(path, "wb") as file:
                file.write(what["content"])  # type: ignore[arg-type]
            plain.append(path)
        if kind != "fifo":
            for key, value in what["attributes"].items():  # type: ignore[attr-defined]
                os.setxattr(path, key, value)
        os.chmod(path, what["mode"])  # type: ignore[arg-type]
        os.utime(path, ns=(0, what["time"]))  # type: ignore[arg-type]


def describe(root: str) -> dict[bytes, object]:
    """All that must survive. Inodes are numbered by their first name, so that hard links compare."""
    top = os.fsencode(root)
    found: dict[bytes, object] = {}
    first: dict[int, bytes] = {}
    paths = [top]
    while paths:
        path = paths.pop(0)
        status = os.lstat(path)
        kind = stat.S_IFMT(status.st_mode)
        below = sorted(os.path.join(path, name) for name in os.listdir(path)) if kind == stat.S_IFDIR else []
        paths = below + paths
        content: object = None
        if kind == stat.S_IFREG:
            with open(path, "rb") as file:
                content = file.read()
        elif kind == stat.S_IFLNK:
            content = os.readlink(path)
        attributes = {
            key: os.getxattr(path, key, follow_symlinks=False) for key in os.listxattr(path, follow_symlinks=False)
        }
        same = first.setdefault(status.st_ino, path[len(top) :]) if kind != stat.S_IFDIR else b""
        found[path[len(top) :]] = (
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            content,
            same,
            attributes,
        )
    return found


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, FILES, max_size=8), st.sampled_from(["", "gzip", "zstd"]))
def test_build_and_extract(tree: dict[bytes, dict[str, object]], compress: str) -> None:
    top = tempfile.mkdtemp()
    try:
        os.mkdir(f"{top}/rootfs")
        make(f"{top}/rootfs", tree)
        out = io.BytesIO()
        image_id = build_archive(f"{top}/rootfs", MANIFEST, out, compress=compress)
        store = ImageStore(f"{top}/images")
        image = stage_and_commit(store, out.getvalue())
        assert image.id == image_id
        (layer,) = store.layers(image_id)
        assert describe(layer.path) == describe(f"{top}/rootfs")
        store.verify(image_id)
        store.verify(image_id, deep=True)
        again = io.BytesIO()
        assert build_archive(layer.path, MANIFEST, again) == image_id
        exported = io.BytesIO()
        store.export(image_id, exported)
        assert exported.getvalue() == again.getvalue()
        assert validate(io.BytesIO(exported.getvalue())).name == "example.com/thing"
    finally:
        shutil.rmtree(top)


@pytest.fixture
def rootfs(tmp_path: object) -> str:
    path = f"{tmp_path}/rootfs"
    os.makedirs(f"{path}/bin")
    with open(f"{path}/bin/tool", "wb") as file:
        file.write(bytes(range(256)) * 5000)
    os.link(f"{path}/bin/tool", f"{path}/bin/other")
    os.symlink("tool", f"{path}/bin/link")
    return path


@pytest.mark.parametrize("compress", ["", "gzip", "bzip2", "xz", "zstd"])
def test_same_input_same_bytes(compress: str, rootfs: str) -> None:
    first, second = io.BytesIO(), io.BytesIO()
    image_id = build_archive(rootfs, MANIFEST, first, compress=compress)
    os.utime(f"{rootfs}/bin/tool", ns=(1, os.stat(f"{rootfs}/bin/tool").st_mtime_ns))  # only the access time
    assert build_archive(rootfs, MANIFEST, second, compress=compress) == image_id
    assert first.getvalue() == second.getvalue()


def test_gnu_tar_reads_what_is_built(rootfs: str, tmp_path: object) -> None:
    long = f"{rootfs}/" + "/".join(["long" * 20] * 3)
    os.makedirs(long)
    with open(os.fsencode(f"{rootfs}/") + b"caf\xe9", "wb") as file:
        file.write(b"x")
    os.utime(os.fsencode(f"{rootfs}/") + b"caf\xe9", ns=(0, -1_500_000_000))
    with open(f"{tmp_path}/image.aci", "wb") as out:
        build_archive(rootfs, MANIFEST, out, compress="gzip")
    os.mkdir(f"{tmp_path}/out")
    command = [
        "tar",
        "-C",
        f"{tmp_path}/out",
        "--xattrs",
        "-xpf",
        f"{tmp_path}/image.aci",
        "--warning=no-unknown-keyword",
    ]
    subprocess.run(command, check=True)
    assert describe(f"{tmp_path}/out/rootfs") == describe(rootfs)


def _grown(path: str, names: list[str]) -> None:
    """A tree of these files, made in this order; all that an image has of them is the same."""
    for directory in ("", "/sub"):
        os.mkdir(f"{path}{directory}")
        for name in names:
            with open(f"{path}{directory}/{name}", "w") as file:
                file.write(name)
            os.setxattr(file.name, f"user.{'z' if name in names[:20] else 'a'}", b"1")
            os.setxattr(file.name, f"user.{'a' if name in names[:20] else 'z'}", b"1")
            os.chmod(file.name, 0o640)
            os.utime(file.name, ns=(0, 1_500_000_000_123_456_789))
    for directory in ("/sub", ""):
        os.chmod(f"{path}{directory}", 0o750)
        os.utime(f"{path}{directory}", ns=(0, 0))


def test_the_same_tree_elsewhere_is_the_same_archive(tmp_path: Path) -> None:
    """A6: whatever order its files were made in, whenever, under whatever mask, by whatever path."""
    names = [f"{number:x}" for number in range(40)]
    _grown(f"{tmp_path}/one", names)
    first, second = io.BytesIO(), io.BytesIO()
    image_id = build_archive(f"{tmp_path}/one", MANIFEST, first, compress="gzip")
    time.sleep(1.1)  # a second later, as gzip and tar count them
    before = os.umask(0o077)
    try:
        _grown(f"{tmp_path}/other", names[::-1])
        assert build_archive(f"{tmp_path}/other", MANIFEST, second, compress="gzip") == image_id
    finally:
        os.umask(before)
    assert first.getvalue() == second.getvalue()
    with tarfile.open(fileobj=io.BytesIO(first.getvalue())) as archive:
        members = archive.getnames()
    tree = sorted(os.path.join("rootfs", name) for name in [*names, "sub", *(f"sub/{name}" for name in names)])
    assert members == ["manifest", "rootfs", *tree]


def test_holes_change_no_id(tmp_path: Path) -> None:
    """Two copies of a file may differ in how much of it is on the disk."""
    ids = set()
    for name in ("holes", "zeros"):
        os.mkdir(f"{tmp_path}/{name}")
        with open(f"{tmp_path}/{name}/file", "wb") as file:
            file.write(bytes(1 << 20)) if name == "zeros" else file.truncate(1 << 20)
        for path in (f"{tmp_path}/{name}/file", f"{tmp_path}/{name}"):
            os.utime(path, ns=(0, 0))
        ids.add(build_archive(f"{tmp_path}/{name}", MANIFEST, io.BytesIO()))
    assert os.stat(f"{tmp_path}/holes/file").st_blocks < os.stat(f"{tmp_path}/zeros/file").st_blocks
    assert len(ids) == 1


def test_names_that_are_no_text_are_announced(tmp_path: Path) -> None:
    """To readers that would else take them for UTF-8."""
    os.mkdir(f"{tmp_path}/rootfs")
    for name in (b"caf\xe9", "café".encode(), b"plain"):
        with open(os.fsencode(f"{tmp_path}/rootfs/") + name, "wb"):
            pass
    os.symlink(b"\xff", f"{tmp_path}/rootfs/link")
    out = io.BytesIO()
    build_archive(f"{tmp_path}/rootfs", MANIFEST, out)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        announced = {info.name for info in archive.getmembers() if "hdrcharset" in info.pax_headers}
        assert announced == {"rootfs/caf\udce9", "rootfs/link"}
        assert archive.getmember("rootfs/link").linkname == "\udcff"


@pytest.mark.parametrize("size", [8**11, 8**12])
def test_a_file_of_gigabytes_is_said_to_be_one(size: int) -> None:
    """What a header's eleven digits cannot say stands in an extended one."""
    out: list[bytes] = []
    with pytest.raises(ValueError, match="0 bytes of content"):
        TarWriter(out.append).add(Entry(b"large", FILE, size=size))
    with tarfile.open(fileobj=io.BytesIO(b"".join(out)), mode="r|") as archive:
        info = archive.next()
    assert info is not None
    assert (info.name, info.size, info.pax_headers["size"]) == ("large", size, str(size))


def test_the_form_of_archives_is_part_of_every_id() -> None:
    """A4: an image of a registry has the ID of what is written here. If this fails, all of them get new ones: that
    is a change of format, to be said in the changelog."""
    digest = hashlib.sha512()
    writer = TarWriter(digest.update)
    add_manifest(writer, b"{}")
    writer.add(Entry(b"rootfs", DIRECTORY, mode=0o755, mtime=1_500_000_000_123_456_789))
    notes = {b"user.a=%": b"=\n\0", b"user.b": b""}
    far = Entry(b"rootfs/far", FILE, mode=0o4755, uid=8**7, gid=8**7 - 1, size=3, mtime=-1, attributes=notes)
    writer.add(far, (b"ab", b"c"))
    writer.add(Entry(b"rootfs/" + b"n" * 94 + b"\xe9", SYMLINK, mode=0o777, target="café".encode() * 30))
    writer.add(Entry(b"rootfs/same", HARDLINK, mode=0o4755, target=b"rootfs/far"))
    writer.add(Entry(b"rootfs/node", CHARACTER, mode=0o666, device=(259, 70000)))
    writer.close()
    assert digest.hexdigest() == (
        "fd93c4e2c16fd78acc8dd072c2fc124c89517bbbb90e85d4010f4f8680bea8707aabf8898b5d071e711b0029ba1106d157e5314bf03aca0691847702e5313d8d"
    )


def test_no_rootfs_gives_an_empty_one(tmp_path: object) -> None:
    out = io.BytesIO()
    image_id = build_archive(None, MANIFEST, out)
    store = ImageStore(f"{tmp_path}/images")
    with store.stage_archive(io.BytesIO(out.getvalue())) as staged:
        assert staged.id == image_id
        layer = f"{os.path.dirname(staged.archive_path)}/layer/rootfs"
        assert os.listdir(layer) == []
        if os.getuid() == 0:
            staged.commit(LOCAL)


def test_sockets_cannot_be_kept(rootfs: str) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(rootfs)  # the address of a socket is short
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
    with pytest.raises(ArchiveError, match="'rootfs/socket' is a socket"):
        build_archive(rootfs, MANIFEST, io.BytesIO())


def test_unknown_compression(rootfs: str) -> None:
    with pytest.raises(UsageError, match="unknown compression 'rar'"):
        build_archive(rootfs, MANIFEST, io.BytesIO(), compress="rar")
