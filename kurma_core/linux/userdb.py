"""Users and groups as an image knows them (H6): its own ``/etc/passwd`` and ``/etc/group``, read beneath its root.

Links are followed as a process inside would follow them, and never lead out; what is no regular file is not read.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux.beneath import open_in_root

_LIMIT = 16 << 20
# The kernel reserves the all-ones ID for "unchanged".
_HIGHEST_ID = 0xFFFFFFFE


class User:
    """Who a process runs as. :attr:`name`, :attr:`home`, :attr:`shell`: None where the image says nothing."""

    __slots__ = ("gid", "home", "name", "shell", "uid")

    def __init__(self, uid: int, gid: int, name: str | None, home: str | None, shell: str | None) -> None:
        self.uid = uid
        self.gid = gid
        self.name = name
        self.home = home
        self.shell = shell

    def __repr__(self) -> str:
        return f"<User {self.uid}:{self.gid} {self.name}>"


def find_user(root_fd: int, text: str) -> User:
    """The user that an image's or pod's ``user`` field means.

    In this order: a name of ``/etc/passwd``, a number, an absolute path inside the root (its owner).

    :param text: empty: user 0.
    :returns: ``gid`` is the primary group where ``/etc/passwd`` gives one, else 0; for a path, the file's group.
    :raises LookupError: none of them fits; the message says what was looked for.
    :raises OSError: the file of a path, or the database, cannot be read.
    """
    entries = _passwd(root_fd)
    text = text or "0"
    for entry in entries:
        if entry.name == text:
            return entry
    uid = _number(text)
    gid = 0
    if uid is None:
        if not text.startswith("/"):
            raise LookupError(f"no user {text!r} in the image's /etc/passwd")
        status = _status(root_fd, text)
        uid, gid = status.st_uid, status.st_gid
    for entry in entries:
        if entry.uid == uid:
            return User(uid, gid if text.startswith("/") else entry.gid, entry.name, entry.home, entry.shell)
    return User(uid, gid, None, None, None)


def find_group(root_fd: int, text: str) -> int:
    """The group ID that a ``group`` field means: a name of ``/etc/group``, a number, or a path's group.

    :raises LookupError: none of them fits.
    :raises OSError: as :func:`find_user`.
    """
    for name, gid, _ in _groups(root_fd):
        if name == text:
            return gid
    number = _number(text)
    if number is not None:
        return number
    if text.startswith("/"):
        return _status(root_fd, text).st_gid
    raise LookupError(f"no group {text!r} in the image's /etc/group")


def groups_of(root_fd: int, name: str) -> list[int]:
    """The groups that ``/etc/group`` lists the user ``name`` in."""
    return [gid for _, gid, members in _groups(root_fd) if name in members]


def _number(text: str) -> int | None:
    """A user or group ID in decimal.

    :raises LookupError: it is a number that no user can have.
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


def _passwd(root_fd: int) -> list[User]:
    found = []
    for fields in _lines(root_fd, "/etc/passwd"):
        if len(fields) >= 4 and fields[2].isdigit() and fields[3].isdigit():
            home = fields[5] if len(fields) > 5 else ""
            shell = fields[6] if len(fields) > 6 else ""
            found.append(User(int(fields[2]), int(fields[3]), fields[0], home or None, shell or None))
    return found


def _groups(root_fd: int) -> list[tuple[str, int, list[str]]]:
    return [
        (fields[0], int(fields[2]), fields[3].split(",") if len(fields) > 3 else [])
        for fields in _lines(root_fd, "/etc/group")
        if len(fields) >= 3 and fields[2].isdigit()
    ]


def _lines(root_fd: int, path: str) -> list[list[str]]:
    """The fields of each line; nothing where the file is missing or no regular one.

    :raises OSError: ``EFBIG``: no honest database is that large.
    """
    try:
        # NONBLOCK: a FIFO in the place must not hold us up
        fd = open_in_root(root_fd, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return []
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return []
        if status.st_size > _LIMIT:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes are too many for a user database", path)
        text = b""
        while len(text) <= _LIMIT and (data := os.read(fd, 65536)):
            text += data
    finally:
        os.close(fd)
    return [
        line.split(":")
        for line in text.decode(errors="surrogateescape").split("\n")
        if line and line[0] not in "#+-"
    ]
