"""The facts about a pod that the metadata service serves: manifest, images, keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from kurma_core.value import frozen

Json = Any


@frozen
class ImageFacts:
    """One image.

    :param manifest: the manifest's bytes in the archive; for an early image, its converted form.
    :param original: the manifest for the early interface: an early image's own app manifest.
    :param early_id: the image's ID in the form of early documents; None: it has none.
    """

    id: str
    manifest: bytes
    original: bytes
    early_id: str | None = None


class Facts(Protocol):
    """The current facts of one pod. The service's thread calls it; each method may raise :class:`KurmaError`."""

    uuid: str

    def stamp(self) -> object:
        """Returns a value that changes with the pod's manifest. It must be cheap."""
        ...

    def manifest(self) -> Mapping[str, Json]:
        """Returns the pod's manifest, reified."""
        ...

    def image(self, image_id: str) -> ImageFacts: ...

    def key(self, uuid: str) -> bytes | None:
        """Returns the key of any pod of this state directory; None: there is no such pod."""
        ...
