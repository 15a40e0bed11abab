"""Archives for the tests, honest and otherwise, made with the standard library's tarfile."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from kurma_core.appc.image import ImageManifest
from kurma_core.image_store import ImageStore, Limits
from kurma_core.image_store.archive_layout import inspect
from kurma_core.models.image import ImageRecord, Provenance

if TYPE_CHECKING:
    from kurma_core.image_store.archive_stream import Decrypt

MANIFEST = {
    "acKind": "ImageManifest",
    "acVersion": "0.8.11",
    "name": "example.com/thing",
    "labels": [{"name": "version", "value": "1.0.0"}],
}
LOCAL = Provenance(locator="file:///thing.aci", fetched_at="2026-01-02T03:04:05Z", trust="local")

Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, kind: bytes, content: bytes = b"", **values: object) -> Member:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = len(content)
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    info.uid, info.gid = os.getuid(), os.getgid()
    info.mtime = 1_600_000_000
    for key, value in values.items():
        setattr(info, key, value)
    return info, content


def file(name: str, content: bytes = b"content", **values: object) -> Member:
    return member(name, tarfile.REGTYPE, content, **values)


def directory(name: str, **values: object) -> Member:
    return member(name, tarfile.DIRTYPE, **values)


def symlink(name: str, target: str, **values: object) -> Member:
    return member(name, tarfile.SYMTYPE, linkname=target, **values)


def hardlink(name: str, target: str, **values: object) -> Member:
    return member(name, tarfile.LNKTYPE, linkname=target, **values)


def tar(members: Iterable[Member], format: int = tarfile.PAX_FORMAT, **options: object) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, **options) as archive:  # type: ignore[call-overload]
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def manifest_member(**changes: object) -> Member:
    return file("manifest", json.dumps({**MANIFEST, **changes}).encode())


def image(*members: Member, format: int = tarfile.PAX_FORMAT, **changes: object) -> bytes:
    """An image archive: a manifest, ``rootfs``, and the members given."""
    return tar([manifest_member(**changes), directory("rootfs"), *members], format)


def stage_and_commit(store: ImageStore, archive: bytes, provenance: Provenance = LOCAL) -> ImageRecord:
    with store.stage_archive(io.BytesIO(archive)) as staged:
        return staged.commit(provenance)


def everything_below(path: str) -> dict[str, tuple[int, int, str]]:
    """Every path below a directory, with mode, size and (of links) target: to tell that nothing has changed."""
    found = {}
    for top, directories, files in os.walk(path):
        for name in (*directories, *files):
            full = os.path.join(top, name)
            status = os.lstat(full)
            target = os.readlink(full) if os.path.islink(full) else ""
            size = 0 if os.path.isdir(full) else status.st_size
            found[os.path.relpath(full, path)] = (status.st_mode, size, target)
    return found


@contextmanager
def nothing_left_behind(store: ImageStore, outside: str) -> Iterator[None]:
    """What happens inside neither changes anything in ``outside`` nor leaves anything in the store."""
    store.prepare()
    before = everything_below(outside)
    yield
    assert everything_below(outside) == before
    assert {name: os.listdir(store.path(name)) for name in ("tmp", "archives", "layers", "images")} == {
        "tmp": [],
        "archives": [],
        "layers": [],
        "images": [],
    }


def validate(stream: BinaryIO, limits: Limits | None = None, decrypt: Decrypt | None = None) -> ImageManifest:
    """The manifest of an archive that is read and checked to its end."""
    return inspect(stream, limits, decrypt).contents.manifest
