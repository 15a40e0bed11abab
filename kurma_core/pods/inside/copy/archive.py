"""Reads and writes tar archives on standard input and output, for copies."""

from __future__ import annotations

import tarfile
from tarfile import EOFHeaderError, HeaderError, ReadError  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, BinaryIO

from kurma_core.errors import ArchiveError
from kurma_core.pods.inside.copy.walk import PIECE, Descriptor, Entry, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

_KINDS = {tarfile.REGTYPE: "file", tarfile.DIRTYPE: "directory", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "again"}


class _Header(tarfile.TarInfo):
    """A header that reports damage: ``tarfile`` takes a truncated or broken header for the end of the archive,
    while only the end marker is one."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except EOFHeaderError:
            raise
        except HeaderError as error:
            raise ReadError(f"it is cut off, or broken: {error}") from None


def read(stream: BinaryIO, note: Callable[[str], None]) -> Iterator[Entry]:
    """The entries of an archive, plain or compressed, in their order.

    :param note: called with entries that cannot be copied and are left out.
    :raises ArchiveError: it is not an archive, is truncated, or has a name that leads out of it.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|*", tarinfo=_Header) as archive:
            for member in archive:
                kind = "file" if member.isreg() else _KINDS.get(member.type)
                if kind is None:
                    note(f"{member.name} is left out: it is no file, directory or link")
                    continue
                parts = _parts(member.name)
                if (not parts and kind != "directory") or (kind == "again" and not _parts(member.linkname)):
                    raise ArchiveError("the archive has an entry without a name")
                yield _entry(archive, member, kind, parts)
    except (tarfile.TarError, EOFError) as error:
        raise ArchiveError(f"standard input is no tar archive: {str(error) or 'it is cut off'}") from None


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo, kind: str, parts: tuple[str, ...]) -> Entry:
    def content() -> Reader:
        found = archive.extractfile(member)
        assert found is not None
        return found

    return Entry(
        parts,
        kind,
        member.mode & 0o7777,
        member.uid,
        member.gid,
        int(member.mtime * 1e9),
        size=member.size if kind == "file" else 0,
        to=member.linkname if kind == "link" else "",
        first=_parts(member.linkname) if kind == "again" else (),
        open=content if kind == "file" else None,
    )


def _parts(name: str) -> tuple[str, ...]:
    """:raises ArchiveError: the name leads out of the archive."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ArchiveError(f"the archive has an entry {name!r}, which leads out of it")
    return parts


class Writer:
    """Writes entries to an archive.

    :param top: prefix of their names; empty: a dot.
    """

    def __init__(self, stream: BinaryIO, top: str) -> None:
        self._archive = tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._top = top or "."

    def add(self, entry: Entry) -> None:
        info = tarfile.TarInfo("/".join((self._top, *entry.parts)))
        info.mode, info.uid, info.gid, info.mtime = entry.mode, entry.uid, entry.gid, entry.mtime // 10**9
        if entry.kind == "directory":
            info.type = tarfile.DIRTYPE
        elif entry.kind == "link":
            info.type, info.linkname = tarfile.SYMTYPE, entry.to
        if entry.open is None:
            self._archive.addfile(info)
            return
        info.size = entry.size
        found = entry.open()
        assert isinstance(found, int)
        reader = Descriptor(found)
        try:
            self._archive.addfile(info, _Whole(reader))  # type: ignore[arg-type]
        finally:
            reader.close()

    def finish(self) -> None:
        self._archive.close()


class _Whole:
    """A reader that returns exactly as many bytes as requested, unless the file has become shorter."""

    def __init__(self, reader: Descriptor) -> None:
        self._reader = reader

    def read(self, count: int) -> bytes:
        found = b""
        while len(found) < count and (piece := self._reader.read(min(count - len(found), PIECE))):
            found += piece
        return found
