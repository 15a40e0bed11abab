"""Signatures by a pod's key (App Container Metadata Service, Identity Endpoint; RFC 2104)."""

from __future__ import annotations

import binascii
import hmac
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kurma_core.metadata.facts import Facts

#: What the late and the early specification hash with.
LATE, EARLY = "sha512", "sha256"
_HEX = frozenset("0123456789abcdef")


def sign(key: bytes, content: bytes, algorithm: str) -> bytes:
    """In base64, without a line's end."""
    return binascii.b2a_base64(hmac.digest(key, content, algorithm), newline=False)


def verified(facts: Facts, uuid: bytes, content: bytes, signature: bytes, algorithm: str) -> bool:
    """Whether the pod of that UUID, of this state directory, has signed that content so.

    :param signature: base64; a form that was not encoded has spaces for its plus signs.
    """
    try:
        # Spaces at its ends are plus signs, too.
        given = binascii.a2b_base64(signature.strip(b"\t\r\n").replace(b" ", b"+"), strict_mode=True)
        pod = uuid.decode("ascii").strip().lower()
    except ValueError:
        return False
    parts = pod.split("-")
    if [len(part) for part in parts] != [8, 4, 4, 4, 12] or not _HEX.issuperset("".join(parts)):
        return False
    key = facts.key(pod)
    if key is None:
        return False
    return hmac.compare_digest(given, hmac.digest(key, content, algorithm))
