"""Forms as clients post them: ``application/x-www-form-urlencoded``."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from kurma_core.metadata.http import HttpError, Request

_FORM = b"application/x-www-form-urlencoded"
_FIELDS = 16


def fields(request: Request, *wanted: str) -> list[bytes]:
    """The values of these fields, in this order.

    :raises HttpError: it is no form; a field is missing, or there twice.
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
