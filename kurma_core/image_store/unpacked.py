"""An archive's tar, read anew: what an early signature is over (K3), and what is exported (A4)."""

from __future__ import annotations

from collections.abc import Iterator

from kurma_core.image_store.compression import decoder, detect

#: Bytes read at a time.
_READ = 1 << 18


def unpacked(path: str) -> Iterator[bytes]:
    """The uncompressed tar of the archive at ``path``, in pieces, to its very end.

    :raises ArchiveError: it is corrupt. :raises OSError: as the kernel says.
    """
    with open(path, "rb") as file:
        head = file.read(512)
        file.seek(0)
        yield from decoder(detect(head), iter(lambda: file.read(_READ), b""))
