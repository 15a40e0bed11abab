"""Images: where they came from, their records, and rendered trees."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.schema import fit
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from kurma_core.schema import Form

    Json = Any


@frozen
class Provenance:
    """Where an image came from, once (S4).

    :param trust: ``signed``, ``digest`` (content digest over TLS or pinned), ``local`` (a file of this machine,
        unverified), ``built`` (made and signed on this machine) or ``unverified`` (checks were relaxed).
    :param fetched_at: RFC 3339, UTC, with microseconds.
    :param fingerprint: of the key whose signature was verified.
    :param insecure: the relaxations that were in force (``image``, ``tls``, ``http``, ``pubkey``).
    :param encrypted: its archive came encrypted (A1).
    """

    locator: str
    fetched_at: str
    trust: str
    url: str | None = None
    digest: str | None = None
    fingerprint: str | None = None
    insecure: tuple[str, ...] = ()
    encrypted: bool = False

    SHAPE: ClassVar[Form] = {
        "locator": str,
        "fetchedAt": str,
        "trust": frozenset(("built", "signed", "digest", "local", "unverified")),
        "url?": (str, None),
        "digest?": (str, None),
        "fingerprint?": (str, None),
        "insecure?": [str],
        "encrypted?": bool,
    }

    def to_json(self) -> dict[str, Json]:
        return {
            "locator": self.locator,
            "fetchedAt": self.fetched_at,
            "trust": self.trust,
            "url": self.url,
            "digest": self.digest,
            "fingerprint": self.fingerprint,
            "insecure": list(self.insecure),
            "encrypted": self.encrypted,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Provenance:
        fit(value, cls.SHAPE, "provenance")
        return cls(
            locator=value["locator"],
            fetched_at=value["fetchedAt"],
            trust=value["trust"],
            url=value.get("url"),
            digest=value.get("digest"),
            fingerprint=value.get("fingerprint"),
            insecure=tuple(value.get("insecure", ())),
            encrypted=value.get("encrypted", False),
        )


@frozen
class ImageRecord:
    """One image of the store.

    :param id: ``sha512-`` and 128 hex digits: over the uncompressed tar (A4).
    :param size: bytes that its extracted layers and its archive take on disk.
    :param layers: keys of the extracted layers, lowest first (an ACI has one; a Docker image has several).
    :param provenance: every way it came in, oldest first; never empty.
    :param last_used: RFC 3339, UTC; None: never.
    :param early_id: ``sha256-`` and 64 hex digits over the same tar, as early documents name it (E6); None: it
        came from a registry, or into the store by a Kurma that kept none.
    """

    id: str
    name: str
    version: str | None
    labels: Mapping[str, str]
    size: int
    layers: tuple[str, ...]
    provenance: tuple[Provenance, ...]
    last_used: str | None = None
    early_id: str | None = None

    @property
    def trust(self) -> str:
        """The strongest word that vouches for the image."""
        order = ("built", "signed", "digest", "local", "unverified")
        return min((p.trust for p in self.provenance), key=order.index)

    @property
    def fetched_at(self) -> str:
        return self.provenance[-1].fetched_at

    @property
    def age_order(self) -> str:
        """Sorts images by when they came in, the oldest first; what is known to the second alone came at its
        beginning."""
        return self.fetched_at.removesuffix("Z")

    def to_json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "earlyId": self.early_id,
            "name": self.name,
            "version": self.version,
            "labels": dict(self.labels),
            "size": self.size,
            "trust": self.trust,
            "fetchedAt": self.fetched_at,
            "lastUsed": self.last_used,
            "layers": list(self.layers),
            "provenance": [p.to_json() for p in self.provenance],
        }


@frozen
class RenderedLayer:
    """A read-only directory that stands for one layer of an app's rootfs.

    :param id: its name under a stager's ``/layers``: an image ID, or an ID over what made a merged tree (N4).
    :param path: absolute path of the directory on the host.
    """

    id: str
    path: str


@frozen
class RenderedImage:
    """An image ready to be stacked: ``layers`` top first, as ``appImageOrder`` has them.

    :param manifests: image manifest (as JSON value) by layer ID, for a stager's ``images``.
    :param images: IDs of all images that it is made of, itself among them.
    """

    id: str
    layers: tuple[RenderedLayer, ...]
    manifests: Mapping[str, Json]
    images: tuple[str, ...] = ()
