"""Writes copied entries into a directory. A new file gets its name only once it is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING

from kurma_core.errors import HostError
from kurma_core.linux.beneath import remove_tree
from kurma_core.pods.inside.copy_source import PIECE, UNFINISHED, Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.pods.inside.copy_source import Place

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Errors of file systems that do not support copy_file_range(2); bytes are read and written then.
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EPERM)
_STRETCH = 64 << 20
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}


class Tree:
    """The target directory of a copy. Existing directories are kept unchanged and filled; files and links replace
    existing ones. Links in it are not followed.

    :param top: descriptor of a directory; it stays the caller's.
    :param way: prefix of each entry's path: (), or the new name of the copy's top.
    :param at: the path of ``top``, for messages.
    :param whole: copy owners and all permission bits, too; else files belong to the user who copies.
    """

    def __init__(self, place: Place, top: int, way: tuple[str, ...], at: str, *, whole: bool) -> None:
        self._place = place
        self._top = top
        self._way = way
        self._at = at
        self._whole = whole
        # Stack of open directories, from the top to the place of the last entry.
        self._open: list[tuple[str, int]] = []
        #: By path, the temporary names of new files and directories until the copy is complete. Entries inside of
        #: a new directory are not in it.
        self._fresh: dict[tuple[str, ...], str] = {}
        #: All new directories, with the attributes that they get at the end.
        self._directories: list[tuple[tuple[str, ...], Entry]] = []

    def add(self, entry: Entry) -> None:
        """:raises HostError: a file of another kind is in its place. :raises OSError: the system refuses it."""
        way = (*self._way, *entry.parts)
        if not way:
            return  # the target directory itself
        if entry.kind == "directory":
            self._add_directory(self._enter(way[:-1]), way, entry)
            return
        first = self._first(entry)
        try:
            self._add(self._enter(way[:-1]), way, entry, first)
        finally:
            if first is not None:
                os.close(first)

    def _add(self, parent: int, way: tuple[str, ...], entry: Entry, first: int | None) -> None:
        if not self._is_new(way[:-1]):
            self._check_place(parent, way)
        temporary = _temporary()
        try:
            if first is None:
                self._make(parent, temporary, way, entry)
            else:
                name = self._fresh.get((*self._way, *entry.first), entry.first[-1])
                self._link(first, name, parent, temporary, entry)
            if self._is_new(way[:-1]) or way in self._fresh:
                name = self._fresh.get(way, way[-1])
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            else:
                self._fresh[way] = temporary
        except BaseException:
            with contextlib.suppress(OSError):  # a failed step may have left nothing to remove
                os.unlink(temporary, dir_fd=parent)
            raise

    def _link(self, first: int, name: str, parent: int, temporary: str, entry: Entry) -> None:
        try:
            os.link(name, temporary, src_dir_fd=first, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise HostError(
                f"cannot copy {entry.name}: it is another name of {'/'.join(entry.first)}, which is not there"
            ) from None

    def _check_place(self, parent: int, way: tuple[str, ...]) -> None:
        """:raises HostError: a file that must not be replaced has that name."""
        self._check_ours(parent, way)
        try:
            found = os.open(way[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            return
        try:
            mode = os.fstat(found).st_mode
            if stat.S_ISDIR(mode):
                raise HostError(f"{'/'.join(way)} is a directory there")
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                raise self._refused(way, f"the existing file is {_KINDS.get(stat.S_IFMT(mode), 'a device')}")
            if _mount(found) != _mount(parent):
                raise self._refused(way, "another file is mounted there")
        finally:
            os.close(found)

    def _check_ours(self, parent: int, way: tuple[str, ...]) -> None:
        if os.fstat(parent).st_dev in self._place.sealed:
            raise self._refused(way, "it is the kernel's")

    @contextlib.contextmanager
    def _writing(self, way: tuple[str, ...]) -> Iterator[None]:
        """Turns an OSError into an error about the target, instead of one about the copied entry."""
        try:
            yield
        except OSError as error:
            raise self._refused(way, (error.strerror or str(error)).lower(), error.errno) from None

    def _refused(self, way: tuple[str, ...], why: str, number: int | None = None) -> HostError:
        path = "/".join((*([] if self._at == "." else [self._at.rstrip("/")]), *way))
        return HostError(
            f"cannot write {self._place.called(path)}: {why}",
            hint=self._place.read_only if number == errno.EROFS else None,
            **({} if number is None else {"errno": number}),
            path=path,
        )

    def _is_new(self, way: tuple[str, ...]) -> bool:
        """Whether that directory, or one above it, still has a temporary name."""
        return any(way[:count] in self._fresh for count in range(1, len(way) + 1))

    def finish(self) -> None:
        """Completes the copy: sets the attributes of new directories, and renames new entries to their final
        names."""
        for way, entry in reversed(self._directories):
            self._dress(self._enter(way), entry)
        self._leave()
        for way, temporary in self._fresh.items():
            parent = self._enter(way[:-1])
            with self._writing(way):
                os.rename(temporary, way[-1], src_dir_fd=parent, dst_dir_fd=parent)
        self._fresh.clear()
        self._leave()

    def abort(self) -> None:
        """Removes the entries that still have temporary names. May be called after :meth:`finish`."""
        with contextlib.suppress(OSError, HostError):
            for way, temporary in self._fresh.items():
                remove_tree(self._enter(way[:-1]), temporary)
        self._leave()

    def _add_directory(self, parent: int, way: tuple[str, ...], entry: Entry) -> None:
        if way in self._fresh:
            return
        try:
            os.close(os.open(way[-1], _DIRECTORY, dir_fd=parent))
            return
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _in_the_way(error, way) from None
        inside = self._is_new(way[:-1])
        name = way[-1] if inside else _temporary()
        self._check_ours(parent, way)
        with self._writing(way):
            os.mkdir(name, 0o700, dir_fd=parent)
        if not inside:
            self._fresh[way] = name
        self._directories.append((way, entry))

    def _enter(self, way: tuple[str, ...]) -> int:
        """A descriptor of that directory; it is made if an archive has no entry of its own for it."""
        names = tuple(name for name, _ in self._open)
        while names != way[: len(names)]:
            os.close(self._open.pop()[1])
            names = names[:-1]
        fd = self._open[-1][1] if self._open else self._top
        for count in range(len(names) + 1, len(way) + 1):
            here = way[:count]
            name = self._fresh.get(here, here[-1])
            try:
                below = os.open(name, _DIRECTORY, dir_fd=fd)
            except FileNotFoundError:
                implied = Entry((), "directory", 0o755, 0, 0, os.stat(".", dir_fd=fd).st_mtime_ns)
                self._add_directory(fd, here, implied)
                below = os.open(self._fresh.get(here, here[-1]), _DIRECTORY, dir_fd=fd)
            except OSError as error:
                raise _in_the_way(error, here) from None
            self._open.append((here[-1], below))
            fd = below
        return fd

    def _leave(self) -> None:
        while self._open:
            os.close(self._open.pop()[1])

    def _first(self, entry: Entry) -> int | None:
        """The directory of the file that a hard link refers to; None: the entry is not a hard link."""
        return os.dup(self._enter((*self._way, *entry.first)[:-1])) if entry.kind == "again" else None

    def _make(self, parent: int, name: str, way: tuple[str, ...], entry: Entry) -> None:
        if entry.kind == "link":
            with self._writing(way):
                os.symlink(entry.to, name, dir_fd=parent)
            if self._whole:
                os.chown(name, *self._owner(entry), dir_fd=parent, follow_symlinks=False)
            os.utime(name, ns=(entry.mtime, entry.mtime), dir_fd=parent, follow_symlinks=False)
            return
        with self._writing(way):
            fd = os.open(name, _NEW, 0o600, dir_fd=parent)
        try:
            _fill(fd, entry)
            self._dress(fd, entry)
        finally:
            os.close(fd)

    def _dress(self, fd: int, entry: Entry) -> None:
        if self._whole:
            os.fchown(fd, *self._owner(entry))
        # Without ``whole``, setuid and setgid bits are dropped: a program of an app must not run with another
        # user's rights.
        os.fchmod(fd, entry.mode & (0o7777 if self._whole else 0o1777))
        os.utime(fd, ns=(entry.mtime, entry.mtime))

    def _owner(self, entry: Entry) -> tuple[int, int]:
        return self._place.outside(entry.uid), self._place.outside(entry.gid)


def _temporary() -> str:
    return f"{UNFINISHED}{secrets.token_hex(8)}"


def _mount(fd: int) -> bytes:
    """The ID of the mount that the file is on."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        return next(line for line in file if line.startswith(b"mnt_id:"))


def _in_the_way(error: OSError, way: tuple[str, ...]) -> OSError | HostError:
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        return HostError(f"{'/'.join(way)} is there, and is not a directory")
    return error


def _fill(fd: int, entry: Entry) -> None:
    """:raises OSError: also: the file has become shorter since its size was read."""
    assert entry.open is not None
    source = entry.open()
    if isinstance(source, int):
        try:
            _copy(source, fd, entry.size)
        finally:
            os.close(source)
        return
    left = entry.size
    while left:
        piece = source.read(min(left, PIECE))
        if not piece:
            raise _short()
        left -= len(piece)
        while piece:
            piece = piece[os.write(fd, piece) :]


def _copy(source: int, target: int, size: int) -> None:
    """Copies only data; holes stay holes."""
    os.ftruncate(target, size)
    at, by_kernel = 0, True
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
            end = min(os.lseek(source, at, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if os.fstat(source).st_size < size:
                raise _short() from None
            return  # only a hole is left
        while at < end:
            count = 0
            if by_kernel:
                try:
                    count = os.copy_file_range(source, target, min(end - at, _STRETCH), at, at)
                except OSError as error:
                    if error.errno not in _CANNOT:
                        raise
                    by_kernel = False
            if not by_kernel:
                count = os.pwrite(target, os.pread(source, min(end - at, PIECE), at), at)
            if not count:
                raise _short()
            at += count


def _short() -> OSError:
    return OSError(errno.EIO, "it became shorter while it was copied")
