"""Archive files that people name: read plainly, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from kurma_core.errors import HostError


@contextmanager
def written(path: str) -> Iterator[BinaryIO]:
    """A file that appears under its name once it is complete.

    :raises HostError: it cannot be written.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as out:
            try:
                yield out
            except BaseException:
                os.unlink(temporary)
                raise
        os.rename(temporary, path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise HostError(f"{path}: cannot be written: {reason}", path=path, errno=error.errno) from None


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """:raises HostError: it cannot be read."""
    try:
        stream = open(path, "rb")  # noqa: SIM115 - the errors of the body are not this function's
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise HostError(f"{path}: cannot be read: {reason}", path=path, errno=error.errno) from None
    with stream:
        yield stream
