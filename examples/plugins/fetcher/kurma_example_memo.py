"""``memo:NAME``: the image archive ``NAME.aci`` of one configured directory."""

from __future__ import annotations

import os
from typing import BinaryIO

from kurma_core.errors import FetchError, FetchNotFoundError, PluginSkipped, UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, Option
from kurma_core.hookspecs.fetcher import DetachedSignature, FetchRequest, RemoteArchive, RemoteBlobHooks


class File(RemoteBlobHooks):
    """A file as the core reads it: from any offset on; ``key`` changes whenever the file does."""

    def __init__(self, path: str, key: str, size: int) -> None:
        self.path = path
        self.key = key
        self.size = size
        self.digest = None

    @hookimpl
    def open(self, offset: int) -> BinaryIO:
        stream = open(self.path, "rb")  # noqa: SIM115 (the caller closes it)
        stream.seek(offset)
        return stream

    @hookimpl
    def signature(self) -> DetachedSignature | None:
        """The detached signature beside the archive, if there is one."""
        try:
            with open(f"{self.path}.asc", "rb") as stream:
                return DetachedSignature(stream.read(), url=f"{self.path}.asc")
        except FileNotFoundError:
            return None


class Memo:
    """Resolves ``memo:NAME``."""

    def __init__(self, context: DriverContext) -> None:
        self._directory = context.config["directory"]
        if not os.path.isdir(self._directory):
            raise PluginSkipped(f"needs the directory {self._directory}")

    @hookimpl
    def resolve(self, locator: str, request: FetchRequest) -> RemoteArchive:
        name = locator.removeprefix("memo:")
        if not name or "/" in name or name.startswith("."):
            raise UsageError(f"{locator}: not a name", hint="write memo:NAME")
        path = os.path.join(self._directory, f"{name}.aci")
        try:
            info = os.stat(path)
        except FileNotFoundError:
            raise FetchNotFoundError(f"{locator}: no {path}", url=locator) from None
        except (OSError, ValueError) as error:  # a name that is too long, or that no file can have
            raise FetchError(f"{locator}: cannot be discovered: {error}", url=locator) from None
        key = f"memo {path} {info.st_ino} {info.st_size} {info.st_mtime_ns}"
        return RemoteArchive(locator, locator, "file", File(path, key, info.st_size))


@hookimpl
def kurma_fetcher() -> Driver:
    directory = Option("directory", str, "/var/lib/memo", "where the archives lie")
    return Driver(Memo, options=(directory,), locators="name", example="memo:NAME")
