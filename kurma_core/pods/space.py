"""Full and read-only disks: a pod is ended without a free byte."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kurma_core.errors import KurmaError


def unwritable(error: KurmaError) -> bool:
    """Whether something could not be written because the disk, or a quota, is full; or it has become read-only."""
    return error.data.get("errno") in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def free_layers(directory: str) -> None:
    """Removes what the apps of an ended pod wrote to their root file systems: every execution starts from a clean
    copy, and a pod that has filled the disk frees it by its end. Its logs and its status stay.

    :param directory: the pod's.
    """
    from kurma_core.linux.beneath import remove_tree

    # What cannot be removed is in the way of `rm`, which says so, and of nothing else.
    with contextlib.suppress(OSError):
        fd = os.open(f"{directory}/pod", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            remove_tree(fd, "apps")
        finally:
            os.close(fd)
