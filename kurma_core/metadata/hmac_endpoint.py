"""Signs and verifies content by HMAC with a pod's key, and reads the forms that clients post for it.

Implements App Container Metadata Service, Identity Endpoint; RFC 2104.
"""

from __future__ import annotations

import binascii
import hmac
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from kurma_core.metadata.http import ASCII, HttpError, Request, Response

if TYPE_CHECKING:
    from kurma_core.metadata.facts import Facts

#: Hash functions of the late and of the early specification.
LATE, EARLY = "sha512", "sha256"
_HEX = frozenset("0123456789abcdef")
_FORM = b"application/x-www-form-urlencoded"
_FIELDS = 16


def sign(facts: Facts, request: Request, *, early: bool) -> Response:
    """Answers with the signature of the posted content in base64, without a newline.

    :param early: the body is the content; otherwise the content is a field of a form.
    :raises HttpError: the request is not such a form.
    """
    key = facts.key(facts.uuid)
    if key is None:
        raise HttpError(500, "the pod's key is lost")
    content = request.body if early else form_fields(request, "content")[0]
    signature = hmac.digest(key, content, EARLY if early else LATE)
    return Response(200, binascii.b2a_base64(signature, newline=False), ASCII)


def verify(facts: Facts, request: Request, *, early: bool) -> Response:
    """Answers 200 if the named pod of this state directory made the posted signature of the posted content.

    :raises HttpError: it did not, or the request is not such a form.
    """
    uuid, content, signature = form_fields(request, "uid" if early else "uuid", "content", "signature")
    if not _verified(facts, uuid, content, signature, EARLY if early else LATE):
        raise HttpError(403, "the signature is not that pod's")
    return Response(200, b"", ASCII)


def _verified(facts: Facts, uuid: bytes, content: bytes, signature: bytes, algorithm: str) -> bool:
    """Whether the signature is right. :param signature: base64; unencoded plus signs of a form arrive as
    spaces."""
    try:
        # Spaces at the ends are plus signs, too, so only other white space is stripped.
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


def form_fields(request: Request, *wanted: str) -> list[bytes]:
    """The values of these fields of an ``application/x-www-form-urlencoded`` body, in this order.

    :raises HttpError: the body is not a form; a field is missing or occurs twice.
    """
    kind = request.headers.get(b"content-type", _FORM).partition(b";")[0].strip().lower()
    if kind != _FORM:
        raise HttpError(415, f"a form is wanted, as {_FORM.decode()}")
    pairs = request.body.split(b"&", _FIELDS)
    if len(pairs) > _FIELDS:
        raise HttpError(400, f"the form has more than {_FIELDS} fields")
    found: dict[bytes, bytes] = {}
    for pair in pairs:
        name, _, value = pair.partition(b"=")
        name = _decoded(name)
        if name in found:
            raise HttpError(400, "a field of the form is there twice")
        found[name] = _decoded(value)
    for name_wanted in wanted:
        if name_wanted.encode() not in found:
            raise HttpError(400, f"the form has no field {name_wanted}")
    return [found[each.encode()] for each in wanted]


def _decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))
