"""Keys: those of the keystores, those that were found, and changes of trust."""

from __future__ import annotations

from kurma_core.schema import JsonValue, Pairs, Timestamp, Words
from kurma_core.value import field, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    Action = str
    KeyState = str
    Scope = str
    TrustState = str
else:
    Action = Words("added", "refreshed", "unmasked", "removed", "masked")
    KeyState = Words("valid", "expired", "revoked", "unusable")
    Scope = Words("root", "prefix", "host")
    TrustState = Words(
        *("trusted", "masked", "replaced", "mask", "expired", "revoked", "unusable", "unlisted", "refused")
    )


@frozen
class TrustedKey(JsonValue):
    """One file of a keystore.

    :param scope: ``root`` (any image), ``prefix`` or ``host``.
    :param prefix: of the images that it may sign; null unless the scope is ``prefix``.
    :param fingerprint: of the key.
    :param state: ``trusted``; ``masked`` or ``replaced`` by a later directory; ``mask`` (an empty file);
        ``expired``, ``revoked``, ``unusable``; ``unlisted`` (in ``host.d``, and not in ``trusted_host_keys``);
        ``refused`` (see ``problem``).
    :param path: of the file.
    :param users: the key's user IDs.
    :param created: by the key itself. :param expires: likewise; null: never.
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
    """What was done to a keystore, or would be.

    :param action: ``added``, ``refreshed`` (it was there), ``unmasked``, ``removed`` or ``masked``.
    :param fingerprint: of the key.
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
