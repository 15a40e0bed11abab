"""The distribution API, version 2: one registry (or mirror) spoken to, with whatever credentials it asks for.

OCI Distribution Specification; Docker Registry, Token Authentication.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlencode, urlsplit

from kurma_fetch_http.credentials import basic
from kurma_fetch_http.reader import ResumingReader, buffered, positioned
from kurma_fetch_http.transport import content, discard

from kurma_core.errors import FetchError, FetchRefusedError, FetchUnauthorizedError, UsageError
from kurma_core.json_text import loads
from kurma_fetch_docker.documents import CONFIG_LIMIT, MANIFEST_LIMIT, MEDIA_TYPES, Descriptor, check, digest_of
from kurma_fetch_docker.logins import Login, Logins

if TYPE_CHECKING:
    from kurma_fetch_http.transport import Transport
    from urllib3.response import BaseHTTPResponse

_TOKEN_LIMIT = 1 << 20
#: How often one request says anew who we are.
_INTRODUCTIONS = 5
#: How a token server refuses; 400 is what OAuth has for a refresh token that ran out.
_DENIED = (400, 401, 403)


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
        self._logins = logins
        self._lock = threading.Lock()
        self._authorization: str | None = None
        self._origin = ""

    # --- documents and blobs -------------------------------------------------------------------------------------

    def manifest(self, wanted: str, digest: str | None = None) -> tuple[bytes, str]:
        """A manifest or index by tag or digest, and its digest, computed over what came.

        :raises FetchError: :raises FetchDigestError: it is not what ``digest`` says.
        """
        url = f"{self.base}/v2/{self.repository}/manifests/{wanted}"
        content = self._document(url, {"Accept": ", ".join(MEDIA_TYPES)}, MANIFEST_LIMIT)
        if digest is not None:
            check(content, digest, url)
        return content, digest or digest_of(content)

    def load(self, descriptor: Descriptor) -> bytes:
        """A manifest that an index names."""
        return self.manifest(descriptor.digest, descriptor.digest)[0]

    def config(self, descriptor: Descriptor) -> bytes:
        """The configuration that a manifest names."""
        url = self.blob_url(descriptor)
        return check(self._document(url, {}, CONFIG_LIMIT), descriptor.digest, url)

    def blob_url(self, descriptor: Descriptor) -> str:
        return f"{self.base}/v2/{self.repository}/blobs/{descriptor.digest}"

    def open_blob(self, descriptor: Descriptor, offset: int) -> BinaryIO:
        """A reader from ``offset`` on that goes on by itself where the connection breaks."""
        url = self.blob_url(descriptor)

        def open_at(position: int) -> BaseHTTPResponse:
            headers = {"Range": f"bytes={position}-"} if position else {}
            # No validator: a blob's name is its digest.
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
        return _read_all(answer, url, limit, self._transport)

    # --- credentials ---------------------------------------------------------------------------------------------

    def _get(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """Asks; when the registry wants to know who we are, says so and asks again. A token may run out at any
        time, also one that another thread has just got."""
        shown = self._authorization
        for _ in range(_INTRODUCTIONS):
            sent = {**headers, "Authorization": shown} if shown is not None else headers
            answer, final = self._transport.request(url, sent, accept=(401,))
            if answer.status != 401:
                return answer
            challenge = answer.headers.get("WWW-Authenticate", "")
            discard(answer)
            if urlsplit(final).netloc != urlsplit(url).netloc:
                raise FetchUnauthorizedError(f"{final}: the redirect asks for credentials of its own", url=final)
            refused = shown
            with self._lock:
                # Another thread may have got a new token meanwhile.
                if self._authorization is None or self._authorization == refused:
                    self._authorization = self._authorize(challenge)
                shown = self._authorization
            if shown == refused:
                break
        raise self._unauthorized(f"does not accept the credentials from {self._origin or 'its token server'}")

    def _authorize(self, challenge: str) -> str:
        scheme, parameters = parse_challenge(challenge)
        login = self._logins.find(self.registry, self.repository)
        self._origin = "" if login is None else login.origin
        if login is not None and login.bearer:
            return f"Bearer {_header_value(login.bearer, login.origin)}"
        if scheme == "basic":
            if login is None:
                raise self._unauthorized("asks for credentials, and there are none")
            if not login.user:
                raise self._unauthorized(f"asks for a user and a password, and {login.origin} has a token alone")
            return basic(login.user, login.password)
        if scheme == "bearer" and parameters.get("realm"):
            return f"Bearer {self._token(parameters, login)}"
        raise self._unauthorized(f"asks for credentials in a way that is not understood: {challenge[:80]!r}")

    def _token(self, parameters: Mapping[str, str], login: Login | None) -> str:
        realm = parameters["realm"]
        if self.base.startswith("https:") and not realm.startswith("https:"):
            raise FetchRefusedError(
                f"{self.base}: wants credentials sent over plain http to {realm}", url=self.base
            )
        if login is not None and realm.lower().startswith("http:") and not _same_host(realm, self.base):
            raise FetchRefusedError(
                f"registry {self.registry}: wants its credentials sent over plain http to another host: {realm}",
                hint=f"they are from {login.origin}; remove them to ask without, or use a token server with https",
                url=self.base,
            )
        query = {key: parameters[key] for key in ("service", "scope") if parameters.get(key)}
        query.setdefault("scope", f"repository:{self.repository}:pull")
        try:
            if login is not None and not login.user:
                answer = self._exchange(realm, query, login)
            else:
                headers = {} if login is None else {"Authorization": basic(login.user, login.password)}
                join = "&" if "?" in realm else "?"
                answer, _ = self._transport.request(f"{realm}{join}{urlencode(query)}", headers, accept=_DENIED)
        except UsageError as error:  # the registry's words, not the user's
            raise FetchError(f"{self.base}: sends for tokens to no address: {error}", url=self.base) from None
        if answer.status in _DENIED:
            answer.close()
            if login is not None:
                raise self._unauthorized(f"does not accept the credentials from {login.origin}")
            raise self._unauthorized("gives no access without credentials")
        document = self._json(answer, realm)
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise self._unauthorized("sent no token")
        return token

    def _exchange(self, realm: str, query: Mapping[str, str], login: Login) -> BaseHTTPResponse:
        """A refresh token (Docker's identity token) for an access token."""
        body = {**query, "grant_type": "refresh_token", "refresh_token": login.password, "client_id": "kurma"}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        answer, _ = self._transport.request(
            realm, headers, method="POST", body=urlencode(body).encode(), accept=_DENIED
        )
        return answer

    def _json(self, answer: BaseHTTPResponse, url: str) -> dict[str, Any]:
        content = _read_all(answer, url, _TOKEN_LIMIT, self._transport)
        try:
            document = loads(content)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise FetchUnauthorizedError(f"{url}: its answer is malformed", url=url)
        return document

    def _unauthorized(self, what: str) -> FetchUnauthorizedError:
        return FetchUnauthorizedError(
            f"registry {self.registry} {what} ({self.repository})",
            hint=f"put credentials for {self.registry} into auth.d, or use `docker login` or `podman login`; "
            "or the name is wrong",
            url=self.base,
        )


def _same_host(one: str, other: str) -> bool:
    try:
        return urlsplit(one).hostname == urlsplit(other).hostname
    except ValueError:
        return False


def _header_value(text: str, origin: str) -> str:
    """:raises FetchUnauthorizedError: it would be more than one header."""
    if not text.isascii() or not text.isprintable():
        raise FetchUnauthorizedError(f"{origin}: its token is malformed", path=origin)
    return text


def parse_challenge(text: str) -> tuple[str, dict[str, str]]:
    """``WWW-Authenticate``: the scheme in lower case, and its parameters; of several challenges the first."""
    scheme, _, rest = text.strip().partition(" ")
    parameters: dict[str, str] = {}
    while rest := rest.lstrip(" ,"):
        name, equals, rest = rest.partition("=")
        if not equals:
            break
        if rest.startswith('"'):
            value, _, rest = rest[1:].partition('"')
        else:
            value, _, rest = rest.partition(",")
        parameters.setdefault(name.strip().lower(), value.strip())
    return scheme.lower(), parameters


def _read_all(answer: BaseHTTPResponse, url: str, limit: int, transport: Transport) -> bytes:
    """:raises FetchError: it is longer than ``limit`` bytes, breaks, or comes too slowly."""
    data = content(answer, url, limit + 1, transport.document_seconds)
    if len(data) > limit:
        raise FetchError(f"{url}: is longer than {limit} bytes", url=url)
    return data
