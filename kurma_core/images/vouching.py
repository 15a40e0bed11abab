"""What speaks for an image today, for whoever gives it more than images get (X6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kurma_core.images.graph import ENOUGH_DIGITS
from kurma_core.value import field, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kurma_core.hookspecs.renderer import ImageNode
    from kurma_core.models.image import ImageRecord, Provenance


@frozen
class Vouchers:
    """:param signers: fingerprints of the keys that signed it and are trusted for its name now.
    :param lapsed: of those that count no longer, with the reason: ``unknown`` or ``revoked``.
    :param digests: its ID, also as early documents have it, and the digests of the registries' manifests that it
        came as.
    :param parts: images that it is made of besides and that it does not name by their whole ID: their content is
        not settled by its own.
    """

    id: str
    name: str
    signers: tuple[str, ...]
    lapsed: Mapping[str, str]
    digests: frozenset[str]
    parts: tuple[Vouchers, ...] = field(default=())


def vouchers(record: ImageRecord, lapse: Callable[[str, Provenance], str | None]) -> Vouchers:
    """:param lapse: why a signature by which an image of that name came in counts no longer; None: it does.
    :raises TrustError: a keystore cannot be read, or others may write it.
    """
    signers: dict[str, str | None] = {}
    for one in record.provenance:
        # What a signature was over in an encrypted archive is not what is in the store.
        if one.trust == "signed" and one.fingerprint is not None and not one.encrypted:
            signers[one.fingerprint] = lapse(record.name, one)
    return Vouchers(
        id=record.id,
        name=record.name,
        signers=tuple(key for key, why in signers.items() if why is None),
        lapsed={key: why for key, why in signers.items() if why is not None},
        digests=frozenset(filter(None, [record.id, record.early_id, *(one.digest for one in record.provenance)])),
    )


def loose_parts(node: ImageNode) -> Iterator[str]:
    """IDs of the dependencies, at any depth, that are not named by their whole ID."""
    for wanted, found in zip(node.manifest.dependencies, node.dependencies, strict=True):
        if wanted.image_id is None or len(wanted.image_id.partition("-")[2]) < ENOUGH_DIGITS:
            yield found.id
        yield from loose_parts(found)
