"""Manifests, indexes and configurations: read, checked, and one platform chosen among several.

OCI Image Format Specification; Docker Image Manifest V2, Schema 2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kurma_core.errors import FetchDigestError, FetchError, FetchNotFoundError, ManifestError
from kurma_core.hookspecs import FetchRequest
from kurma_core.value import frozen

Json = Any

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MEDIA_TYPES = (OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST)
#: Largest manifest and largest configuration, bytes.
MANIFEST_LIMIT = 4 << 20
CONFIG_LIMIT = 16 << 20
#: How deep indexes may stand in indexes.
_DEPTH = 3

#: Docker's architecture and variant, by the App Container name.
_PLATFORMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "amd64": ("amd64", ("", "v1")),
    "i386": ("386", ("",)),
    "aarch64": ("arm64", ("v8", "")),
    "armv7l": ("arm", ("v7", "", "v6", "v5")),
    "armv6l": ("arm", ("v6", "v5")),
}
_BACK = {
    "386": "i386",
    "arm64": "aarch64",
    "amd64": "amd64",
    "ppc64": "ppc64",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
}


@frozen
class Descriptor:
    """What one document says of another, or of a blob.

    :param urls: where a blob may be had that registries do not hand out.
    """

    media_type: str
    digest: str
    size: int
    platform: Mapping[str, Json] | None = None
    annotations: Mapping[str, str] | None = None
    urls: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: Json, where: str) -> Descriptor:
        """:raises FetchError: it is none."""
        match value:
            case {"digest": str(digest), "size": int(size)} if size >= 0 and is_digest(digest):
                annotations = value.get("annotations")
                platform = value.get("platform")
                urls = value.get("urls")
                return cls(
                    str(value.get("mediaType") or ""),
                    digest,
                    size,
                    platform if isinstance(platform, dict) else None,
                    _texts(annotations) if isinstance(annotations, dict) else None,
                    tuple(url for url in urls if isinstance(url, str)) if isinstance(urls, list) else (),
                )
        raise FetchError(f"{where}: holds a malformed descriptor")


@frozen
class Manifest:
    """One image for one platform.

    :param digest: over the manifest as it was read.
    """

    digest: str
    config: Descriptor
    layers: tuple[Descriptor, ...]


#: Reads a document by its descriptor, and checks its digest.
Load = Callable[[Descriptor], bytes]


def _texts(annotations: Mapping[str, Json]) -> dict[str, str]:
    """Annotations are texts; whatever else stands there says nothing."""
    return {key: value for key, value in annotations.items() if isinstance(value, str)}


def is_digest(text: str) -> bool:
    algorithm, _, digits = text.partition(":")
    return {"sha256": 64, "sha512": 128}.get(algorithm) == len(digits) and not digits.strip("0123456789abcdef")


def digest_of(content: bytes, like: str = "sha256") -> str:
    """:param like: a digest, or the algorithm of one."""
    algorithm = like.partition(":")[0]
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"


def check(content: bytes, digest: str, where: str) -> bytes:
    """:raises FetchDigestError: the content is not what the digest says."""
    found = digest_of(content, digest)
    if found != digest:
        raise FetchDigestError(
            f"{where}: its digest is {found}, not {digest}",
            hint="what came is not what was asked for: distrust the source",
            digest=digest,
        )
    return content


def read_json(content: bytes, where: str) -> Json:
    """Strictly: what two readers could take for two things is refused (a key that stands twice), and so is what
    could not be written down again.

    :raises FetchError: it is no such JSON.
    """
    from kurma_core.appc import jsonio

    try:
        return jsonio.loads(content, "the document")
    except ManifestError as error:
        data = error.data
        raise FetchError(
            f"{where}: is not JSON: {data['path']}: expected {data['expected']}, found {data['found']}"
        ) from None


def parse_json(content: bytes, where: str) -> dict[str, Json]:
    """:raises FetchError: it is no JSON object."""
    value = read_json(content, where)
    if not isinstance(value, dict):
        raise FetchError(f"{where}: is not a JSON object")
    return value


def choose(content: bytes, digest: str, where: str, request: FetchRequest, load: Load) -> Manifest:
    """The manifest for the platform asked for, through as many indexes as it takes.

    :param content: of a manifest or an index, checked against ``digest``.
    :raises FetchNotFoundError: the image is not made for that platform. :raises FetchError: it is malformed.
    """
    for _ in range(_DEPTH):
        document = parse_json(content, where)
        if "manifests" not in document:
            return _manifest(document, digest, where)
        chosen = pick(descriptors(document, "manifests", where), where, request)
        content, digest = load(chosen), chosen.digest
    raise FetchError(f"{where}: indexes stand in indexes too deeply")


def descriptors(document: Mapping[str, Json], key: str, where: str) -> tuple[Descriptor, ...]:
    """:raises FetchError: there is no list of descriptors under that key."""
    items = document.get(key)
    if not isinstance(items, list):
        raise FetchError(f"{where}: has no list of {key}")
    return tuple(Descriptor.parse(item, where) for item in items)


def pick(entries: Sequence[Descriptor], where: str, request: FetchRequest) -> Descriptor:
    """The entry for the platform asked for; one without a platform counts only where it is alone.

    :raises FetchNotFoundError: there is none.
    """
    if len(entries) == 1 and entries[0].platform is None:
        return entries[0]
    arch, variants = _PLATFORMS.get(request.arch, (request.arch, ("",)))
    fitting = [
        entry
        for entry in entries
        if entry.platform is not None
        and entry.platform.get("os") == request.os
        and entry.platform.get("architecture") == arch
    ]
    for variant in variants:
        for entry in fitting:
            assert entry.platform is not None
            if (entry.platform.get("variant") or "") == variant:
                return entry
    offered = sorted({_platform_text(entry.platform) for entry in entries if entry.platform} - {"unknown/unknown"})
    raise FetchNotFoundError(
        f"{where}: the image is not made for {request.os}/{arch}",
        hint=f"it is made for {', '.join(offered)}" if offered else None,
        url=where,
    )


def appc_arch(architecture: str, variant: str) -> str | None:
    """The App Container name of Docker's architecture; None: it has none."""
    if architecture == "arm":
        return "armv6l" if variant in ("v5", "v6") else "armv7l"
    return _BACK.get(architecture)


def _platform_text(platform: Mapping[str, Json] | None) -> str:
    parts = platform or {}
    return "/".join(str(parts[key]) for key in ("os", "architecture", "variant") if parts.get(key))


def _manifest(document: Mapping[str, Json], digest: str, where: str) -> Manifest:
    if document.get("schemaVersion") == 1:
        raise FetchError(
            f"{where}: the manifest is of Docker's first schema, which is out of use",
            hint="push the image again with a current tool",
        )
    kind = document.get("mediaType") or OCI_MANIFEST
    if kind not in (OCI_MANIFEST, DOCKER_MANIFEST):
        raise FetchError(f"{where}: holds {kind}, not an image")
    return Manifest(
        digest,
        Descriptor.parse(document.get("config"), where),
        descriptors(document, "layers", where),
    )
