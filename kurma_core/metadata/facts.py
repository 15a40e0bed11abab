"""The facts about a pod that the metadata service serves: manifest, images, keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from kurma_core.value import frozen

Json = Any


@frozen
class ImageFacts:
    """One image.

    :param manifest: as its archive has it, byte for byte; of an early image its late form.
    :param original: what the early interface shows: of an early image its own app manifest.
    :param early_id: what early documents call the image; None: it is none of theirs.
    """

    id: str
    manifest: bytes
    original: bytes
    early_id: str | None = None


class Facts(Protocol):
    """One pod, as it is now. Called by the service's thread; each method may raise :class:`KurmaError`."""

    uuid: str

    def stamp(self) -> object:
        """Something that is another one once the pod's manifest has changed. Cheap."""
        ...

    def manifest(self) -> Mapping[str, Json]:
        """The pod's manifest, reified."""
        ...

    def image(self, image_id: str) -> ImageFacts: ...

    def key(self, uuid: str) -> bytes | None:
        """The key of any pod of this state directory; None: there is no such pod."""
        ...
