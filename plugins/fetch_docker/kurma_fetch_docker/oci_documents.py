"""Reads and checks manifests, indexes and configurations of images; chooses the platform.

OCI Image Format Specification; Docker Image Manifest V2, Schema 2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kurma_core.errors import FetchDigestError, FetchError, FetchNotFoundError
from kurma_core.hookspecs.fetcher import FetchRequest
from kurma_core.json_text import JsonError, loads
from kurma_core.value import frozen

Json = Any

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
MEDIA_TYPES = (OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST)
#: Largest manifest and largest configuration, bytes.
MANIFEST_LIMIT = 4 << 20
CONFIG_LIMIT = 16 << 20
#: Maximum depth of nested indexes, and maximum number of nested indexes without a platform that are read.
_DEPTH = 3
_INNER = 8
#: Media types of container configurations; old tools wrote none, or ``application/octet-stream``.
_CONFIGS = (
    OCI_CONFIG,
    "application/vnd.docker.container.image.v1+json",
    "application/octet-stream",
    "",
)

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
    """A descriptor: a document's reference to another document or to a blob.

    :param urls: addresses of a blob that registries do not distribute.
    """

    media_type: str
    digest: str
    size: int
    platform: Mapping[str, Json] | None = None
    annotations: Mapping[str, str] | None = None
    urls: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: Json, where: str) -> Descriptor:
        """Parses a descriptor. :raises FetchError: it is malformed."""
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

    :param digest: digest of the manifest's bytes.
    """

    digest: str
    config: Descriptor
    layers: tuple[Descriptor, ...]


#: Reads a document by its descriptor, and checks its digest.
Load = Callable[[Descriptor], bytes]


def _texts(annotations: Mapping[str, Json]) -> dict[str, str]:
    """Drops annotations that are not text."""
    return {key: value for key, value in annotations.items() if isinstance(value, str)}


def is_digest(text: str) -> bool:
    algorithm, _, digits = text.partition(":")
    return {"sha256": 64, "sha512": 128}.get(algorithm) == len(digits) and not digits.strip("0123456789abcdef")


def digest_of(content: bytes, like: str = "sha256") -> str:
    """Computes a digest. :param like: a digest with the wanted algorithm, or the algorithm's name."""
    algorithm = like.partition(":")[0]
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"


def check(content: bytes, digest: str, where: str) -> bytes:
    """Returns the content. :raises FetchDigestError: it does not match the digest."""
    found = digest_of(content, digest)
    if found != digest:
        raise FetchDigestError(
            f"{where}: its digest is {found}, not {digest}",
            hint="the content is not the requested one: distrust the source",
            digest=digest,
        )
    return content


def read_json(content: bytes, where: str) -> Json:
    """Reads JSON strictly: refuses text that two parsers could read differently (repeated keys), and values that
    cannot be encoded again.

    :raises FetchError: it is not such JSON.
    """
    try:
        return loads(content)
    except JsonError as error:
        raise FetchError(f"{where}: {error}") from None


def parse_json(content: bytes, where: str) -> dict[str, Json]:
    """Reads a JSON object. :raises FetchError: it is not one."""
    value = read_json(content, where)
    if not isinstance(value, dict):
        raise FetchError(f"{where}: is not a JSON object")
    return value


def choose(
    content: bytes, digest: str, where: str, request: FetchRequest, load: Load, *, depth: int = _DEPTH
) -> Manifest:
    """Finds the manifest for the requested platform, also in nested indexes.

    :param content: a manifest or an index, checked against ``digest``.
    :raises FetchNotFoundError: the image is not made for that platform. :raises FetchError: it is malformed.
    """
    document = parse_json(content, where)
    if "manifests" not in document:
        return _manifest(document, digest, where)
    if "layers" in document or "config" in document:
        raise FetchError(f"{where}: has the keys of an image and of an index")
    if not depth:
        raise FetchError(f"{where}: indexes are nested too deeply")
    entries = [entry for entry in descriptors(document, "manifests", where) if not _is_attestation(entry)]
    chosen = fitting(entries, request)
    if chosen is not None:
        return choose(load(chosen), chosen.digest, where, request, load, depth=depth - 1)
    inner = [entry for entry in entries if entry.platform is None and entry.media_type in (OCI_INDEX, DOCKER_LIST)]
    offered: set[str] = set()
    for entry in inner[:_INNER]:
        try:
            return choose(load(entry), entry.digest, where, request, load, depth=depth - 1)
        except FetchNotFoundError as error:
            inside = error.data.get("offered")
            if not isinstance(inside, frozenset):
                raise
            offered |= inside
    raise _not_made(entries, offered, where, request)


def descriptors(document: Mapping[str, Json], key: str, where: str) -> tuple[Descriptor, ...]:
    """Reads the list of descriptors under a key. :raises FetchError: there is none."""
    items = document.get(key)
    if not isinstance(items, list):
        raise FetchError(f"{where}: has no list of {key}")
    return tuple(Descriptor.parse(item, where) for item in items)


def pick(entries: Sequence[Descriptor], where: str, request: FetchRequest) -> Descriptor:
    """Like :func:`fitting`. :raises FetchNotFoundError: no entry fits; it names the platforms of the entries."""
    chosen = fitting(entries, request)
    if chosen is None:
        raise _not_made(entries, set(), where, request)
    return chosen


def fitting(entries: Sequence[Descriptor], request: FetchRequest) -> Descriptor | None:
    """Returns the entry for the requested platform; an entry without a platform counts only if it is the only
    one."""
    if len(entries) == 1 and entries[0].platform is None:
        return entries[0]
    arch, variants = _PLATFORMS.get(request.arch, (request.arch, ("",)))
    for variant in variants:
        for entry in entries:
            platform = entry.platform or {}
            if (platform.get("os"), platform.get("architecture"), platform.get("variant") or "") == (
                request.os,
                arch,
                variant,
            ):
                return entry
    return None


def told(value: object) -> str:
    """Quotes an untrusted value for an error: short, on one line, without control characters."""
    return repr(str(value)[:100])[1:-1]


def platform_text(arch: str) -> str:
    """Returns Docker's name of an App Container architecture."""
    return _PLATFORMS.get(arch, (arch, ()))[0]


def platform_of(arch: str) -> dict[str, str]:
    """Returns the keys ``architecture`` and ``variant`` of a platform, for an App Container architecture."""
    name, variants = _PLATFORMS.get(arch, (arch, ("",)))
    return {"architecture": name, **({"variant": variants[0]} if variants[0] else {})}


def _not_made(
    entries: Sequence[Descriptor], offered: set[str], where: str, request: FetchRequest
) -> FetchNotFoundError:
    found = offered | {_platform_text(entry.platform) for entry in entries if entry.platform}
    found -= {"unknown/unknown", ""}
    return FetchNotFoundError(
        f"{where}: the image is not made for {request.os}/{platform_text(request.arch)}",
        hint=f"it is made for {', '.join(sorted(found))}" if found else None,
        url=where,
        offered=frozenset(found),
    )


def _is_attestation(entry: Descriptor) -> bool:
    """Whether the entry is an attestation about an image, which buildx puts beside the image."""
    platform = entry.platform or {}
    return "vnd.docker.reference.type" in (entry.annotations or {}) or (
        platform.get("os"),
        platform.get("architecture"),
    ) == ("unknown", "unknown")


def appc_arch(architecture: str, variant: str) -> str | None:
    """Returns the App Container name of Docker's architecture; None: it has none."""
    if architecture == "arm":
        return "armv6l" if variant in ("v5", "v6") else "armv7l"
    return _BACK.get(architecture)


def _platform_text(platform: Mapping[str, Json] | None) -> str:
    parts = platform or {}
    return "/".join(told(parts[key]) for key in ("os", "architecture", "variant") if parts.get(key))


def _manifest(document: Mapping[str, Json], digest: str, where: str) -> Manifest:
    if document.get("schemaVersion") == 1:
        raise FetchError(
            f"{where}: the manifest has Docker's schema 1, which is obsolete",
            hint="push the image again with a current tool",
        )
    kind = document.get("mediaType") or OCI_MANIFEST
    if kind not in (OCI_MANIFEST, DOCKER_MANIFEST):
        raise FetchError(f"{where}: holds {told(kind)}, not an image")
    config = Descriptor.parse(document.get("config"), where)
    if config.media_type not in _CONFIGS:
        raise FetchError(f"{where}: holds {told(config.media_type)}, not an image")
    layers = descriptors(document, "layers", where)
    if any(layer.media_type.endswith("+encrypted") for layer in layers):
        raise FetchError(
            f"{where}: the image's layers are encrypted, and kurma cannot decrypt them",
            hint="decrypt it first: skopeo copy --decryption-key",
        )
    return Manifest(digest, config, layers)
