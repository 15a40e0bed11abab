"""Resolves ``oci:DIR[:TAG][@DIGEST]``: an OCI image layout in a directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kurma_fetch_http.file_archive import FileBlob, open_regular

from kurma_core.appc.types import sanitize_identifier
from kurma_core.errors import FetchError, FetchNotFoundError, ManifestError, UsageError
from kurma_core.hookspecs.fetcher import FetchRequest, RemoteLayers
from kurma_fetch_docker.conversion import ImageOrigin
from kurma_fetch_docker.oci_documents import (
    CONFIG_LIMIT,
    MANIFEST_LIMIT,
    Descriptor,
    check,
    choose,
    descriptors,
    parse_json,
    pick,
)
from kurma_fetch_docker.reference import check_digest, parse_reference
from kurma_fetch_docker.remote_layers import remote_layers

if TYPE_CHECKING:
    from kurma_core.hookspecs.fetcher import RemoteBlobHooks

#: Annotations of an image in an index: its tag, which some tools write as a full name; its full name.
NAME = "org.opencontainers.image.ref.name"
FULL_NAME = "io.containerd.image.name"


def resolve_layout(locator: str, rest: str, request: FetchRequest) -> RemoteLayers:
    """Resolves ``oci:…``. :raises FetchError: one of its subclasses. :raises UsageError: the locator is
    malformed."""
    path, tag, digest = split_path(rest, locator)

    def blob(descriptor: Descriptor) -> RemoteBlobHooks:
        with _named(f"{path}: the layout lacks the blob {descriptor.digest}"):
            found = FileBlob.of(os.fsencode(_blob_path(path, descriptor.digest)))
        return FileBlob(found.path, found.key, found.size, descriptor.digest)

    def load(descriptor: Descriptor) -> bytes:
        with _named(f"{path}: the layout lacks the blob {descriptor.digest}"):
            return read_small(_blob_path(path, descriptor.digest), CONFIG_LIMIT)

    return from_index(
        locator,
        path,
        tag,
        digest,
        request,
        index=_index(path),
        load=load,
        blob=blob,
    )


def _index(path: str) -> bytes:
    if not os.path.isdir(path):
        archive = os.path.exists(path)
        hint = "an image in one file is oci-archive:FILE or docker-archive:FILE" if archive else None
        what = "not a directory" if archive else "no such directory"
        raise FetchNotFoundError(f"{path}: {what}", hint=hint, url=path)
    with _named(f"{path}: not an OCI image layout: it has no index.json"):
        return read_small(os.path.join(path, "index.json"), MANIFEST_LIMIT)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Replaces the message if a file is missing."""
    try:
        yield
    except FetchNotFoundError as error:
        raise FetchNotFoundError(what, url=error.data.get("url")) from None


def split_path(rest: str, locator: str) -> tuple[str, str | None, str | None]:
    """Splits ``PATH[:REFERENCE][@DIGEST]``; see :func:`split_reference`. :raises UsageError: the digest is
    malformed."""
    digest = None
    head, at, tail = rest.rpartition("@")
    if at and tail.startswith(("sha256:", "sha512:")):
        rest, digest = head, check_digest(tail, locator)
    path, reference = split_reference(rest)
    return path, reference, digest


def split_reference(rest: str) -> tuple[str, str | None]:
    """Splits ``PATH[:REFERENCE]``. The path is the longest existing path that ends before a colon; if none exists,
    it ends at the first colon after the last slash."""
    rest = rest.removeprefix("//") if rest.startswith("//") else rest
    path, reference = rest, ""
    while not os.path.exists(path) and ":" in path:
        path, _, part = path.rpartition(":")
        reference = f"{part}:{reference}" if reference else part
    if not os.path.exists(path):
        directory, slash, last = rest.rpartition("/")
        name, _, reference = last.partition(":")
        path = f"{directory}{slash}{name}"
    return path, reference or None


def from_index(
    locator: str,
    path: str,
    tag: str | None,
    digest: str | None,
    request: FetchRequest,
    *,
    index: bytes,
    load: Callable[[Descriptor], bytes],
    blob: Callable[[Descriptor], RemoteBlobHooks],
) -> RemoteLayers:
    """Resolves an image of a layout in a directory or in an archive.

    :param index: content of ``index.json``. :param load: reads a small document, whose digest is checked here.
    :param blob: returns the blob of a layer.
    """

    def checked(descriptor: Descriptor) -> bytes:
        return check(load(descriptor), descriptor.digest, locator)

    entries = descriptors(parse_json(index, path), "manifests", path)
    chosen = _chosen(entries, path, tag, digest, request)
    manifest = choose(checked(chosen), chosen.digest, path, request, checked)
    return remote_layers(
        locator=locator,
        url=path,
        transport="file",
        origin=_origin(path, chosen.annotations or {}, tag),
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
        if (digest is None or entry.digest == digest) and (tag is None or tag in _names(entry))
    ]
    if len({entry.digest for entry in fitting}) == 1:
        return fitting[0]
    if fitting and all(entry.platform for entry in fitting):
        return pick(fitting, path, request)
    names = [name for entry in entries if (name := (entry.annotations or {}).get(NAME))]
    hint = f"it holds {', '.join(sorted(names))}" if names else None
    if not fitting:
        wanted = digest or tag or "any image"
        raise FetchNotFoundError(f"{path}: the layout does not hold {wanted}", hint=hint, url=path)
    raise FetchError(f"{path}: the layout holds several images; name one by its tag", hint=hint, url=path)


def _names(entry: Descriptor) -> set[str]:
    """Returns the references that select an entry: its full names, and the tags in them."""
    found = [name for key in (NAME, FULL_NAME) if (name := (entry.annotations or {}).get(key))]
    return {*found, *(tag for name in found if (tag := _tag_of(name)))}


def _origin(path: str, annotations: Mapping[str, str], tag: str | None) -> ImageOrigin:
    """Returns the full name that some tools write (registry and repository), else the name of the file."""
    for key in (FULL_NAME, NAME):
        first, slash, _ = annotations.get(key, "").partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            try:
                found = parse_reference(annotations[key])
            except UsageError:
                continue
            return ImageOrigin(found.registry, found.repository, found.tag)
    return ImageOrigin("", _name_of(path), _tag_of(tag or annotations.get(NAME)))


def _name_of(path: str) -> str:
    """Returns a name made of the layout's directory or file, since a layout has no repository name."""
    try:
        return sanitize_identifier(os.path.basename(path.rstrip("/")).removesuffix(".tar"))
    except ManifestError:
        return "image"


def _tag_of(name: str | None) -> str | None:
    """Returns the tag of a reference, since some tools write whole references in place of a tag."""
    return name.rpartition(":")[2].rpartition("/")[2] or None if name else None


def _blob_path(path: str, digest: str) -> str:
    algorithm, _, digits = digest.partition(":")
    return os.path.join(path, "blobs", algorithm, digits)


def read_small(path: str, limit: int) -> bytes:
    """Reads a document. :raises FetchError: it is longer than ``limit`` bytes, or missing."""
    with open_regular(os.fsencode(path)) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise FetchError(f"{path}: is longer than {limit} bytes", url=path)
    return content
