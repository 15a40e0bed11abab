"""Owners that are shifted: what is user 0's in a tree is, in its copy, that of user 0 of a user namespace."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.models.isolator import IdRange

_CAPABILITY = "security.capability"
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
# struct vfs_cap_data: a word of revision and flags, then the sets; of revision 3 with the namespace's root behind.
_REVISION, _REVISION_2, _REVISION_3 = 0xFF000000, 0x02000000, 0x03000000
_OF_2 = 20
# Entries of an ACL after its first word: tag, permissions, id; these tags have one.
_HEAD, _ENTRY = 4, 8
_NAMED = (0x02, 0x08)


class Shift:
    """To the ids of a user namespace."""

    __slots__ = ("_count", "_first")

    def __init__(self, ids: IdRange) -> None:
        self._first = ids.first
        self._count = ids.count

    def owner(self, status: os.stat_result) -> tuple[int, int]:
        """:raises OSError: ``EOVERFLOW``: the namespace has no such id."""
        return self.ids(status.st_uid, status.st_gid)

    def ids(self, uid: int, gid: int) -> tuple[int, int]:
        return self._id(uid), self._id(gid)

    def attribute(self, name: str, value: bytes) -> bytes:
        """What an extended attribute is for the new owners: file capabilities count in the namespace alone.

        :raises OSError: as :meth:`owner`.
        """
        if name == _CAPABILITY:
            word = int.from_bytes(value[:4], "little")
            if word & _REVISION != _REVISION_2 or len(value) != _OF_2:
                return value
            return (word & ~_REVISION | _REVISION_3).to_bytes(4, "little") + value[4:] + self._bytes(0)
        if name not in _ACLS:
            return value
        found = bytearray(value)
        for at in range(_HEAD, len(found) - _ENTRY + 1, _ENTRY):
            if int.from_bytes(found[at : at + 2], "little") in _NAMED:
                found[at + 4 : at + 8] = self._bytes(int.from_bytes(found[at + 4 : at + 8], "little"))
        return bytes(found)

    def _id(self, number: int) -> int:
        if number >= self._count:
            raise OSError(
                errno.EOVERFLOW, f"its owner {number} is none of the {self._count} ids of the pod's user namespace"
            )
        return self._first + number

    def _bytes(self, number: int) -> bytes:
        return self._id(number).to_bytes(4, "little")
