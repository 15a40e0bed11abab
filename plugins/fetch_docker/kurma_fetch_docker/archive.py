"""``oci-archive:FILE[:TAG]`` and ``docker-archive:FILE[:NAME:TAG]``: images in one tar file, as ``docker save``,
``podman save`` and ``skopeo copy`` write them."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from kurma_fetch_http.local import open_regular

from kurma_core.errors import FetchError, FetchNotFoundError, FetchTruncatedError
from kurma_core.hookspecs import FetchRequest, RemoteLayers
from kurma_core.value import frozen
from kurma_fetch_docker.convert import Origin
from kurma_fetch_docker.documents import CONFIG_LIMIT, MANIFEST_LIMIT, Descriptor, Manifest, digest_of, read_json
from kurma_fetch_docker.image import remote_layers
from kurma_fetch_docker.layout import from_index, split_path
from kurma_fetch_docker.reference import Reference, parse_reference

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Json = Any
_LINKS = 8
_MEMBERS = 100_000
#: A compressed archive may unpack to so many times its size, or to so many bytes, whichever is more.
_MOST_RATIO = 1000
_HONEST_SIZE = 64 << 20


def resolve_archive(locator: str, rest: str, request: FetchRequest, state_dir: str) -> RemoteLayers:
    """:param state_dir: where a compressed archive is unpacked to, in a file without a name.
    :raises FetchError: in one of its kinds. :raises UsageError: the locator is malformed.
    """
    if locator.startswith("docker-archive:"):
        path, reference = _split_reference(rest)
        return _docker_image(locator, path, reference, Members.read(path, state_dir), request)
    path, tag, digest = split_path(rest, locator)
    members = Members.read(path, state_dir)
    return from_index(
        locator,
        path,
        tag,
        digest,
        request,
        index=members.content("index.json", MANIFEST_LIMIT),
        load=lambda descriptor: members.content(_blob_name(descriptor), CONFIG_LIMIT),
        blob=lambda descriptor: members.blob(_blob_name(descriptor), descriptor.digest),
    )


def _docker_image(
    locator: str, path: str, reference: str | None, members: Members, request: FetchRequest
) -> RemoteLayers:
    entry, name = _entry(members.manifest(), path, reference)
    config_name, layer_names = entry.get("Config"), entry.get("Layers")
    if not isinstance(config_name, str) or not isinstance(layer_names, list):
        raise FetchError(f"{path}: its manifest.json is malformed", url=path)
    config = members.content(config_name, CONFIG_LIMIT)
    digest = digest_of(config)
    return remote_layers(
        locator=locator,
        url=path,
        transport="file",
        origin=Origin(name.registry, name.repository, name.tag) if name else Origin("", _base(path), None),
        request=request,
        # The archive has no manifest of the registry's kind: the configuration's digest stands for it.
        manifest=Manifest(digest, Descriptor("", digest, len(config)), ()),
        config=config,
        blobs=[members.blob(str(name), None) for name in layer_names],
        digest=digest,
        pinned=False,
    )


def _entry(
    manifest: list[Mapping[str, Json]], path: str, reference: str | None
) -> tuple[Mapping[str, Json], Reference | None]:
    """The image asked for, and its name; without a wish, the only one."""
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


def _split_reference(rest: str) -> tuple[str, str | None]:
    """``FILE[:NAME[:TAG]]``: the file is the longest path before a colon that exists."""
    rest = rest.removeprefix("//") if rest.startswith("//") else rest
    path, reference = rest, ""
    while not os.path.exists(path) and ":" in path:
        path, _, part = path.rpartition(":")
        reference = f"{part}:{reference}" if reference else part
    if not os.path.exists(path):
        return rest.partition(":")[0], None
    return path, reference or None


def _base(path: str) -> str:
    from kurma_core.appc.types import sanitize_identifier

    return sanitize_identifier("image-" + os.path.basename(path).removesuffix(".tar"))


def _blob_name(descriptor: Descriptor) -> str:
    return "blobs/" + descriptor.digest.replace(":", "/")


# --- members of a tar file ---------------------------------------------------------------------------------------


class _Descriptor:
    """An open file, closed when the last who uses it is gone."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@frozen
class Members:
    """The files in an uncompressed tar, by name, each a span of it. Nothing is unpacked.

    :param links: names that stand for other names: ``docker save`` wrote a layer that occurs twice that way.
    """

    path: str
    file: _Descriptor
    spans: Mapping[str, tuple[int, int]]
    links: Mapping[str, str]

    @classmethod
    def read(cls, path: str, state_dir: str) -> Members:
        """:raises FetchError: it is no tar. :raises FetchNotFoundError: there is none."""
        with open_regular(os.fsencode(path)) as file:
            descriptor = _Descriptor(_uncompressed(file, path, state_dir))
        spans: dict[str, tuple[int, int]] = {}
        links: dict[str, str] = {}
        try:
            os.lseek(descriptor.number, 0, os.SEEK_SET)
            with (
                os.fdopen(os.dup(descriptor.number), "rb") as reader,
                tarfile.open(fileobj=reader, mode="r:") as tar,
            ):
                for count, member in enumerate(tar):
                    if count > _MEMBERS:
                        raise FetchError(f"{path}: holds more than {_MEMBERS} files", url=path)
                    name = posixpath.normpath(member.name)
                    if member.isreg() and not member.issparse():
                        spans[name] = (member.offset_data, member.size)
                    elif member.issym():
                        links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
                    elif member.islnk():
                        links[name] = posixpath.normpath(member.linkname)
        except tarfile.TarError as error:
            raise FetchError(f"{path}: not a tar archive: {error}", url=path) from None
        return cls(path, descriptor, spans, links)

    def blob(self, name: str, digest: str | None) -> MemberBlob:
        """:raises FetchNotFoundError: there is no such member."""
        offset, size = self._span(name)
        return MemberBlob(self, offset, size, digest)

    def content(self, name: str, limit: int) -> bytes:
        """:raises FetchNotFoundError: there is no such member."""
        offset, size = self._span(name)
        if size > limit:
            raise FetchError(f"{self.path}: {name} is longer than {limit} bytes", url=self.path)
        content = os.pread(self.file.number, size, offset)
        if len(content) != size:
            raise FetchTruncatedError(f"{self.path}: ends within {name}", url=self.path)
        return content

    def manifest(self) -> list[Mapping[str, Json]]:
        """The list in ``manifest.json``. :raises FetchError: it is malformed."""
        value = read_json(self.content("manifest.json", MANIFEST_LIMIT), f"{self.path}: manifest.json")
        if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
            raise FetchError(f"{self.path}: its manifest.json is malformed", url=self.path)
        return value

    def _span(self, name: str) -> tuple[int, int]:
        name = posixpath.normpath(name)
        for _ in range(_LINKS):
            if name in self.spans:
                return self.spans[name]
            name = self.links.get(name, "")
            if not name:
                break
        raise FetchNotFoundError(f"{self.path}: is no image: it lacks a file that it should hold", url=self.path)


@frozen
class MemberBlob:
    """One file in a tar, as a :class:`kurma_core.hookspecs.RemoteBlob`."""

    members: Members
    start: int
    size: int
    digest: str | None
    key: str | None = None

    def open(self, offset: int = 0) -> BinaryIO:
        return cast("BinaryIO", _Span(self.members.file, self.start + offset, self.start + self.size))


class _Span(io.RawIOBase):
    def __init__(self, file: _Descriptor, start: int, end: int) -> None:
        self._file = file
        self._position = start
        self._end = end

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        left = self._end - self._position
        data = os.pread(self._file.number, left if size is None or size < 0 else min(size, left), self._position)
        self._position += len(data)
        return data

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def _uncompressed(file: BinaryIO, path: str, state_dir: str) -> int:
    """A descriptor of the tar itself: the file's own, or of an unpacked copy without a name."""
    head = file.read(6)
    file.seek(0)
    if head.startswith(b"\x1f\x8b"):
        import gzip as opener
    elif head.startswith(b"BZh"):
        import bz2 as opener  # type: ignore[no-redef]
    elif head.startswith(b"\xfd7zXZ\0"):
        import lzma as opener  # type: ignore[no-redef]
    else:
        return os.dup(file.fileno())
    import lzma
    import tempfile
    import zlib

    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    most = max(_HONEST_SIZE, os.fstat(file.fileno()).st_size * _MOST_RATIO)
    size = 0
    try:
        with opener.open(file, "rb") as source, tempfile.TemporaryFile(dir=state_dir) as copy:
            while data := source.read(1 << 20):
                size += len(data)
                if size > most:
                    raise FetchError(f"{path}: unpacks to more than {_MOST_RATIO} times its size", url=path)
                copy.write(data)
            copy.flush()
            return os.dup(copy.fileno())
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise FetchError(f"{path}: cannot be unpacked: {error}", url=path) from None
