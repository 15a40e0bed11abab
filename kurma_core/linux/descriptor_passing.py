"""Packs and unpacks descriptors that are sent on a Unix socket (SCM_RIGHTS, unix(7)). Programs in pods import
it."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SOL_SOCKET = 1
SCM_RIGHTS = 1
_SIZE = 4  # of a descriptor's number
_HEAD = 16  # cmsghdr(3)


def room(count: int) -> int:
    """The size of the ancillary data for so many descriptors, for ``recvmsg``."""
    return _HEAD + (count * _SIZE + 7 & ~7)


def packed(fds: Sequence[int]) -> list[tuple[int, int, bytes]]:
    """The ancillary data for these descriptors, for ``sendmsg``."""
    if not fds:
        return []
    return [(SOL_SOCKET, SCM_RIGHTS, b"".join([fd.to_bytes(_SIZE, sys.byteorder) for fd in fds]))]


def unpacked(beside: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors in the ancillary data of ``recvmsg``; the caller closes them."""
    found = []
    for level, kind, content in beside:
        if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
            starts = range(0, len(content) - _SIZE + 1, _SIZE)
            found += [int.from_bytes(content[start : start + _SIZE], sys.byteorder) for start in starts]
    return found
