"""Resolves ``oci-archive:FILE[:TAG]`` and ``docker-archive:FILE[:NAME:TAG]``: images in one tar file.

``docker save``, ``podman save`` and ``skopeo copy`` write such files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kurma_core.errors import FetchError, FetchNotFoundError
from kurma_core.hookspecs.fetcher import FetchRequest, RemoteLayers
from kurma_fetch_docker.conversion import ImageOrigin
from kurma_fetch_docker.oci_documents import (
    CONFIG_LIMIT,
    MANIFEST_LIMIT,
    Descriptor,
    Manifest,
    digest_of,
    read_json,
)
from kurma_fetch_docker.oci_layout import from_index, split_path, split_reference
from kurma_fetch_docker.reference import Reference, parse_reference
from kurma_fetch_docker.remote_layers import remote_layers
from kurma_fetch_docker.tar_members import Members

Json = Any


def resolve_archive(locator: str, rest: str, request: FetchRequest, state_dir: str) -> RemoteLayers:
    """Resolves a locator of an archive file.

    :param state_dir: see :meth:`.tar_members.Members.read`.
    :raises FetchError: one of its subclasses. :raises UsageError: the locator is malformed.
    """
    if locator.startswith("docker-archive:"):
        path, reference = split_reference(rest)
        members = Members.read(path, state_dir)
        found = _docker_image(locator, path, reference, members, request)
        members.remember()
        return found
    path, tag, digest = split_path(rest, locator)
    members = Members.read(path, state_dir)
    found = from_index(
        locator,
        path,
        tag,
        digest,
        request,
        index=_index(members),
        load=lambda descriptor: members.content(_blob_name(descriptor), CONFIG_LIMIT),
        blob=lambda descriptor: members.blob(_blob_name(descriptor), descriptor.digest),
    )
    members.remember()
    return found


def _index(members: Members) -> bytes:
    try:
        return members.content("index.json", MANIFEST_LIMIT)
    except FetchNotFoundError:
        hint = "what docker save writes is docker-archive:FILE" if members.holds("manifest.json") else None
        raise FetchNotFoundError(
            f"{members.path}: not an OCI image: it has no index.json", hint=hint, url=members.path
        ) from None


def _docker_image(
    locator: str, path: str, reference: str | None, members: Members, request: FetchRequest
) -> RemoteLayers:
    entry, name = _entry(_manifest(members), path, reference)
    config_name, layer_names = entry.get("Config"), entry.get("Layers")
    if not isinstance(config_name, str) or not isinstance(layer_names, list):
        raise FetchError(f"{path}: its manifest.json is malformed", url=path)
    config = members.content(config_name, CONFIG_LIMIT)
    digest = digest_of(config)
    return remote_layers(
        locator=locator,
        url=path,
        transport="file",
        origin=ImageOrigin(name.registry, name.repository, name.tag)
        if name
        else ImageOrigin("", _base(path), None),
        request=request,
        # The archive has no registry manifest, so the configuration's digest takes the place of its digest.
        manifest=Manifest(digest, Descriptor("", digest, len(config)), ()),
        config=config,
        blobs=[members.blob(str(name), None) for name in layer_names],
        digest=digest,
        pinned=False,
    )


def _manifest(members: Members) -> list[Mapping[str, Json]]:
    """Reads the list in ``manifest.json``. :raises FetchError: it is malformed."""
    path = members.path
    try:
        content = members.content("manifest.json", MANIFEST_LIMIT)
    except FetchNotFoundError:
        hint = "an OCI layout in one file is oci-archive:FILE" if members.holds("index.json") else None
        raise FetchNotFoundError(
            f"{path}: not a Docker archive: it has no manifest.json", hint=hint, url=path
        ) from None
    value = read_json(content, f"{path}: manifest.json")
    if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
        raise FetchError(f"{path}: its manifest.json is malformed", url=path)
    return value


def _entry(
    manifest: list[Mapping[str, Json]], path: str, reference: str | None
) -> tuple[Mapping[str, Json], Reference | None]:
    """Finds the requested image and its name; without a request, the only image."""
    wanted = parse_reference(reference) if reference else None
    names = []
    for entry in manifest:
        tags = entry.get("RepoTags") or []
        if not isinstance(tags, list):
            raise FetchError(f"{path}: its manifest.json is malformed", url=path)
        for text in tags:
            name = parse_reference(str(text))
            names.append(str(text))
            if name == wanted:
                return entry, name
    hint = f"it holds {', '.join(names)}" if names else None
    if wanted is not None:
        raise FetchNotFoundError(f"{path}: does not hold {reference}", hint=hint, url=path)
    if len(manifest) != 1:
        raise FetchError(f"{path}: holds {len(manifest)} images; name one", hint=hint, url=path)
    return manifest[0], parse_reference(names[0]) if names else None


def _base(path: str) -> str:
    from kurma_core.appc.types import sanitize_identifier

    return sanitize_identifier("image-" + os.path.basename(path).removesuffix(".tar"))


def _blob_name(descriptor: Descriptor) -> str:
    return "blobs/" + descriptor.digest.replace(":", "/")
