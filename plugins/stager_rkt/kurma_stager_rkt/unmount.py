"""Unmounts all mounts at and below a directory, and no others.

It needs CAP_SYS_ADMIN in the user namespace that owns the mount namespace.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux.mounts import (
    MNT_DETACH,
    MS_PRIVATE,
    Mount,
    mountinfo,
    mounts_at_or_below,
    set_attributes,
    umount,
)

#: Most rounds. Each tree takes two; mounts on top of it, and new mounts of other processes, take more.
_TURNS = 64


def unmount_below(path: str) -> int:
    """Unmount all mounts on ``path`` and below it, and no others; succeed if there are none.

    The kernel propagates an unmount to the peers of the mount's *parent*, which may be the host's own mounts. So
    each tree of mounts is made private as a whole before it is detached. This uses a descriptor of the tree's
    root: a path leads only to the uppermost of stacked mounts, and would leave those beneath it shared. Busy
    mounts are detached, and end with their last user.

    :returns: the number of mounts that were unmounted.
    :raises OSError: ``EBUSY``: a mount is on top of one that is shared with mounts elsewhere and hidden from all
        paths.
    """
    count = 0
    for _ in range(_TURNS):
        found = mounts_at_or_below(path)
        if not found:
            return count
        went = _unmount_trees(found, _peers_elsewhere(found))
        if went < 0:
            break
        count += went
    left = mounts_at_or_below(path)
    if left:
        raise OSError(errno.EBUSY, "cannot be unmounted without a mount of the host's", left[-1].target)
    return count


def _unmount_trees(found: list[Mount], elsewhere: set[str]) -> int:
    """One round of :func:`unmount_below`. :returns: the number of unmounted mounts; -1: no path leads to any
    tree."""
    ids = {one.id for one in found}
    count, reached = 0, False
    for root in reversed([one for one in found if one.parent not in ids]):
        try:
            # O_PATH and O_NOFOLLOW: follow no link, and trigger no automount.
            fd = os.open(root.target, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # hidden by another mount, or gone
        try:
            top = next((one for one in _stack(root, found) if one.id == _mount_id(fd)), None)
            if top is None or (top is not root and not elsewhere.isdisjoint(_parent(top, found).peer_groups)):
                continue
            reached = True
            tree = _tree(top, found)
            if any(one.peer_groups for one in tree):
                # Detach it in the next round, if it contains no shared mounts then.
                set_attributes(fd, 0, propagation=MS_PRIVATE)
            else:
                umount(f"/proc/self/fd/{fd}", MNT_DETACH)
                count += len(tree)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise  # EINVAL, ENOENT: another process has unmounted it
        finally:
            os.close(fd)
    return count if reached else -1


def _peers_elsewhere(found: list[Mount]) -> set[str]:
    """The peer groups of all other mounts."""
    ids = {one.id for one in found}
    return {group for one in mountinfo() if one.id not in ids for group in one.peer_groups}


def _stack(root: Mount, found: list[Mount]) -> list[Mount]:
    """``root`` and the mounts stacked on top of it, upwards."""
    stack = [root]
    while above := [one for one in found if one.parent == stack[-1].id and one.target == root.target]:
        stack += above
    return stack


def _parent(mount: Mount, found: list[Mount]) -> Mount:
    return next(one for one in found if one.id == mount.parent)


def _tree(root: Mount, found: list[Mount]) -> list[Mount]:
    """``root`` and all below it."""
    tree, new = [], [root]
    while new:
        tree += new
        ids = {one.id for one in new}
        new = [one for one in found if one.parent in ids]
    return tree


def _mount_id(fd: int) -> int:
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith("mnt_id:"))
