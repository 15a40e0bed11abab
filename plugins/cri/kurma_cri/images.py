"""The image of a container: from its reference in the Container Runtime Interface to an image in Kurma's store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.api.operations import Api


@frozen
class RunImage:
    """An image that a container runs.

    :param id: its ID in the Container Runtime Interface. :param reference: name and digest, else the ID.
    :param locator: the image in Kurma's store.
    """

    id: str
    reference: str
    locator: str


def run_image(client: Api, reference: str) -> RunImage:
    """:param reference: an ID, a name with tag or digest.

    :raises ImageNotFoundError: the store has no such image.
    """
    page = client.image(reference)
    return RunImage(page.record.id, page.record.id, page.record.id)
