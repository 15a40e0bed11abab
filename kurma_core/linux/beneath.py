"""Paths in trees that somebody else has filled: always resolved by descriptor, beneath a root, never by string.

All functions take an open descriptor of the root (``O_PATH`` is enough) and raise :class:`OSError` with the path.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux.libc import syscall, words

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

_MAX_LINKS = 40
_TRIES = 64
_HERE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def openat2(dir_fd: int, path: str, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """``openat2(2)``, always close-on-exec.

    :param dir_fd: where a relative path starts; -100 (``AT_FDCWD``) for the current directory.
    :returns: the new descriptor.
    :raises OSError: among others ``EXDEV`` (the path leaves the root) and ``ELOOP`` (a link where none may be).
    """
    how = words(flags | os.O_CLOEXEC, mode, resolve)
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(errno.EINVAL, "a path must not hold a NUL", path)
    for _ in range(_TRIES):
        try:
            return syscall("openat2", dir_fd, name, how, len(how), path=path)
        except OSError as error:
            # The kernel saw a rename while it walked a ".." and could not tell whether the walk stayed inside.
            if error.errno != errno.EAGAIN:
                raise
    raise OSError(errno.EAGAIN, "the tree is being renamed too fast to resolve a path in it", path)


def open_beneath(root_fd: int, path: str, flags: int, mode: int = 0, *, symlinks: bool = False) -> int:
    """Open ``path`` beneath ``root_fd``; a way that leaves the root is an error.

    :param path: relative, or absolute and then meant from the root.
    :param symlinks: follow links that stay inside; without it, any link on the way is ``ELOOP``.
    :raises OSError: ``EXDEV`` for an escape, ``ELOOP`` for a link, and all that ``open`` raises.
    """
    resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS
    if not symlinks:
        resolve |= RESOLVE_NO_SYMLINKS
    return openat2(root_fd, path.lstrip("/") or ".", flags, mode, resolve)


def open_in_root(root_fd: int, path: str, flags: int, mode: int = 0) -> int:
    """Open ``path`` as a process with ``root_fd`` as its root would: absolute links and ``..`` stay inside.

    :raises OSError: all that ``open`` raises.
    """
    return openat2(root_fd, path, flags, mode, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)


def make_dirs(
    root_fd: int, path: str, mode: int = 0o755, uid: int = 0, gid: int = 0, *, symlinks: bool = False
) -> int:
    """Make the directory ``path`` and its parents beneath ``root_fd``.

    Directories that exist keep their owner and mode. Runs as root where owners are to be set.

    :param symlinks: follow links, inside the root only; without it no link may be on the way.

    :returns: a descriptor of the directory (``O_PATH``).
    :raises OSError: ``ELOOP`` for a link on the way, ``ENOTDIR`` for a file, ``EXDEV`` for a way out.
    """
    walk = _Walk(root_fd, path)
    try:
        while walk.todo:
            walk.step(mode=mode, uid=uid, gid=gid, links=symlinks, replace=False)
        return walk.take()
    finally:
        walk.close()


def make_mount_target(root_fd: int, path: str, *, directory: bool, owner: tuple[int, int] = (0, 0)) -> int:
    """Find or make the place inside ``root_fd`` where something will be mounted (V3).

    Links are followed, but only ever inside the root, dangling ones too: what they point at is made. What is
    missing is made with mode 0755, parents included. A file in the way of a directory becomes a directory.

    :param directory: the target is a directory; else a file (made empty, 0644).
    :param owner: user and group of what is made.
    :returns: a descriptor of the target (``O_PATH``).
    :raises OSError: ``EISDIR`` when a directory stands where a file is to be mounted.
    """
    walk = _Walk(root_fd, path)
    try:
        while walk.todo:
            if not directory and walk.at_last_name():
                found = walk.last_file(owner)
                if found is not None:
                    return found
                continue
            walk.step(mode=0o755, uid=owner[0], gid=owner[1], links=True, replace=True)
        if not directory:
            raise OSError(errno.EISDIR, "a directory stands where a file is to be mounted", path)
        return walk.take()
    finally:
        walk.close()


class _Walk:
    """A walk from a root, one name at a time, with a descriptor of every directory on the way down.

    ``..`` goes back along those descriptors and stops at the root, so no rename by somebody else can lead out.
    """

    __slots__ = ("fds", "links", "path", "todo")

    def __init__(self, root_fd: int, path: str) -> None:
        if "\0" in path:
            raise OSError(errno.EINVAL, "a path must not hold a NUL", path)
        self.path = path
        self.fds = [os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)]
        self.todo = _names(path)
        self.links = 0

    def at_last_name(self) -> bool:
        return len(self.todo) == 1 and self.todo[0] != ".."

    def take(self) -> int:
        """The directory that was reached; the caller closes it."""
        return self.fds.pop()

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()

    def step(self, *, mode: int, uid: int, gid: int, links: bool, replace: bool) -> None:
        """Go one name further, making a directory of it if there is none."""
        name = self.todo.pop(0)
        if name == "..":
            self._up(links)
            return
        for _ in range(_TRIES):
            fd = self._open(name)
            if fd is None:
                _make_dir(self.fds[-1], name, mode, uid, gid)
                continue
            kind = stat.S_IFMT(os.fstat(fd).st_mode)
            if kind == stat.S_IFDIR:
                self.fds.append(fd)
                return
            try:
                if kind == stat.S_IFLNK:
                    self._follow(fd, links)
                    return
            finally:
                os.close(fd)
            if not replace:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.path)
            _unlink(self.fds[-1], name)
        raise OSError(errno.EAGAIN, "the tree changes too fast to make a directory in it", self.path)

    def last_file(self, owner: tuple[int, int]) -> int | None:
        """The file that the last name stands for, made if missing; None if a link there gave new names to walk."""
        name = self.todo.pop(0)
        for _ in range(_TRIES):
            fd = self._open(name)
            if fd is None:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                try:
                    made = os.open(name, flags, 0o644, dir_fd=self.fds[-1])
                except FileExistsError:
                    continue
                try:
                    os.fchmod(made, 0o644)
                    os.fchown(made, *owner)
                finally:
                    os.close(made)
                continue
            kind = stat.S_IFMT(os.fstat(fd).st_mode)
            if kind not in (stat.S_IFDIR, stat.S_IFLNK):
                return fd
            try:
                if kind == stat.S_IFDIR:
                    raise OSError(errno.EISDIR, "a directory stands where a file is to be mounted", self.path)
                self._follow(fd, True)
                return None
            finally:
                os.close(fd)
        raise OSError(errno.EAGAIN, "the tree changes too fast to make a file in it", self.path)

    def _open(self, name: str) -> int | None:
        try:
            return os.open(name, _HERE, dir_fd=self.fds[-1])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), self.path) from None

    def _up(self, clamp: bool) -> None:
        if len(self.fds) > 1:
            os.close(self.fds.pop())
        elif not clamp:
            raise OSError(errno.EXDEV, "the path leads out of its root", self.path)

    def _follow(self, link_fd: int, links: bool) -> None:
        self.links += 1
        if not links or self.links > _MAX_LINKS:
            raise OSError(
                errno.ELOOP, "a symbolic link is in the way" if not links else "too many links", self.path
            )
        target = os.readlink("", dir_fd=link_fd)
        if target.startswith("/"):
            while len(self.fds) > 1:
                os.close(self.fds.pop())
        self.todo[:0] = _names(target)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _make_dir(parent_fd: int, name: str, mode: int, uid: int, gid: int) -> None:
    """``mkdir`` with exact mode and owner; quiet if it is there already (somebody was faster)."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent_fd)
    except FileExistsError:
        return
    fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
    try:
        os.fchown(fd, uid, gid)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _unlink(parent_fd: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent_fd)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        pass  # it has become what is wanted


def remove_tree(parent_fd: int, name: str) -> None:
    """Remove the file or directory ``name`` in ``parent_fd`` with all below it; a missing one is success.

    By descriptor throughout, without recursion (any depth), following no link and crossing no mount.

    :raises OSError: ``EXDEV`` or ``EBUSY`` if something is mounted below; nothing of that mount is touched.
    """
    if name in ("", ".", "..") or "/" in name:
        raise OSError(errno.EINVAL, "not the name of one entry", name)
    try:
        os.unlink(name, dir_fd=parent_fd)
        return
    except FileNotFoundError:
        return
    except IsADirectoryError:
        pass
    top = _enter(parent_fd, name)
    if top is None:
        return
    _empty(top)
    _rmdir(parent_fd, name)


def _empty(fd: int) -> None:
    """Remove all that is in the directory ``fd``, and close it.

    Going down, each directory's descriptor is given up, since there may be more levels than descriptors; going up,
    ``..`` must lead to the very directory that was left.
    """
    names: list[str] = []
    identities: list[tuple[int, int]] = []
    todo = [_clear_files(fd)]
    tries = 0
    try:
        while True:
            if todo[-1]:
                child = todo[-1].pop()
                below = _enter(fd, child)
                if below is None:
                    continue
                status = os.fstat(fd)
                identities.append((status.st_dev, status.st_ino))
                names.append(child)
                os.close(fd)
                fd = below
                todo.append(_clear_files(fd))
                continue
            if not names:
                return
            up = os.open("..", _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = up
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != identities.pop():
                raise OSError(errno.EXDEV, "a directory was moved away while it was being removed", names[-1])
            todo.pop()
            gone = names.pop()
            try:
                _rmdir(fd, gone)
            except OSError as error:
                tries += 1
                if error.errno != errno.ENOTEMPTY or tries > _TRIES:
                    raise
                todo[-1].append(gone)  # somebody writes while we remove: look again
    finally:
        os.close(fd)


def _enter(parent_fd: int, name: str) -> int | None:
    try:
        return openat2(parent_fd, name, _DIRECTORY, 0, RESOLVE_NO_XDEV | RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
    except FileNotFoundError:
        return None


def _clear_files(fd: int) -> list[str]:
    """Unlink everything in ``fd`` that is no directory; the names of the directories that remain."""
    directories = []
    with os.scandir(fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, directory in found:
        if directory:
            directories.append(name)
            continue
        try:
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            directories.append(name)
    return directories


def _rmdir(parent_fd: int, name: str) -> None:
    try:  # noqa: SIM105 - contextlib is not light
        os.rmdir(name, dir_fd=parent_fd)
    except FileNotFoundError:
        pass
