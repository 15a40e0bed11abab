"""The images that the apps of a pod name by ID and name (P2, E7): of the store, else found by the name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.appc.image_name import ImageName
from kurma_core.errors import (
    FetchDigestError,
    FetchError,
    ImageError,
    ImageNotFoundError,
    UsageError,
)
from kurma_core.images.dependencies import locator_by
from kurma_core.images.expectation import Expectation

if TYPE_CHECKING:
    from kurma_core.appc.pod import RuntimeImage
    from kurma_core.image_store import ImageStore
    from kurma_core.images.acquisition import Acquisition
    from kurma_core.models.image import ImageRecord


def image_of_app(image: RuntimeImage, store: ImageStore, acquisition: Acquisition, pull: str) -> ImageRecord:
    """:param image: with an ID (whole, or the start of an early one) and a name.
    :raises ImageError: the image of that ID has another name, or labels other than those given.
    :raises ImageNotFoundError: the store has none of that ID, and ``pull`` is ``never``.
    :raises FetchError: :raises TrustError: as for an image that somebody asks for by that name.
    """
    assert image.id is not None
    assert image.name is not None
    wanted = ImageName.of(image.name, {label.name: label.value for label in image.labels}, image.id)
    record = store.find_by_id(image.id)
    if record is None:
        return _brought(image.id, wanted, acquisition, pull)
    if not wanted.is_met_by(record.name, record.labels):
        raise ImageError(
            f"the image with the ID {image.id} is {ImageName.of(record.name, record.labels).shown}, "
            f"not {wanted.shown}",
            hint="give the image's own name with its ID, or another ID",
            image=record.id,
        )
    return record


def _brought(image_id: str, wanted: ImageName, acquisition: Acquisition, pull: str) -> ImageRecord:
    try:
        return acquisition.get(locator_by(wanted), pull, Expectation(wanted, image_id))
    except FetchDigestError:
        raise  # it says itself what came instead
    except (FetchError, ImageNotFoundError, UsageError) as error:
        error.message = f"the store holds no image {image_id}; by its name: {error.message}"
        raise
