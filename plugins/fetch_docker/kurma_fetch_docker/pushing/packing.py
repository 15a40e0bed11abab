"""Packs the layers of a stored image into blobs, and writes the documents that name them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from kurma_core.cancellation import phase
from kurma_core.value import frozen
from kurma_fetch_docker.oci_documents import OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, digest_of
from kurma_fetch_docker.pushing.image_config import configuration

if TYPE_CHECKING:
    from kurma_core.hookspecs.fetcher import FetchRequest, StoredImage, StoredLayer

Json = Any

_GZIP = zlib.MAX_WBITS | 16  # zlib's own header has neither a time nor a name


@frozen
class Blob:
    """A blob of an image.

    :param content: a document, or a file without a name, which holds a layer.
    """

    media_type: str
    digest: str
    size: int
    content: bytes | BinaryIO

    @classmethod
    def document(cls, media_type: str, value: Json) -> Blob:
        """Encodes a document, always to the same bytes."""
        content = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        return cls(media_type, digest_of(content), len(content), content)

    @property
    def digits(self) -> str:
        return self.digest.partition(":")[2]

    def described(self) -> dict[str, Json]:
        """The descriptor of the blob."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@frozen
class PackedImage:
    """An image as blobs. :param layers: lowest first. :param diff_ids: digests of the uncompressed layers."""

    config: Blob
    layers: tuple[Blob, ...]
    diff_ids: tuple[str, ...]

    def manifest(self) -> Blob:
        """The image's manifest."""
        return Blob.document(
            OCI_MANIFEST,
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "config": self.config.described(),
                "layers": [layer.described() for layer in self.layers],
            },
        )

    def blobs(self) -> tuple[Blob, ...]:
        """Each blob that the manifest names, once."""
        return tuple({blob.digest: blob for blob in (*self.layers, self.config)}.values())


@contextmanager
def packed(image: StoredImage, request: FetchRequest, directory: str, *, compress: bool) -> Iterator[PackedImage]:
    """Packs an image; leaving the context removes the files of its layers, as the end of the process does.

    :param directory: an existing directory, for files without a name.
    :param compress: by gzip.
    :raises OSError: the files cannot be written. :raises ImageError: a layer cannot be read.
    """
    with ExitStack() as files:
        layers, diff_ids = [], []
        for number, layer in enumerate(image.layers, 1):
            file = files.enter_context(nameless(directory))
            with phase(f"packing layer {number} of {len(image.layers)}"):
                blob, diff_id = _pack(layer, file, compress=compress)
            layers.append(blob)
            diff_ids.append(diff_id)
        document = configuration(image.manifest, diff_ids, request.arch)
        yield PackedImage(Blob.document(OCI_CONFIG, document), tuple(layers), tuple(diff_ids))


def nameless(directory: str) -> BinaryIO:
    """A new file without a name in the directory, with the mode that the umask gives."""
    try:
        return open(os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666), "w+b")
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    import tempfile

    return cast("BinaryIO", tempfile.TemporaryFile(dir=directory))


def _pack(layer: StoredLayer, file: BinaryIO, *, compress: bool) -> tuple[Blob, str]:
    """Writes a layer to the file. :returns: the blob, and the digest of the uncompressed layer."""
    out = _Packing(file, compress=compress)
    layer.write(cast("BinaryIO", out))
    digest, diff_id, size = out.finish()
    file.seek(0)
    return Blob(OCI_LAYER + ("+gzip" if compress else ""), digest, size, file), diff_id


class _Packing:
    """Hashes and compresses what is written to it."""

    def __init__(self, file: BinaryIO, *, compress: bool) -> None:
        self._file = file
        self._tar = hashlib.sha256()
        self._blob = hashlib.sha256() if compress else self._tar
        self._gzip = zlib.compressobj(6, zlib.DEFLATED, _GZIP) if compress else None
        self._size = 0

    def write(self, data: bytes) -> int:
        self._tar.update(data)
        self._put(data if self._gzip is None else self._gzip.compress(data))
        return len(data)

    def finish(self) -> tuple[str, str, int]:
        """:returns: the digest of the blob, that of the tar, and the size of the blob."""
        if self._gzip is not None:
            self._put(self._gzip.flush())
        self._file.flush()
        return f"sha256:{self._blob.hexdigest()}", f"sha256:{self._tar.hexdigest()}", self._size

    def _put(self, data: bytes) -> None:
        if data:
            if self._gzip is not None:
                self._blob.update(data)
            self._size += len(data)
            self._file.write(data)


def pieces(content: bytes | BinaryIO) -> Iterator[bytes]:
    """The content of a blob, from its beginning."""
    if isinstance(content, bytes):
        yield content
        return
    content.seek(0)
    while piece := content.read(_PIECE):
        yield piece


_PIECE = 1 << 20
