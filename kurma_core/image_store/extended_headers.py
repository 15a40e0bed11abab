"""Parses extended headers of tars: pax records, sparse maps, extended attributes, access control lists."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct, error

from kurma_core.errors import ArchiveError
from kurma_core.image_store.tar_entries import show

#: Stretches of one sparse file; 64 Ki of them is a fragmented terabyte.
MAX_STRETCHES = 1 << 20
_MAX_ID = 0xFFFFFFFE
_MAX_SIZE = (1 << 63) - 1
#: Seconds around the epoch that a file's time may be in an archive.
MAX_SECONDS = 1 << 40
#: The first and the last second that ext4 keeps, in nanoseconds; other file systems keep more.
_FIRST, _LAST = -(1 << 31) * 1_000_000_000, ((1 << 34) - (1 << 31) - 1) * 1_000_000_000
_ATTRIBUTE = b"SCHILY.xattr."
_ATTRIBUTE_ENCODED = b"LIBARCHIVE.xattr."


class Extensions:
    """Fields of extended headers: for the next entry, or (global ones) for all following entries.

    :ivar fields: by keyword, the last value given; an empty value removes a global one.
    :ivar stretches: of GNU sparse format 0.0, whose keywords repeat: offsets and lengths in turn.
    """

    __slots__ = ("fields", "stretches")

    def __init__(self, fields: dict[bytes, bytes], stretches: list[bytes]) -> None:
        self.fields = fields
        self.stretches = stretches


def parse(data: bytes) -> Extensions:
    """Read the records ``LENGTH KEYWORD=VALUE\\n`` of one extended header.

    :raises ArchiveError: it is malformed.
    """
    fields: dict[bytes, bytes] = {}
    stretches: list[bytes] = []
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 20)
        if space < 0:
            if not data[at:].strip(b"\0"):
                break  # some writers count their padding
            raise ArchiveError("the archive is corrupt: an extended header has no length")
        length = number(data[at:space], "length of an extended header")
        end = at + length
        equals = data.find(b"=", space + 1, end)
        if equals < 0 or end > len(data) or data[end - 1 : end] != b"\n":
            raise ArchiveError("the archive is corrupt: an extended header does not hold together")
        key, value = data[space + 1 : equals], data[equals + 1 : end - 1]
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            stretches.append(value)
        fields[key] = value
        at = end
    return Extensions(fields, stretches)


def number(text: bytes, what: str, limit: int = _MAX_SIZE) -> int:
    """A decimal number from 0 to ``limit``. :raises ArchiveError: the text is something else."""
    if not text.isdigit() or len(text) > 20 or (value := int(text)) > limit:
        raise ArchiveError(f"the archive is corrupt: bad {what}")
    return value


def identity(text: bytes) -> int:
    """A user or group ID. :raises ArchiveError: the text is something else."""
    return number(text, "user or group in an extended header", _MAX_ID)


def time(text: bytes) -> int:
    """A time in decimal seconds as nanoseconds, finer digits cut off. :raises ArchiveError: it is malformed."""
    negative = text.startswith(b"-")
    whole, _, fraction = text[negative:].partition(b".")
    if not whole.isdigit() or len(whole) > 20 or (fraction and not fraction.isdigit()):
        raise ArchiveError("the archive is corrupt: bad time in an extended header")
    seconds = int(whole)
    if seconds > MAX_SECONDS:
        raise ArchiveError("the archive is corrupt: a time in an extended header is out of range")
    value = seconds * 1_000_000_000 + int(fraction[:9].ljust(9, b"0"))
    return kept_time(-value if negative else value)


def kept_time(nanoseconds: int) -> int:
    """The nearest time that every common file system can store: verification compares it with the extracted file,
    and the same layers must give the same image everywhere. (Within the first and the last second a fraction is
    dropped.)"""
    if nanoseconds < _FIRST + 1_000_000_000:
        return _FIRST
    return min(nanoseconds, _LAST)


def attributes(fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Extended attributes by name, in star's way (GNU tar's where a name has ``=`` or ``%``), or libarchive's.

    :raises ArchiveError: one is malformed.
    """
    found: dict[bytes, bytes] = {}
    for key, value in fields.items():
        if key.startswith(_ATTRIBUTE_ENCODED):
            name, content = _decode(key[len(_ATTRIBUTE_ENCODED) :], value)
            found.setdefault(name, content)  # libarchive writes both ways; the plain one needs no decoding
        elif key.startswith(_ATTRIBUTE):
            name = key[len(_ATTRIBUTE) :]
            if b"%" in name:
                name = name.replace(b"%3D", b"=").replace(b"%25", b"%")
            found[name] = value
    return found


def _decode(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    from base64 import b64decode
    from binascii import Error
    from urllib.parse import unquote_to_bytes

    try:
        return unquote_to_bytes(name), b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except Error as error:
        raise ArchiveError("the archive is corrupt: an extended attribute is not valid base64") from error


# --- sparse files ------------------------------------------------------------------------------------------------


def sparse_map(extensions: Extensions) -> list[tuple[int, int]] | None:
    """The map of GNU sparse formats 0.0 and 0.1; None: the entry has none (1.0 keeps it in the content).

    :raises ArchiveError: it is malformed.
    """
    text = extensions.fields.get(b"GNU.sparse.map")
    if text is not None:
        values = text.split(b",") if text else []
    elif b"GNU.sparse.numblocks" in extensions.fields:
        values = extensions.stretches
    else:
        return None
    return pairs([number(value, "sparse map") for value in values])


def pairs(values: list[int]) -> list[tuple[int, int]]:
    """Offsets and lengths in turn, as pairs. :raises ArchiveError: odd, or too many."""
    if len(values) % 2 or len(values) > 2 * MAX_STRETCHES:
        raise ArchiveError("the archive is corrupt: bad sparse map")
    return list(zip(values[::2], values[1::2], strict=True))


def check_map(stretches: list[tuple[int, int]], size: int, stored: int) -> None:
    """Checks that the ranges ascend, are inside of the file, and add up to the stored size.

    :raises ArchiveError: they do not.
    """
    end = total = 0
    for offset, length in stretches:
        if offset < end:
            raise ArchiveError("the archive is corrupt: a sparse map overlaps itself")
        end = offset + length
        total += length
    if end > size or total != stored:
        raise ArchiveError("the archive is corrupt: a sparse map does not fit its file")


ACL_ACCESS = b"system.posix_acl_access"
ACL_DEFAULT = b"system.posix_acl_default"
#: Keywords of extended headers (star, GNU tar, libarchive) and the corresponding attributes.
KEYWORDS = {b"SCHILY.acl.access": ACL_ACCESS, b"SCHILY.acl.default": ACL_DEFAULT}

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


def acl_from_text(text: bytes, users: Mapping[bytes, int] = _ROOT, groups: Mapping[bytes, int] = _ROOT) -> bytes:
    """Converts ``user::rwx,user:1000:r-x,group::r-x,mask::rwx,other::---``, separated by commas or lines, to the
    kernel's form.

    GNU tar writes names, even with ``--numeric-owner``; bsdtar adds the numbers. The archive's entry for the
    image's user database may come later, so a name may be unknown.

    :param users: numbers of the users whose names are known.
    :param groups: likewise.
    :raises ArchiveError: it is malformed, or names an unknown user.
    """
    known = {_USER: users, _GROUP: groups}
    entries = [_parse(line.strip(), known) for line in text.replace(b"\n", b",").split(b",") if line.strip()]
    return _VERSION + b"".join(
        _ENTRY.pack(*entry) for entry in sorted(entries, key=lambda entry: (entry[0], entry[2]))
    )


def add_acls(
    found: dict[bytes, bytes], fields: Mapping[bytes, bytes], user: tuple[bytes, int], group: tuple[bytes, int]
) -> None:
    """Adds access lists in text form to the attributes found, unless the attribute itself is there, which has
    numbers.

    :param fields: keywords of the entry's extended header.
    :param user: the entry's own user, by the header's name and number: that name is known, and ``root``.
    :raises ArchiveError: as :func:`acl_from_text`.
    """
    for key, attribute in KEYWORDS.items():
        if fields.get(key) and attribute not in found:
            users = _known(fields.get(b"uname") or user[0].partition(b"\0")[0], user[1])
            groups = _known(fields.get(b"gname") or group[0].partition(b"\0")[0], group[1])
            found[attribute] = acl_from_text(fields[key], users, groups)


def fitting_acl(value: bytes, mode: int) -> bytes | None:
    """An access list that agrees with the file's ``mode``, as the kernel makes it; None: the mode alone is
    equivalent.

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
    return _VERSION + b"".join(_ENTRY.pack(tag, permissions.get(tag, bits), ident) for tag, bits, ident in entries)


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
    """The user or group number of an access list entry: the number after the name, a number in the name's place,
    or the number of a known name."""
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
