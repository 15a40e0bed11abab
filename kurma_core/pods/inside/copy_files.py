"""Copies files from and to the root of a running app (``kurma cp``), as ``cp -R`` would; also as tar archives on
standard input and output.

Runs as root in the caller's process. In the app, paths are resolved by descriptor beneath the app's root, so that
links cannot lead out of it. Files copied out belong to the caller, files copied in to the pod's root, unless
owners are to be copied as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from tarfile import EOFHeaderError, HeaderError, ReadError  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, BinaryIO

from kurma_core.errors import ArchiveError, HostError
from kurma_core.pods.inside.copy_source import PIECE, AppRoot, Descriptor, Entry, Place, Reader, walk
from kurma_core.pods.inside.copy_tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from kurma_core.models.pod import PodRecord


def copy_out(
    inside: Place,
    path: str,
    target: str | BinaryIO,
    note: Callable[[str], None],
    *,
    whole: bool = False,
    follow: bool = False,
) -> None:
    """Copies from an app.

    :param inside: the app's root; closed here.
    :param path: in the app; with ``/.`` at its end, the contents of that directory are copied.
    :param target: a path of the host, or a stream to write a tar archive to.
    :param whole: copy owners and all permission bits, too.
    :param follow: copy the target of a link instead of the link.
    """
    try:
        _copy(inside, path, Place(), target, note, whole=whole, follow=follow)
    finally:
        inside.close()


def copy_in(
    record: PodRecord,
    app: str | None,
    source: str | BinaryIO,
    path: str,
    note: Callable[[str], None],
    *,
    whole: bool = False,
    follow: bool = False,
) -> None:
    """Copies to an app; parameters as of :func:`copy_out`.

    :param source: a path of the host, or a stream to read a tar archive from.
    :raises PodStateError: the app does not run.
    """
    inside = AppRoot(record, app)
    try:
        with _MakingAs(inside):
            _copy(Place(), source, inside, path, note, whole=whole, follow=follow)
        inside.check()
    finally:
        inside.close()


def _copy(
    there: Place,
    source: str | BinaryIO,
    here: Place,
    target: str | BinaryIO,
    note: Callable[[str], None],
    *,
    whole: bool,
    follow: bool,
) -> None:
    if not isinstance(source, str):
        assert isinstance(target, str)
        top = here.open(target or "/", os.O_RDONLY | os.O_DIRECTORY)
        try:
            _put(_read_archive(source, note), Tree(here, top, (), target, whole=whole), target)
        finally:
            os.close(top)
        return
    name, content = _named(source)
    entry = there.open(
        source.rstrip("/") or "/", os.O_PATH | (0 if follow or source.endswith("/") else os.O_NOFOLLOW)
    )
    try:
        directory = stat.S_ISDIR(os.fstat(entry).st_mode)
        if source.endswith("/") and not directory:
            raise HostError(f"{source}: not a directory", path=source)
        entries = walk(there, entry, source, note)
        if not isinstance(target, str):
            _put(entries, ArchiveWriter(target, "" if content else name), source)
            return
        top, way, at = _target(here, target, name, directory=directory, content=content)
        try:
            _put(entries, Tree(here, top, way, at, whole=whole), source)
        finally:
            os.close(top)
    finally:
        os.close(entry)


def _named(path: str) -> tuple[str, bool]:
    """The name of the source, and whether only the contents of that directory are copied."""
    name = path.rstrip("/").rpartition("/")[2]
    return name, name in ("", ".", "..")


def _target(
    here: Place, path: str, name: str, *, directory: bool, content: bool
) -> tuple[int, tuple[str, ...], str]:
    """The target's directory, the new name in it, and the directory's path.

    :raises HostError: there is no such directory, or a file of another kind is there.
    """
    try:
        top = here.open(path or "/", os.O_RDONLY | os.O_DIRECTORY)
        return top, () if content else (name,), path or "/"
    except HostError as error:
        missing = error.data.get("errno") == errno.ENOENT
        if error.data.get("errno") not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        before, _, last = path.rstrip("/").rpartition("/")
        # A file's new name cannot end with a slash, and a directory never replaces an existing file.
        if last in ("", ".", "..") or (directory and not missing) or (path.endswith("/") and not directory):
            raise
    parent = "/" if path.startswith("/") and not before else before or "."
    return here.open(parent, os.O_RDONLY | os.O_DIRECTORY), (last,), parent


def _put(entries: Iterator[Entry], target: Tree | ArchiveWriter, path: str) -> None:
    """:raises HostError: names the entry that failed; no entry is left half-written."""
    try:
        with _naming(path):
            for entry in entries:
                with _naming(entry.name if entry.parts else path):
                    target.add(entry)
            target.finish()
    finally:
        if isinstance(target, Tree):
            target.abort()


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise HostError(f"cannot copy {name}: {why}", errno=error.errno, path=name) from None


class _MakingAs:
    """In this block, files that this thread makes belong to the root of that place. The thread keeps its
    capabilities: in an id-mapped tree the host's root has no mapped id, and could not make files."""

    def __init__(self, place: Place) -> None:
        self._first = None if place.ids is None else place.ids.first

    def __enter__(self) -> None:
        if self._first is not None:
            self._become(self._first)

    def __exit__(self, *_: object) -> None:
        if self._first is not None:
            self._become(0)

    @staticmethod
    def _become(number: int) -> None:
        from kurma_core.linux import capabilities, libc

        _, permitted, inheritable = capabilities.get()
        libc.syscall("setfsgid", number)
        libc.syscall("setfsuid", number)
        capabilities.set_(permitted, permitted, inheritable)


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
            raise ReadError(f"it is truncated or damaged: {error}") from None


def _read_archive(stream: BinaryIO, note: Callable[[str], None]) -> Iterator[Entry]:
    """The entries of an archive, plain or compressed, in their order.

    :param note: called with entries that cannot be copied and are left out.
    :raises ArchiveError: it is not an archive, is truncated, or has a name that leads out of it.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|*", tarinfo=_Header) as archive:
            for member in archive:
                kind = "file" if member.isreg() else _KINDS.get(member.type)
                if kind is None:
                    note(f"{member.name} is not copied: it is not a file, directory or link")
                    continue
                parts = _parts(member.name)
                if (not parts and kind != "directory") or (kind == "again" and not _parts(member.linkname)):
                    raise ArchiveError("the archive has an entry without a name")
                yield _archive_entry(archive, member, kind, parts)
    except (tarfile.TarError, EOFError) as error:
        raise ArchiveError(f"standard input is not a tar archive: {str(error) or 'it is cut off'}") from None


def _archive_entry(archive: tarfile.TarFile, member: tarfile.TarInfo, kind: str, parts: tuple[str, ...]) -> Entry:
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


class ArchiveWriter:
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
