"""Dependencies that are not in the store, brought by discovery (I4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.appc.image_name import ImageName
from kurma_core.fetching import NAMED, Locator
from kurma_core.images.expectation import Expectation

if TYPE_CHECKING:
    from kurma_core.appc.image import Dependency
    from kurma_core.images.acquisition import Acquisition
    from kurma_core.models.image import ImageRecord


def name_of(dependency: Dependency) -> ImageName:
    """What a dependency is looked for by."""
    labels = {label.name: label.value for label in dependency.labels}
    return ImageName.of(dependency.image_name, labels, dependency.image_id)


def locator_by(name: ImageName) -> Locator:
    """:raises UsageError: a label that cannot be written."""
    return Locator(NAMED, name.text, name.name, name.version, name.labels)


class Dependencies:
    """How a run gets the dependencies of its images. One that the store has is not looked for.

    :param pull: with ``always`` those without an ID that once came by discovery are asked for again.
    """

    def __init__(self, acquisition: Acquisition, pull: str) -> None:
        self._acquisition = acquisition
        self._pull = pull

    def bring(self, dependency: Dependency) -> ImageRecord:
        """:raises FetchError: :raises TrustError: as for an image that somebody asks for by that name.
        :raises UsageError: it cannot be asked for by name.
        """
        expected = Expectation(name_of(dependency), dependency.image_id, dependency.size)
        return self._acquisition.get(self._locator(dependency), self._pull, expected)

    def again(self, dependency: Dependency) -> bool:
        """Whether it is to be asked for although the store may have one."""
        if self._pull != "always" or dependency.image_id is not None:
            return False
        return self._acquisition.is_known(self._locator(dependency))

    def _locator(self, dependency: Dependency) -> Locator:
        return locator_by(name_of(dependency))
