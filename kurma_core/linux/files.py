"""Files that are replaced whole, so that a reader sees the old content or the new; and who may change them."""

from __future__ import annotations

import os
from _thread import get_native_id

_WRITABLE_BY_OTHERS = 0o022
#: Bytes of a file that has its place on the disk already: a block of most file systems.
_SPARE = 4096


def others_may_write(status: os.stat_result) -> bool:
    """Whether others than root and the caller may change what has that status."""
    return status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & _WRITABLE_BY_OTHERS)


def replace_file(path: str, content: bytes, mode: int = 0o600, *, alone: bool = False) -> None:
    """Writes ``path`` by way of a temporary file beside it and a rename.

    A crash leaves the old file, and at worst a ``.TID.tmp`` beside it (the thread's number), which the next writer
    with that number replaces; or, of who is ``alone`` by a lock, a ``.tmp``, which the next writer replaces. Not
    synced: a power cut may lose the newest version, never tear one (the rename is ordered behind the data on the
    file systems in use).

    :raises OSError: a full disk, a missing directory; the old file is as it was.
    """
    temporary = f"{path}.tmp" if alone else f"{path}.{get_native_id()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
    except BaseException:
        os.close(fd)
        os.unlink(temporary)
        raise
    os.close(fd)
    os.rename(temporary, path)


def spare_file(path: str, content: bytes) -> None:
    """A file for :func:`use_spare`, made while there is time for that. With a content, it has its place on the
    disk soon: what is written over it then has it too, and a rename does not wait for that.

    :raises OSError: a full disk, a missing directory.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if content:
            os.write(fd, content.ljust(_SPARE))
            # Begins to write it, and waits for nothing.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def use_spare(spare: str, path: str, content: bytes) -> None:
    """As :func:`replace_file`, by way of what :func:`spare_file` has made, if it is there; it is gone then.
    After a power cut, what it was made with may stand in ``path``, and blanks behind what was written.

    :raises OSError: as there.
    """
    try:
        fd = os.open(spare, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        replace_file(path, content)
        return
    try:
        size = os.fstat(fd).st_size
        if size and len(content) > size:
            raise BufferError
        view = memoryview(content.ljust(size))
        while view:
            view = view[os.write(fd, view) :]
    except BaseException as error:
        os.close(fd)
        os.unlink(spare)
        if not isinstance(error, BufferError):
            raise
        replace_file(path, content)
        return
    os.close(fd)
    os.rename(spare, path)
