"""Image archives that people name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from kurma_core import named_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.fetching import Locator


def path_of(locator: Locator) -> str:
    """The path that a locator of a file means."""
    from urllib.parse import unquote_to_bytes, urlsplit

    return os.fsdecode(unquote_to_bytes(urlsplit(locator.text).path))


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """An archive, to be read; what is wrong with it is said with its name.

    :raises HostError: it cannot be read, or is no regular file (a pipe or a device may never end).
    """
    with named_files.opened(path) as stream, named_files.naming(path):
        yield stream
