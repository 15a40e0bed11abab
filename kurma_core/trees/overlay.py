"""Makes overlay mounts.

There are two ways: to add layers one by one to a file system context (``lowerdir+``, Linux 6.7), or to pass one
option string to ``mount(2)``. The kernel silently cuts that string at 4 KiB, so its length is checked here, and
the layers are named by the short paths of their descriptors.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux import mounts

# OVL_MAX_STACK
MOST_LOWERS = 500


def mount_overlay(
    lowers: list[str],
    upper: str | None = None,
    work: str | None = None,
    *,
    volatile: bool = True,
    attributes: int = 0,
    one_by_one: bool | None = None,
) -> int:
    """Make a detached overlay mount (see :func:`mounts.move_mount`).

    Runs with CAP_SYS_ADMIN in the mount namespace that has the directories mounted.

    :param lowers: directories, the top one first. One alone, without an ``upper``, is bound.
    :param upper: the directory for changes; None: a read-only mount.
    :param work: an empty directory on the same file system as ``upper``.
    :param volatile: never sync ``upper`` (unmounting would write out its file system); ``work`` must be fresh.
    :param attributes: ``mounts.ATTR_…`` bits.
    :param one_by_one: force one of the two ways; None: the best that the kernel supports.
    :returns: the descriptor of the detached mount.
    :raises OSError: names the cause: a missing layer, too many layers, the kernel's own message.
    """
    if not lowers:
        raise OSError(errno.EINVAL, "overlay: no layers were given")
    if len(lowers) > MOST_LOWERS:
        raise OSError(errno.E2BIG, f"overlay: {len(lowers)} layers are more than the kernel's {MOST_LOWERS}")
    if (upper is None) != (work is None):
        raise OSError(errno.EINVAL, "overlay: an upper directory needs a work directory, and the other way round")
    if upper is None and len(lowers) == 1:
        return _bound(lowers[0], attributes | mounts.ATTR_RDONLY)
    fds: list[int] = []
    try:
        layers = _Layers(lowers, upper, work, fds)
        if one_by_one is not False:
            made = _one_by_one(layers, volatile, attributes)
            if made is not None:
                return made
            if one_by_one:
                raise OSError(errno.EOPNOTSUPP, "overlay: this kernel cannot add layers one by one")
        return _one_string(layers, volatile, attributes)
    finally:
        for fd in fds:
            os.close(fd)


class _Layers:
    """The directories of one overlay, opened, so that a missing one is reported by its path."""

    __slots__ = ("_fds", "lowers", "upper", "work")

    def __init__(self, lowers: list[str], upper: str | None, work: str | None, fds: list[int]) -> None:
        self._fds = fds
        seen: set[tuple[int, int]] = set()
        for path in lowers:
            status = os.fstat(self._open(path))
            if (status.st_dev, status.st_ino) in seen:
                raise OSError(errno.ELOOP, "overlay: the same layer twice", path)
            seen.add((status.st_dev, status.st_ino))
        self.lowers = list(zip(lowers, fds, strict=False))
        self.upper = None if upper is None else (upper, self._open(upper))
        self.work = None if work is None else (work, self._open(work))

    def _open(self, path: str) -> int:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fds.append(fd)
        return fd


def _named(layer: tuple[str, int]) -> str:
    """A layer's name for fsconfig: its path, which mountinfo shows; a descriptor's if the path is too long or has
    special characters."""
    path, fd = layer
    if len(os.fsencode(path)) > mounts.FSCONFIG_LONGEST or any(char in path for char in "\\:,"):
        return f"/proc/self/fd/{fd}"
    return path


def _one_by_one(layers: _Layers, volatile: bool, attributes: int) -> int | None:
    """Mounts by ``lowerdir+``. :returns: None: the kernel does not support it."""
    with mounts.FileSystem("overlay") as overlay:
        if _takes_anything(overlay):
            return None
        overlay.set("source", "overlay")
        for number, layer in enumerate(layers.lowers):
            try:
                overlay.set("lowerdir+", _named(layer))
            except OSError as error:
                if number == 0 and error.errno == errno.EINVAL:
                    return None
                raise OSError(error.errno, error.strerror, layer[0]) from None
        if layers.upper is not None and layers.work is not None:
            overlay.set("upperdir", _named(layers.upper))
            overlay.set("workdir", _named(layers.work))
            if volatile:
                overlay.set("volatile")
        return overlay.create(attributes)


def _takes_anything(overlay: mounts.FileSystem) -> bool:
    """Whether the kernel checks options only when the mount is made, as before Linux 6.5, and so names no wrong
    one."""
    try:
        overlay.set("no-such-option")
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    return True


def _one_string(layers: _Layers, volatile: bool, attributes: int) -> int:
    """Mounts by ``mount(2)`` on a temporary directory, and makes a detached copy of the mount."""
    options = "lowerdir=" + ":".join([f"/proc/self/fd/{fd}" for _, fd in layers.lowers])
    if layers.upper is not None and layers.work is not None:
        options += f",upperdir=/proc/self/fd/{layers.upper[1]},workdir=/proc/self/fd/{layers.work[1]}"
        if volatile:
            options += ",volatile"
    place = f"/run/kurma-overlay-{os.getpid()}-{os.urandom(6).hex()}"
    os.mkdir(place, 0o700)
    try:
        try:
            mounts.mount("overlay", place, "overlay", 0, options)
        except OSError as error:
            what = f"overlay: {len(layers.lowers)} layers: {error.strerror}"
            raise OSError(error.errno, what, layers.lowers[0][0]) from None
        try:
            return _bound(place, attributes)
        finally:
            mounts.umount(place, mounts.MNT_DETACH)
    finally:
        os.rmdir(place)


def _bound(path: str, attributes: int) -> int:
    tree = mounts.open_tree(mounts.AT_FDCWD, path, recursive=False)
    try:
        if attributes:
            mounts.set_attributes(tree, attributes, recursive=False)
    except OSError:
        os.close(tree)
        raise
    return tree
