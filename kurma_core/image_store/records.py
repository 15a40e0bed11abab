"""Reads and writes the store's documents, ``image.json`` and ``layer.json``; checks image IDs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping

from kurma_core.errors import FormatVersionError, ImageNotFoundError, StoreError
from kurma_core.formats.timestamps import timestamp
from kurma_core.hookspecs.renderer import ImageLayer
from kurma_core.image_store import image_managers
from kurma_core.json_text import loads
from kurma_core.models.image import Conventions, ImageRecord, Provenance
from kurma_core.schema import COUNT, SchemaError, fit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_core.image_store.archive_layout import Whiteouts

    #: Makes a path in the store of its parts (``ImageStore.path``).
    StorePath = Callable[..., str]


#: Version of the store's documents.
VERSION = 1
#: Documents of early images, in the order in which they are shown.
ORIGINALS = ("app", "fileset")
_ID_PREFIX = "sha512-"
_HEX = frozenset("0123456789abcdef")
#: Shape of the record.
_VERSIONED = {"version": COUNT}


def is_hex(text: str) -> bool:
    return bool(text) and _HEX.issuperset(text)


def is_id(text: str) -> bool:
    """Whether it is a whole image ID."""
    return len(text) == 135 and text.startswith(_ID_PREFIX) and is_hex(text[7:])


def is_early_id(text: object) -> bool:
    """Whether it is a whole image ID as early documents have them."""
    return isinstance(text, str) and len(text) == 71 and text.startswith("sha256-") and is_hex(text[7:])


def checked_id(image_id: str) -> str:
    """``image_id`` itself, fit to be part of a path. :raises ImageNotFoundError: the text is not an image ID."""
    if not is_id(image_id):
        raise not_found(image_id)
    return image_id


def not_found(image_id: str) -> ImageNotFoundError:
    return ImageNotFoundError(f"the store holds no image {image_id}", image=image_id)


def layer_key(diff_id: str) -> str:
    """The key of a layer with that digest. :raises StoreError: the text is not a SHA-256 digest."""
    algorithm, _, digest = diff_id.partition(":")
    if algorithm != "sha256" or len(digest) != 64 or not is_hex(digest):
        raise StoreError(f"not a layer's digest: {diff_id!r}", hint="sha256: and 64 hexadecimal digits")
    return f"sha256-{digest}"


def is_key(key: str) -> bool:
    """Whether it is the key of a layer: an image ID, or what :func:`layer_key` makes."""
    return is_id(key) or (len(key) == 71 and key.startswith("sha256-") and is_hex(key[7:]))


def read_file(path: str, image_id: str) -> bytes:
    """:raises ImageNotFoundError: there is no such file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise not_found(image_id) from None


def read_originals(path: str, image_id: str) -> dict[str, bytes]:
    """See :meth:`.store.ImageStore.originals`."""
    read_file(f"{path}/manifest", image_id)
    found = {}
    for name in ORIGINALS:
        with contextlib.suppress(FileNotFoundError), open(f"{path}/original-{name}", "rb") as file:
            found[name] = file.read()
    return found


def _document(path: str, image_id: str) -> dict[str, Any]:
    """A document of the store; parsed once for as long as its file has the same inode, size and times.

    :raises ImageNotFoundError: the file does not exist. :raises: as :func:`load`.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise not_found(image_id) from None
    seen = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    known = _known.get(path)
    if known is not None and known[0] == seen:
        return known[1]
    document = load(read_file(path, image_id), path)
    if found.st_size <= _SHORT and time.time_ns() - found.st_ctime_ns > _SETTLED:
        if len(_known) >= _MOST:
            _known.clear()
        _known[path] = seen, document
    return document


_known: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
#: Documents that are known at a time, and the bytes of one at most; nanoseconds after which a change is sure to be
#: seen by a file's times.
_MOST, _SHORT, _SETTLED = 256, 16384, 1_000_000_000


def load(content: bytes, path: str) -> dict[str, Any]:
    """A document of the store. :raises StoreError: damaged. :raises FormatVersionError: too new."""
    try:
        value = loads(content, own=True)
        fit(value, _VERSIONED, "the document")
        newer = value["version"] > VERSION
    except ValueError as error:
        raise _unreadable(path, error) from error
    if newer:
        raise FormatVersionError(f"{path} was written by a newer Kurma (version {value['version']})", path=path)
    document: dict[str, Any] = value
    return document


def _unreadable(path: str, error: Exception) -> StoreError:
    return StoreError(
        f"the image store is damaged: {path} is not readable: {error}",
        hint="remove the image and fetch it anew",
        path=path,
    )


def lost_record(path: str, image_id: str) -> StoreError:
    """For an image of which only the directory is left."""
    return StoreError(
        f"the image store is damaged: {path} has no image.json",
        hint=f"remove the image and fetch it anew: kurma image rm {image_id[:19]}",
        path=path,
        image=image_id,
    )


def dump(document: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **document}, indent=1).encode() + b"\n"


_IMAGE = {
    "name": str,
    "labels": {str: str},
    "layersSize": COUNT,
    "layers": [str],
    "provenance": [dict],
    "earlyId?": (str, None),
    "conventions?": dict,
}
_LAYER = {"removed": [str], "opaque": [str], "implied": [str], "size": COUNT}


# --- images ------------------------------------------------------------------------------------------------------


def image_document(image: ImageRecord, layers_size: int, converted: str | None = None) -> bytes:
    """``image.json``. The archive's size and the last use are not in it, since the files' own size and time show
    them.

    :param converted: of an early image, the :func:`converted_digest` of its late manifest.
    """
    return dump(
        {
            "id": image.id,
            **({} if converted is None else {"converted": converted}),
            **({} if image.early_id is None else {"earlyId": image.early_id}),
            "name": image.name,
            "labels": dict(image.labels),
            "layers": list(image.layers),
            "layersSize": layers_size,
            "provenance": [provenance.to_json() for provenance in image.provenance],
            **({} if image.conventions == Conventions() else {"conventions": image.conventions.to_json()}),
        }
    )


def converted_digest(manifest: bytes) -> str:
    """Digest of the late form of an early image's documents, as it was made when the image came in: another Kurma
    may make another of the same."""
    import hashlib

    return f"sha512:{hashlib.sha512(manifest).hexdigest()}"


def read_image(path_in: StorePath, image_id: str) -> ImageRecord:
    """:raises ImageNotFoundError: it is not there. :raises StoreError: its record is damaged."""
    path = path_in("images", checked_id(image_id), "image.json")
    document = _document(path, image_id)
    try:
        archive = os.stat(path_in("archives", f"{image_id}.aci")).st_blocks * 512
    except FileNotFoundError:
        archive = 0
    used = _last_used(path_in("images", image_id, "used"))
    managers, released = image_managers.read(path_in, image_id)
    try:
        fit(document, _IMAGE, "the record")
        if not document["provenance"]:
            raise SchemaError("the record.provenance", "at least one", "an empty list")
        labels, expected = document["labels"], document.get("conventions")
        return ImageRecord(
            id=image_id,
            name=document["name"],
            version=labels.get("version"),
            labels=labels,
            size=document["layersSize"],
            archive_size=archive,
            layers=tuple(document["layers"]),
            provenance=tuple(Provenance.from_json(value) for value in document["provenance"]),
            last_used=used,
            early_id=document.get("earlyId"),
            conventions=Conventions() if expected is None else Conventions.from_json(expected),
            managers=managers,
            released=released,
        )
    except ValueError as error:
        raise _unreadable(path, error) from error


def _last_used(path: str) -> str | None:
    try:
        used = os.stat(path).st_mtime
    except FileNotFoundError:
        return None
    return timestamp(used)


def seconds(timestamp: str) -> float:
    """Seconds since the epoch. :raises ValueError: the text is not an RFC 3339 time."""
    from datetime import datetime

    return datetime.fromisoformat(timestamp).timestamp()


# --- layers ------------------------------------------------------------------------------------------------------


def layer_document(key: str, whiteouts: Whiteouts, implied: tuple[bytes, ...], size: int, entries: int) -> bytes:
    """``layer.json``: the layer's whiteouts, the directories without an entry of their own, bytes on disk."""
    return dump(
        {
            "key": key,
            "removed": [os.fsdecode(path) for path in whiteouts.removed],
            "opaque": [os.fsdecode(path) for path in whiteouts.opaque],
            "implied": [os.fsdecode(path) for path in implied],
            "size": size,
            "entries": entries,
        }
    )


def layer_values(path_in: StorePath, key: str) -> dict[str, Any]:
    """The parsed ``layer.json``. :raises StoreError: the layer is missing, or damaged."""
    path = path_in("layers", key, "layer.json")
    try:
        if not is_key(key):
            raise FileNotFoundError
        document = _document(path, key)
        fit(document, _LAYER, "the record")
        return document
    except ValueError as error:
        raise _unreadable(path, error) from error
    except (FileNotFoundError, ImageNotFoundError):
        raise StoreError(
            f"the image store is damaged: the layer {key} is missing", hint="remove the image and fetch it anew"
        ) from None


def read_layer(path_in: StorePath, key: str) -> ImageLayer:
    """:raises StoreError: the layer is not there, or damaged."""
    document = layer_values(path_in, key)
    return ImageLayer(
        key=key,
        path=path_in("layers", key, "rootfs"),
        removed=tuple(document["removed"]),
        opaque=tuple(document["opaque"]),
        implied=tuple(document["implied"]),
    )


# --- sizes -------------------------------------------------------------------------------------------------------


_DOCUMENTS = (("layers", "layer.json"), ("trees", "tree.json"))
#: Bytes and files of layers and trees by path: they never change.
_sizes: dict[str, tuple[int, int]] = {}


def recorded_sizes(path_in: StorePath) -> tuple[int, int]:
    """Bytes on disk and number of files of all layers, trees and archives. A damaged document counts nothing."""
    size = files = 0
    for kind, document in _DOCUMENTS:
        place = path_in(kind)
        found = {f"{place}/{name}" for name in _listed(place)}
        for path in found:
            if path not in _sizes:
                with contextlib.suppress(OSError, ImageNotFoundError, StoreError, FormatVersionError):
                    value = load(read_file(f"{path}/{document}", path), path)
                    _sizes[path] = int(value.get("size", 0)), int(value.get("entries", 0))
            each = _sizes.get(path, (0, 0))
            size, files = size + each[0], files + each[1]
        for path in [path for path in _sizes if path.startswith(f"{place}/") and path not in found]:
            _sizes.pop(path, None)
    place = path_in("archives")
    for name in _listed(place):
        with contextlib.suppress(FileNotFoundError):
            size, files = size + os.stat(f"{place}/{name}").st_blocks * 512, files + 1
    return size, files


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
