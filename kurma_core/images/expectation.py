"""What an image must be before it is let into the store: what was asked for (K3), what a dependency says (I4)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kurma_core.appc.image_name import ImageName
from kurma_core.errors import FetchDigestError, TrustError
from kurma_core.fetching import NAMED
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.fetching import Locator
    from kurma_core.hookspecs.fetcher import RemoteArchive
    from kurma_core.image_store.staging import StagedImage
    from kurma_core.models.image import ImageRecord


@frozen
class Expectation:
    """:param name: None: nothing was asked for by name, and whatever name the image has is its own.
    :param image_id: whole, or (``sha256-…``, of early documents) the start of one; None: any.
    :param size: bytes of the archive as shipped; None: any.
    """

    name: ImageName | None = None
    image_id: str | None = None
    size: int | None = None

    @classmethod
    def of(cls, locator: Locator) -> Expectation:
        """What a locator asks for."""
        if locator.scheme != NAMED or locator.name is None:
            return cls()
        return cls(ImageName(locator.name, locator.version, locator.labels))

    def fits(self, record: ImageRecord) -> bool:
        """Whether an image of the store, which came by the same locator, will do."""
        return self.image_id is None or _begins(self.image_id, (record.id, record.early_id or ""))

    def check_announced(self, remote: RemoteArchive) -> None:
        """Before a byte is read. :raises FetchDigestError: it is of another size than it should be."""
        if remote.blob.size is not None:
            self._check_size(remote, remote.blob.size)

    def check(self, remote: RemoteArchive, staged: StagedImage, platform: tuple[str, str]) -> None:
        """Before the image is let in.

        :param platform: os and arch wanted, where the name says nothing of them.
        :raises TrustError: it has another name, or other labels. :raises FetchDigestError: another ID or size.
        """
        if self.name is not None:
            self._check_name(remote, staged, platform)
        self._check_size(remote, os.stat(staged.archive_path).st_size)
        if self.image_id is not None and not _begins(self.image_id, (staged.id, staged.early_id)):
            found = staged.early_id if self.image_id.startswith("sha256-") else staged.id
            raise FetchDigestError(
                f"{remote.locator}: the image at {remote.url} has the ID {found[:19]}…, not {self.image_id[:19]}…",
                hint="what is asked for by its ID is not published there (any more): ask the owner of the name",
                image=staged.id,
            )

    def _check_name(self, remote: RemoteArchive, staged: StagedImage, platform: tuple[str, str]) -> None:
        assert self.name is not None
        manifest = staged.manifest
        labels = {label.name: label.value for label in manifest.labels}
        found = ImageName.of(manifest.name, labels)
        if not self.name.is_met_by(manifest.name, labels):
            raise TrustError(
                f"{remote.locator}: the image at {remote.url} is another one: {found.shown}",
                hint="ask the owner of the name, or name that image itself",
                image=staged.id,
            )
        for label, wanted in zip(("os", "arch"), platform, strict=True):
            if label not in self.name.labels and labels.get(label, wanted) != wanted:
                raise TrustError(
                    f"{remote.locator}: the image at {remote.url} is for {label} {labels[label]}, not {wanted}",
                    hint=f"if that is meant, ask for it: {self.name.shown},{label}={labels[label]}",
                    image=staged.id,
                )

    def _check_size(self, remote: RemoteArchive, size: int) -> None:
        if self.size is not None and size != self.size:
            raise FetchDigestError(
                f"{remote.locator}: the image at {remote.url} has {size} bytes, not {self.size}"
            )


def _begins(wanted: str, ids: tuple[str, str]) -> bool:
    return any(ident.startswith(wanted) for ident in ids)
