"""Checking an archive without extracting it (A6)."""

from __future__ import annotations

from kurma_core.image_store.archive import TarReader
from kurma_core.image_store.entry import DIRECTORY, HARDLINK, Entry, show
from kurma_core.image_store.extract import check, hostile
from kurma_core.image_store.layout import ImageContents, read_image
from kurma_core.image_store.limits import Limits
from kurma_core.image_store.names import PathCounter
from kurma_core.image_store.stream import ArchiveStream
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from kurma_core.appc.image import ImageManifest
    from kurma_core.image_store.stream import Decrypt


@frozen
class ArchiveFacts:
    """What an archive is, apart from any store.

    :ivar id: ``sha512-…``. :ivar early_id: ``sha256-…``; both over the uncompressed tar (A4, E6).
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
    """Read an image archive to its end and check all of it; nothing is written.

    :raises ArchiveError: it is no image, or broken. :raises HostileArchiveError: it would not be extracted.
    :raises ManifestError: its manifest breaks the specification.
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


def validate(stream: BinaryIO, limits: Limits | None = None, decrypt: Decrypt | None = None) -> ImageManifest:
    """:func:`inspect`, of which only the manifest is wanted."""
    return inspect(stream, limits, decrypt).contents.manifest


class _Ledger:
    """What an extraction would have made so far: path → whether it is a directory, None for an implied one."""

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
                raise hostile(entry, f"'{show(above)}' above it is no directory")
        directory = entry.kind == DIRECTORY
        if path in self._made and not (directory and self._made[path] is None):
            raise hostile(entry, "there are two entries of that name")
        if entry.kind == HARDLINK and self._made.get(entry.target, True) is not False:
            if entry.target in self._made:
                raise hostile(entry, "it is a hard link to a directory")
            raise hostile(entry, f"it is a hard link to '{show(entry.target)}', which is not before it")
        self._made[path] = directory
