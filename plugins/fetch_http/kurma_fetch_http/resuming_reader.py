"""Reads an HTTP body, and resumes it where the connection broke."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import urllib3

from kurma_core.cancellation import current
from kurma_core.errors import FetchError, FetchTimeoutError, FetchTruncatedError
from kurma_fetch_http import http_errors
from kurma_fetch_http.deadline import LowSpeed, Pace
from kurma_fetch_http.transport import Transport, backoff, shown

if TYPE_CHECKING:
    from typing import BinaryIO

    from _typeshed import WriteableBuffer
    from urllib3.response import BaseHTTPResponse

_SKIP = 1 << 16


class ResumingReader(io.RawIOBase):
    """Reads a body; if the connection breaks or stalls, requests the rest again, with back-off.

    :param open_at: requests the body from an offset on; raises FetchError if that fails.
    :param first: an answer that exists already, positioned at ``offset``.
    :param size: size of the whole body; None if unknown: then the body ends where the server ends it.
    :param retries: number of successive requests without a new byte; 0: no request is repeated, for bodies without
        a validator.
    :param low_speed: the limit of slowness; a slow body is requested again, too, at most ``retries`` times in all.
    """

    def __init__(
        self,
        open_at: Callable[[int], BaseHTTPResponse],
        *,
        url: str,
        size: int | None,
        retries: int,
        sleep: Callable[[float], None],
        offset: int = 0,
        first: BaseHTTPResponse | None = None,
        low_speed: LowSpeed | None = None,
    ) -> None:
        self._open_at = open_at
        self._url = shown(url)
        self._size = size
        self._retries = retries
        self._sleep = sleep
        self._offset = offset
        self._failures = 0
        self._ended = False
        self._low_speed = low_speed or LowSpeed()
        self._slow = 0
        self._answer = first if first is not None else open_at(offset)
        self._pace = Pace(self._low_speed, self._answer.shutdown)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        while True:
            try:
                data = self._read_some(size)
            except FetchError as error:
                self._resume(error)
                continue
            self._offset += len(data)
            if data:
                self._failures = 0
            return data

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._ended = True
            self._pace.close()
            # This ends a read that waits in another thread.
            with contextlib.suppress(ValueError, RuntimeError, OSError):
                self._answer.shutdown()
            # Closed, not drained: the rest may be gigabytes.
            self._answer.close()
            self._answer.release_conn()
        super().close()

    def _read_some(self, size: int) -> bytes:
        """Reads available bytes. :raises FetchError: the connection broke, stalled, or ended early."""
        if self._size is not None and self._offset >= self._size:
            return b""
        try:
            with current().waking(self._answer.shutdown):
                # read1 returns the bytes that are available, so that the pace can be measured.
                data = self._pace.read(lambda: self._answer.read1(size, decode_content=False))
        except TimeoutError as error:
            self._slow += 1
            raise FetchTimeoutError(f"{self._url}: is too slow: {error}", url=self._url) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise http_errors.translated(error, self._url) from error
        if not data and size and self._size is not None:
            raise FetchTruncatedError(
                f"{self._url}: ended after {self._offset} of {self._size} bytes", url=self._url
            )
        return data

    def _resume(self, error: FetchError) -> None:
        """Requests the body again from the current offset; raises ``error`` when the retries are used up."""
        if (
            self._given_up()
            or max(self._failures, self._slow - 1) >= self._retries
            or not isinstance(error, (FetchTruncatedError, FetchTimeoutError))
        ):
            raise error
        self._pace.close()
        self._answer.close()
        self._sleep(backoff(self._failures))
        self._failures += 1
        self._answer = self._open_at(self._offset)
        self._pace = Pace(self._low_speed, self._answer.shutdown)
        if self._given_up():
            self._answer.close()
            raise error

    def _given_up(self) -> bool:
        """Whether another thread has closed the reader."""
        return self._ended


def buffered(reader: ResumingReader) -> BinaryIO:
    """Casts the reader to the type that the core expects. It stays unbuffered, for the core reads large pieces."""
    return cast("BinaryIO", reader)


def get_from(
    transport: Transport,
    url: str,
    offset: int,
    *,
    validator: str | None = None,
    headers: dict[str, str] | None = None,
) -> BaseHTTPResponse:
    """Requests a body from ``offset`` on. If the server does not support ranges, the bytes before it are skipped.

    :param validator: ETag or Last-Modified of the expected body; None: the address identifies it.
    :raises FetchTruncatedError: the body at the address has changed.
    """
    sent = dict(headers or {})
    if offset:
        sent["Range"] = f"bytes={offset}-"
        if validator is not None:
            sent["If-Range"] = validator
    answer, final = transport.request(url, sent)
    return positioned(answer, final, offset, validator, transport.low_speed)


def positioned(
    answer: BaseHTTPResponse, url: str, offset: int, validator: str | None, low_speed: LowSpeed
) -> BaseHTTPResponse:
    """Positions the answer to a request for a range at ``offset``. :raises FetchTruncatedError: the body has
    changed."""
    if answer.status == 206:
        span = answer.headers.get("Content-Range", "")
        if not span.startswith(f"bytes {offset}-"):
            answer.close()
            raise FetchError(f"{shown(url)}: returned a different range than requested", url=shown(url))
        return answer
    if not offset:
        return answer
    if validator is not None and validator not in validators(answer):
        answer.close()
        raise FetchTruncatedError(f"{shown(url)}: changed while it was fetched", url=shown(url), changed=True)
    pace = Pace(low_speed, answer.shutdown)
    try:
        _skip(answer, url, offset, pace)
    finally:
        pace.close()
    return answer


def _skip(answer: BaseHTTPResponse, url: str, left: int, pace: Pace) -> None:
    while left:
        try:
            with current().waking(answer.shutdown):
                data = pace.read(lambda: answer.read1(min(left, _SKIP), decode_content=False))  # noqa: B023
        except TimeoutError as error:
            raise FetchTimeoutError(f"{shown(url)}: is too slow: {error}", url=shown(url)) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise http_errors.translated(error, shown(url)) from error
        if not data:
            raise FetchTruncatedError(f"{shown(url)}: is shorter than it was", url=shown(url), changed=True)
        left -= len(data)


def validators(answer: BaseHTTPResponse) -> tuple[str, ...]:
    """Returns the validators of a body, the most reliable first: a strong ETag, Last-Modified."""
    etag = answer.headers.get("ETag", "")
    modified = answer.headers.get("Last-Modified", "")
    strong = (etag,) if etag and not etag.startswith("W/") else ()
    return (*strong, modified) if modified else strong
