"""Finds an image of the store by a reference: an ID, the start of one, or a name."""

from __future__ import annotations

from collections.abc import Iterator

from kurma_core.errors import AmbiguousReferenceError, FormatVersionError, ImageNotFoundError, StoreError
from kurma_core.image_store.records import is_early_id, is_hex, is_id
from kurma_core.models.image import ImageRecord
from kurma_core.schema import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.image_store.durable import Store

#: Digits that the start of an ID must have.
SHORTEST = 6
_PREFIX = "sha512-"
_EARLY = "sha256-"


def find(store: Store, reference: str) -> ImageRecord:
    """See :meth:`.store.ImageStore.find`. IDs are tried before names, since a name may look like the start of
    one."""
    if is_id(reference):
        return store.get(reference)
    by_id = find_by_id(store, reference)
    if by_id is not None:
        return by_id
    if reference.startswith((_PREFIX, _EARLY)):
        raise _not_found(reference)
    return _by_name(store, reference)


def find_by_id(store: Store, reference: str) -> ImageRecord | None:
    """The image whose ID, by either algorithm, starts with the reference; None: the store has no such image, or
    the reference is not the start of an ID.

    :raises AmbiguousReferenceError: several do.
    """
    found = _id_that_starts(store, reference)
    return None if found is None else store.get(found)


def find_id(store: Store, reference: str) -> str:
    """The whole ID of the image with that ID or start of an ID; its record need not be readable.

    :raises ImageNotFoundError: no image has. :raises AmbiguousReferenceError: several have.
    """
    found = _id_that_starts(store, reference)
    if found is None:
        raise _not_found(reference)
    return found


def _id_that_starts(store: Store, reference: str) -> str | None:
    prefix, digits = _EARLY, reference.removeprefix(_EARLY)
    if digits == reference:
        prefix, digits = _PREFIX, reference.removeprefix(_PREFIX)
    if len(digits) < SHORTEST or not is_hex(digits):
        return None
    either = digits == reference
    matches: set[str] = set()
    if either or prefix == _PREFIX:
        matches.update(image_id for image_id in store.ids() if image_id.startswith(_PREFIX + digits))
    if either or prefix == _EARLY:
        matches.update(_early(store, digits))
    if len(matches) > 1:
        raise AmbiguousReferenceError(
            f"{len(matches)} images have an ID that starts with {reference}",
            hint="give more digits of the ID",
            matches=tuple(sorted(matches)),
        )
    return matches.pop() if matches else None


def _early(store: Store, digits: str) -> Iterator[str]:
    """IDs of the images whose early ID starts with the reference. Only documents whose bytes contain it are
    parsed."""
    wanted = b'"earlyId": "sha256-' + digits.encode()
    for image_id in store.ids():
        try:
            with open(store.path("images", image_id, "image.json"), "rb") as file:
                if wanted not in file.read():
                    continue
            early = store.get(image_id).early_id
        except (OSError, ImageNotFoundError, StoreError, FormatVersionError):
            continue  # removed meanwhile, or damaged
        if is_early_id(early) and str(early).startswith(_EARLY + digits):
            yield image_id


def named(store: Store, reference: str) -> list[ImageRecord]:
    """All that ``NAME[:VERSION][,label=value…]`` may mean. A name of an early document holds the version: where no
    image is called ``x-1.0.0``, it is ``x`` of version ``1.0.0``."""
    name_and_version, *labels = reference.split(",")
    name, _, version = name_and_version.partition(":")
    wanted = dict(label.partition("=")[::2] for label in labels)
    if version:
        wanted["version"] = version
    fitting = [
        image for image in store.list() if all(image.labels.get(key) == value for key, value in wanted.items())
    ]
    late = [image for image in fitting if image.name == name]
    return late or [image for image in fitting if not version and f"{image.name}-{image.version or ''}" == name]


def _by_name(store: Store, reference: str) -> ImageRecord:
    fitting = named(store, reference)
    if not fitting:
        raise _not_found(reference, store)
    return max(fitting, key=lambda image: image.age_order)


def _not_found(reference: str, store: Store | None = None) -> ImageNotFoundError:
    digits = reference.removeprefix(_PREFIX).removeprefix(_EARLY)
    if 0 < len(digits) < SHORTEST and is_hex(digits):
        return ImageNotFoundError(
            f"the store holds no image called {reference}, and for the beginning of an ID it is too short",
            hint=f"give at least {SHORTEST} digits of the ID",
            reference=reference,
        )
    hint = "`kurma image list` shows what it holds"
    near = _near(reference, store) if store is not None else None
    return ImageNotFoundError(
        f"the store holds no image {reference}",
        hint=hint if near is None else f"did you mean {near}? {hint}",
        reference=reference,
    )


def _near(reference: str, store: Store) -> str | None:
    """The name of an image that a mistyped one may mean; its last part is enough."""
    typed = reference.partition(":")[0] if "://" not in reference else reference
    names: dict[str, str] = {}
    for image in store.list():
        names.setdefault(image.name.rpartition("/")[2], image.name)
        names[image.name] = image.name
    found = nearest(typed, names)
    return None if found is None else names[found]
