"""Carries out the mount operations of a root, in the spawner's program.

Each operation has two parts: :func:`prepare` opens the source on the host, and :func:`place` mounts it in the
root, by descriptor. So the same operations work for a new root and for the root of a running process.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux import beneath, mounts
from kurma_core.trees import mount_targets, overlay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Operation = dict[str, Any]


#: Most mounts on one mount point: a process that dies between a mount and its record leaves an additional one.
_STACKED = 64
#: A clone of a shared mount is its peer, and stays one.
_PROPAGATIONS = {"private": mounts.MS_PRIVATE, "rslave": mounts.MS_SLAVE, "rshared": 0}
#: Number of operations from which on the limit of descriptors is raised.
_MANY = 100


class StepError(Exception):
    """A step of the start of a process has failed. Its data is plain, since it is sent over a pipe.

    :param step: the step, e.g. ``bind``.
    :param path: the step's object.
    :param exit_code: only for ``exec``: 127 or 126.
    """

    def __init__(self, step: str, path: str, error: OSError, exit_code: int = 0) -> None:
        super().__init__(step)
        self.step = step
        self.path = path
        self.errno = error.errno or errno.EIO
        self.reason = error.strerror or os.strerror(self.errno)
        self.on = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        self.exit_code = exit_code


def open_propagating(operations: list[Operation]) -> dict[int, int]:
    """Opens the sources whose mounts propagate, before this mount namespace is made private: a copy that is made
    later would be cut off from the host's mounts.

    :returns: detached mounts by the number of their operation, for :func:`build`.
    :raises StepError: names the operation and the path.
    """
    return {
        number: _prepared(operation) or 0
        for number, operation in enumerate(operations)
        if operation.get("propagation", "private") != "private"
    }


def build(operations: list[Operation], opened: dict[int, int] | None = None) -> int:
    """Make a new root. Runs as root in a private mount namespace, whose ``/`` is still the host's.

    :param opened: mounts that :func:`open_propagating` has opened.
    :returns: a descriptor of the new root, ready for ``pivot_root``.
    :raises StepError: names the operation and the path.
    """
    if len(operations) <= _MANY:
        return _built(operations, opened or {})
    # Each operation holds a descriptor; the usual limit of a process is about a thousand.
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    try:
        return _built(operations, opened or {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _built(operations: list[Operation], opened: dict[int, int]) -> int:
    # Open all sources before the new root is mounted on "/", where absolute paths would lead into it.
    made = [
        opened[number] if number in opened else _prepared(operation) for number, operation in enumerate(operations)
    ]
    root_fd = -1
    for operation, fd in zip(operations, made, strict=True):
        try:
            if root_fd < 0:
                if fd is None or operation["target"].strip("/"):
                    raise OSError(errno.EINVAL, "the first operation must mount the root itself, /")
                # Any place would do; on top of "/", no process that is already inside sees it.
                mounts.move_mount_to(fd, "/")
                root_fd = fd
            else:
                place(operation, fd, root_fd)
        except OSError as error:
            raise StepError(operation["kind"], subject(operation), error) from None
    return root_fd


def _prepared(operation: Operation) -> int | None:
    try:
        return prepare(operation, private=True)
    except OSError as error:
        raise StepError(operation["kind"], subject(operation), error) from None


def subject(operation: Operation) -> str:
    """The paths of an operation, for its error."""
    source = operation.get("source")
    return f"{source} on {operation['target']}" if source else str(operation["target"])


def prepare(operation: Operation, *, private: bool) -> int | None:
    """Carries out the part on the host. :returns: a detached mount; None: the operation is not a mount.

    :param private: this mount namespace is a new one, and ends with the pod.
    """
    kind = operation["kind"]
    if kind == "bind":
        return _open_source(operation)
    if kind == "filesystem":
        return mounts.new_filesystem(operation["fstype"], operation["options"], _attributes(operation))
    if kind == "overlay":
        return _make_overlay(operation, private)
    return None


def place(operation: Operation, fd: int | None, root_fd: int) -> None:
    """Carries out the part in the root; closes ``fd``."""
    kind, target = operation["kind"], operation["target"]
    if fd is not None:
        try:
            is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
            if operation.get("make_target", True):
                target_fd = mount_targets.make_mount_target(root_fd, target, directory=is_directory)
            else:
                target_fd = beneath.open_in_root(root_fd, target, os.O_PATH)
            try:
                mounts.move_mount(fd, target_fd)
            finally:
                os.close(target_fd)
        finally:
            os.close(fd)
    elif kind == "directory":
        mode, uid, gid = operation["mode"], operation["uid"], operation["gid"]
        os.close(mount_targets.make_dirs(root_fd, target, mode, uid, gid, symlinks=True))
    elif kind in ("file", "symlink"):
        _write(operation, root_fd)
    else:
        raise OSError(errno.EINVAL, f"unknown operation {kind!r}")


def unplace(target: str, root_fd: int) -> None:
    """Unmount ``target``, and remove the mount point if it is empty; succeed if there is none. Processes that use
    the mount keep it, and so do other mounts of it. Runs in the root's mount namespace."""
    parent, _, name = target.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        raise OSError(errno.EINVAL, "not the place of a mount", target)
    try:
        directory = beneath.open_beneath(root_fd, parent, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        os.fchdir(directory)
        for _ in range(_STACKED):
            try:
                # Otherwise the submounts of a shared mount would be unmounted on the host, too.
                mounts.make_private(f"./{name}")
                mounts.umount(f"./{name}", mounts.UMOUNT_NOFOLLOW | mounts.MNT_DETACH)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT):
                    raise
                break
        _remove_place(name, directory)
    finally:
        os.close(directory)


def _remove_place(name: str, directory: int) -> None:
    try:
        os.rmdir(name, dir_fd=directory)
    except NotADirectoryError:
        os.unlink(name, dir_fd=directory)  # a file was mounted there
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            raise


def _attributes(operation: Operation) -> int:
    bits = 0
    for name in operation["attributes"]:
        bits |= mounts.ATTRIBUTES[name]
    if operation.get("read_only"):
        bits |= mounts.ATTR_RDONLY
    return bits


def _open_source(operation: Operation) -> int:
    source = operation["source"]
    if not source.startswith("/"):
        raise OSError(errno.EINVAL, "a source must be absolute", source)
    resolve = 0 if operation["links"] else beneath.RESOLVE_NO_SYMLINKS
    source_fd = beneath.openat2(mounts.AT_FDCWD, source, os.O_PATH, 0, resolve)
    recursive = operation["recursive"]
    # Usually private, so that later mounts in the pod do not appear on the host, nor the host's in the pod.
    propagation = _PROPAGATIONS[operation["propagation"]]
    try:
        tree = mounts.open_tree(source_fd, recursive=recursive)
    finally:
        os.close(source_fd)
    try:
        attributes, top = _attributes(operation), 0
        if not operation["read_only_submounts"]:
            top = attributes & mounts.ATTR_RDONLY
            attributes &= ~mounts.ATTR_RDONLY
        if attributes or propagation:
            mounts.set_attributes(tree, attributes, recursive=recursive, propagation=propagation)
        if top:
            mounts.set_attributes(tree, top, recursive=False)
    except OSError:
        os.close(tree)
        raise
    return tree


def _make_overlay(operation: Operation, private: bool) -> int:
    lowers = list(operation["lowers"])
    upper, work = operation["upper"], operation["work"]
    attributes = _attributes(operation)
    if not operation["scratch"]:
        return overlay.mount_overlay(lowers, upper, work, volatile=operation["volatile"], attributes=attributes)
    if not private:
        raise OSError(errno.EINVAL, "an overlay with a scratch directory is for new roots only")
    options: dict[str, str | None] = {"mode": "0700"}
    if operation["scratch_size"]:
        options["size"] = operation["scratch_size"]
    scratch = mounts.new_filesystem("tmpfs", options)
    try:
        # The kernel takes an upper directory only from a mount that is attached in this namespace.
        mounts.move_mount_to(scratch, "/")
        like = os.stat(lowers[0])
        os.mkdir("work", 0o700, dir_fd=scratch)
        os.mkdir("upper", 0o700, dir_fd=scratch)
        base = f"/proc/self/fd/{scratch}"
        os.chown(f"{base}/upper", like.st_uid, like.st_gid)
        os.chmod(f"{base}/upper", stat.S_IMODE(like.st_mode))
        made = overlay.mount_overlay(lowers, f"{base}/upper", f"{base}/work", volatile=True, attributes=attributes)
        # The overlay holds the scratch mount now. Only the new root may be mounted on "/", for pivot_root.
        mounts.umount(base, mounts.MNT_DETACH)
        return made
    finally:
        os.close(scratch)


def _write(operation: Operation, root_fd: int) -> None:
    parent, _, name = operation["target"].rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        raise OSError(errno.EINVAL, "not the name of a file", operation["target"])
    directory = mount_targets.make_mount_target(root_fd, parent, directory=True)
    try:
        try:  # noqa: SIM105 - contextlib is not light
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            pass
        if operation["kind"] == "symlink":
            os.symlink(operation["points_to"], name, dir_fd=directory)
            return
        fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            content = memoryview(operation["content"])
            while content:
                content = content[os.write(fd, content) :]
            os.fchown(fd, operation["uid"], operation["gid"])
            os.fchmod(fd, operation["mode"])
        finally:
            os.close(fd)
    finally:
        os.close(directory)
