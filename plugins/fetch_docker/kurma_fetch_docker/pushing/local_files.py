"""Writes ``oci:DIR[:NAME]``, ``oci-archive:FILE[:NAME]`` and ``docker-archive:FILE[:NAME:TAG]``."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import tarfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from threading import get_native_id
from typing import TYPE_CHECKING, Any, BinaryIO

from kurma_core.errors import FetchError, UsageError
from kurma_core.named_files import writable, written
from kurma_core.value import replace
from kurma_fetch_docker.oci_documents import MANIFEST_LIMIT, OCI_INDEX, parse_json, platform_of
from kurma_fetch_docker.oci_layout import FULL_NAME, NAME, read_small
from kurma_fetch_docker.pushing.image_config import left_out, own_name
from kurma_fetch_docker.pushing.packing import Blob, PackedImage, packed, pieces
from kurma_fetch_docker.reference import HUB, HUB_NAMES, Reference, parse_reference

if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest
    from kurma_core.hookspecs.driver import DriverContext
    from kurma_core.hookspecs.fetcher import FetchRequest, StoredImage

Json = Any

#: A name in a layout (annotation ``org.opencontainers.image.ref.name``), by the OCI image specification.
_REFERENCE = re.compile(r"[A-Za-z0-9]+(?:[-._:@/+]+[A-Za-z0-9]+)*")
#: Most characters of it: as many as the name of an image in a registry, with a tag.
_LONGEST = 384
_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def push_local(locator: str, image: StoredImage, request: FetchRequest, context: DriverContext) -> str:
    """Writes an image to a file, or to a layout in a directory. :returns: the digest of its manifest or, in a
    Docker archive, of its configuration.

    :raises UsageError: the locator is malformed. :raises FetchError: the directory is not a layout.
    :raises HostError: :raises OSError: a file cannot be written.
    """
    request.refuse_credentials(locator)
    scheme, _, rest = locator.partition(":")
    path, _, name = rest.removeprefix("//").partition(":")
    if not path.startswith("/") or "\0" in path:
        raise UsageError(f"{locator}: not a whole path", hint=f"write {scheme}:/DIRECTORY/FILE")
    path = path.rstrip("/") or "/"
    if "@" in name or path.endswith(("@sha256", "@sha512")):
        hint = f"write {scheme}:{path}:NAME"
        raise UsageError(f"{locator}: an image gets a name here, and no digest", hint=hint)
    lost = left_out(image.manifest)
    if lost:
        context.note(f"{image.manifest.name}: an image of this format holds no {', no '.join(lost)}")
    if scheme == "docker-archive":
        return _docker_archive(path, name, image, request)
    label, names = _names(name, image.manifest)
    if scheme == "oci-archive":
        return _oci_archive(path, names, image, request)
    return _Layout(path).add(label, names, image, request)


# --- names -------------------------------------------------------------------------------------------------------


def _names(name: str, manifest: ImageManifest) -> tuple[str, dict[str, str]]:
    """The reference of an image in a layout, and the annotations that hold it, and the full name.

    :raises UsageError: the name is malformed.
    """
    if name and (len(name) > _LONGEST or not _REFERENCE.fullmatch(name)):
        raise UsageError(
            f"{name[:80]!r}{'…' * (len(name) > 80)} cannot name an image in a layout",
            hint=f"1 to {_LONGEST} letters and digits, with any of -._:/+ between them",
        )
    full = own_name(manifest)
    if "/" in name:
        full = parse_reference(name)
    elif name and full is not None:
        with suppress(UsageError):  # a reference may hold what a tag cannot
            full = parse_reference(f"{full_name(replace(full, tag=None))}:{name}")
    label = name or (full.tag if full is not None and full.tag else "latest")
    return label, {NAME: label, **({} if full is None else {FULL_NAME: full_name(full)})}


def full_name(reference: Reference) -> str:
    """The name as other programs write it: ``docker.io/library/redis:7``."""
    host = HUB_NAMES[0] if reference.registry == HUB else reference.registry
    return f"{host}/{reference.repository}" + (f":{reference.tag}" if reference.tag else "")


# --- archives ----------------------------------------------------------------------------------------------------


def _docker_archive(path: str, name: str, image: StoredImage, request: FetchRequest) -> str:
    full = parse_reference(name) if name else own_name(image.manifest)
    writable(path)
    with packed(image, request, os.path.dirname(path), compress=False) as found:
        config = f"{found.config.digits}.json"
        entry = {
            "Config": config,
            "RepoTags": [] if full is None else [full_name(full)],
            "Layers": [f"{layer.digits}.tar" for layer in found.layers],
        }
        members = {f"{layer.digits}.tar": layer for layer in found.layers}
        manifest = Blob.document("", [entry])
        with written(path) as out:
            _write_tar(out, (), {**members, config: found.config, "manifest.json": manifest})
        return found.config.digest


def _oci_archive(path: str, names: dict[str, str], image: StoredImage, request: FetchRequest) -> str:
    writable(path)
    with packed(image, request, os.path.dirname(path), compress=True) as found:
        manifest = found.manifest()
        blobs = {f"blobs/sha256/{blob.digits}": blob for blob in (*found.blobs(), manifest)}
        index = Blob.document(OCI_INDEX, _index([_entry(manifest, names, image, request)]))
        layout = Blob("", "", len(_LAYOUT), _LAYOUT)
        with written(path) as out:
            files = {"oci-layout": layout, "index.json": index, **dict(sorted(blobs.items()))}
            _write_tar(out, ("blobs", "blobs/sha256"), files)
        return manifest.digest


def _write_tar(out: BinaryIO, directories: Iterable[str], files: dict[str, Blob]) -> None:
    """Writes an archive that is the same for the same files: without times and owners."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in directories:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, blob in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = blob.size, 0o644
            content = io.BytesIO(blob.content) if isinstance(blob.content, bytes) else blob.content
            content.seek(0)
            tar.addfile(entry, content)


# --- layouts -----------------------------------------------------------------------------------------------------


def _index(entries: Sequence[Json]) -> Json:
    return {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(entries)}


def _entry(manifest: Blob, names: dict[str, str], image: StoredImage, request: FetchRequest) -> Json:
    platform = platform_of(image.manifest.label("arch") or request.arch)
    system = image.manifest.label("os") or request.os
    return {**manifest.described(), "platform": {**platform, "os": system}, "annotations": names}


class _Layout:
    """A layout in a directory: an existing one, or one to be made. The index names an image once its blobs are
    there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._new = not os.path.lexists(path)
        if self._new:
            if not os.path.isdir(os.path.dirname(path)):
                writable(path)  # raises the error of a missing directory
        elif not os.path.isdir(path) or os.path.islink(path):
            raise FetchError(f"{path}: not a directory", hint="a layout in one file is oci-archive:FILE", url=path)
        elif os.listdir(path) and not os.path.exists(os.path.join(path, "oci-layout")):
            hint = "name a new directory, or one that holds a layout"
            raise FetchError(f"{path}: not an OCI image layout, and not empty", hint=hint, url=path)

    def add(self, label: str, names: dict[str, str], image: StoredImage, request: FetchRequest) -> str:
        spool = os.path.dirname(self._path) if self._new else self._path
        with packed(image, request, spool, compress=True) as found:
            with suppress(FileExistsError):
                os.mkdir(self._path)
            root = os.open(self._path, _DIRECTORY)
            try:
                return self._add(root, label, names, found, image, request)
            finally:
                os.close(root)

    def _add(
        self,
        root: int,
        label: str,
        names: dict[str, str],
        found: PackedImage,
        image: StoredImage,
        request: FetchRequest,
    ) -> str:
        fcntl.flock(root, fcntl.LOCK_EX)  # another process may add an image to the index
        with written(os.path.join(self._path, "oci-layout")) as out:
            out.write(_LAYOUT)
        manifest = found.manifest()
        blobs = _subdirectory(root, "blobs")
        try:
            place = _subdirectory(blobs, "sha256")
            try:
                for blob in (*found.blobs(), manifest):
                    _place(blob, place)
            finally:
                os.close(place)
        finally:
            os.close(blobs)
        others = [entry for entry in self._entries() if _label(entry) != label]
        index = Blob.document(OCI_INDEX, _index([*others, _entry(manifest, names, image, request)]))
        with written(os.path.join(self._path, "index.json")) as out:
            for piece in pieces(index.content):
                out.write(piece)
        return manifest.digest

    def _entries(self) -> list[Json]:
        path = os.path.join(self._path, "index.json")
        if not os.path.exists(path):
            return []
        entries = parse_json(read_small(path, MANIFEST_LIMIT), path).get("manifests")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise FetchError(f"{path}: has no list of manifests", url=path)
        return entries


def _label(entry: Json) -> object:
    annotations = entry.get("annotations")
    return annotations.get(NAME) if isinstance(annotations, dict) else None


def _subdirectory(parent: int, name: str) -> int:
    """Opens a directory, and makes it if it is missing. Links are not followed."""
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)


def _place(blob: Blob, directory: int) -> None:
    """Puts a blob into the directory under its digest. It replaces a blob of that name, which may be damaged."""
    temporary = f".{blob.digits}.{get_native_id()}.tmp"
    try:
        if isinstance(blob.content, bytes) or not _linked(blob.content, directory, temporary):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o666, dir_fd=directory), "wb") as out:
                for piece in pieces(blob.content):
                    out.write(piece)
        os.rename(temporary, blob.digits, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _linked(file: BinaryIO, directory: int, name: str) -> bool:
    """Gives a file without a name its name; False: this file system cannot."""
    try:
        os.link(f"/proc/self/fd/{file.fileno()}", name, dst_dir_fd=directory)
        return True
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EXDEV, errno.EOPNOTSUPP, errno.EPERM):
            raise
        return False
