"""Fetches archives and their signatures from web servers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit, urlunsplit

from kurma_core.errors import FetchError, FetchNotFoundError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.fetcher import DetachedSignature, RemoteArchive, RemoteBlobHooks
from kurma_fetch_http.file_archive import SIGNATURE_LIMIT, beside
from kurma_fetch_http.resuming_reader import ResumingReader, buffered, get_from, validators
from kurma_fetch_http.transport import Transport, content, shown

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

_YEAR = 365 * 86400
#: Most digits of a number in a header.
_DIGITS = 18
_NOT_MODIFIED = 304


def web_archive(
    locator: str,
    transport: Transport,
    *,
    url: str | None = None,
    signatures: Sequence[tuple[str, str]] | None = None,
    pages: bool = True,
    known: str | None = None,
) -> RemoteArchive:
    """Returns the archive at an http or https address.

    It sends one GET in place of a HEAD, which some servers answer differently; the first ``open`` reads the body
    of that answer.

    :param url: its address; None: the locator.
    :param signatures: possible addresses of its signature, each with the signed content, in order; None: those
        of :func:`.file_archive.beside`.
    :param pages: False: an HTML page counts as "not found", for many servers answer every address with a page.
    :param known: the blob's key of the last time; if the server still has that body, it is not transferred.
    :raises FetchError: one of its subclasses.
    """
    address = locator if url is None else url
    places = signature_places(address) if signatures is None else signatures
    answer, final = transport.request(address, _unless(known), accept=(_NOT_MODIFIED,))
    if answer.status == _NOT_MODIFIED and (known or "").split(" ")[1:2] != [shown(final)]:
        answer.close()  # a redirect led to another address, so "not modified" is about another body
        answer, final = transport.request(address)
    if not pages and answer.headers.get("Content-Type", "").lower().startswith("text/html"):
        answer.close()
        raise FetchNotFoundError(f"{shown(address)}: is a web page, not an image", url=shown(address), status=404)
    blob = WebBlob(transport, address, final, answer, known, places)
    return RemoteArchive(
        locator=locator,
        url=shown(final),
        transport=urlsplit(final).scheme,
        blob=blob,
        max_age=_max_age(answer.headers.get("Cache-Control", "")),
    )


class WebBlob(RemoteBlobHooks):
    """A body at an address.

    It can be resumed only if the server sends a validator: without one the rest may belong to another body.

    :param places: possible addresses of its signature, each with the signed content.
    """

    def __init__(
        self,
        transport: Transport,
        url: str,
        final: str,
        answer: BaseHTTPResponse,
        known: str | None,
        places: Sequence[tuple[str, str]],
    ) -> None:
        self._transport = transport
        self._url = url
        self._places = places
        unchanged = answer.status == _NOT_MODIFIED and known is not None
        self._validator = _validator(known) if unchanged else next(iter(validators(answer)), None)
        chunked = "Transfer-Encoding" in answer.headers  # then Content-Length must be ignored (RFC 9112, 6.3)
        self.size: int | None = None if chunked or unchanged else _number(answer.headers.get("Content-Length", ""))
        self.digest: str | None = None
        self.key = None if self._validator is None else f"web {shown(final)} {self._validator}"
        self._first: BaseHTTPResponse | None = None if unchanged else answer
        self._lock = threading.Lock()
        # If the image is in the store already, the body is not read; this closes its connection.
        weakref.finalize(self, answer.close)

    @hookimpl
    def open(self, offset: int) -> BinaryIO:
        with self._lock:
            first, self._first = self._first, None
        if first is not None and offset:
            first.close()
            first = None
        return buffered(
            ResumingReader(
                self._open_at,
                url=self._url,
                size=self.size,
                retries=0 if self._validator is None else self._transport.retries,
                sleep=self._transport.sleep,
                offset=offset,
                first=first,
                low_speed=self._transport.low_speed,
            )
        )

    @hookimpl
    def signature(self) -> DetachedSignature | None:
        for place, over in self._places:
            data = small_body(self._transport, place, SIGNATURE_LIMIT, "a signature")
            if data is not None:
                return DetachedSignature(data, over=over, url=shown(place))
        return None

    def _open_at(self, offset: int) -> BaseHTTPResponse:
        return get_from(self._transport, self._url, offset, validator=self._validator)


def _validator(known: str | None) -> str:
    """Returns the validator in a blob's key."""
    return (known or "").partition(" ")[2].partition(" ")[2]


def _unless(known: str | None) -> dict[str, str]:
    """Returns the headers that request a body only if it differs from the known one."""
    validator = _validator(known) if (known or "").startswith("web ") else ""
    if not validator:
        return {}
    return {"If-None-Match" if validator.startswith('"') else "If-Modified-Since": validator}


def _number(text: str) -> int | None:
    """Parses decimal digits; None: it is not a number, or has too many digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _max_age(control: str) -> int:
    """Returns the seconds for which the server calls its answer fresh (0: it does not); at most a year."""
    directives = [part.strip().lower() for part in control.split(",")]
    if "no-cache" in directives or "no-store" in directives:
        return 0
    ages = (part.removeprefix("max-age=") for part in directives if part.startswith("max-age="))
    return next((min(age, _YEAR) for text in ages if (age := _number(text)) is not None), 0)


def signature_places(url: str) -> tuple[tuple[str, str], ...]:
    """Returns the possible addresses of the signature of the archive at an address, each with the signed content,
    in order."""
    parts = urlsplit(url)
    return tuple(
        (urlunsplit((parts.scheme, parts.netloc, path, parts.query, "")), over)
        for path, over in beside(parts.path)
    )


def small_body(transport: Transport, url: str, limit: int, what: str) -> bytes | None:
    """Fetches the whole body at an address; None: not found.

    :param limit: bytes. :param what: description of the expected content, for messages.
    :raises FetchError: the body is longer, or the request failed.
    """
    try:
        answer, final = transport.request(url)
    except FetchNotFoundError:
        return None
    data = content(answer, final, limit + 1, transport.document_seconds)
    if len(data) > limit:
        raise FetchError(f"{shown(url)}: larger than {what} can be", url=shown(url))
    return data
