"""Archive files that people name: read plainly, written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from kurma_core.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.fetching import Locator


@contextmanager
def written(path: str) -> Iterator[BinaryIO]:
    """A file that appears under its name once it is complete.

    :raises HostError: it cannot be written.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        out = open(temporary, "xb")  # noqa: SIM115 - closed before the rename
        try:
            with out:
                yield out
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise HostError(f"{path}: cannot be written: {reason}", path=path, errno=error.errno) from None


def path_of(locator: Locator) -> str | None:
    """The path that a locator of a file means; None: it is of another kind."""
    if locator.scheme != "file":
        return None
    from urllib.parse import unquote_to_bytes, urlsplit

    return os.fsdecode(unquote_to_bytes(urlsplit(locator.text).path))


@contextmanager
def opened(path: str, what: str = "an archive") -> Iterator[BinaryIO]:
    """:raises HostError: it cannot be read, or is no regular file (a pipe or a device may never end)."""
    try:
        # NONBLOCK: opening a pipe that nobody writes to must not wait for somebody who does.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise HostError(f"{path}: cannot be read: {reason}", path=path, errno=error.errno) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise HostError(f"{path}: cannot be read as {what}: it is not a regular file", path=path)
    with open(fd, "rb") as stream:
        yield stream
