"""What a client says of images: values that pass as JSON, as ``--format json`` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest
    from kurma_core.errors import KurmaError
    from kurma_core.models.image import ImageRecord, RenderedLayer

Json = Any


@frozen
class ListedImage:
    """:param trust: the word that vouches for it now; the record's is of when it came in."""

    record: ImageRecord
    trust: str

    def to_json(self) -> dict[str, Json]:
        return {**self.record.to_json(), "trust": self.trust}


@frozen
class ImageListing:
    """:param damaged: what is wrong with images whose record cannot be read."""

    images: tuple[ListedImage, ...]
    damaged: tuple[KurmaError, ...]


@frozen
class ImageFacts:
    """:param trust: as of :class:`ListedImage`.
    :param lapse: why a signature that it came in by counts no longer: ``unknown``, ``revoked``; None: none lapsed.
    """

    record: ImageRecord
    trust: str
    lapse: str | None
    manifest: ImageManifest

    def to_json(self) -> dict[str, Json]:
        own = {"trust": self.trust, "lapse": self.lapse, "manifest": self.manifest.to_json()}
        return {**self.record.to_json(), **own}


@frozen
class Rendered:
    """An image as read-only directories, top first."""

    id: str
    layers: tuple[RenderedLayer, ...]

    def to_json(self) -> dict[str, Json]:
        return {"id": self.id, "layers": [{"id": layer.id, "path": layer.path} for layer in self.layers]}


__all__ = ["ImageFacts", "ImageListing", "ListedImage", "Rendered"]
