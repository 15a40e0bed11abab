"""Opens a layer's blob: at a registry or its mirror, or at an address that the manifest gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from kurma_fetch_http.resuming_reader import ResumingReader, buffered, get_from

from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_fetch_http.transport import Transport
    from urllib3.response import BaseHTTPResponse

    from kurma_fetch_docker.oci_documents import Descriptor
    from kurma_fetch_docker.registry_client import Client


@frozen
class _DescribedBlob:
    """A blob as its manifest describes it, independent of its source. Its key is its digest, so that a layer from
    two registries is downloaded once."""

    descriptor: Descriptor

    @property
    def key(self) -> str:
        return self.descriptor.digest

    @property
    def digest(self) -> str:
        return self.descriptor.digest

    @property
    def size(self) -> int:
        return self.descriptor.size


@frozen
class RegistryBlob(_DescribedBlob):
    """A blob of a registry. The registry is contacted only when the blob is opened.

    :param client: returns the client, and makes it at the first call.
    """

    client: Callable[[], Client]

    def open(self, offset: int = 0) -> BinaryIO:
        """See :meth:`kurma_core.hookspecs.fetcher.RemoteBlob.open`."""
        return self.client().open_blob(self.descriptor, offset)


@frozen
class UrlBlob(_DescribedBlob):
    """A blob at a URL outside the registry, fetched without credentials."""

    transport: Transport
    url: str

    def open(self, offset: int = 0) -> BinaryIO:
        """See :meth:`kurma_core.hookspecs.fetcher.RemoteBlob.open`."""

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
