"""Mounts, by descriptor where the kernel supports it: unlike a path, a descriptor cannot be replaced by a link.

All calls need CAP_SYS_ADMIN in the user namespace that owns the mount namespace.

:param mount_fd: descriptor of a mount, as :func:`open_tree` returns it.
:param dir_fd: descriptor of a directory.
:param recursive: with all mounts below it.
:param attributes: ``ATTR_…`` bits of the mount.
:param fstype: the kernel's name of the file system: ``tmpfs``.
:raises OSError: the kernel refuses the call.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux.libc import syscall, words

#: Flags of calls by descriptor; ``AT_FDCWD`` is the current directory.
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
AT_SYMLINK_NOFOLLOW = 0x100

#: Flags of :func:`mount`.
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
MS_SHARED = 0x100000

#: Flags of :func:`umount`.
MNT_DETACH = 0x2
UMOUNT_NOFOLLOW = 0x8

#: Attributes of a mount, and their names.
ATTR_RDONLY = 0x1
ATTR_NOSUID = 0x2
ATTR_NODEV = 0x4
ATTR_NOEXEC = 0x8
_ATTR_IDMAP = 0x100000
ATTRIBUTES = {"ro": ATTR_RDONLY, "nosuid": ATTR_NOSUID, "nodev": ATTR_NODEV, "noexec": ATTR_NOEXEC}

#: Flags of open_tree(2) and move_mount(2).
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6
#: Longest option of :meth:`FileSystem.set`, in bytes: fsconfig(2) takes no longer strings.
FSCONFIG_LONGEST = 255


def mount(source: str | None, target: str, fstype: str | None, flags: int = 0, data: str | None = None) -> None:
    """``mount(2)``, for changes of propagation and for older kernels, which have no call by descriptor.

    :param source: as the file system wants it; None: none.
    :param target: path to mount on.
    :param flags: ``MS_…`` bits.
    :param data: the file system's options, separated by commas.
    :raises OSError: also ``E2BIG`` when ``data`` is longer than the page at which the kernel silently cuts it.
    """
    options = None if data is None else os.fsencode(data)
    if options is not None and len(options) >= 4096:
        raise OSError(errno.E2BIG, f"mount options of {len(options)} bytes do not fit the kernel's 4095", target)
    syscall(
        "mount",
        None if source is None else os.fsencode(source),
        os.fsencode(target),
        None if fstype is None else os.fsencode(fstype),
        flags,
        options,
        path=target,
    )


def umount(target: str, flags: int = UMOUNT_NOFOLLOW) -> None:
    """``umount2(2)``.

    :param target: path of the mount. :param flags: ``MNT_DETACH`` and ``UMOUNT_NOFOLLOW``.
    :raises OSError: ``EINVAL`` if nothing is mounted there.
    """
    syscall("umount2", os.fsencode(target), flags, path=target)


def make_private(path: str = "/") -> None:
    """Stop the propagation of mounts to and from ``path`` and all mounts below it."""
    mount(None, path, None, MS_REC | MS_PRIVATE)


def pivot_root(new_root_fd: int) -> None:
    """Make the mount of ``new_root_fd`` the root of this mount namespace, and unmount the old one.

    The current directory is the new root afterwards. Needs its own, private mount namespace.
    """
    os.fchdir(new_root_fd)
    syscall("pivot_root", b".", b".", path="/")
    # The old root is now mounted on top of the new one; "." is the old root.
    umount(".", MNT_DETACH)
    os.chdir("/")


def open_tree(dir_fd: int, path: str = "", *, recursive: bool = True, follow: bool = True) -> int:
    """A descriptor of a detached copy of a mount tree, for a bind mount.

    :param path: relative to ``dir_fd``; empty: ``dir_fd`` itself.
    :param follow: if it is a symbolic link, open its target.
    """
    flags = os.O_CLOEXEC | OPEN_TREE_CLONE | (0 if follow else AT_SYMLINK_NOFOLLOW)
    if not path:
        flags |= AT_EMPTY_PATH
    if recursive:
        flags |= AT_RECURSIVE
    return syscall("open_tree", dir_fd, os.fsencode(path), flags, path=path or None)


def move_mount(mount_fd: int, target_fd: int) -> None:
    """Attach a detached mount, or move an attached one, to the file or directory of ``target_fd``."""
    syscall("move_mount", mount_fd, b"", target_fd, b"", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH)


def move_mount_to(mount_fd: int, path: str) -> None:
    """As :func:`move_mount`, to a ``path`` of Kurma, never one in an untrusted tree."""
    syscall("move_mount", mount_fd, b"", AT_FDCWD, os.fsencode(path), MOVE_MOUNT_F_EMPTY_PATH, path=path)


def set_attributes(
    mount_fd: int, attributes: int, *, clear: int = 0, recursive: bool = True, propagation: int = 0
) -> None:
    """Set ``ATTR_…`` bits on the mount behind a descriptor and, when ``recursive``, on its submounts too.

    :param clear: ``ATTR_…`` bits to remove.
    :param propagation: ``MS_PRIVATE`` or ``MS_SLAVE``; 0: do not change it.
    """
    how = words(attributes, clear, propagation, 0)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    syscall("mount_setattr", mount_fd, b"", flags, how, len(how))


def map_ids(mount_fd: int, userns_fd: int, *, recursive: bool = True) -> None:
    """Show files under other owners: host user 0 is what the user namespace's map makes of its 0, and so on, both
    ways. The disk does not change. An owner outside of the map shows as the overflow id.

    :param mount_fd: a detached mount, as :func:`open_tree` gives it, that is not mapped yet.
    :param userns_fd: descriptor of the user namespace.
    :raises OSError: ``EINVAL`` where a file system there cannot be mapped, ``EPERM`` where one is mapped already.
    """
    how = words(_ATTR_IDMAP, 0, 0, userns_fd)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    syscall("mount_setattr", mount_fd, b"", flags, how, len(how))


def bind(source_fd: int, target_fd: int, *, attributes: int = 0, recursive: bool = True) -> None:
    """Bind the file or directory of ``source_fd`` to ``target_fd``.

    :param attributes: ``ATTR_…`` bits; they take effect before the mount can be seen, submounts included.
    """
    tree = open_tree(source_fd, recursive=recursive)
    try:
        if attributes:
            set_attributes(tree, attributes, recursive=recursive)
        move_mount(tree, target_fd)
    finally:
        os.close(tree)


def bind_path(source: str, target: str, *, attributes: int = 0, recursive: bool = True) -> None:
    """:func:`bind` for two paths of Kurma, ``source`` and ``target``."""
    source_fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
    try:
        target_fd = os.open(target, os.O_PATH | os.O_CLOEXEC)
        try:
            bind(source_fd, target_fd, attributes=attributes, recursive=recursive)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


class FileSystem:
    """A file system being configured: ``fsopen``, ``fsconfig`` …, ``fsmount``. To be used in a ``with``."""

    __slots__ = ("fd", "fstype")

    def __init__(self, fstype: str) -> None:
        self.fstype = fstype
        self.fd = syscall("fsopen", os.fsencode(fstype), _FSOPEN_CLOEXEC, path=fstype)

    def __enter__(self) -> FileSystem:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def set(self, key: str, value: str | None = None) -> None:
        """Set one mount option, the text ``key=value``, or ``key`` alone if the value is None.

        :raises OSError: with the file system's own messages, if there are any.
        """
        kind = _FSCONFIG_SET_FLAG if value is None else _FSCONFIG_SET_STRING
        text = None if value is None else os.fsencode(value)
        option = key if value is None else f"{key}={value}"
        if text is not None and len(text) > FSCONFIG_LONGEST:
            raise OSError(
                errno.E2BIG, f"{self.fstype}: the option {key} is longer than {FSCONFIG_LONGEST} bytes", value
            )
        try:
            syscall("fsconfig", self.fd, kind, os.fsencode(key), text, 0)
        except OSError as error:
            raise self._explained(error, f"option {option}") from None

    def create(self, attributes: int = 0) -> int:
        """Make the file system. :returns: a descriptor of a detached mount of it."""
        try:
            syscall("fsconfig", self.fd, _FSCONFIG_CMD_CREATE, None, None, 0)
            return syscall("fsmount", self.fd, _FSMOUNT_CLOEXEC, attributes)
        except OSError as error:
            raise self._explained(error, "mount") from None

    def _explained(self, error: OSError, what: str) -> OSError:
        said = []
        while True:
            try:
                line = os.read(self.fd, 4096)
            except OSError:
                break  # ENODATA: nothing more in the log
            # "e fstype: message"; some messages come without the name
            said.append(line.decode(errors="replace").rstrip("\n")[2:])
        reason = "; ".join(said) or os.strerror(error.errno or 0)
        return OSError(error.errno, f"{self.fstype}: {what}: {reason}")


def new_filesystem(fstype: str, options: dict[str, str | None] | None = None, attributes: int = 0) -> int:
    """A detached mount of a new file system, e.g. ``tmpfs`` with ``{"size": "64m", "mode": "0755"}``.

    :param options: by name; None as value: a flag.
    """
    with FileSystem(fstype) as filesystem:
        filesystem.set("source", fstype)
        for key, value in (options or {}).items():
            filesystem.set(key, value)
        return filesystem.create(attributes)


class Mount:
    """One line of ``/proc/PID/mountinfo``, octal escapes undone."""

    __slots__ = (
        "device",
        "fstype",
        "id",
        "options",
        "parent",
        "propagation",
        "root",
        "source",
        "super_options",
        "target",
    )

    def __init__(self, line: str) -> None:
        fields = line.rstrip("\n").split(" ")
        dash = fields.index("-", 6)
        self.id = int(fields[0])
        self.parent = int(fields[1])
        self.device = fields[2]
        self.root = unescape(fields[3])
        self.target = unescape(fields[4])
        self.options = fields[5].split(",")
        self.propagation = fields[6:dash]
        self.fstype = unescape(fields[dash + 1])
        self.source = unescape(fields[dash + 2])
        self.super_options = fields[dash + 3].split(",") if len(fields) > dash + 3 else []

    @property
    def peer_groups(self) -> list[str]:
        """``shared:N``, if mounts below it propagate to its peers; else empty."""
        return [field for field in self.propagation if field.startswith("shared:")]

    def __repr__(self) -> str:
        return f"<Mount {self.id} {self.fstype} {self.source} on {self.target}>"


def unescape(field: str) -> str:
    r"""Undo the kernel's ``\040`` for space, tab, newline and backslash in a field of mountinfo."""
    if "\\" not in field:
        return field
    parts = field.split("\\")
    text = [parts[0]]
    for part in parts[1:]:
        digits = part[:3]
        if len(digits) == 3 and all(digit in "01234567" for digit in digits):
            text.append(chr(int(digits, 8)) + part[3:])
        else:
            text.append("\\" + part)
    return "".join(text)


def mountinfo(pid: int | str = "self") -> list[Mount]:
    """The mounts that a process sees, in the kernel's order: a submount after its parent, unless it was moved.

    :param pid: of the process; ``self``: this one.
    :raises OSError: the process is gone.
    """
    with open(f"/proc/{pid}/mountinfo", errors="surrogateescape") as file:
        return [Mount(line) for line in file]


def mount_id(fd: int) -> int:
    """The ID of the mount that an open file is on, as :class:`Mount` has it.

    :param fd: a descriptor of the file.
    """
    with open(f"/proc/self/fdinfo/{fd}") as file:
        return int(next(line for line in file if line.startswith("mnt_id:")).split()[1])


def mount_of(path: str) -> Mount:
    """The mount that a path, links followed, is on.

    :raises OSError: the path is missing, or its mount is not in this mount namespace (``ENODEV``).
    """
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        number = mount_id(fd)
        for mount in mountinfo():
            if mount.id == number:
                return mount
    finally:
        os.close(fd)
    raise OSError(errno.ENODEV, "its mount is not listed", path)


def mounts_at_or_below(path: str) -> list[Mount]:
    """The mounts on ``path`` (absolute, without links) and below it, in the kernel's order."""
    path = os.path.abspath(path)
    prefix = path.rstrip("/") + "/"
    return [mount for mount in mountinfo() if mount.target == path or mount.target.startswith(prefix)]
