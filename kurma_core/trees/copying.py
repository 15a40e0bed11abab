"""Copies single entries of a tree with all they have: owner, mode, times, attributes, hard links.

By descriptor of the directory and one name; no link is followed. An entry that cannot be copied is an error.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kurma_core.models.isolator import IdRange


_CAPABILITY = "security.capability"
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
# struct vfs_cap_data: a word of revision and flags, then the sets; of revision 3 with the namespace's root behind.
_REVISION, _REVISION_2, _REVISION_3 = 0xFF000000, 0x02000000, 0x03000000
_OF_2 = 20
# Entries of an ACL after its first word: tag, permissions, id; these tags have one.
_HEAD, _ENTRY = 4, 8
_NAMED = (0x02, 0x08)


class Shift:
    """Maps owners to the ids of a user namespace."""

    __slots__ = ("_count", "_first")

    def __init__(self, ids: IdRange) -> None:
        self._first = ids.first
        self._count = ids.count

    def owner(self, status: os.stat_result) -> tuple[int, int]:
        """:raises OSError: ``EOVERFLOW``: the namespace has no such id."""
        return self.ids(status.st_uid, status.st_gid)

    def ids(self, uid: int, gid: int) -> tuple[int, int]:
        return self._id(uid), self._id(gid)

    def attribute(self, name: str, value: bytes) -> bytes:
        """Converts an extended attribute for the new owners: file capabilities count in the namespace alone.

        :raises OSError: as :meth:`owner`.
        """
        if name == _CAPABILITY:
            word = int.from_bytes(value[:4], "little")
            if word & _REVISION != _REVISION_2 or len(value) != _OF_2:
                return value
            return (word & ~_REVISION | _REVISION_3).to_bytes(4, "little") + value[4:] + self._bytes(0)
        if name not in _ACLS:
            return value
        found = bytearray(value)
        for at in range(_HEAD, len(found) - _ENTRY + 1, _ENTRY):
            if int.from_bytes(found[at : at + 2], "little") in _NAMED:
                found[at + 4 : at + 8] = self._bytes(int.from_bytes(found[at + 4 : at + 8], "little"))
        return bytes(found)

    def _id(self, number: int) -> int:
        if number >= self._count:
            raise OSError(
                errno.EOVERFLOW, f"its owner {number} is outside the {self._count} ids of the pod's user namespace"
            )
        return self._first + number

    def _bytes(self, number: int) -> bytes:
        return self._id(number).to_bytes(4, "little")


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_THIS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409
# Errors of file systems that do not support a way to copy; the next way is tried.
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.EPERM, errno.ETXTBSY)
_PIECE = 1 << 20
#: Bytes that the kernel copies between two checks for cancellation.
_STRETCH = 64 << 20
# The kernel gives these to every file by its own rules; they can be set, but not removed.
_STAYS = ("security.selinux", "security.SMACK64")


def go_on() -> None:
    """Never ends the work."""


class Copies:
    """Copies files into one tree. Hard links of a source become hard links in the tree."""

    __slots__ = ("check", "clone", "made", "shift", "splice", "top")

    def __init__(self, top: int, check: Callable[[], object] = go_on, shift: Shift | None = None) -> None:
        """:param top: the tree's top directory; stays the caller's.
        :param check: called again and again; its exceptions end the work.
        :param shift: of the owners.
        """
        self.shift = shift
        self.check = check
        self.top = top
        self.clone = True
        self.splice = True
        # by source file, the place of its first copy: directories, name
        self.made: dict[tuple[int, int], tuple[tuple[str, ...], str]] = {}

    def next_source(self) -> None:
        """Begins with another source, which has no hard links to files of the one before, and may be on another
        file system, which can share blocks with the target's.
        """
        self.made.clear()
        self.clone = self.splice = True

    def make(self, source: int, target: int, way: Sequence[str], name: str) -> None:
        """Copy the entry ``name`` (anything but a directory) from one directory to the other.

        :param way: the names that lead from the top of the tree to ``target``.
        :raises FileExistsError: the target has that name.
        :raises OSError: a copy with all its attributes cannot be made; the partial copy is removed.
        """
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        shared = (status.st_dev, status.st_ino) if status.st_nlink > 1 else None
        if shared in self.made and self._link(*self.made[shared], target, name):
            return
        self._create(source, target, name, status)
        try:
            self._fill(source, target, name, status)
        except BaseException:
            os.unlink(name, dir_fd=target)
            raise
        if shared is not None:
            self.made[shared] = (tuple(way), name)

    def _link(self, way: tuple[str, ...], first: str, target: int, name: str) -> bool:
        """Whether ``name`` could be made another name of an earlier copy."""
        directory = descend(self.top, way)
        if directory is None:
            raise OSError(errno.ENOENT, "something else writes here", first)
        try:
            os.link(first, name, src_dir_fd=directory, dst_dir_fd=target, follow_symlinks=False)
            return True
        except OSError as error:
            if error.errno in (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                return False  # hard links are not supported, or too many: make a copy
            raise
        finally:
            os.close(directory)

    def _create(self, source: int, target: int, name: str, status: os.stat_result) -> None:
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif stat.S_ISREG(status.st_mode):
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o600, dir_fd=target))
        else:
            os.mknod(name, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev, dir_fd=target)

    def _fill(self, source: int, target: int, name: str, status: os.stat_result) -> None:
        """Copies content, owner, mode, attributes and times, in this order: a change of owner clears setuid, and
        attributes may forbid later changes."""
        if stat.S_ISREG(status.st_mode) and status.st_size:
            self._copy_content(source, target, name, status.st_size)
        os.chown(name, *_owner(status, self.shift), dir_fd=target, follow_symlinks=False)
        this = os.open(name, _THIS, dir_fd=source)
        try:
            that = os.open(name, _THIS, dir_fd=target)
            try:
                if not stat.S_ISLNK(status.st_mode):
                    # By the magic link, since chmod by name would follow a link that has just come there.
                    os.chmod(f"/proc/self/fd/{that}", stat.S_IMODE(status.st_mode))
                # The xattr calls refuse O_PATH descriptors; the magic link leads to the entry, even to a link.
                _copy_attributes(f"/proc/self/fd/{this}", f"/proc/self/fd/{that}", self.shift)
            finally:
                os.close(that)
        finally:
            os.close(this)
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)

    def _copy_content(self, source: int, target: int, name: str, size: int) -> None:
        reader = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
        try:
            writer = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=target)
            try:
                if not self._cloned(reader, writer):
                    self._copy_data(reader, writer, size)
            finally:
                os.close(writer)
        finally:
            os.close(reader)

    def _cloned(self, reader: int, writer: int) -> bool:
        if self.clone:
            try:
                fcntl.ioctl(writer, _FICLONE, reader)
                return True
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                self.clone = False
        return False

    def _copy_data(self, reader: int, writer: int, size: int) -> None:
        """Copies the data, and keeps holes."""
        os.ftruncate(writer, size)
        start = 0
        while start < size:
            try:
                start = os.lseek(reader, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # only a hole is left
                raise
            end = min(os.lseek(reader, start, os.SEEK_HOLE), size)
            while start < end:
                self.check()
                count = self._copy_piece(reader, writer, start, min(end - start, _STRETCH))
                if not count:
                    raise OSError(errno.EIO, "the file became shorter while it was copied")
                start += count

    def _copy_piece(self, reader: int, writer: int, offset: int, count: int) -> int:
        if self.splice:
            try:
                return os.copy_file_range(reader, writer, count, offset, offset)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                self.splice = False
        data = os.pread(reader, min(count, _PIECE), offset)
        return os.pwrite(writer, data, offset) if data else 0


def copy_directory_attributes(source: int, target: int, shift: Shift | None = None) -> None:
    """Give the directory ``target`` the owner, mode, times and attributes of ``source``, and remove others."""
    status = os.fstat(source)
    os.fchown(target, *_owner(status, shift))
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    _copy_attributes(source, target, shift)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _owner(status: os.stat_result, shift: Shift | None) -> tuple[int, int]:
    return (status.st_uid, status.st_gid) if shift is None else shift.owner(status)


def _copy_attributes(source: int | str, target: int | str, shift: Shift | None) -> None:
    """Copies the extended attributes, with ACLs and file capabilities, and removes others, which were
    inherited."""
    names = _attributes(source)
    for name in _attributes(target):
        if name not in names:
            drop_attribute(target, name)
    for name in names:
        value = os.getxattr(source, name)
        os.setxattr(target, name, value if shift is None else shift.attribute(name, value))


def _attributes(file: int | str) -> list[str]:
    try:
        return os.listxattr(file)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return []  # the file system has none
        raise


def drop_attribute(file: int | str, name: str) -> None:
    """Remove an extended attribute, unless the kernel gives it to every file."""
    if name not in _STAYS:
        os.removexattr(file, name)


def descend(top: int, names: Sequence[str]) -> int | None:
    """Opens the directory at the path ``names`` below ``top``. :returns: a descriptor; None: it is missing, or a
    component is not a directory."""
    fd = os.dup(top)
    for name in names:
        try:
            below = os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise
        os.close(fd)
        fd = below
    return fd
