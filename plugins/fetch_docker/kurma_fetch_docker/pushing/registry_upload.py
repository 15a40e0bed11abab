"""Pushes an image to a registry: the blobs that it lacks, and then the manifest, which gives the image its name.

OCI Distribution Specification, Push.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from kurma_fetch_http.http_errors import is_passing
from kurma_fetch_http.transport import backoff, discard

from kurma_core.cancellation import check, phase, step
from kurma_core.errors import FetchDigestError, FetchError, UsageError
from kurma_fetch_docker.pushing.image_config import left_out
from kurma_fetch_docker.pushing.packing import Blob, packed, pieces
from kurma_fetch_docker.reference import parse_locator
from kurma_fetch_docker.registries import Endpoints, given_login

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

    from kurma_core.hookspecs.driver import DriverContext
    from kurma_core.hookspecs.fetcher import FetchRequest, StoredImage
    from kurma_fetch_docker.registry_client import Client

_AGAIN = frozenset((429, 500, 502, 503, 504))
_LENGTH = "Content-Length"


def push_remote(locator: str, image: StoredImage, request: FetchRequest, context: DriverContext) -> str:
    """Pushes an image; mirrors are not written to. :returns: the digest of its manifest.

    :raises UsageError: the locator is malformed. :raises FetchError: the registry refuses, or does not answer.
    """
    reference = parse_locator(locator)
    if reference.digest is not None:
        raise UsageError(
            f"{locator}: an image is pushed to a tag, and not to a digest", hint="leave the digest out"
        )
    lost = left_out(image.manifest)
    if lost:
        context.note(f"{image.manifest.name}: an image of a registry holds no {', no '.join(lost)}")
    endpoints = Endpoints(context, request, given_login(request, reference.registry, context))
    client = endpoints.client(reference.registry, reference.repository)
    os.makedirs(context.state_dir, mode=0o700, exist_ok=True)
    with packed(image, request, context.state_dir, compress=True) as found:
        blobs = found.blobs()
        for number, blob in enumerate(blobs, 1):
            if not _is_there(client, blob):
                with phase(f"pushing blob {number} of {len(blobs)}", blob.size, "bytes"):
                    _upload(client, blob)
        manifest = found.manifest()
        url = f"{client.base}/v2/{client.repository}/manifests/{reference.wanted}"
        content = b"".join(pieces(manifest.content))
        headers = {"Content-Type": manifest.media_type}
        _same(client.request("PUT", url, headers, lambda: content, accept=(201,)), manifest, url)
        return manifest.digest


def _blobs(client: Client) -> str:
    return f"{client.base}/v2/{client.repository}/blobs"


def _is_there(client: Client, blob: Blob) -> bool:
    answer = client.request("HEAD", f"{_blobs(client)}/{blob.digest}", {}, accept=(404,))
    discard(answer)
    return answer.status == 200


def _upload(client: Client, blob: Blob) -> None:
    """Uploads a blob in one piece. A failure that may pass begins a new upload: what a broken one has left in the
    registry is unknown."""
    retries = client.transport.retries
    for attempt in range(retries + 1):
        try:
            return _upload_once(client, blob)
        except FetchError as error:
            if attempt == retries or not (is_passing(error) or error.data.get("status") in _AGAIN):
                raise
            client.transport.sleep(backoff(attempt))


def _upload_once(client: Client, blob: Blob) -> None:
    start = f"{_blobs(client)}/uploads/"
    answer = client.request("POST", start, {_LENGTH: "0"}, accept=(202,))
    place = answer.headers.get("Location", "")
    discard(answer)
    if answer.status != 202 or not place:
        raise FetchError(f"{start}: the registry did not begin an upload (status {answer.status})", url=start)
    place = urljoin(start, place)
    url = f"{place}{'&' if urlsplit(place).query else '?'}digest={blob.digest}"
    headers = {_LENGTH: str(blob.size), "Content-Type": "application/octet-stream"}
    try:
        _same(client.request("PUT", url, headers, lambda: _counted(blob), accept=(201,)), blob, start)
    except BaseException:
        with suppress(FetchError, UsageError):
            discard(client.request("DELETE", place, {}, accept=range(400, 600)))
        raise


def _counted(blob: Blob) -> Iterator[bytes]:
    for piece in pieces(blob.content):
        check()
        yield piece
        step(len(piece))


def _same(answer: BaseHTTPResponse, blob: Blob, url: str) -> None:
    """Checks the digest by which the registry has stored a blob."""
    found = answer.headers.get("Docker-Content-Digest", blob.digest)
    discard(answer)
    if found != blob.digest:
        raise FetchDigestError(
            f"{url}: the registry stored {found}, and not {blob.digest}",
            hint="push again; if it stays, distrust the registry, or a proxy before it",
            digest=blob.digest,
        )
