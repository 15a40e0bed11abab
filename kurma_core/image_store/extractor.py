"""Extracts the entries of an untrusted tar beneath one directory.

Runs as root on untrusted names. Every parent directory is opened by descriptor beneath the root, without following
links; every file is created (``O_EXCL``), never opened; owners, modes and times of directories are set at the very
end, so that later entries of the archive do not change them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

from kurma_core.errors import HostileArchiveError
from kurma_core.image_store.durable import start_writing, write_all
from kurma_core.image_store.file_records import content_hash, is_hostile_attribute, put_attributes, sparse_digest
from kurma_core.image_store.tar_entries import (
    BLOCK,
    CHARACTER,
    DIRECTORY,
    FIFO,
    FILE,
    HARDLINK,
    SYMLINK,
    Entry,
    Limits,
    PathCounter,
    show,
)
from kurma_core.linux.beneath import open_beneath, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    Content = Callable[[Entry], Iterator[memoryview]]

#: Bytes of a large file after which writing to disk is started.
_STRETCH = 8 << 20
#: Directories held open at a time, the most recent ones.
_OPEN = 128
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_MAJOR, _MAX_MINOR = 0xFFF, 0xFFFFF
_MAX_ID = 0xFFFFFFFE
_MAX_TARGET = 4095
#: Errors of the kernel for impossible names, links and attributes.
_ITS_OWN_FAULT = frozenset(
    (
        errno.E2BIG,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.ERANGE,
        errno.EXDEV,
    )
)
_NODES = {CHARACTER: stat.S_IFCHR, BLOCK: stat.S_IFBLK, FIFO: stat.S_IFIFO}


class Extractor:
    """Fills one empty directory. A context manager, which closes its descriptors at the end.

    :param root: descriptor of the directory, not closed here.
    :param content: reads an entry's content from the archive.
    :param limits: of these, those that can be checked only here: implied directories, and all paths together.
    :param replace: a later entry replaces an earlier one of the same name (layers); else it is refused (images).
    """

    def __init__(self, root: int, content: Content, limits: Limits, *, replace: bool) -> None:
        self._content = content
        self._counter = PathCounter(limits)
        self._replace = replace
        self._open: dict[bytes, int] = {b"": os.dup(root)}
        self._directories: dict[bytes, Entry | None] = {b"": None}  # None: a directory without an entry of its own
        self._below: dict[bytes, list[bytes]] = {}
        #: Digest of the content of every regular file, by path.
        self.digests: dict[bytes, str] = {}
        self._attributed: set[bytes] = set()

    def __enter__(self) -> Extractor:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def add(self, entry: Entry, parts: list[bytes]) -> None:
        """Extract one entry.

        :param parts: its path beneath the root; empty for the root itself.
        :raises HostileArchiveError: no honest archive has such an entry.
        :raises OSError: the file system fails.
        """
        check(entry)
        path = b"/".join(parts)
        self._counter.add(path)
        if entry.attributes:
            self._attributed.add(path)
        if entry.kind == DIRECTORY:
            self._add_directory(entry, path, parts)
            return
        if not parts:
            raise hostile(entry, "it stands where the root directory must be")
        parent = self._parent(entry, parts[:-1])
        try:
            self._make(entry, parent, parts[-1], path)
        except FileExistsError:
            if not self._replace:
                raise hostile(entry, "there are two entries of that name") from None
            self._clear(parent, parts[-1], path)
            self._make(entry, parent, parts[-1], path)

    def imply(self, entry: Entry, parts: list[bytes]) -> None:
        """Make the directory ``parts`` for the sake of ``entry``, if it is not there. Errors as of :meth:`add`."""
        self._parent(entry, parts)

    def implied(self) -> list[bytes]:
        """Directories without an entry of their own, whose owner, mode and time have no meaning."""
        return sorted(path for path, entry in self._directories.items() if entry is None)

    def attributed(self) -> frozenset[bytes]:
        """Paths of entries that came with extended attributes."""
        return frozenset(self._attributed)

    def finish(self) -> None:
        """Sets owners, modes and times of directories, the deepest first, since a mode may forbid the way."""
        for path in sorted(self._directories, reverse=True):
            entry = self._directories[path]
            fd = self._reopen(path)
            if entry is None:
                os.fchmod(fd, 0o755)
                os.utime(fd, ns=(0, 0))
            else:
                self._seal(fd, entry)

    # --- directories ---------------------------------------------------------------------------------------------

    def _add_directory(self, entry: Entry, path: bytes, parts: list[bytes]) -> None:
        if path in self._directories:
            if self._directories[path] is not None and not self._replace:
                raise hostile(entry, "there are two entries of that name")
            self._directories[path] = entry
            return
        parent = self._parent(entry, parts[:-1])
        try:
            os.mkdir(parts[-1], 0o700, dir_fd=parent)
        except FileExistsError:
            if not self._replace:
                raise hostile(entry, "there are two entries of that name") from None
            self._clear(parent, parts[-1], path)
            os.mkdir(parts[-1], 0o700, dir_fd=parent)
        self._note_directory(path, parts, entry)

    def _note_directory(self, path: bytes, parts: list[bytes], entry: Entry | None) -> None:
        self._directories[path] = entry
        if self._replace:
            self._below.setdefault(b"/".join(parts[:-1]), []).append(path)

    def _parent(self, entry: Entry, parts: list[bytes]) -> int:
        """Descriptor of a directory, made with its own parents if it is not there."""
        path = b"/".join(parts)
        if path not in self._directories:
            above = self._parent(entry, parts[:-1])
            self._counter.add(path, implied=True)
            try:
                os.mkdir(parts[-1], 0o700, dir_fd=above)
            except FileExistsError:
                raise hostile(entry, f"'{show(path)}' above it is not a directory") from None
            self._note_directory(path, parts, None)
        return self._reopen(path)

    def _reopen(self, path: bytes) -> int:
        """Descriptor of a directory that was made here, by way of the ones held open."""
        fd = self._open.pop(path, None)
        if fd is None:
            if len(self._open) >= _OPEN:
                oldest = next(name for name in self._open if name)
                os.close(self._open.pop(oldest))
            fd = open_beneath(self._open[b""], os.fsdecode(path), os.O_RDONLY | os.O_DIRECTORY)
        self._open[path] = fd
        return fd

    def _clear(self, parent: int, name: bytes, path: bytes) -> None:
        """Removes the file that an earlier entry of the same name has made."""
        remove_tree(parent, os.fsdecode(name))
        self.digests.pop(path, None)
        gone = [path] if path in self._directories else []
        while gone:
            directory = gone.pop()
            gone += self._below.pop(directory, ())
            self._directories.pop(directory, None)
            fd = self._open.pop(directory, None)
            if fd is not None:
                os.close(fd)

    # --- everything else -----------------------------------------------------------------------------------------

    def _make(self, entry: Entry, parent: int, name: bytes, path: bytes) -> None:
        if entry.kind == FILE:
            self._make_file(entry, parent, name, path)
        elif entry.kind == HARDLINK:
            self._make_hard_link(entry, parent, name, path)
        else:
            if entry.kind == SYMLINK:
                os.symlink(entry.target, name, dir_fd=parent)
            else:
                os.mknod(name, 0o600 | _NODES[entry.kind], os.makedev(*entry.device), dir_fd=parent)
            os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
            if entry.attributes:
                # User attributes exist on files and directories alone; no file system can hold them here.
                fitting = {key: value for key, value in entry.attributes.items() if not key.startswith(b"user.")}
                put_attributes(b"/proc/self/fd/%d/%s" % (parent, name), fitting, follow=False)
            if entry.kind != SYMLINK:
                _chmod_node(entry, parent, name)
            os.utime(name, ns=(entry.mtime, entry.mtime), dir_fd=parent, follow_symlinks=False)

    def _make_file(self, entry: Entry, parent: int, name: bytes, path: bytes) -> None:
        fd = os.open(name, _NEW | (os.O_WRONLY if entry.sparse is None else os.O_RDWR), 0o600, dir_fd=parent)
        try:
            if entry.sparse is None:
                digest = content_hash()
                written = started = 0
                for piece in self._content(entry):
                    write_all(fd, piece)
                    digest.update(piece)
                    written += len(piece)
                    if written - started >= _STRETCH:
                        start_writing(fd, started, written - started)
                        started = written
                self.digests[path] = digest.hexdigest()
            else:
                _write_sparse(fd, entry, self._content(entry))
                self.digests[path] = sparse_digest(fd, entry.size)
            self._seal(fd, entry)
        finally:
            os.close(fd)

    def _make_hard_link(self, entry: Entry, parent: int, name: bytes, path: bytes) -> None:
        """:ivar entry.target: a path beneath the root; the archive's layout has resolved it."""
        above, _, last = entry.target.rpartition(b"/")
        if entry.target == path:
            raise hostile(entry, "it is a hard link to itself")
        if entry.target in self._directories:
            raise hostile(entry, "it is a hard link to a directory")
        if above not in self._directories:
            raise _dangling(entry)
        try:
            os.link(last, name, src_dir_fd=self._reopen(above), dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise _dangling(entry) from None
        digest = self.digests.get(entry.target)
        if digest is not None:
            self.digests[path] = digest
        if entry.target in self._attributed:
            self._attributed.add(path)

    def _seal(self, fd: int, entry: Entry) -> None:
        """Sets the owner first, since changing it clears capabilities and set-user-ID bits."""
        os.fchown(fd, entry.uid, entry.gid)
        if entry.attributes:
            put_attributes(fd, entry.attributes)
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=(entry.mtime, entry.mtime))


def _chmod_node(entry: Entry, parent: int, name: bytes) -> None:
    """By a descriptor: no ``chmod`` by name leaves links alone, and a link may be swapped in."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if stat.S_IFMT(os.fstat(fd).st_mode) != _NODES[entry.kind]:
            raise hostile(entry, "something else was put in its place while it was extracted")
        os.chmod(f"/proc/self/fd/{fd}", entry.mode)
    finally:
        os.close(fd)


def check(entry: Entry) -> None:
    """Checks an entry by itself. :raises HostileArchiveError: no honest archive has such an entry."""
    if entry.uid > _MAX_ID or entry.gid > _MAX_ID:
        raise hostile(entry, "its owner is out of range")
    for name in entry.attributes:
        if is_hostile_attribute(name):
            raise hostile(entry, f"it carries the attribute '{show(name)}', which an overlay would obey")
        if b"\0" in name or not name or len(name) > 255:
            raise hostile(entry, "it carries an attribute with an impossible name")
    if entry.kind in (CHARACTER, BLOCK):
        major, minor = entry.device
        if entry.kind == CHARACTER and major == 0 and minor == 0:
            raise hostile(entry, "a 0:0 character device is a whiteout to an overlay")
        if major > _MAX_MAJOR or minor > _MAX_MINOR:
            raise hostile(entry, "its device number is out of range")
    if entry.kind == SYMLINK and (not entry.target or b"\0" in entry.target or len(entry.target) > _MAX_TARGET):
        raise hostile(entry, "its target is impossible")


def hostile(entry: Entry, why: str) -> HostileArchiveError:
    """The error for an entry that no honest archive has."""
    name = show(entry.name)
    return HostileArchiveError(f"the archive is refused for its entry '{name}': {why}", entry=name)


def explain(error: OSError, entry: Entry) -> Exception:
    """The error to raise for a kernel's refusal: the archive's fault, or the system's own error."""
    if error.errno in _ITS_OWN_FAULT:
        return hostile(entry, (error.strerror or str(error)).lower())
    return error


def _dangling(entry: Entry) -> HostileArchiveError:
    return hostile(entry, f"it is a hard link to '{show(entry.target)}', which is not before it")


def _write_sparse(fd: int, entry: Entry, content: Iterator[memoryview]) -> None:
    """Write the stretches that are stored; what lies between them is a hole."""
    assert entry.sparse is not None
    os.ftruncate(fd, entry.size)
    stretches = iter(entry.sparse)
    offset = length = 0
    for piece in content:
        while piece:
            while not length:
                offset, length = next(stretches)
            written = os.pwrite(fd, piece[:length], offset)
            offset, length, piece = offset + written, length - written, piece[written:]
