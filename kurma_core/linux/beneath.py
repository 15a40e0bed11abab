"""Opens and removes files in untrusted directory trees, safely: by descriptor and beneath a root.

All functions take an open descriptor of the root (``O_PATH`` is enough).

:param flags: as of open(2), such as ``os.O_RDONLY``; close-on-exec is added. :param mode: of a file that is made.
:param dir_fd: descriptor of a directory; ``AT_FDCWD``: the current one.
:raises OSError: with the path.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux.libc import syscall, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Bits of ``resolve``: refuse other mounts, links of ``/proc``, symbolic links, and paths that leave the root; or
#: resolve the path as in a root.
RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

#: ``openat2`` of a path from the current directory.
AT_FDCWD = -100

_TRIES = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def openat2(dir_fd: int, path: str, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """``openat2(2)``, always close-on-exec.

    :param path: relative to ``dir_fd``. :param resolve: ``RESOLVE_…`` bits.
    :param dir_fd: start of a relative path; -100 (``AT_FDCWD``) for the current directory.
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
    """Open ``path`` beneath ``root_fd``; a path that leaves the root is an error.

    :param path: relative to the root, with or without a leading slash.
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


def remove_tree(parent_fd: int, name: str, step: Callable[[int], object] = lambda count: None) -> None:
    """Remove the file or directory ``name`` in ``parent_fd`` with all below it; succeed if it does not exist.

    It works by descriptors and without recursion, to any depth; it follows no links and crosses no mounts.

    :param step: called with a number of files that have been removed, again and again.
    :raises OSError: ``EXDEV`` or ``EBUSY`` if there is a mount below, whose files are not touched.
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
    _empty(top, step)
    _rmdir(parent_fd, name)


def _empty(fd: int, step: Callable[[int], object]) -> None:
    """Remove all entries of the directory ``fd``, and close it."""
    tries = 0

    def leave(parent: int, name: str) -> bool:
        nonlocal tries
        try:
            _rmdir(parent, name)
        except OSError as error:
            tries += 1
            if error.errno != errno.ENOTEMPTY or tries > _TRIES:
                raise
            return True  # another process writes here meanwhile: look again
        return False

    _walk(fd, lambda directory: _clear_files(directory, step), _enter, leave)


def bytes_below(path: str, count: Callable[[os.stat_result], int]) -> int:
    """Adds up ``path`` and all below it: an untrusted tree, which its app may change meanwhile.

    It works by descriptors and without recursion, to any depth; it follows no links and crosses no mounts. Files
    that vanish do not count. If a directory is moved away meanwhile, it ends with what it has found by then.

    :param path: its parents are trusted. :param count: gives the bytes of one file or directory.
    """
    total = 0

    def look(directory: int) -> list[str]:
        nonlocal total
        directories = []
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    directories.append(entry.name)
                else:
                    total += count(status)
        return directories

    def enter(parent: int, name: str) -> int | None:
        nonlocal total
        try:
            below = _enter(parent, name)
        except OSError:
            return None  # a mount, or a file or link by now
        if below is not None:
            try:
                total += count(os.fstat(below))
            except BaseException:  # the count may be cancelled
                os.close(below)
                raise
        return below

    try:
        status = os.lstat(path)
        total += count(status)
        if stat.S_ISDIR(status.st_mode):
            _walk(os.open(path, _DIRECTORY), look, enter, lambda parent, name: False)
    except OSError:
        pass
    return total


def _walk(
    fd: int,
    look: Callable[[int], list[str]],
    enter: Callable[[int, str], int | None],
    leave: Callable[[int, str], bool],
) -> None:
    """Goes through the directory ``fd`` and all below it, and closes it.

    On the way down, each directory is closed, since there may be more levels than descriptors. On the way up,
    ``..`` must lead to the same directory again.

    :param look: called with each directory; returns the names of the directories in it to enter.
    :param enter: opens a directory; None: it is left out.
    :param leave: called with the parent and the name of each entered directory at its end; true: enter it again.
    :raises OSError: ``EXDEV`` if a directory is moved away meanwhile.
    """
    names: list[str] = []
    identities: list[tuple[int, int]] = []
    try:
        todo = [look(fd)]
        while True:
            if todo[-1]:
                child = todo[-1].pop()
                below = enter(fd, child)
                if below is None:
                    continue
                status = os.fstat(fd)
                identities.append((status.st_dev, status.st_ino))
                names.append(child)
                os.close(fd)
                fd = below
                todo.append(look(fd))
                continue
            if not names:
                return
            up = os.open("..", _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = up
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != identities.pop():
                raise OSError(errno.EXDEV, "a directory was moved away meanwhile", names[-1])
            todo.pop()
            gone = names.pop()
            if leave(fd, gone):
                todo[-1].append(gone)
    finally:
        os.close(fd)


def _enter(parent_fd: int, name: str) -> int | None:
    try:
        return openat2(parent_fd, name, _DIRECTORY, 0, RESOLVE_NO_XDEV | RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
    except FileNotFoundError:
        return None


def _clear_files(fd: int, step: Callable[[int], object]) -> list[str]:
    """Unlink the files in ``fd``. :returns: the names of the directories, which remain."""
    directories = []
    with os.scandir(fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    step(1)  # the directory itself
    for name, directory in found:
        if directory:
            directories.append(name)
            continue
        step(1)
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


_STRICTLY = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS


class NotRegularError(OSError):
    """The path is not a regular file; ``mode`` is its type and mode."""

    def __init__(self, path: str, mode: int) -> None:
        super().__init__(errno.EINVAL, "not a regular file", path)
        self.mode = mode


def open_regular(
    dir_fd: int, path: str, flags: int = os.O_RDONLY, *, resolve: int = _STRICTLY, proc: bool = True
) -> int:
    """Open a regular file of an untrusted tree, and never a file of another type.

    Opening a device has side effects (a watchdog starts, a tape rewinds), and opening a FIFO waits for its other
    end. So the path is resolved with ``O_PATH``, which opens no device, and the file is checked and opened by that
    descriptor. Another file that gets the name meanwhile is not opened.

    :param flags: ``O_NOFOLLOW`` refuses a link at the end of the path where ``resolve`` permits links.
    :param resolve: as for :func:`kurma_core.linux.beneath.openat2`. By default no link is followed, and the path
        must stay beneath ``dir_fd``.
    :param proc: False: ``/proc`` cannot be trusted, as in an app's root. The file is then opened by its name
        again, and refused if that is another file now.
    :raises NotRegularError: it is a file of another type.
    :raises OSError: ``ELOOP`` for a link that must not be followed, and all that ``open`` raises; with the path.
    """
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    found = openat2(dir_fd, path, os.O_PATH | flags & os.O_NOFOLLOW, 0, resolve)
    try:
        status = os.fstat(found)
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if not stat.S_ISREG(status.st_mode):
            raise NotRegularError(path, status.st_mode)
        if proc:
            try:
                return os.open(f"/proc/self/fd/{found}", flags & ~os.O_NOFOLLOW)
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from None
        again = openat2(dir_fd, path, flags, 0, resolve)
        if not os.path.samestat(os.fstat(again), status):
            os.close(again)
            raise OSError(errno.ESTALE, "replaced while it was opened", path)
        return again
    finally:
        os.close(found)
