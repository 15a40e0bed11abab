"""Where ext4 finds room for what is made in a directory.

A file gets an inode of its directory's block group, and a directory one of its parent's, or of one nearby. Those
that were freed there in the last minutes are passed over, each looked at by itself: where pods or layers come and
go, making one file takes a third of a millisecond, and more, in place of ten microseconds. What is made in a
directory with the attribute ``T`` is spread over all groups (chattr(1): the top of a hierarchy).
"""

from __future__ import annotations

import fcntl
import os
import struct

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, of 64-bit machines
_TOP = 0x20000


def spread(directory: str) -> None:
    """Each directory made in that one from here on has a group of its own to begin with. Repeatable.

    Nothing happens on file systems that have no such groups, or where it may not be said.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        (flags,) = struct.unpack("i", fcntl.ioctl(fd, _GET_FLAGS, bytes(4)))
        if not flags & _TOP:
            fcntl.ioctl(fd, _SET_FLAGS, struct.pack("i", flags | _TOP))
    except OSError:
        return
    finally:
        os.close(fd)
