"""Speaks the distribution API, version 2, with one registry (or mirror): manifests, configurations, blobs.

OCI Distribution Specification.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from kurma_fetch_http.resuming_reader import ResumingReader, buffered, positioned
from kurma_fetch_http.transport import discard

from kurma_core.errors import FetchUnauthorizedError
from kurma_fetch_docker.oci_documents import (
    CONFIG_LIMIT,
    MANIFEST_LIMIT,
    MEDIA_TYPES,
    Descriptor,
    check,
    digest_of,
)
from kurma_fetch_docker.registry_tokens import RegistryAuthorizer, read_all

if TYPE_CHECKING:
    from kurma_fetch_http.transport import Transport
    from urllib3.response import BaseHTTPResponse

    from kurma_fetch_docker.logins import Logins

#: How often one request is repeated with new credentials.
_INTRODUCTIONS = 5
#: Requests that change nothing and that registries ask credentials for even if they let everyone read: the names
#: of all repositories, and the end of an upload that was never begun.
_GUARDED = (
    ("GET", "/v2/_catalog?n=1"),
    ("DELETE", "/v2/kurma-login/blobs/uploads/00000000-0000-0000-0000-000000000000"),
)
_ANY_ERROR = range(400, 600)


class Client:
    """One repository at one endpoint. Safe to use from several threads.

    :param base: ``https://host[:port]`` or ``http://…``.
    :param registry: the name that credentials are looked up by.
    """

    def __init__(self, transport: Transport, base: str, registry: str, repository: str, logins: Logins) -> None:
        self.base = base
        self.registry = registry
        self.repository = repository
        self._transport = transport
        self._authorizer = RegistryAuthorizer(transport, base, registry, repository, logins)
        self._lock = threading.Lock()
        self._authorization: str | None = None

    def check_credentials(self) -> bool:
        """Has the registry check the credentials. Where it answers ``/v2/`` without any, asks for what it may
        guard.

        :returns: False: it asks for none at all, so that they were not checked.
        :raises FetchUnauthorizedError: the registry, or its token server, refuses them.
        """
        url = f"{self.base}/v2/"
        discard(self._get(url, {}))
        if self._authorization is not None:
            return True
        if any(self._checks(method, self.base + path) for method, path in _GUARDED):
            return True
        # Some registries look at credentials only if they are sent.
        self._send("GET", url, self._authorizer.authorize("Basic"))
        return False

    def _checks(self, method: str, url: str) -> bool:
        """Whether the registry asks for credentials at that address, and accepts them."""
        answer, final = self._transport.request(url, method=method, accept=_ANY_ERROR)
        discard(answer)
        if answer.status != 401 or urlsplit(final).netloc != urlsplit(url).netloc:
            return False
        # Without the scope: a token server may refuse that to users whose credentials are right.
        found = self._authorizer.authorize(answer.headers.get("WWW-Authenticate", ""), scoped=False)
        # The token server has accepted them; they may lack the right to do this.
        return found.startswith("Bearer ") or self._send(method, url, found) != 403

    def _send(self, method: str, url: str, authorization: str) -> int:
        """:returns: the status. :raises FetchUnauthorizedError: it is 401."""
        answer, _ = self._transport.request(
            url, {"Authorization": authorization}, method=method, accept=_ANY_ERROR
        )
        discard(answer)
        if answer.status == 401:
            raise self._refused()
        return answer.status

    # --- documents and blobs -------------------------------------------------------------------------------------

    def manifest(self, wanted: str, digest: str | None = None) -> tuple[bytes, str]:
        """Fetches a manifest or index by tag or digest, and computes its digest.

        :raises FetchError: :raises FetchDigestError: it does not match ``digest``.
        """
        url = f"{self.base}/v2/{self.repository}/manifests/{wanted}"
        content = self._document(url, {"Accept": ", ".join(MEDIA_TYPES)}, MANIFEST_LIMIT)
        if digest is not None:
            check(content, digest, url)
        return content, digest or digest_of(content)

    def load(self, descriptor: Descriptor) -> bytes:
        """Fetches a manifest that an index names."""
        return self.manifest(descriptor.digest, descriptor.digest)[0]

    def config(self, descriptor: Descriptor) -> bytes:
        """Fetches the configuration that a manifest names."""
        url = self.blob_url(descriptor)
        return check(self._document(url, {}, CONFIG_LIMIT), descriptor.digest, url)

    def blob_url(self, descriptor: Descriptor) -> str:
        return f"{self.base}/v2/{self.repository}/blobs/{descriptor.digest}"

    @property
    def transport(self) -> Transport:
        return self._transport

    def open_blob(self, descriptor: Descriptor, offset: int) -> BinaryIO:
        """Returns a reader from ``offset`` on, which resumes after a broken connection."""
        url = self.blob_url(descriptor)

        def open_at(position: int) -> BaseHTTPResponse:
            headers = {"Range": f"bytes={position}-"} if position else {}
            # No validator is needed: a blob's name is its digest.
            return positioned(self._get(url, headers), url, position, None, self._transport.low_speed)

        return buffered(
            ResumingReader(
                open_at,
                url=url,
                size=descriptor.size,
                retries=self._transport.retries,
                sleep=self._transport.sleep,
                offset=offset,
                low_speed=self._transport.low_speed,
            )
        )

    def _document(self, url: str, headers: Mapping[str, str], limit: int) -> bytes:
        answer = self._get(url, headers)
        return read_all(answer, url, limit, self._transport)

    def _get(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        return self.request("GET", url, headers)

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Callable[[], bytes | Iterable[bytes] | None] = lambda: None,
        accept: Collection[int] = (),
    ) -> BaseHTTPResponse:
        """Sends a request; if the registry asks for credentials, authorizes and repeats it. A token may expire at
        any time, also one that another thread has just got. Credentials go to the registry's host alone.

        :param url: of the registry, or one that it has answered with.
        :param body: makes the body for each time that the request is sent.
        :param accept: statuses besides 200 and 206 that are returned.
        :raises FetchError: one of its subclasses.
        """
        own = urlsplit(url).netloc == urlsplit(self.base).netloc
        shown = self._authorization if own else None
        for _ in range(_INTRODUCTIONS):
            sent = {**headers, "Authorization": shown} if shown is not None else headers
            answer, final = self._transport.request(url, sent, method=method, body=body(), accept=(401, *accept))
            if answer.status != 401:
                return answer
            challenge = answer.headers.get("WWW-Authenticate", "")
            discard(answer)
            if not own or urlsplit(final).netloc != urlsplit(url).netloc:
                raise FetchUnauthorizedError(f"{final}: the redirect asks for credentials of its own", url=final)
            refused = shown
            with self._lock:
                # Another thread may have got a new token meanwhile.
                if self._authorization is None or self._authorization == refused:
                    self._authorization = self._authorizer.authorize(challenge)
                shown = self._authorization
            if shown == refused:
                break
        raise self._refused()

    def _refused(self) -> FetchUnauthorizedError:
        origin = self._authorizer.origin or "its token server"
        return self._authorizer.unauthorized(f"does not accept the credentials from {origin}")
