"""Reads the contents of an archive: an image's manifest and rootfs, or a layer's files and whiteouts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from kurma_core.errors import ArchiveError, HostileArchiveError
from kurma_core.image_store.archive_stream import ArchiveStream
from kurma_core.image_store.extractor import check, explain, hostile
from kurma_core.image_store.file_records import (
    Origin,
    attributes_value_digest,
    content_hash,
    is_kept_attribute,
    link_digest,
    sparse_content_digest,
)
from kurma_core.image_store.tar_entries import (
    BLOCK,
    CHARACTER,
    DIRECTORY,
    FILE,
    FIXED,
    HARDLINK,
    SYMLINK,
    Entry,
    Limits,
    PathCounter,
    show,
    split,
)
from kurma_core.image_store.tar_reader import TarReader
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from kurma_core.appc.image import ImageManifest
    from kurma_core.image_store.archive_stream import Decrypt

    #: Takes an entry and its path beneath the root filesystem.
    Sink = Callable[[Entry, list[bytes]], None]


_LATE = b"manifest"
_EARLY = (b"app", b"fileset")
_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_WHITEOUT_RESERVED = b".wh..wh."
#: Number of anomalies that are reported of one image; a hostile manifest has room for many thousands.
_TOLD = 10


@frozen
class ImageContents:
    """The manifest and further documents of an image archive.

    :ivar manifest_bytes: as the archive has it; of an early image, its documents in the late form.
    :ivar originals: the documents of an early image as it has them, by name: ``app``, ``fileset``, or both.
    :ivar oddities: a line for each thing in its manifest that is odd and harmless, as an unknown key is.
    """

    manifest: ImageManifest
    manifest_bytes: bytes
    originals: Mapping[str, bytes]
    oddities: tuple[str, ...]


def read_image(reader: TarReader, limits: Limits, sink: Sink) -> ImageContents:
    """Reads an image archive to its end (App Container Image, Image Layout; early: Fileset Images, too).

    :param sink: called with every entry of the root filesystem, ``rootfs`` itself with an empty path.
    :raises ArchiveError: the archive is not an image.
    :raises HostileArchiveError: no honest builder makes such an archive.
    :raises ManifestError: its manifest violates the specification.
    """
    documents: dict[bytes, bytes] = {}
    rootfs = False
    for entry in reader:
        parts = split(entry.name, limits)
        top = parts[0] if parts else b""
        if top == b"rootfs":
            rootfs = rootfs or len(parts) == 1
            _sink_image_entry(sink, entry, parts, limits)
        elif (top == _LATE or top in _EARLY) and len(parts) == 1:
            if top in documents:
                raise hostile(entry, "there are two entries of that name")
            documents[top] = _read_document(reader, entry, limits)
        elif not parts and entry.kind == DIRECTORY:
            continue  # `./`, as `tar -C DIR -c .` writes it
        else:
            _refuse(entry)
    contents = _contents(documents)
    if not rootfs:
        raise ArchiveError("not an App Container image: the archive has no directory `rootfs`")
    return contents


def _contents(documents: Mapping[bytes, bytes]) -> ImageContents:
    """The manifest in its late form, also of an early image. The order of the entries has no meaning."""
    odd: list[str] = []
    if not documents:
        raise ArchiveError("not an App Container image: the archive has no `manifest`")
    if _LATE in documents:
        from kurma_core.appc.image import ImageManifest

        if len(documents) > 1:
            early = " and ".join(f"`{show(name)}`" for name in _EARLY if name in documents)
            raise ArchiveError(
                f"not an App Container image: the archive has `manifest`, and {early} of an early image beside it",
                hint="an image has either `manifest`, or `app`, `fileset` or both",
            )
        manifest = ImageManifest.parse(documents[_LATE], warn=odd.append)
        return ImageContents(manifest, documents[_LATE], {}, _told(odd))
    import json

    from kurma_core.appc.early_image import convert_image

    manifest = convert_image(*(documents.get(name) for name in _EARLY), warn=odd.append)
    late = json.dumps(manifest.to_json(), ensure_ascii=False).encode()
    originals = {name.decode(): documents[name] for name in _EARLY if name in documents}
    return ImageContents(manifest, late, originals, _told(odd))


def _told(oddities: list[str]) -> tuple[str, ...]:
    more = len(oddities) - _TOLD
    return (*oddities[:_TOLD], f"and {more} more of the kind") if more > 0 else tuple(oddities)


def _sink_image_entry(sink: Sink, entry: Entry, parts: list[bytes], limits: Limits) -> None:
    if len(parts) == 1 and entry.kind != DIRECTORY:
        raise hostile(entry, "`rootfs` must be a directory")
    if entry.kind == HARDLINK:
        target = split(entry.target, limits, link=entry.name)
        if len(target) < 2 or target[0] != b"rootfs":
            raise hostile(entry, f"it is a hard link to '{show(entry.target)}', outside of `rootfs`")
        entry.target = b"/".join(target[1:])
    _deliver(sink, entry, parts[1:])


def _read_document(reader: TarReader, entry: Entry, limits: Limits) -> bytes:
    if entry.kind != FILE or entry.sparse is not None:
        raise hostile(entry, f"`{show(entry.name.rstrip(b'/'))}` must be a regular file")
    if entry.size > limits.manifest_size:
        named = show(entry.name)
        raise HostileArchiveError(
            f"the archive is refused for its entry '{named}': it is larger than {limits.manifest_size} bytes",
            hint=FIXED,
            entry=named,
            limit="manifest_size",
        )
    return b"".join(reader.content_of(entry))


def _refuse(entry: Entry) -> None:
    name = show(entry.name)
    raise HostileArchiveError(
        f"the archive is refused for its entry '{name}': an image holds `manifest` (or, an early one, `app`, "
        "`fileset` or both) and `rootfs`, and nothing else",
        hint="an archive of another format is fetched as SCHEME:FILE; `kurma plugins list` names the schemes",
        entry=name,
    )


# --- layers ------------------------------------------------------------------------------------------------------


@frozen
class Whiteouts:
    """The paths that a layer removes from the layers below it, sorted."""

    removed: tuple[bytes, ...]
    opaque: tuple[bytes, ...]


def read_layer(reader: TarReader, limits: Limits, sink: Sink, imply: Sink) -> Whiteouts:
    """Reads a layer's tar to its end (OCI Image Layer Filesystem Changeset).

    A whiteout affects the layers below only, so the same layer may also contain an entry that re-creates the path.

    :param imply: called with each directory that must exist, though it may have no entry of its own.
    :raises ArchiveError: it is broken.
    :raises HostileArchiveError: no honest builder makes such an archive.
    """
    removed: set[bytes] = set()
    opaque: set[bytes] = set()
    for entry in reader:
        parts = split(entry.name, limits, rooted=True) if entry.name.strip(b"/") else []
        name = parts[-1] if parts else b""
        _no_whiteout(entry, parts[:-1])
        if name.startswith(_WHITEOUT):
            if name == _OPAQUE:
                opaque.add(b"/".join(parts[:-1]))
                _deliver(imply, entry, parts[:-1])
            elif not name.startswith(_WHITEOUT_RESERVED):
                gone = name[len(_WHITEOUT) :]
                if gone in (b"", b".", b".."):
                    raise hostile(entry, "it is a whiteout of nothing")
                removed.add(b"/".join([*parts[:-1], gone]))
            continue  # other reserved names are metadata of aufs
        if not parts and entry.kind != DIRECTORY:
            raise hostile(entry, "the root must be a directory")
        if entry.kind == HARDLINK:
            target = split(entry.target, limits, rooted=True, link=entry.name)
            _no_whiteout(entry, target)
            entry.target = b"/".join(target)
        _deliver(sink, entry, parts)
    return Whiteouts(tuple(sorted(removed)), tuple(sorted(opaque)))


def _no_whiteout(entry: Entry, parts: Iterable[bytes]) -> None:
    if any(part.startswith(_WHITEOUT) for part in parts):
        raise hostile(entry, "it lies beneath a whiteout, or links to one")


def _deliver(sink: Sink, entry: Entry, parts: list[bytes]) -> None:
    try:
        sink(entry, parts)
    except OSError as error:
        raise explain(error, entry) from error


@frozen
class ArchiveFacts:
    """ID, sizes and contents of an archive that was read.

    :ivar id: ``sha512-…``. :ivar early_id: ``sha256-…``; both over the uncompressed tar.
    :ivar shipped: bytes of the archive as it is. :ivar size: bytes of the tar in it.
    :ivar entries: of the tar. :ivar encrypted: it is an OpenPGP message.
    """

    id: str
    early_id: str
    contents: ImageContents
    shipped: int
    size: int
    entries: int
    encrypted: bool

    def to_json(self) -> dict[str, Any]:
        manifest = self.contents.manifest
        labels = {label.name: label.value for label in manifest.labels}
        return {
            "id": self.id,
            "earlyId": self.early_id,
            "name": manifest.name,
            "version": labels.get("version"),
            "labels": labels,
            "size": self.shipped,
            "tarSize": self.size,
            "entries": self.entries,
            "encrypted": self.encrypted,
            "early": bool(self.contents.originals),
            "manifest": manifest.to_json(),
        }


def inspect(stream: BinaryIO, limits: Limits | None = None, decrypt: Decrypt | None = None) -> ArchiveFacts:
    """Reads an image archive to its end and checks all of it; writes nothing.

    :raises ArchiveError: the archive is not an image, or is broken.
    :raises HostileArchiveError: it would not be extracted.
    :raises ManifestError: its manifest violates the specification.
    """
    limits = limits or Limits()
    with ArchiveStream(stream, limits, early=True, decrypt=decrypt) as source:
        reader = TarReader(source, limits)
        contents = read_image(reader, limits, _Ledger(limits).add)
        return ArchiveFacts(
            id=f"sha512-{source.digest()}",
            early_id=f"sha256-{source.early_digest()}",
            contents=contents,
            shipped=source.packed,
            size=source.size,
            entries=reader.entries,
            encrypted=source.decrypted > 0,
        )


class _Ledger:
    """Simulates an extraction: keeps by path whether it would have made a directory (None: an implied one)."""

    def __init__(self, limits: Limits) -> None:
        self._made: dict[bytes, bool | None] = {b"": None}
        self._counter = PathCounter(limits)

    def add(self, entry: Entry, parts: list[bytes]) -> None:
        check(entry)
        path = b"/".join(parts)
        self._counter.add(path)
        for count in range(1, len(parts)):
            above = b"/".join(parts[:count])
            if above not in self._made:
                self._counter.add(above, implied=True)
                self._made[above] = None
            elif self._made[above] is False:
                raise hostile(entry, f"'{show(above)}' above it is not a directory")
        directory = entry.kind == DIRECTORY
        if path in self._made and not (directory and self._made[path] is None):
            raise hostile(entry, "there are two entries of that name")
        if entry.kind == HARDLINK and self._made.get(entry.target, True) is not False:
            if entry.target in self._made:
                raise hostile(entry, "it is a hard link to a directory")
            raise hostile(entry, f"it is a hard link to '{show(entry.target)}', which is not before it")
        self._made[path] = directory


def reread(path: str, limits: Limits) -> tuple[str, ImageContents, dict[bytes, Origin]]:
    """Reads the archive at ``path`` again.

    :returns: the image ID, its documents, and the expected record of each file, by path.
    :raises ArchiveError: the archive is broken.
    :raises OSError: as the kernel says.
    """
    with open(path, "rb") as file, ArchiveStream(file, limits) as stream:
        reader = TarReader(stream, limits)
        inventory = _Inventory(reader)
        contents = read_image(reader, limits, inventory.add)
        return f"sha512-{stream.digest()}", contents, inventory.found


class _Inventory:
    def __init__(self, reader: TarReader) -> None:
        self._reader = reader
        self.found: dict[bytes, Origin] = {}

    def add(self, entry: Entry, parts: list[bytes]) -> None:
        path = b"/".join(parts)
        for count in range(len(parts)):
            self.found.setdefault(b"/".join(parts[:count]), _IMPLIED)
        if entry.kind == HARDLINK:
            self.found[path] = self.found[entry.target]
            return
        size = "-"
        digest = b"-"
        if entry.kind == FILE:
            size = str(entry.size)
            digest = self._digest(entry).encode()
        elif entry.kind == SYMLINK:
            size = str(len(entry.target))
            digest = link_digest(entry.target)
        elif entry.kind in (CHARACTER, BLOCK):
            size = str(os.makedev(*entry.device))
        mode = 0o777 if entry.kind == SYMLINK else entry.mode
        kept = {name: value for name, value in sorted(entry.attributes.items()) if is_kept_attribute(name)}
        if entry.kind not in (FILE, DIRECTORY):
            kept = {name: value for name, value in kept.items() if not name.startswith(b"user.")}
        stamp = f"{entry.kind} {mode:04o} {entry.uid} {entry.gid} {size} {entry.mtime}"
        self.found[path] = Origin(stamp.encode(), digest, attributes_value_digest(kept))

    def _digest(self, entry: Entry) -> str:
        if entry.sparse is not None:
            return sparse_content_digest(entry.sparse, entry.size, self._reader.content_of(entry))
        digest = content_hash()
        for piece in self._reader.content_of(entry):
            digest.update(piece)
        return digest.hexdigest()


_IMPLIED = Origin(b"d 0755 0 0 - 0", b"-", b"-")
