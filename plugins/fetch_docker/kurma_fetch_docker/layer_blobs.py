"""Opens a layer's blob: at a registry or its mirror, or at an address that the manifest gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from kurma_fetch_http.resuming_reader import ResumingReader, buffered, get_from

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.fetcher import RemoteBlobHooks

if TYPE_CHECKING:
    from kurma_fetch_http.transport import Transport
    from urllib3.response import BaseHTTPResponse

    from kurma_fetch_docker.oci_documents import Descriptor
    from kurma_fetch_docker.registry_client import Client


class _DescribedBlob(RemoteBlobHooks):
    """A blob as its manifest describes it, independent of its source. Its key is its digest, so that a layer from
    two registries is downloaded once."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self.key = self.digest = descriptor.digest
        self.size = descriptor.size


class RegistryBlob(_DescribedBlob):
    """A blob of a registry. The registry is contacted only when the blob is opened.

    :param client: returns the client, and makes it at the first call.
    """

    def __init__(self, descriptor: Descriptor, client: Callable[[], Client]) -> None:
        super().__init__(descriptor)
        self.client = client

    @hookimpl
    def open(self, offset: int) -> BinaryIO:
        return self.client().open_blob(self.descriptor, offset)


class UrlBlob(_DescribedBlob):
    """A blob at a URL outside the registry, fetched without credentials."""

    def __init__(self, descriptor: Descriptor, transport: Transport, url: str) -> None:
        super().__init__(descriptor)
        self.transport = transport
        self.url = url

    @hookimpl
    def open(self, offset: int) -> BinaryIO:
        def open_at(position: int) -> BaseHTTPResponse:
            # No validator is needed: the digest identifies the bytes.
            return get_from(self.transport, self.url, position)

        return buffered(
            ResumingReader(
                open_at,
                url=self.url,
                size=self.descriptor.size,
                retries=self.transport.retries,
                sleep=self.transport.sleep,
                offset=offset,
                low_speed=self.transport.low_speed,
            )
        )
