"""POSIX access control lists: from the text that tars carry to the attribute that the kernel takes (A3)."""

from __future__ import annotations

from struct import Struct, error

from kurma_core.errors import ArchiveError

ACCESS = b"system.posix_acl_access"
DEFAULT = b"system.posix_acl_default"
#: Keywords of extended headers (star, GNU tar, libarchive) and the attributes that they stand for.
KEYWORDS = {b"SCHILY.acl.access": ACCESS, b"SCHILY.acl.default": DEFAULT}

_VERSION = (2).to_bytes(4, "little")
_ENTRY = Struct("<HHI")
_OWNER, _USER, _OWNING_GROUP, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_TAGS = {
    b"user": (_OWNER, _USER),
    b"u": (_OWNER, _USER),
    b"group": (_OWNING_GROUP, _GROUP),
    b"g": (_OWNING_GROUP, _GROUP),
    b"mask": (_MASK, None),
    b"m": (_MASK, None),
    b"other": (_OTHER, None),
    b"o": (_OTHER, None),
}
_NOBODY = 0xFFFFFFFF
_BITS = {b"r"[0]: 4, b"w"[0]: 2, b"x"[0]: 1, b"-"[0]: 0}


def from_text(text: bytes) -> bytes:
    """``user::rwx,user:1000:r-x,group::r-x,mask::rwx,other::---``, by commas or lines, as the kernel wants it.

    :raises ArchiveError: it is malformed, or names somebody who is no number: names mean nothing in an image.
    """
    entries = [_parse(line.strip()) for line in text.replace(b"\n", b",").split(b",") if line.strip()]
    return _VERSION + b"".join(
        _ENTRY.pack(*entry) for entry in sorted(entries, key=lambda entry: (entry[0], entry[2]))
    )


def fitting(value: bytes, mode: int) -> bytes | None:
    """An access list that agrees with the file's ``mode``, as the kernel makes it; None: the mode says it all.

    :raises ArchiveError: it is malformed.
    """
    try:
        entries = list(_ENTRY.iter_unpack(value[4:]))
    except error:
        entries = []
    if value[:4] != _VERSION or not entries:
        raise _malformed()
    tags = {entry[0] for entry in entries}
    if tags <= {_OWNER, _OWNING_GROUP, _OTHER}:
        return None
    group = _MASK if _MASK in tags else _OWNING_GROUP
    permissions = {_OWNER: mode >> 6 & 7, group: mode >> 3 & 7, _OTHER: mode & 7}
    return _VERSION + b"".join(_ENTRY.pack(tag, permissions.get(tag, bits), who) for tag, bits, who in entries)


def _parse(line: bytes) -> tuple[int, int, int]:
    fields = line.split(b":")
    if fields[0] == b"default":
        fields = fields[1:]
    if not 3 <= len(fields) <= 4 or fields[0] not in _TAGS:
        raise _malformed()
    tag, named = _TAGS[fields[0]]
    bits = 0
    for letter in fields[2].partition(b"#")[0].strip():
        if letter not in _BITS:
            raise _malformed()
        bits |= _BITS[letter]
    if not fields[1]:
        return tag, bits, _NOBODY
    number = fields[3] if len(fields) == 4 else fields[1]
    if named is None or not number.isdigit() or len(number) > 10:
        raise ArchiveError(
            "the archive has an access control list that names users, where only numbers can be kept"
        )
    return named, bits, min(int(number), _NOBODY - 1)


def _malformed() -> ArchiveError:
    return ArchiveError("the archive is corrupt: bad access control list")
