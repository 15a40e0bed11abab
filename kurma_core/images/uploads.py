"""Archives that somebody hands over, in place of the address of one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from kurma_core.errors import UsageError
from kurma_core.fetching import Locator
from kurma_core.hookspecs.fetcher import DetachedSignature, RemoteArchive

if TYPE_CHECKING:
    from typing import BinaryIO

SCHEME = "upload"


class StreamBlob:
    """An open file, read by whoever opens it. :param stream: seekable; it stays open."""

    key = None
    digest = None

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = stream.seek(0, os.SEEK_END)

    def open(self, offset: int = 0) -> BinaryIO:
        again = open(os.dup(self._stream.fileno()), "rb")  # noqa: SIM115 - who asked for it closes it
        again.seek(offset)
        return again


def uploaded(stream: BinaryIO, name: str, signature: bytes | None) -> tuple[Locator, RemoteArchive]:
    """The archive, as fetchers give those that they find. It is judged as a file of this machine is.

    :raises UsageError: that is no name.
    """
    if not name or "/" in name or "\0" in name:
        raise UsageError(f"{name!r} is no name for an archive", hint="give it a file's name: app.aci")
    text = f"{SCHEME}:{quote(os.fsencode(name))}"
    signed = None if signature is None else DetachedSignature(signature, "archive", f"{text}.asc")
    archive = RemoteArchive(text, text, "file", StreamBlob(stream), lambda: signed)
    return Locator(SCHEME, text), archive
