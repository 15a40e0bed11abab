"""Makes a registry image's manifest, configuration and blobs into the layers that the core fetches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kurma_core.errors import FetchError
from kurma_core.hookspecs.fetcher import FetchRequest, RemoteLayer, RemoteLayers
from kurma_core.value import replace
from kurma_fetch_docker.conversion import ImageOrigin, diff_ids, image_manifest
from kurma_fetch_docker.oci_documents import Manifest, parse_json

if TYPE_CHECKING:
    from kurma_core.hookspecs.fetcher import RemoteBlobHooks


def remote_layers(
    *,
    locator: str,
    url: str,
    transport: str,
    origin: ImageOrigin,
    request: FetchRequest,
    manifest: Manifest,
    config: bytes,
    blobs: Sequence[RemoteBlobHooks],
    digest: str,
    pinned: bool,
    others: Callable[[int], tuple[RemoteBlobHooks, ...]] = lambda place: (),
) -> RemoteLayers:
    """Makes the value that a fetcher returns for an image of layers.

    :param config: the configuration, checked against its digest.
    :param digest: digest of the document that the name refers to: a manifest, or an index of several.
    :param blobs: blobs of the layers, lowest first.
    :param others: returns other sources of a layer's blob, by the layer's place.
    :raises FetchError: the manifest and the configuration contradict each other, or are malformed.
    """
    document = parse_json(config, url)
    ids = diff_ids(document, url)
    if len(ids) != len(blobs):
        raise FetchError(f"{url}: the configuration lists {len(ids)} layers, the manifest {len(blobs)}")
    if not ids:
        raise FetchError(f"{url}: the image has no layers")
    identified = replace(origin, manifest_digest=manifest.digest, config_digest=manifest.config.digest)
    return RemoteLayers(
        locator=locator,
        url=url,
        transport=transport,
        manifest=image_manifest(document, identified, request),
        layers=tuple(
            RemoteLayer(
                diff_id,
                blob,
                _compression(manifest.layers[place].media_type) if manifest.layers else "",
                others(place),
            )
            for place, (diff_id, blob) in enumerate(zip(ids, blobs, strict=True))
        ),
        digest=digest,
        pinned=pinned,
    )


def _compression(media_type: str) -> str:
    for name in ("gzip", "zstd"):
        if media_type.endswith(name):
            return name
    return ""
