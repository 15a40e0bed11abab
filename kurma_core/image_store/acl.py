"""POSIX access control lists: from the text that tars carry to the attribute that the kernel takes (A3)."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct, error

from kurma_core.errors import ArchiveError
from kurma_core.image_store.entry import show

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
_ROOT: Mapping[bytes, int] = {b"root": 0}
_BITS = {b"r"[0]: 4, b"w"[0]: 2, b"x"[0]: 1, b"-"[0]: 0}


def from_text(text: bytes, users: Mapping[bytes, int] = _ROOT, groups: Mapping[bytes, int] = _ROOT) -> bytes:
    """``user::rwx,user:1000:r-x,group::r-x,mask::rwx,other::---``, by commas or lines, as the kernel wants it.

    GNU tar writes names, also with ``--numeric-owner``; bsdtar adds the numbers. Whose a name is in the image, the
    archive may not have said yet.

    :param users: numbers of the users that are known by name; :param groups: likewise.
    :raises ArchiveError: it is malformed, or names somebody else.
    """
    known = {_USER: users, _GROUP: groups}
    entries = [_parse(line.strip(), known) for line in text.replace(b"\n", b",").split(b",") if line.strip()]
    return _VERSION + b"".join(
        _ENTRY.pack(*entry) for entry in sorted(entries, key=lambda entry: (entry[0], entry[2]))
    )


def add(
    found: dict[bytes, bytes], fields: Mapping[bytes, bytes], user: tuple[bytes, int], group: tuple[bytes, int]
) -> None:
    """Adds the lists that are texts to the attributes found; where the attribute is there already, it has the
    numbers.

    :param fields: keywords of the entry's extended header.
    :param user: the entry's own user, by the header's name and number: that name is known, and ``root``.
    :raises ArchiveError: as :func:`from_text`.
    """
    for key, attribute in KEYWORDS.items():
        if fields.get(key) and attribute not in found:
            users = _known(fields.get(b"uname") or user[0].partition(b"\0")[0], user[1])
            groups = _known(fields.get(b"gname") or group[0].partition(b"\0")[0], group[1])
            found[attribute] = from_text(fields[key], users, groups)


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


def _known(name: bytes, number: int) -> Mapping[bytes, int]:
    return {**_ROOT, name: number} if name else _ROOT


def _parse(line: bytes, known: Mapping[int, Mapping[bytes, int]]) -> tuple[int, int, int]:
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
    if named is None:
        raise _malformed()
    return named, bits, _number(fields, known[named])


def _number(fields: list[bytes], known: Mapping[bytes, int]) -> int:
    """Whom an entry is for: the number behind it, or in the name's place, or of a name that is known."""
    number = fields[3] if len(fields) == 4 else fields[1]
    if number.isdigit() and len(number) <= 10:
        return min(int(number), _NOBODY - 1)
    if fields[1] not in known:
        raise ArchiveError(
            f"the archive has an access control list for '{show(fields[1])}', and only numbers can be kept",
            hint="pack it by tar --xattrs --xattrs-include='*' without --acls, or by bsdtar: both keep numbers",
        )
    return known[fields[1]]


def _malformed() -> ArchiveError:
    return ArchiveError("the archive is corrupt: bad access control list")
