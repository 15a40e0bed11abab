"""Extracts an image's root filesystem to a directory outside of the store.

Runs as root on untrusted archives. The files are valid only after the whole archive was read; any failure before
removes all of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kurma_core.errors import ArchiveError, HostError, StoreError
from kurma_core.image_store.archive_layout import read_image
from kurma_core.image_store.archive_stream import ArchiveStream
from kurma_core.image_store.durable import guard
from kurma_core.image_store.extractor import Extractor
from kurma_core.image_store.file_records import get_attributes
from kurma_core.image_store.store import ImageStore
from kurma_core.image_store.tar_entries import Limits
from kurma_core.image_store.tar_reader import TarReader
from kurma_core.linux.beneath import remove_tree
from kurma_core.named_files import no_room_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from kurma_core.image_store.archive_stream import Decrypt


def extract(
    stream: BinaryIO,
    target: str,
    limits: Limits,
    *,
    decrypt: Decrypt | None = None,
    expected: str | None = None,
) -> str:
    """Extract the root filesystem of an image archive, with all of its metadata.

    :param target: a directory that is empty, or not there yet; its parent is.
    :param expected: the ID that it must have.
    :returns: the image's ID.
    :raises ArchiveError: the archive is not an image, or is broken. :raises HostileArchiveError: it is malicious.
    :raises ManifestError: its manifest breaks the specification.
    :raises HostError: the directory is not empty, or cannot be made. :raises StoreError: the disk is full, …
    """
    with _filled(target) as root, guard(f"{target}: cannot be filled", target):
        with ArchiveStream(stream, limits, decrypt=decrypt) as source:
            reader = TarReader(source, limits)
            with Extractor(root, reader.content_of, limits, replace=False) as extractor:
                read_image(reader, limits, extractor.add)
                extractor.finish()
            found = f"sha512-{source.digest()}"
        if expected not in (None, found):
            raise StoreError(
                f"the image store is damaged: what was extracted of {expected} is {found}",
                hint="remove the image and fetch it anew",
                image=expected,
            )
    return found


def extract_stored(store: ImageStore, image_id: str, target: str) -> None:
    """:func:`extract` for an image of the store: its own root filesystem, without those of its dependencies.

    :raises ImageNotFoundError: it is not in the store.
    """
    store.get(image_id)
    archive = store.archive_path(image_id)
    with _exported(store, image_id) if archive is None else _kept(archive) as stream:
        extract(stream, target, store.limits, expected=image_id)


@contextmanager
def _kept(archive: str) -> Iterator[BinaryIO]:
    with guard("cannot read an archive of the image store"):
        fd = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
    with open(fd, "rb") as stream:
        yield stream


@contextmanager
def _exported(store: ImageStore, image_id: str) -> Iterator[BinaryIO]:
    """The archive of an image made of layers; another thread writes it while it is read."""
    from threading import Thread

    reading, writing = os.pipe()
    faults: list[BaseException] = []

    def write() -> None:
        try:
            with open(writing, "wb") as out:
                store.export(image_id, out)
        except BrokenPipeError:
            return  # the reader has stopped
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            if not isinstance(error.__cause__, BrokenPipeError):
                faults.append(error)

    thread = Thread(target=write, name="kurma-export", daemon=True)
    thread.start()
    try:
        with open(reading, "rb") as stream:
            yield stream
    except ArchiveError:
        thread.join()
        if faults:
            raise faults[0] from None
        raise
    finally:
        thread.join()


@contextmanager
def _filled(path: str) -> Iterator[int]:
    """Descriptor of a directory that is emptied again, or removed, if the block fails."""
    try:
        made = _make(path)
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        above = os.path.dirname(path.rstrip("/"))
        hint = f"mkdir -p {above}" if above and not os.path.lexists(above) else None
        raise HostError(
            f"{path}: cannot be extracted to: {reason}", hint=hint, path=path, errno=error.errno
        ) from None
    try:
        _must_be_empty(root, path)
        before, had = os.fstat(root), get_attributes(root)
        try:
            _make_ours(root)
            _must_be_empty(root, path)
        except BaseException:
            _looks(root, before)
            raise
        try:
            yield root
        except BaseException as error:
            _empty(root, before, had)
            if made:
                os.rmdir(path)
            full = no_room_left(error)
            if full is not None:
                raise HostError(
                    f"{path}: cannot be extracted to: {str(full.strerror).lower()}", path=path, errno=full.errno
                ) from None
            raise
    finally:
        os.close(root)


def _must_be_empty(root: int, path: str) -> None:
    if os.listdir(root):
        raise HostError(
            f"{path}: cannot be extracted to: it is not empty",
            hint="name a new or an empty directory",
            path=path,
        )


def _make_ours(root: int) -> None:
    """Gives the directory to root alone until the end: no other user, not even its owner, may run set-user-ID
    files before the archive is verified, or add files meanwhile."""
    if os.geteuid() == 0:
        os.fchown(root, 0, 0)
    os.fchmod(root, 0o700)


def _make(path: str) -> bool:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    return True


def _empty(root: int, before: os.stat_result, had: Mapping[bytes, bytes]) -> None:
    for name in os.listdir(root):
        remove_tree(root, name)
    for attribute in get_attributes(root):
        if attribute not in had:
            os.removexattr(root, attribute)
    _looks(root, before)


def _looks(root: int, before: os.stat_result) -> None:
    os.fchown(root, before.st_uid, before.st_gid)
    os.fchmod(root, stat.S_IMODE(before.st_mode))
    os.utime(root, ns=(before.st_atime_ns, before.st_mtime_ns))
