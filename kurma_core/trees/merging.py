"""Merges directory trees into one, by hard links or by copies with all attributes.

The trees are untrusted, but no other process writes to them meanwhile. So every step goes from an open directory
to an entry of it, follows no links, and goes back up only to the same directory. Trees may have more levels than a
process has descriptors, and longer paths than PATH_MAX.

Runs as root to keep owners, devices and ``security.*`` attributes.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux.beneath import remove_tree
from kurma_core.trees import copying
from kurma_core.trees.copying import Shift as Shift  # an argument of merge()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Protocol

    class Filter(Protocol):
        """The relative paths of the merged tree that are kept."""

        @property
        def paths(self) -> Collection[str]: ...
        @property
        def directories(self) -> Collection[str]: ...

    class Step(Protocol):
        """One directory to merge into the target.

        ``root``: its place in the target (relative, "" for the top). ``filter``: the paths to keep; None: all.
        ``removed``, ``opaque``: paths, and directories' contents, to remove from earlier steps.
        ``implied``: paths of directories of this step whose attributes do not replace those of an earlier step.
        """

        @property
        def path(self) -> str: ...
        @property
        def root(self) -> str: ...
        @property
        def filter(self) -> Filter | None: ...
        @property
        def removed(self) -> Sequence[str]: ...
        @property
        def opaque(self) -> Sequence[str]: ...
        @property
        def implied(self) -> Sequence[str]: ...


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# No hard link is possible: too many links, another file system, or one without hard links.
_NO_LINK = (errno.EMLINK, errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
# Most levels of ``Step.root``; each holds a descriptor.
_MOST_ROOT_NAMES = 128


def merge(
    target: str,
    steps: Iterable[Step],
    *,
    copy: bool = False,
    check: Callable[[], object] = copying.go_on,
    done: Callable[[], object] = copying.go_on,
    shift: Shift | None = None,
) -> None:
    """Merge the steps' directories into ``target``, in order.

    An entry of a later step replaces that of an earlier one. Directories are merged, and get the later one's
    owner, mode, times and attributes. A symbolic link in the place of a directory is removed, never followed.

    :param target: an empty directory. Directories without attributes of a step are ours, with mode 0755 and the
        time 0.
    :param copy: copy files, sharing their blocks if the file system can; else make hard links, and copies only
        where no link is possible.
    :param check: called regularly; an exception of it ends the work.
    :param done: called after each file and each directory.
    :param shift: maps the owners of copies.
    :raises OSError: with the path, as the kernel says.
    """
    top = os.open(target, _DIRECTORY)
    try:
        _plain_directory(top, shift)
        copies = copying.Copies(top, check, shift)
        fresh = True
        for step in steps:
            copies.next_source()
            if _lay(top, step, copies, copy, fresh, done):
                fresh = False
    finally:
        os.close(top)


def _lay(
    top: int, step: Step, copies: copying.Copies, copy: bool, fresh: bool, done: Callable[[], object]
) -> bool:
    """Merges one step. :returns: False: the filter excludes all of it, and nothing was done.

    :param fresh: no step has been merged yet: the top has no attributes of a step.
    """
    if step.filter is not None and step.root not in step.filter.directories:
        return False
    names = _names(step.root)
    if len(names) > _MOST_ROOT_NAMES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), step.root)
    way = [os.dup(top)]
    times = []
    made = fresh
    try:
        for name in names:
            times.append(_times(way[-1]))
            below, made = _directory_in(way[-1], name)
            way.append(below)
            if made:
                _plain_directory(below, copies.shift)
        _take_away(way[-1], step)
        source = os.open(step.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _Laying(source, os.dup(way[-1]), names, step, copies, copy, done).run(made)
        # The directories above the root do not belong to this step: restore their times.
        for fd, before_times in zip(way, times, strict=False):
            os.utime(fd, ns=before_times)
        return True
    finally:
        for fd in way:
            os.close(fd)


class _Laying:
    """Walks through one source directory and, in parallel, the target. It closes both descriptors."""

    __slots__ = ("copies", "copy", "done", "filter", "implied", "names", "root", "source", "target")

    def __init__(
        self,
        source: int,
        target: int,
        names: list[str],
        step: Step,
        copies: copying.Copies,
        copy: bool,
        done: Callable[[], object],
    ) -> None:
        self.done = done
        self.source = source
        self.target = target
        self.names = names  # from the target's top to where we are
        self.root = len(names)
        self.filter = step.filter
        self.implied = frozenset(step.implied)
        self.copies = copies
        self.copy = copy

    def run(self, made: bool) -> None:
        """:param made: the target was made for this step."""
        try:
            looks = [self._kept_times(made)]
            todo = [self._lay_files()]
            left: list[tuple[tuple[int, int], tuple[int, int]]] = []
            while True:
                if todo[-1]:
                    left.append((_identity(self.source), _identity(self.target)))
                    made = self._down(todo[-1].pop())
                    looks.append(self._kept_times(made))
                    todo.append(self._lay_files())
                    continue
                # Set the times last, when this step writes no more to the directory.
                times = looks.pop()
                if times is None:
                    copying.copy_directory_attributes(self.source, self.target, self.copies.shift)
                else:
                    os.utime(self.target, ns=times)
                todo.pop()
                if not todo:
                    return
                self._up(*left.pop())
        except OSError as error:
            # The call's error has one name or a descriptor: make it the whole path.
            name = [error.filename] if isinstance(error.filename, str) else []
            raise OSError(error.errno, error.strerror, "/".join([*self.names, *name]) or "/") from error
        finally:
            os.close(self.source)
            os.close(self.target)

    def _kept_times(self, made: bool) -> tuple[int, int] | None:
        """The times to restore, if the directory keeps its attributes; None: it gets the source's."""
        if made or not self.implied or "/".join(self.names[self.root :]) not in self.implied:
            return None
        return _times(self.target)

    def _lay_files(self) -> list[str]:
        """Merges the files of this directory. :returns: the names of the directories to enter."""
        directories: list[str] = []
        files: list[str] = []
        with os.scandir(self.source) as entries:
            for entry in entries:
                (directories if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
        if self.filter is not None:
            prefix = "/".join([*self.names, ""])
            directories = [name for name in directories if prefix + name in self.filter.directories]
            files = [name for name in files if prefix + name in self.filter.paths]
        for name in files:
            self.copies.check()
            self._lay_file(name)
            self.done()
        return directories

    def _lay_file(self, name: str) -> None:
        for _ in range(2):
            try:
                if self.copy:
                    self.copies.make(self.source, self.target, self.names, name)
                else:
                    self._link(name)
                return
            except FileExistsError:
                remove_tree(self.target, name)
            except OSError as error:
                raise OSError(error.errno, error.strerror, name) from error
        raise FileExistsError(errno.EEXIST, "something else writes here", name)

    def _link(self, name: str) -> None:
        try:
            os.link(name, name, src_dir_fd=self.source, dst_dir_fd=self.target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self.copies.make(self.source, self.target, self.names, name)

    def _down(self, name: str) -> bool:
        """Enters a directory. :returns: whether the target's was made."""
        self.done()
        below = os.open(name, _DIRECTORY, dir_fd=self.source)
        try:
            into, made = _directory_in(self.target, name)
        except OSError:
            os.close(below)
            raise
        os.close(self.source)
        os.close(self.target)
        self.source, self.target = below, into
        self.names.append(name)
        return made

    def _up(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        self.source = _back(self.source, source)
        self.target = _back(self.target, target)
        self.names.pop()


def _times(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_atime_ns, status.st_mtime_ns


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _back(fd: int, expected: tuple[int, int]) -> int:
    """Goes back to the parent directory, which must be the expected one; closes ``fd``."""
    above = os.open("..", _DIRECTORY, dir_fd=fd)
    if _identity(above) != expected:
        os.close(above)
        raise OSError(errno.EXDEV, "a directory was moved away while trees were being merged")
    os.close(fd)
    return above


def _directory_in(parent: int, name: str) -> tuple[int, bool]:
    """A descriptor of the directory ``name``, and whether it was made. A file of that name is removed."""
    for _ in range(2):
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
            return os.open(name, _DIRECTORY, dir_fd=parent), True
        except FileExistsError:
            pass
        try:
            return os.open(name, _DIRECTORY, dir_fd=parent), False
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
        os.unlink(name, dir_fd=parent)
    raise FileExistsError(errno.EEXIST, "something else writes here", name)


def _plain_directory(fd: int, shift: Shift | None) -> None:
    """Sets the attributes of a directory that no image defines: ours, mode 0755, time 0."""
    for name in os.listxattr(fd):
        copying.drop_attribute(fd, name)  # for example an ACL, inherited from the parent's default ACL
    owner = (os.geteuid(), os.getegid())
    os.fchown(fd, *(owner if shift is None else shift.ids(*owner)))
    os.fchmod(fd, 0o755)
    os.utime(fd, ns=(0, 0))


def _names(path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise OSError(errno.EINVAL, "the path leads upwards", path)
    return names


def _take_away(top: int, step: Step) -> None:
    """Removes the entries that a layer hides, before its own are added. Directories keep their times."""
    for path in step.opaque:
        fd = copying.descend(top, _names(path))
        if fd is not None:
            try:
                _remove(fd, os.listdir(fd))
            finally:
                os.close(fd)
    for path in step.removed:
        names = _names(path)
        if not names:
            raise OSError(errno.EINVAL, "a layer cannot remove its own root", path)
        fd = copying.descend(top, names[:-1])
        if fd is not None:
            try:
                _remove(fd, names[-1:])
            finally:
                os.close(fd)


def _remove(fd: int, names: list[str]) -> None:
    before = _times(fd)
    for name in names:
        remove_tree(fd, name)
    os.utime(fd, ns=before)
