"""An HTTP client: proxies, TLS, redirects, time-outs, retries, and errors by kind.

It does not depend on images; the Docker fetcher uses it, too. Redirects and retries are done here and not by
urllib3, which lacks three rules: a redirect must not lead from TLS to plain HTTP, credentials must not be sent to
another host after a redirect, and ``Retry-After`` must be bounded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urljoin, urlsplit, urlunsplit

import urllib3

from kurma_core.cancellation import pause
from kurma_core.errors import (
    FetchError,
    FetchNotFoundError,
    FetchRefusedError,
    FetchTimeoutError,
    FetchUnauthorizedError,
    UsageError,
)
from kurma_fetch_http import http_errors
from kurma_fetch_http.credentials import Credentials
from kurma_fetch_http.deadline import POOLS, LowSpeed, deadline

if TYPE_CHECKING:
    from ssl import SSLContext

    from urllib3.response import BaseHTTPResponse

    from kurma_core.hookspecs.driver import DriverContext

REDIRECTS = 10
#: Maximum of one ``Retry-After``, and of all waits of one request, in seconds.
LONGEST_WAIT = 60.0
#: Waits from this many seconds on are noted.
_TOLD_WAIT = 2.0
_REDIRECT = frozenset((301, 302, 303, 307, 308))
_AGAIN = frozenset((429, 500, 502, 503, 504))
_GOOD = frozenset((200, 206))
#: Bytes of an unwanted answer that are read, so that its connection can be reused.
_DISCARDED = 1 << 14
#: Seconds that reading them may take.
_DISCARDING = 2.0


class Transport:
    """HTTP requests with one set of options. Safe to use from several threads. Every wait ends with
    :class:`kurma_core.errors.Cancelled` when the operation (:func:`kurma_core.cancellation.current`) is cancelled.

    :param timeout: seconds, for the connection and for each read; the head of an answer may take twice as long in
        all.
    :param retries: how often a broken connection or a 5xx or 429 answer is tried again.
    :param ca_file: PEM file of further authorities; "" for none. The system's authorities are OpenSSL's, so that
        ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` apply.
    :param insecure: ``tls``: certificates are not verified; ``http``: plain HTTP is allowed.
    :param credentials: credentials by host, for requests without an ``Authorization`` of their own.
    :param sleep: waits that many seconds.
    :param note: prints a note about a long wait, one line.
    :param plain: whether plain HTTP to ``host[:port]`` is allowed although ``insecure`` does not allow it.
    :param direct: whether requests to ``host[:port]`` bypass the environment's proxy.
    :param low_speed: the limit of slowness for a large body. :param document_seconds: the time limit of a small
        one.
    """

    def __init__(
        self,
        *,
        timeout: float = 30.0,
        retries: int = 4,
        ca_file: str = "",
        insecure: Collection[str] = (),
        credentials: Credentials | None = None,
        sleep: Callable[[float], None] = pause,
        note: Callable[[str], None] = lambda text: None,
        plain: Callable[[str], bool] = lambda host: False,
        direct: Callable[[str], bool] = lambda host: False,
        low_speed: LowSpeed | None = None,
        document_seconds: float = LONGEST_WAIT,
    ) -> None:
        self.retries = retries
        self.low_speed = low_speed or LowSpeed()
        self.document_seconds = document_seconds
        self._note = note
        self._plain = plain
        self._direct = direct
        self._timeout = urllib3.Timeout(connect=timeout, read=timeout)
        self._insecure = frozenset(insecure)
        self._credentials = credentials or Credentials("")
        self.sleep = sleep
        self._tls = _tls_context(ca_file, verified="tls" not in self._insecure)
        self._pools: dict[str | None, urllib3.PoolManager] = {}

    @classmethod
    def from_config(cls, context: DriverContext, insecure: Collection[str]) -> Transport:
        """Makes a transport from the options :data:`kurma_fetch_http.plugin.OPTIONS`."""
        config = context.config
        return cls(
            timeout=float(config.get("timeout", 30.0)),
            retries=int(config.get("retries", 4)),
            ca_file=str(config.get("ca_file", "")),
            insecure=insecure,
            credentials=Credentials(context.auth_dir),
            note=context.note,
        )

    def request(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        body: bytes | Iterable[bytes] | None = None,
        accept: Collection[int] = (),
    ) -> tuple[BaseHTTPResponse, str]:
        """Sends a request, follows redirects, and retries temporary failures. The body is not read.

        :param headers: an ``Authorization`` among them is sent to this host only, not to the targets of redirects.
        :param body: pieces can be sent only once, so that a failure is not retried; ``headers`` have their
            ``Content-Length``.
        :param accept: statuses besides 200 and 206 that are returned.
        :returns: the answer, which the caller releases, and the address that gave it.
        :raises FetchError: one of its subclasses. :raises UsageError: the address is malformed.
        """
        sent = dict(headers or {})
        for _ in range(REDIRECTS):
            self.check(url)
            answer = self._persist(method, url, sent, body, accept)
            if answer.status not in _REDIRECT:
                return answer, url
            discard(answer)
            if body is not None:
                raise FetchRefusedError(f"{shown(url)}: redirects what was sent to it", url=shown(url))
            url, sent = self._follow(url, answer, sent)
        raise FetchError(f"{shown(url)}: more than {REDIRECTS} redirects", url=shown(url))

    # --- one request ---------------------------------------------------------------------------------------------

    def check(self, url: str) -> None:
        """Checks an address. :raises UsageError: it is malformed. :raises FetchRefusedError: plain HTTP is not
        allowed."""
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            start, slashes, rest = url[:100].partition("//")
            plain = f"{start}{slashes}{rest.rpartition('@')[2]}"
            raise UsageError(f"{plain}: malformed: its host or port cannot be one") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{shown(url)}: not an http or https address")
        if "@" in parts.netloc:
            raise UsageError(
                f"{shown(url)}: credentials are not allowed in an address", hint="write them to a file in auth.d"
            )
        if parts.scheme == "http" and "http" not in self._insecure and not self._plain(parts.netloc):
            raise FetchRefusedError(
                f"{shown(url)}: plain http is not allowed",
                hint="use https, or allow it for this run: --insecure-options=http",
                url=shown(url),
            )

    def _persist(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes] | None,
        accept: Collection[int],
    ) -> BaseHTTPResponse:
        """Sends one request and retries it until the answer is a success, a redirect, accepted, or final.

        :raises FetchError: the final answer is an error.
        """
        waited = 0.0
        retries = self.retries if body is None or isinstance(body, bytes) else 0
        for attempt in range(retries + 1):
            last = attempt == retries
            try:
                answer = self._once(method, url, headers, body)
            except FetchError as error:
                if last or not http_errors.is_passing(error):
                    raise
                wait = backoff(attempt)
            else:
                wanted = answer.status in _GOOD or answer.status in _REDIRECT or answer.status in accept
                wait = _retry_after(answer, attempt)
                if wanted:
                    return answer
                if last or answer.status not in _AGAIN or waited + wait > LONGEST_WAIT:
                    _refuse(answer, url, wait)
                discard(answer)
                if wait >= _TOLD_WAIT:
                    why = "too many requests" if answer.status == 429 else f"status {answer.status}"
                    self._note(f"{urlsplit(url).netloc}: {why}: trying again in {wait:.0f} s")
            waited += wait
            self.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _once(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | Iterable[bytes] | None
    ) -> BaseHTTPResponse:
        sent = {"User-Agent": "kurma", "Accept-Encoding": "identity", **headers}
        host = urlsplit(url).netloc
        if "Authorization" not in sent and (found := self._credentials.header(host)) is not None:
            sent["Authorization"] = found
        try:
            return self._pool(url).urlopen(
                method,
                url,
                body=body,
                headers=sent,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=self._timeout,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise http_errors.translated(error, shown(url)) from error

    def _pool(self, url: str) -> urllib3.PoolManager:
        """Returns the pool for this address: direct, or through the proxy that the environment names for it."""
        proxy = None if self._direct(urlsplit(url).netloc) else proxy_for(url)
        pool = self._pools.get(proxy)
        if pool is None:
            options: dict[str, Any] = {"ssl_context": self._tls, "maxsize": 8}
            pool = urllib3.PoolManager(**options) if proxy is None else _proxied(proxy, options)
            pool.pool_classes_by_scheme = POOLS
            self._pools[proxy] = pool
        return pool

    def _follow(
        self, url: str, answer: BaseHTTPResponse, headers: Mapping[str, str]
    ) -> tuple[str, dict[str, str]]:
        target = answer.headers.get("Location")
        if not target:
            raise FetchError(f"{shown(url)}: redirects without an address", url=shown(url))
        try:
            new = urljoin(url, target)
            before, after = urlsplit(url), urlsplit(new)
        except ValueError:
            raise FetchError(f"{shown(url)}: redirects to what is not an address", url=shown(url)) from None
        if before.scheme == "https" and after.scheme == "http" and "http" not in self._insecure:
            raise FetchRefusedError(
                f"{shown(url)}: redirects from https to plain http ({shown(new)})", url=shown(url), target=new
            )
        try:
            self.check(new)
        except UsageError as error:  # the server, not the user, wrote the address
            raise FetchError(f"{shown(url)}: redirects wrongly: {error.message}", url=shown(url)) from None
        same = (before.scheme, before.netloc) == (after.scheme, after.netloc)
        return new, {name: value for name, value in headers.items() if same or name != "Authorization"}


def content(answer: BaseHTTPResponse, url: str, limit: int, seconds: float) -> bytes:
    """Reads a small body, or its first ``limit`` bytes, without resuming.

    :param seconds: the time limit.
    :raises FetchError: the connection broke, or the time expired.
    """
    pieces: list[bytes] = []
    left = limit
    try:
        with deadline(seconds, answer.shutdown):
            while left and (data := answer.read(min(left, 1 << 14), decode_content=False)):
                pieces.append(data)
                left -= len(data)
    except TimeoutError:
        raise FetchTimeoutError(
            f"{shown(url)}: is too slow: the download is incomplete after {seconds:g} seconds", url=shown(url)
        ) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise http_errors.translated(error, shown(url)) from error
    finally:
        if not left:
            answer.close()  # the rest is unread, so the connection cannot be reused
        answer.release_conn()
    return b"".join(pieces)


def discard(answer: BaseHTTPResponse) -> None:
    """Discards an answer: reads a short body, so that the connection can be reused; closes the connection of a
    long body, which may have no end."""
    try:
        with deadline(_DISCARDING, answer.shutdown):
            short = len(answer.read(_DISCARDED, decode_content=False)) < _DISCARDED
        if short:
            answer.release_conn()
            return
    except (urllib3.exceptions.HTTPError, OSError):
        pass
    answer.close()


def backoff(attempt: int) -> float:
    """Returns the seconds to wait before the next attempt, for attempts from 0: 0.2, 0.4, 0.8 … at most 5."""
    return min(5.0, 0.2 * float(2**attempt))


def proxy_for(url: str) -> str | None:
    """Returns the proxy for an address by ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy``."""
    from urllib.request import getproxies_environment, proxy_bypass

    parts = urlsplit(url)
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise FetchError(f"{shown(proxy)}: only http and https proxies are understood", url=shown(url))
    return proxy


def _proxied(proxy: str, options: dict[str, Any]) -> urllib3.ProxyManager:
    """Makes a pool that uses a proxy, with the credentials in its address (``http://USER:PASSWORD@HOST``)."""
    from urllib.parse import unquote

    parts = urlsplit(proxy)
    login = parts.netloc.rpartition("@")[0]
    headers = urllib3.make_headers(proxy_basic_auth=unquote(login)) if login else None
    return urllib3.ProxyManager(shown(proxy), proxy_headers=headers, **options)


def shown(url: str) -> str:
    """Returns an address for messages and records: without credentials, and without the query, which is a
    credential in signed addresses."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _tls_context(ca_file: str, *, verified: bool) -> SSLContext:
    import ssl

    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            raise FetchError(
                f"{ca_file}: cannot be read as certificate authorities: {os.strerror(error.errno or 0)}"
                if not isinstance(error, ssl.SSLError)
                else f"{ca_file}: holds no certificates",
                path=ca_file,
            ) from None
    if not verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        # The user asked for it, and Kurma prints a note of its own.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return context


def _retry_after(answer: BaseHTTPResponse, attempt: int) -> float:
    """Returns the seconds to wait, by the answer's ``Retry-After`` (a number or a date), else by back-off."""
    text = answer.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:10])
    if text:
        from email.utils import parsedate_to_datetime

        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except (ValueError, OverflowError):
            pass  # a malformed header is ignored
    return backoff(attempt)


def _refuse(answer: BaseHTTPResponse, url: str, pause: float) -> NoReturn:
    """Raises the error for a status.

    :param pause: seconds after which the server accepts another request.
    :raises FetchError: always, the subclass for the status.
    """
    status, name = answer.status, shown(url)
    answer.close()
    if status in (404, 410):
        raise FetchNotFoundError(f"{name}: not found", url=name, status=status)
    if status == 401:
        raise FetchUnauthorizedError(
            f"{name}: requires credentials, or rejects the given ones",
            hint=f"write them to a file in auth.d, for host {urlsplit(url).netloc}",
            url=name,
            status=status,
        )
    if status in (403, 451):
        raise FetchRefusedError(f"{name}: access is refused (status {status})", url=name, status=status)
    if status == 429:
        later = f"in {pause:.0f} seconds, as the server asks" if pause > LONGEST_WAIT else "later"
        raise FetchRefusedError(
            f"{name}: too many requests", hint=f"try again {later}", url=name, status=status, pause=pause
        )
    what = "the server failed" if status >= 500 else "unexpected answer"
    raise FetchError(f"{name}: {what} (status {status})", url=name, status=status)
