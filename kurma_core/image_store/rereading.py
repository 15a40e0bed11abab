"""What an archive holds, read without extracting it: the measure for what was extracted from it (S2)."""

from __future__ import annotations

import os

from kurma_core.image_store import attributes
from kurma_core.image_store.archive import TarReader
from kurma_core.image_store.digests import content_hash, sparse_content_digest
from kurma_core.image_store.entry import BLOCK, CHARACTER, DIRECTORY, FILE, HARDLINK, SYMLINK, Entry
from kurma_core.image_store.files import Origin, attributes_value_digest, link_digest
from kurma_core.image_store.layout import ImageContents, read_image
from kurma_core.image_store.limits import Limits
from kurma_core.image_store.stream import ArchiveStream


def reread(path: str, limits: Limits) -> tuple[str, ImageContents, dict[bytes, Origin]]:
    """Read the archive at ``path``.

    :returns: the image ID, its documents, and what each file's record must say, by path.
    :raises ArchiveError: the archive is broken. :raises OSError: as the kernel says.
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
        kept = {name: value for name, value in sorted(entry.attributes.items()) if attributes.kept(name)}
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
