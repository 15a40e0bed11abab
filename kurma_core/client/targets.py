"""Paths and queries of requests. Its own quoting: ``urllib.parse`` takes longer to import than a request takes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Json = Any

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def target(path: tuple[str, ...], query: Mapping[str, Json] | None) -> str:
    """A request's target.

    :param path: its parts behind ``/v1``.
    :param query: None and False are left out; of a sequence each stands for itself.
    """
    found = "/v1/" + "/".join([quoted(part) for part in path])
    given = [
        f"{name}={quoted(_text(one))}"
        for name, value in (query or {}).items()
        if value is not None and value is not False
        for one in (value if isinstance(value, (tuple, list, frozenset)) else (value,))
    ]
    return f"{found}?{'&'.join(given)}" if given else found


def quoted(text: str) -> str:
    """Percent-encoded (RFC 3986), all that is not unreserved."""
    return "".join(
        [chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass")]
    )


def _text(value: Json) -> str:
    return "true" if value is True else str(value)


__all__ = ["quoted", "target"]
