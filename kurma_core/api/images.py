"""Values of the API about images (listed, shown, rendered, signed, verified, removed) and trusted keys."""

from __future__ import annotations

from kurma_core.errors import UsageError
from kurma_core.models.image import ImageRecord, RenderedLayer, TrustWord
from kurma_core.schema import Count, JsonValue, Pairs, Parsed, Timestamp, Words
from kurma_core.value import field, frozen

#: Ways to pull: images that are not in the store; always; never.
PULLS = ("new", "always", "never")


def check_pull(pull: object) -> str:
    """:raises UsageError: it is not one of :data:`PULLS`."""
    if not isinstance(pull, str) or pull not in PULLS:
        raise UsageError(f"{pull!s:.40}: no way to pull", hint=f"there are: {', '.join(PULLS)}")
    return pull


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.appc.image import ImageManifest
    from kurma_core.errors import KurmaError

    Action = str
    Json = Any
    KeptKind = str
    KeyState = str
    Lapse = str
    PullPolicy = str
    Scope = str
    SignedBytes = str
    TrustState = str
else:

    class _PullPolicy(Words):
        __slots__ = ()

        def read(self, value: Json, path: str) -> str:
            if not isinstance(value, str):
                raise self._wrong(value, path)
            return check_pull(value)

    Action = Words("added", "refreshed", "unmasked", "removed", "masked")
    ImageManifest = Parsed("kurma_core.appc.image.ImageManifest")
    KeptKind = Words("pod", "volume", "image", "layer", "archive", "tree", "download", "leftover")
    KeyState = Words("valid", "expired", "revoked", "unusable")
    Lapse = Words("unknown", "revoked")
    PullPolicy = _PullPolicy(*PULLS)
    Scope = Words("root", "prefix", "host")
    SignedBytes = Words("archive", "tar")
    TrustState = Words(
        *("trusted", "masked", "replaced", "mask", "expired", "revoked", "unusable", "unlisted", "refused")
    )


@frozen
class ListedImage(JsonValue):
    """An image of the store, and its trust now.

    :param trust: highest trust of its fetches, as of now.
    :param locators: of its provenance, the locators that gave this image last, and no newer one since.
    """

    record: ImageRecord = field(inline=True)
    trust: TrustWord
    locators: tuple[str, ...] = ()


@frozen
class ImageListing:
    """:param damaged: errors of images whose records cannot be read."""

    images: tuple[ListedImage, ...]
    damaged: tuple[KurmaError, ...]


@frozen
class ImagePage(JsonValue):
    """An image of the store with its manifest.

    :param trust: highest trust of its fetches, as of now.
    :param lapse: why a verified signature no longer counts: ``unknown`` (the key is not trusted for the name) or
        ``revoked``; null: all signatures count.
    :param manifest: the image manifest, as App Container's specification writes it.
    :param locators: of its provenance, the locators that gave this image last, and no newer one since.
    """

    JSON_NAME = "ImagePage"

    record: ImageRecord = field(inline=True)
    trust: TrustWord
    lapse: Lapse | None
    manifest: ImageManifest
    locators: tuple[str, ...] = ()


@frozen
class ImageId(JsonValue):
    """:param id: of an image."""

    JSON_NAME = "ImageId"

    id: str


@frozen
class ImagePushed(JsonValue):
    """An image that was written to a file or a registry.

    :param id: the image. :param locator: its destination.
    :param digest: ``sha256:…``, which identifies the image at its destination.
    """

    JSON_NAME = "ImagePushed"

    id: str
    locator: str
    digest: str


@frozen
class ImageRendered(JsonValue):
    """An image as read-only directories.

    :param id: the image.
    :param layers: the top one is first.
    """

    JSON_NAME = "ImageRendered"

    id: str
    layers: tuple[RenderedLayer, ...]


@frozen(kw_only=True)
class ImageSigned(JsonValue):
    """A signature of an image archive that was made or verified. Archives of the store have no signature file.

    :param file: the archive; null, like ``signature``, ``over`` and ``fingerprint``: an image of the store.
    :param id: ID of the image in the archive.
    :param name: name of the image.
    :param signature: the signature's file.
    :param over: the signed bytes: ``archive`` (as shipped) or ``tar`` (uncompressed).
    :param fingerprint: fingerprint of the key that signed.
    :param users: the key's user IDs, if they are known.
    """

    JSON_NAME = "ImageSigned"

    file: str | None = None
    id: str
    name: str
    signature: str | None = None
    over: SignedBytes | None = None
    fingerprint: str | None = None
    users: tuple[str, ...] = ()


@frozen
class ImageVerified(JsonValue):
    """A verified image, whose files are unchanged since their extraction, or a verified archive signature.

    :param trust: its present trust.
    :param trees: number of rendered trees of the image that were checked, too.
    """

    JSON_NAME = "ImageVerified"

    signed: ImageSigned = field(inline=True)
    trust: TrustWord
    trees: Count = 0


@frozen
class ImageChecked(JsonValue):
    """The result of a check of an image of the store.

    :param image: its record.
    :param lapse: as of :class:`ImagePage`.
    """

    JSON_NAME = "ImageChecked"

    verified: ImageVerified = field(inline=True)
    image: ImageRecord
    lapse: Lapse | None = None


@frozen
class Removal(JsonValue):
    """One thing that was removed, or would be.

    :param kind: its kind.
    :param name: its ID, key or file name.
    :param size: bytes on disk.
    :param display_name: name of the pod or image; empty: it has none.
    """

    kind: KeptKind
    name: str
    size: Count
    display_name: str = ""

    @property
    def key(self) -> str:
        """Identifies it, as ``only`` of :meth:`kurma_core.api.operations.Api.prune` expects it."""
        return f"{self.kind}/{self.name}"


@frozen
class StoreUse(JsonValue):
    """The size of the image store by its records: layers, archives and rendered trees.

    :param path: its directory, or the nearest one that exists.
    :param size: bytes on disk. :param files: number of files.
    """

    JSON_NAME = "StoreUse"

    path: str
    size: Count
    files: Count


@frozen
class DiskUse(JsonValue):
    """Things of one kind that Kurma keeps on the disk.

    :param kind: their kind.
    :param count: their number. :param active: number in use.
    :param size: bytes on disk of all of them.
    :param reclaimable: bytes on disk that ``kurma system prune --all --volumes`` would free now.
    """

    JSON_NAME = "DiskUse"

    kind: KeptKind
    count: Count
    active: Count
    size: Count
    reclaimable: Count


@frozen
class ImageGc(JsonValue):
    """Things that were removed from the image store, or would be.

    :param removed: removed objects. :param dry_run: true: nothing was removed.
    :param freed: freed bytes on disk.
    """

    JSON_NAME = "ImageGc"
    COMPUTED = {"freed": Count}  # noqa: RUF012 - of the class

    removed: tuple[Removal, ...]
    dry_run: bool = False

    @property
    def freed(self) -> int:
        """Bytes of all of them on disk."""
        return sum([removal.size for removal in self.removed])


@frozen
class HostImage(JsonValue):
    """An image that was verified to run with host privilege.

    :param path: its root filesystem, extracted; read-only by agreement.
    :param manifest: its image manifest.
    :param fingerprint: fingerprint of the key that signed it; null: its digest is pinned.
    """

    JSON_NAME = "HostImage"

    id: str
    path: str
    manifest: ImageManifest
    fingerprint: str | None


@frozen
class TrustedKey(JsonValue):
    """One file of a keystore.

    :param scope: of images that it may sign: ``root`` (any image), ``prefix`` (those below a name) or ``host``
        (images that run with host privilege).
    :param prefix: the name; null unless the scope is ``prefix``.
    :param fingerprint: fingerprint of the key.
    :param state: ``trusted``; ``masked`` or ``replaced`` by a later directory; ``mask`` (an empty file);
        ``expired``, ``revoked``, ``unusable``; ``unlisted`` (in ``host.d``, and not in ``trusted_host_keys``);
        ``refused`` (see ``problem``).
    :param path: the file.
    :param users: the key's user IDs.
    :param created: by the key itself; null: not known. :param expires: likewise; null: never.
    :param problem: why it is refused; null: it is not.
    """

    JSON_NAME = "TrustedKey"

    scope: Scope
    prefix: str | None
    fingerprint: str
    state: TrustState
    path: str
    users: tuple[str, ...] = ()
    created: Timestamp | None = None
    expires: Timestamp | None = None
    problem: str | None = None


@frozen
class Key(JsonValue):
    """A public key.

    :param fingerprint: in hex digits.
    :param users: its user IDs, as its owner wrote them: for people, and not to be believed.
    :param created: by the key itself. :param expires: likewise; null: never.
    :param state: ``valid``, ``expired``, ``revoked``, or ``unusable`` (it is not for signing).
    :param material: the key alone, armored, without the signatures of others.
    :param source: the file or address that it came from.
    """

    JSON_NAME = "Key"

    fingerprint: str
    users: tuple[str, ...]
    created: Timestamp
    expires: Timestamp | None
    state: KeyState
    material: bytes = field(key="key")
    source: str


@frozen
class TrustChange(JsonValue):
    """A change of a keystore, done or planned.

    :param action: ``added``, ``refreshed`` (it was there), ``unmasked``, ``removed`` or ``masked``.
    :param fingerprint: fingerprint of the key.
    :param path: the file written or removed.
    :param still: prefixes (null: all images) by which the key is trusted for the same images, or some of them, as
        before, and the files there.
    """

    JSON_NAME = "TrustChange"

    action: Action
    fingerprint: str
    path: str
    still: tuple[tuple[str | None, str], ...] = field(
        default=(), shape=Pairs(("prefix", "path"), (str, None), str)
    )
