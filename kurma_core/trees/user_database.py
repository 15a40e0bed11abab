"""Looks up users and groups in an image's ``/etc/passwd`` and ``/etc/group``, beneath its root.

Links are followed as by a process inside of the root, and never lead out of it; only regular files are read.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux.beneath import RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, open_in_root, open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT = 16 << 20
# Fields of a line of /etc/passwd; further colons belong to the last.
_FIELDS = 7
# A missing file, a loop of links, or a file of another kind.
_NO_DATABASE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ESTALE, errno.EACCES, errno.EPERM)
# The kernel reserves the all-ones ID for "unchanged".
_HIGHEST_ID = 0xFFFFFFFE


class User:
    """The user of a process. :attr:`name`, :attr:`home`, :attr:`shell`: None if the image does not define them."""

    __slots__ = ("gid", "home", "name", "shell", "uid")

    def __init__(self, uid: int, gid: int, name: str | None, home: str | None, shell: str | None) -> None:
        self.uid = uid
        self.gid = gid
        self.name = name
        self.home = home
        self.shell = shell

    def __repr__(self) -> str:
        return f"<User {self.uid}:{self.gid} {self.name}>"


def find_user(root_fd: int, text: str, *, proc: bool = False) -> User:
    """Resolves an image's or pod's ``user`` field.

    It tries, in this order: a name of ``/etc/passwd``, a number, an absolute path inside the root (its owner).

    :param text: empty: user 0.
    :param proc: ``/proc`` is the caller's own, and not that of the root, as it is for the stager in an app's root.
    :returns: ``gid`` is the primary group where ``/etc/passwd`` gives one, else 0; for a path, the file's group.
    :raises LookupError: there is no such user.
    :raises OSError: the file of a path, or the database, cannot be read.
    """
    data = _read(root_fd, "/etc/passwd", proc=proc)
    text = text or "0"
    for fields in _lines(data, text + ":"):
        user = _user(fields)
        if user is not None and user.name == text:
            return user
    uid = _number(text)
    gid = None
    if uid is None:
        if not text.startswith("/"):
            raise LookupError(f"no user {text!r} in the image's /etc/passwd")
        status = _status(root_fd, text)
        uid, gid = status.st_uid, status.st_gid
    for fields in _lines(data, f":{uid}:"):
        user = _user(fields)
        if user is not None and user.uid == uid:
            if gid is not None:
                user.gid = gid
            return user
    return User(uid, gid or 0, None, None, None)


def find_group(root_fd: int, text: str) -> int:
    """Resolves a ``group`` field: a name of ``/etc/group``, a number, or a path, whose group it is.

    :raises LookupError: there is no such group.
    :raises OSError: as :func:`find_user`.
    """
    for fields in _lines(_read(root_fd, "/etc/group"), text + ":"):
        gid = _id(fields[2]) if len(fields) >= 3 and fields[0] == text else None
        if gid is not None:
            return gid
    number = _number(text)
    if number is not None:
        return number
    if text.startswith("/"):
        return _status(root_fd, text).st_gid
    raise LookupError(f"no group {text!r} in the image's /etc/group")


def groups_of(root_fd: int, name: str) -> list[int]:
    """The groups that ``/etc/group`` lists the user ``name`` in."""
    found = []
    for fields in _lines(_read(root_fd, "/etc/group"), name):
        gid = _id(fields[2]) if len(fields) >= 4 and name in fields[3].split(",") else None
        if gid is not None:
            found.append(gid)
    return found


def _number(text: str) -> int | None:
    """A user or group ID in decimal; None: it is not a number.

    :raises LookupError: the number is too large for an ID.
    """
    if not text.isascii() or not text.isdigit():
        return None
    number = int(text) if len(text) <= 10 else _HIGHEST_ID + 1
    if number > _HIGHEST_ID:
        raise LookupError(f"{text} is larger than any user or group ID")
    return number


def _status(root_fd: int, path: str) -> os.stat_result:
    fd = open_in_root(root_fd, path, os.O_PATH)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def _user(fields: list[str]) -> User | None:
    """Parses a line of ``/etc/passwd``; None: it is malformed."""
    if len(fields) < 4:
        return None
    uid, gid = _id(fields[2]), _id(fields[3])
    if uid is None or gid is None:
        return None
    home, shell = [*fields[5:7], "", ""][:2]
    return User(uid, gid, fields[0], home or None, shell or None)


def _id(text: str) -> int | None:
    """An ID of the database; None: it is malformed or too large."""
    try:
        return _number(text)
    except LookupError:
        return None


def _lines(data: bytes, holding: str) -> Iterator[list[str]]:
    """The fields of each line that contains a text, in order.

    It searches for the text without splitting all lines: an untrusted database may have millions.
    """
    try:
        needle = holding.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return
    at = data.find(needle)
    while at >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        if end < 0:
            end = len(data)
        line = data[start:end].decode(errors="surrogateescape")
        if line[:1] not in ("#", "+", "-"):
            yield line.split(":", _FIELDS)
        at = data.find(needle, end)


def _read(root_fd: int, path: str, *, proc: bool = False) -> bytes:
    """The content of the file; empty if it is missing or not a regular one.

    :raises OSError: ``EFBIG``: no honest database is that large.
    """
    try:
        fd = open_regular(root_fd, path, resolve=RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS, proc=proc)
    except OSError as error:
        if error.errno in _NO_DATABASE:
            return b""
        raise
    try:
        size = os.fstat(fd).st_size
        if size > _LIMIT:
            raise OSError(errno.EFBIG, f"{size} bytes are too many for a user database", path)
        text = b""
        while len(text) <= _LIMIT and (data := os.read(fd, _left(fd, text))):
            text += data
        return text
    finally:
        os.close(fd)


def _left(fd: int, text: bytes) -> int:
    """Bytes to read next, up to the file's size. A file of ``/proc`` has size 0: the environment or
    memory of other processes is never read."""
    return min(max(os.fstat(fd).st_size - len(text), 0), 65536)
