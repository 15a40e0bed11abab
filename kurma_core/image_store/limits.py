"""What an archive may be at most, before it is taken for a bomb (A5)."""

from __future__ import annotations

from kurma_core.value import frozen

#: Said of the limits that no configuration changes.
FIXED = "this limit is fixed: an archive that honest tools have made stays far below it"


@frozen
class Limits:
    """Limits of one archive, or of one layer.

    :param total_size: bytes, unpacked: of the tar itself, and of all files together (holes count as well).
    :param entries: number of entries; and of directories that are only implied by what lies in them.
    :param ratio: unpacked size over packed size; looked at from :attr:`ratio_from` bytes on.
    :param ratio_from: bytes unpacked up to which any ratio is good: small files of zeros are honest.
    :param path_length: bytes of one path. Below the kernel's 4096, so that the store's own path fits before it.
    :param depth: directories in one another.
    :param header_size: bytes of one extended header, attributes included.
    :param manifest_size: bytes of the image manifest.
    :param names_size: bytes of all paths together: they are kept in memory while an archive is extracted.
    """

    total_size: int = 64 << 30
    entries: int = 2_000_000
    ratio: float = 1000.0
    ratio_from: int = 64 << 20
    path_length: int = 3840
    depth: int = 256
    header_size: int = 1 << 20
    manifest_size: int = 4 << 20
    names_size: int = 512 << 20
