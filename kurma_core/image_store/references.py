"""What people write for an image of the store: an ID, the start of one, a name."""

from __future__ import annotations

from kurma_core.errors import AmbiguousReferenceError, ImageNotFoundError
from kurma_core.image_store.documents import is_hex, is_id
from kurma_core.models import ImageRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.image_store.store import ImageStore

#: Digits that the start of an ID must have.
SHORTEST = 6
_PREFIX = "sha512-"


def find(store: ImageStore, reference: str) -> ImageRecord:
    """See :meth:`.store.ImageStore.find`. An ID is looked for first: a name may look like the start of one."""
    if is_id(reference):
        return store.get(reference)
    by_id = _by_prefix(store, reference)
    if by_id is not None:
        return by_id
    if reference.startswith(_PREFIX):
        raise _not_found(reference)
    return _by_name(store, reference)


def _by_prefix(store: ImageStore, reference: str) -> ImageRecord | None:
    digits = reference.removeprefix(_PREFIX)
    if len(digits) < SHORTEST or not is_hex(digits):
        return None
    matches = [image_id for image_id in store.ids() if image_id.startswith(_PREFIX + digits)]
    if len(matches) > 1:
        raise AmbiguousReferenceError(
            f"{len(matches)} images have an ID that starts with {reference}",
            hint="give more digits of the ID",
            matches=tuple(matches),
        )
    return store.get(matches[0]) if matches else None


def _by_name(store: ImageStore, reference: str) -> ImageRecord:
    name_and_version, *labels = reference.split(",")
    name, _, version = name_and_version.partition(":")
    wanted = dict(label.partition("=")[::2] for label in labels)
    if version:
        wanted["version"] = version
    fitting = [
        image
        for image in store.list()
        if image.name == name and all(image.labels.get(key) == value for key, value in wanted.items())
    ]
    if not fitting:
        raise _not_found(reference)
    return max(fitting, key=lambda image: image.fetched_at)


def _not_found(reference: str) -> ImageNotFoundError:
    return ImageNotFoundError(
        f"the store holds no image {reference}", hint="`kurma image list` shows what it holds", reference=reference
    )
