"""``oci:DIR[:TAG][@DIGEST]``: an OCI image layout in a directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kurma_fetch_http.local import FileBlob, open_regular

from kurma_core.appc.types import sanitize_identifier
from kurma_core.errors import FetchError, FetchNotFoundError, ManifestError
from kurma_core.hookspecs import FetchRequest, RemoteLayers
from kurma_fetch_docker.convert import Origin
from kurma_fetch_docker.documents import (
    CONFIG_LIMIT,
    MANIFEST_LIMIT,
    Descriptor,
    check,
    choose,
    descriptors,
    parse_json,
    pick,
)
from kurma_fetch_docker.image import remote_layers
from kurma_fetch_docker.reference import check_digest

if TYPE_CHECKING:
    from kurma_core.hookspecs import RemoteBlob

_NAME = "org.opencontainers.image.ref.name"
_FULL_NAME = "io.containerd.image.name"


def resolve_layout(locator: str, rest: str, request: FetchRequest) -> RemoteLayers:
    """:raises FetchError: in one of its kinds. :raises UsageError: the locator is malformed."""
    path, tag, digest = split_path(rest, locator)

    def blob(descriptor: Descriptor) -> RemoteBlob:
        name = _blob_path(path, descriptor.digest)
        found = FileBlob.of(os.fsencode(name))
        return FileBlob(found.path, found.key, found.size, descriptor.digest)

    return from_index(
        locator,
        path,
        tag,
        digest,
        request,
        index=_read(os.path.join(path, "index.json"), MANIFEST_LIMIT),
        load=lambda descriptor: _read(_blob_path(path, descriptor.digest), CONFIG_LIMIT),
        blob=blob,
    )


def split_path(rest: str, locator: str) -> tuple[str, str | None, str | None]:
    """``PATH[:TAG][@DIGEST]``. What follows the last colon is a tag unless it holds a slash, or the whole is the
    path of something that exists. :raises UsageError: the digest is malformed."""
    rest = rest.removeprefix("//") if rest.startswith("//") else rest
    digest = None
    head, at, tail = rest.rpartition("@")
    if at and tail.startswith(("sha256:", "sha512:")):
        rest, digest = head, check_digest(tail, locator)
    path, colon, tag = rest.rpartition(":")
    if colon and tag and "/" not in tag and not os.path.exists(rest):
        return path, tag, digest
    return rest, None, digest


def from_index(
    locator: str,
    path: str,
    tag: str | None,
    digest: str | None,
    request: FetchRequest,
    *,
    index: bytes,
    load: Callable[[Descriptor], bytes],
    blob: Callable[[Descriptor], RemoteBlob],
) -> RemoteLayers:
    """The image of a layout, however its files are read.

    :param load: a small document; its digest is checked here.
    """

    def checked(descriptor: Descriptor) -> bytes:
        return check(load(descriptor), descriptor.digest, locator)

    entries = descriptors(parse_json(index, path), "manifests", path)
    chosen = _chosen(entries, path, tag, digest, request)
    manifest = choose(checked(chosen), chosen.digest, path, request, checked)
    name = (chosen.annotations or {}).get(_NAME)
    return remote_layers(
        locator=locator,
        url=path,
        transport="file",
        origin=Origin("", _name_of(path), _tag_of(tag or name)),
        request=request,
        manifest=manifest,
        config=checked(manifest.config),
        blobs=[blob(layer) for layer in manifest.layers],
        digest=chosen.digest,
        pinned=digest is not None,
    )


def _chosen(
    entries: Sequence[Descriptor], path: str, tag: str | None, digest: str | None, request: FetchRequest
) -> Descriptor:
    fitting = [
        entry
        for entry in entries
        if (digest is None or entry.digest == digest)
        and (tag is None or tag in ((entry.annotations or {}).get(key) for key in (_NAME, _FULL_NAME)))
    ]
    if len({entry.digest for entry in fitting}) == 1:
        return fitting[0]
    if fitting and all(entry.platform for entry in fitting):
        return pick(fitting, path, request)
    names = [name for entry in entries if (name := (entry.annotations or {}).get(_NAME))]
    hint = f"it holds {', '.join(sorted(names))}" if names else None
    if not fitting:
        wanted = digest or tag or "any image"
        raise FetchNotFoundError(f"{path}: the layout does not hold {wanted}", hint=hint, url=path)
    raise FetchError(f"{path}: the layout holds several images; name one by its tag", hint=hint, url=path)


def _name_of(path: str) -> str:
    """A layout knows no repository: the name of its directory or file stands for it."""
    try:
        return sanitize_identifier(os.path.basename(path.rstrip("/")).removesuffix(".tar"))
    except ManifestError:
        return "image"


def _tag_of(name: str | None) -> str | None:
    """Some tools write whole references where a tag belongs."""
    return name.rpartition(":")[2].rpartition("/")[2] or None if name else None


def _blob_path(path: str, digest: str) -> str:
    algorithm, _, digits = digest.partition(":")
    return os.path.join(path, "blobs", algorithm, digits)


def _read(path: str, limit: int) -> bytes:
    with open_regular(os.fsencode(path)) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise FetchError(f"{path}: is longer than {limit} bytes", url=path)
    return content
