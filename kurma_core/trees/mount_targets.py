"""Makes directories and mount points in untrusted trees.

As in :mod:`kurma_core.linux.beneath`, it works by descriptors and stays beneath a root, despite links in the tree.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux.beneath import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, openat2

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAINLY = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS
_MAX_LINKS = 40
_TRIES = 64
#: Names of 255 bytes that fit into one path.
_TOGETHER = 15
_HERE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_dirs(
    root_fd: int, path: str, mode: int = 0o755, uid: int = 0, gid: int = 0, *, symlinks: bool = False
) -> int:
    """Make the directory ``path`` and its parents beneath ``root_fd``.

    Existing directories keep their owner and mode. Runs as root to set owners.

    :param symlinks: follow links, inside the root only; without it, no link may be on the path.

    :returns: a descriptor of the directory (``O_PATH``).
    :raises OSError: ``ELOOP`` for a link on the path, ``ENOTDIR`` for a file, ``EXDEV`` for a path out of the
        root.
    """
    walk = _Walk(root_fd, path)
    try:
        while walk.todo:
            walk.step(mode=mode, uid=uid, gid=gid, links=symlinks, replace=False)
        return walk.take()
    finally:
        walk.close()


class Place:
    """A mount point.

    :param fd: a descriptor of it (``O_PATH``); the caller closes it.
    :param path: its real path in the root: absolute, without links, of any length.
    :param replaced: paths of what stood in the way of a directory, and was removed.
    """

    __slots__ = ("fd", "path", "replaced")

    def __init__(self, fd: int, path: str, replaced: tuple[str, ...]) -> None:
        self.fd = fd
        self.path = path
        self.replaced = replaced


def make_place(
    root_fd: int,
    path: str,
    *,
    directory: bool,
    owner: tuple[int, int] = (0, 0),
    kept: Sequence[str] = (),
) -> Place:
    """Find or make a mount point inside ``root_fd``.

    Links are followed, inside the root only; the target of a dangling link is made. Missing directories are made
    with mode 0755, parents included. A file in the place of a directory is replaced by a directory.

    :param directory: the mount point is a directory; else a file (made empty, 0644).
    :param owner: user and group of new files and directories.
    :param kept: real paths below which no file is replaced.
    :raises OSError: ``EISDIR``: there is a directory in the place of a file.
    """
    walk = _Walk(root_fd, path)
    try:
        while walk.todo:
            if not directory and walk.at_last_name():
                found = walk.last_file(owner)
                if found is not None:
                    return Place(found, walk.real, tuple(walk.replaced))
                continue
            replace = not (kept and walk.below(kept))
            walk.step(mode=0o755, uid=owner[0], gid=owner[1], links=True, replace=replace)
        if not directory:
            raise OSError(errno.EISDIR, "a directory stands where a file is to be mounted", path)
        return Place(walk.take(), walk.real, tuple(walk.replaced))
    finally:
        walk.close()


def make_mount_target(root_fd: int, path: str, *, directory: bool, owner: tuple[int, int] = (0, 0)) -> int:
    """As :func:`make_place`; returns the descriptor alone."""
    return make_place(root_fd, path, directory=directory, owner=owner).fd


class _Walk:
    """A walk from a root, one name at a time, each opened in the directory before it.

    It keeps the names of its path, none of which is a link. ``..`` is resolved by these names from the root, so
    that neither a link nor a concurrent rename can lead out of the root. It holds two descriptors at any depth.
    """

    __slots__ = ("_here", "_root", "links", "names", "path", "replaced", "todo")

    def __init__(self, root_fd: int, path: str) -> None:
        if "\0" in path:
            raise OSError(errno.EINVAL, "a path must not hold a NUL", path)
        self.path = path
        self._root = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)
        self._here = self._root
        self.names: list[str] = []
        self.todo = _names(path)
        self.links = 0
        self.replaced: list[str] = []

    @property
    def real(self) -> str:
        """The path of the walk, without links."""
        return "/" + "/".join(self.names)

    def below(self, paths: Sequence[str]) -> bool:
        """Whether the walk is at or below one of these real paths."""
        here = self.real + "/"
        return any(here.startswith(path.rstrip("/") + "/") for path in paths)

    def at_last_name(self) -> bool:
        return len(self.todo) == 1 and self.todo[0] != ".."

    def take(self) -> int:
        """A descriptor of the directory that was reached; the caller closes it."""
        if self._here == self._root:
            return os.dup(self._root)
        fd, self._here = self._here, self._root
        return fd

    def close(self) -> None:
        self._move(self._root)
        os.close(self._root)

    def _move(self, fd: int) -> None:
        if self._here != self._root:
            os.close(self._here)
        self._here = fd

    def step(self, *, mode: int, uid: int, gid: int, links: bool, replace: bool) -> None:
        """Goes to the next name, and makes a directory if it is missing."""
        name = self.todo.pop(0)
        if name == "..":
            self._up(links)
            return
        for _ in range(_TRIES):
            fd = self._open(name)
            if fd is None:
                _make_dir(self._here, name, mode, uid, gid)
                continue
            kind = stat.S_IFMT(os.fstat(fd).st_mode)
            if kind == stat.S_IFDIR:
                self._move(fd)
                self.names.append(name)
                return
            try:
                if kind == stat.S_IFLNK:
                    self._follow(fd, links)
                    return
            finally:
                os.close(fd)
            if not replace:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.path)
            if _unlink(self._here, name):
                self.replaced.append("/" + "/".join([*self.names, name]))
        raise OSError(errno.EAGAIN, "the tree changes too fast to make a directory in it", self.path)

    def last_file(self, owner: tuple[int, int]) -> int | None:
        """Opens the file of the last name, and makes it if it is missing; None: it is a link, whose target's names
        are walked next."""
        name = self.todo.pop(0)
        for _ in range(_TRIES):
            fd = self._open(name)
            if fd is None:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                try:
                    made = os.open(name, flags, 0o644, dir_fd=self._here)
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
                self.names.append(name)
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
            return os.open(name, _HERE, dir_fd=self._here)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), self.path) from None

    def _up(self, clamp: bool) -> None:
        if self.names:
            self.names.pop()
        elif not clamp:
            raise OSError(errno.EXDEV, "the path leads out of its root", self.path)
        if self.todo and self.todo[0] == "..":
            return  # more ".." follow: walk from the root once, after the last
        self._move(self._root)
        for at in range(0, len(self.names), _TOGETHER):
            part = "/".join(self.names[at : at + _TOGETHER])
            self._move(openat2(self._here, part, os.O_PATH | os.O_DIRECTORY, 0, _PLAINLY))

    def _follow(self, link_fd: int, links: bool) -> None:
        self.links += 1
        if not links or self.links > _MAX_LINKS:
            raise OSError(
                errno.ELOOP, "a symbolic link is in the way" if not links else "too many links", self.path
            )
        target = os.readlink("", dir_fd=link_fd)
        if target.startswith("/"):
            self._move(self._root)
            self.names.clear()
        self.todo[:0] = _names(target)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _make_dir(parent_fd: int, name: str, mode: int, uid: int, gid: int) -> None:
    """``mkdir`` with exact mode and owner; quiet if it is there already."""
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


def _unlink(parent_fd: int, name: str) -> bool:
    """Removes a file. :returns: False: it is gone, or has become a directory meanwhile."""
    try:
        os.unlink(name, dir_fd=parent_fd)
    except (FileNotFoundError, IsADirectoryError):
        return False
    return True
