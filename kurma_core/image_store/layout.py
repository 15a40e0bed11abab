"""What stands where in an archive: images (A2), and layers of registries with their whiteouts (R2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kurma_core.errors import ArchiveError, HostileArchiveError
from kurma_core.image_store.archive import TarReader
from kurma_core.image_store.entry import DIRECTORY, FILE, HARDLINK, Entry, show
from kurma_core.image_store.extract import explain, hostile
from kurma_core.image_store.limits import FIXED, Limits
from kurma_core.image_store.names import split
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest

    #: Takes an entry and its path beneath the root filesystem.
    Sink = Callable[[Entry, list[bytes]], None]

_LATE = b"manifest"
_EARLY = (b"app", b"fileset")
_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_WHITEOUT_RESERVED = b".wh..wh."
#: Oddities of one image that are told; a stranger's manifest has room for many thousands.
_TOLD = 10


@frozen
class ImageContents:
    """What an image archive holds beside its root filesystem.

    :ivar manifest_bytes: as the archive has it; of an early image, its documents in the late form (E1).
    :ivar originals: the documents of an early image as it has them, by name: ``app``, ``fileset``, or both.
    :ivar oddities: a line for each thing in its manifest that is odd and harmless, as an unknown key is (T8).
    """

    manifest: ImageManifest
    manifest_bytes: bytes
    originals: Mapping[str, bytes]
    oddities: tuple[str, ...]


def read_image(reader: TarReader, limits: Limits, sink: Sink) -> ImageContents:
    """Read an image archive to its end (App Container Image, Image Layout; early: Fileset Images, too).

    :param sink: given every entry of the root filesystem, that of ``rootfs`` itself with an empty path.
    :raises ArchiveError: it is no image.
    :raises HostileArchiveError: it is none that an honest builder makes.
    :raises ManifestError: its manifest breaks the specification.
    """
    documents: dict[bytes, bytes] = {}
    rootfs = False
    for entry in reader:
        parts = split(entry.name, limits)
        top = parts[0] if parts else b""
        if top == b"rootfs":
            rootfs = rootfs or len(parts) == 1
            _sink_image_entry(sink, entry, parts, limits)
        elif (top == _LATE or top in _EARLY) and len(parts) == 1:
            if top in documents:
                raise hostile(entry, "there are two entries of that name")
            documents[top] = _read_document(reader, entry, limits)
        elif not parts and entry.kind == DIRECTORY:
            continue  # `./`, as `tar -C DIR -c .` writes it
        else:
            _refuse(entry)
    contents = _contents(documents)
    if not rootfs:
        raise ArchiveError("not an App Container image: the archive has no directory `rootfs`")
    return contents


def _contents(documents: Mapping[bytes, bytes]) -> ImageContents:
    """The manifest, late or made of the early ones. The order in which they came says nothing."""
    odd: list[str] = []
    if not documents:
        raise ArchiveError("not an App Container image: the archive has no `manifest`")
    if _LATE in documents:
        from kurma_core.appc.image import ImageManifest

        if len(documents) > 1:
            early = " and ".join(f"`{show(name)}`" for name in _EARLY if name in documents)
            raise ArchiveError(
                f"not an App Container image: the archive has `manifest`, and {early} of an early image beside it",
                hint="an image has either `manifest`, or `app`, `fileset` or both",
            )
        manifest = ImageManifest.parse(documents[_LATE], warn=odd.append)
        return ImageContents(manifest, documents[_LATE], {}, _told(odd))
    import json

    from kurma_core.appc.early_image import convert_image

    manifest = convert_image(*(documents.get(name) for name in _EARLY), warn=odd.append)
    late = json.dumps(manifest.to_json(), ensure_ascii=False).encode()
    originals = {name.decode(): documents[name] for name in _EARLY if name in documents}
    return ImageContents(manifest, late, originals, _told(odd))


def _told(oddities: list[str]) -> tuple[str, ...]:
    more = len(oddities) - _TOLD
    return (*oddities[:_TOLD], f"and {more} more of the kind") if more > 0 else tuple(oddities)


def _sink_image_entry(sink: Sink, entry: Entry, parts: list[bytes], limits: Limits) -> None:
    if len(parts) == 1 and entry.kind != DIRECTORY:
        raise hostile(entry, "`rootfs` must be a directory")
    if entry.kind == HARDLINK:
        target = split(entry.target, limits, link=entry.name)
        if len(target) < 2 or target[0] != b"rootfs":
            raise hostile(entry, f"it is a hard link to '{show(entry.target)}', outside of `rootfs`")
        entry.target = b"/".join(target[1:])
    _deliver(sink, entry, parts[1:])


def _read_document(reader: TarReader, entry: Entry, limits: Limits) -> bytes:
    if entry.kind != FILE or entry.sparse is not None:
        raise hostile(entry, f"`{show(entry.name.rstrip(b'/'))}` must be a regular file")
    if entry.size > limits.manifest_size:
        named = show(entry.name)
        raise HostileArchiveError(
            f"the archive is refused for its entry '{named}': it is larger than {limits.manifest_size} bytes",
            hint=FIXED,
            entry=named,
            limit="manifest_size",
        )
    return b"".join(reader.content_of(entry))


def _refuse(entry: Entry) -> None:
    name = show(entry.name)
    raise HostileArchiveError(
        f"the archive is refused for its entry '{name}': an image holds `manifest` (or, an early one, `app`, "
        "`fileset` or both) and `rootfs`, and nothing else",
        entry=name,
    )


# --- layers ------------------------------------------------------------------------------------------------------


@frozen
class Whiteouts:
    """What a layer takes away from those below it: paths, sorted."""

    removed: tuple[bytes, ...]
    opaque: tuple[bytes, ...]


def read_layer(reader: TarReader, limits: Limits, sink: Sink, imply: Sink) -> Whiteouts:
    """Read a layer's tar to its end (OCI Image Layer Filesystem Changeset).

    A whiteout speaks of the layers below only, so it may stand beside what re-creates the path.

    :param imply: given a directory that must be there, though it may have no entry of its own.
    :raises ArchiveError: it is broken.
    :raises HostileArchiveError: it is none that an honest builder makes.
    """
    removed: set[bytes] = set()
    opaque: set[bytes] = set()
    for entry in reader:
        parts = split(entry.name, limits, rooted=True) if entry.name.strip(b"/") else []
        name = parts[-1] if parts else b""
        _no_whiteout(entry, parts[:-1])
        if name.startswith(_WHITEOUT):
            if name == _OPAQUE:
                opaque.add(b"/".join(parts[:-1]))
                _deliver(imply, entry, parts[:-1])
            elif not name.startswith(_WHITEOUT_RESERVED):
                gone = name[len(_WHITEOUT) :]
                if gone in (b"", b".", b".."):
                    raise hostile(entry, "it is a whiteout of nothing")
                removed.add(b"/".join([*parts[:-1], gone]))
            continue  # other reserved names are notes of aufs to itself
        if not parts and entry.kind != DIRECTORY:
            raise hostile(entry, "the root must be a directory")
        if entry.kind == HARDLINK:
            target = split(entry.target, limits, rooted=True, link=entry.name)
            _no_whiteout(entry, target)
            entry.target = b"/".join(target)
        _deliver(sink, entry, parts)
    return Whiteouts(tuple(sorted(removed)), tuple(sorted(opaque)))


def _no_whiteout(entry: Entry, parts: Iterable[bytes]) -> None:
    if any(part.startswith(_WHITEOUT) for part in parts):
        raise hostile(entry, "it lies beneath a whiteout, or links to one")


def _deliver(sink: Sink, entry: Entry, parts: list[bytes]) -> None:
    try:
        sink(entry, parts)
    except OSError as error:
        raise explain(error, entry) from error
