"""Authorizes requests to a registry: answers its challenge with a user and password, or fetches a registry token.

Docker Registry, Token Authentication.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from kurma_fetch_http.credentials import basic
from kurma_fetch_http.transport import content

from kurma_core.errors import FetchError, FetchRefusedError, FetchUnauthorizedError, UsageError
from kurma_core.json_text import loads
from kurma_fetch_docker.logins import Login, Logins

if TYPE_CHECKING:
    from kurma_fetch_http.transport import Transport
    from urllib3.response import BaseHTTPResponse

_TOKEN_LIMIT = 1 << 20
#: Statuses by which a token server refuses; 400 is OAuth's for an expired refresh token.
_DENIED = (400, 401, 403)


class RegistryAuthorizer:
    """Credentials for one repository at one endpoint.

    :param base: ``https://host[:port]`` or ``http://…``.
    :param registry: the name that credentials are looked up by.
    :ivar origin: the file of the last credentials; empty: there were none.
    """

    def __init__(self, transport: Transport, base: str, registry: str, repository: str, logins: Logins) -> None:
        self.origin = ""
        self._transport = transport
        self._base = base
        self._registry = registry
        self._repository = repository
        self._logins = logins

    def authorize(self, challenge: str, *, scoped: bool = True) -> str:
        """Returns the value of the ``Authorization`` header that the challenge asks for.

        :param scoped: ask a token server for the challenge's rights; False: for a token without rights.
        :raises FetchUnauthorizedError: there are no credentials, or they are refused.
        :raises FetchError: the token server does not answer.
        """
        scheme, parameters = parse_challenge(challenge)
        login = self._logins.find(self._registry, self._repository)
        self.origin = "" if login is None else login.origin
        if login is not None and login.bearer:
            return f"Bearer {_header_value(login.bearer, login.origin)}"
        if scheme == "basic":
            if login is None:
                raise self.unauthorized("requires credentials, and kurma has none")
            if not login.user:
                raise self.unauthorized(f"requires a user and a password, and {login.origin} has only a token")
            return basic(login.user, login.password)
        if scheme == "bearer" and parameters.get("realm"):
            wanted = parameters if scoped else {**parameters, "scope": ""}
            return f"Bearer {self.token(wanted, login)}"
        raise self.unauthorized(f"requires an unsupported kind of authentication: {challenge[:80]!r}")

    def token(self, parameters: Mapping[str, str], login: Login | None) -> str:
        """Fetches a token from the server that the challenge names. Credentials are never sent to another host
        over plain HTTP.

        :raises FetchRefusedError: they would be. :raises FetchError: the server gives no token.
        """
        realm = parameters["realm"]
        if self._base.startswith("https:") and not realm.startswith("https:"):
            raise FetchRefusedError(
                f"{self._base}: wants credentials sent over plain http to {realm}", url=self._base
            )
        if login is not None and realm.lower().startswith("http:") and not _same_host(realm, self._base):
            raise FetchRefusedError(
                f"registry {self._registry}: wants its credentials sent over plain http to another host: {realm}",
                hint=f"they are from {login.origin}; remove them to ask without, or use a token server with https",
                url=self._base,
            )
        query = {key: parameters[key] for key in ("service", "scope") if parameters.get(key)}
        if self._repository:
            query.setdefault("scope", f"repository:{self._repository}:pull")
        try:
            if login is not None and not login.user:
                answer = self._exchange(realm, query, login)
            else:
                headers = {} if login is None else {"Authorization": basic(login.user, login.password)}
                join = "&" if "?" in realm else "?"
                answer, _ = self._transport.request(f"{realm}{join}{urlencode(query)}", headers, accept=_DENIED)
        except UsageError as error:  # the address is the registry's, not the user's
            raise FetchError(f"{self._base}: has an invalid token address: {error}", url=self._base) from None
        if answer.status in _DENIED:
            answer.close()
            if login is not None:
                raise self.unauthorized(f"does not accept the credentials from {login.origin}")
            raise self.unauthorized("denies access without credentials")
        document = self._json(answer, realm)
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise self.unauthorized("sent no token")
        return token

    def _exchange(self, realm: str, query: Mapping[str, str], login: Login) -> BaseHTTPResponse:
        """Exchanges a refresh token (Docker's identity token) for an access token."""
        body = {**query, "grant_type": "refresh_token", "refresh_token": login.password, "client_id": "kurma"}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        answer, _ = self._transport.request(
            realm, headers, method="POST", body=urlencode(body).encode(), accept=_DENIED
        )
        return answer

    def _json(self, answer: BaseHTTPResponse, url: str) -> dict[str, Any]:
        content = read_all(answer, url, _TOKEN_LIMIT, self._transport)
        try:
            document = loads(content)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise FetchUnauthorizedError(f"{url}: its answer is malformed", url=url)
        return document

    def unauthorized(self, what: str) -> FetchUnauthorizedError:
        what = f"registry {self._registry} {what}"
        if not self._repository:  # `kurma login`
            hint = "check the user name and the password; some registries take an access token as the password"
            return FetchUnauthorizedError(what, hint=hint, url=self._base)
        hint = f"kurma login {self._registry}; or the name is wrong"
        return FetchUnauthorizedError(f"{what} ({self._repository})", hint=hint, url=self._base)


def _same_host(one: str, other: str) -> bool:
    try:
        return urlsplit(one).hostname == urlsplit(other).hostname
    except ValueError:
        return False


def _header_value(text: str, origin: str) -> str:
    """Checks a token for use in a header. :raises FetchUnauthorizedError: it could inject another header."""
    if not text.isascii() or not text.isprintable():
        raise FetchUnauthorizedError(f"{origin}: its token is malformed", path=origin)
    return text


def parse_challenge(text: str) -> tuple[str, dict[str, str]]:
    """Parses ``WWW-Authenticate``: returns the scheme in lower case, and the parameters, of the first
    challenge."""
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


def read_all(answer: BaseHTTPResponse, url: str, limit: int, transport: Transport) -> bytes:
    """Reads a whole body. :raises FetchError: it is longer than ``limit`` bytes, breaks off, or is too slow."""
    data = content(answer, url, limit + 1, transport.document_seconds)
    if len(data) > limit:
        raise FetchError(f"{url}: is longer than {limit} bytes", url=url)
    return data
