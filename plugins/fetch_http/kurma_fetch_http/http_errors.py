"""Turns errors of urllib3 and of sockets into fetch errors."""

from __future__ import annotations

import ssl

from urllib3 import exceptions

from kurma_core.errors import (
    FetchError,
    FetchRefusedError,
    FetchTimeoutError,
    FetchTLSError,
    FetchTruncatedError,
)


def translated(error: BaseException, url: str) -> FetchError:
    """Returns the fetch error for an error of urllib3 or a socket. :param url: the address without credentials."""
    proxied = ""
    if isinstance(error, exceptions.ProxyError):
        proxied = " by the proxy"
        error = error.original_error
        if (refusal := str(error).partition("Tunnel connection failed: ")[2]) != "":
            return _refused_tunnel(refusal, url)
    if isinstance(error, exceptions.LocationValueError):
        return FetchError(f"{url}: no host has such a name", url=url)
    tls = _within(error, ssl.SSLError)
    if isinstance(error, exceptions.SSLError) or tls is not None:
        return _tls_error(tls if isinstance(tls, ssl.SSLError) else None, str(error), url)
    if isinstance(error, exceptions.NameResolutionError):
        whose = "proxy's" if proxied else "host's"
        return FetchError(
            f"{url}: the {whose} name does not resolve", hint="check the name and the DNS", url=url, reason="name"
        )
    if isinstance(error, exceptions.NewConnectionError):
        cause = _within(error, OSError)
        if isinstance(cause, ConnectionRefusedError):
            return FetchRefusedError(f"{url}: connection refused{proxied}", url=url)
        reason = getattr(cause, "strerror", None) or "no connection"
        return FetchRefusedError(f"{url}: cannot connect{proxied}: {reason}", url=url)
    if isinstance(error, (exceptions.TimeoutError, TimeoutError)):
        return FetchTimeoutError(f"{url}: no answer in time", url=url)
    return FetchTruncatedError(f"{url}: the connection broke", url=url)


def proxy_login(url: str) -> FetchRefusedError:
    """Returns the error for a proxy that asks for credentials."""
    return FetchRefusedError(
        f"{url}: the proxy requires credentials, or rejects the given ones",
        hint="put them into the proxy's address in the environment: https_proxy=http://USER:PASSWORD@HOST:PORT",
        url=url,
    )


def _refused_tunnel(refusal: str, url: str) -> FetchError:
    """Returns the error for a refused tunnel. :param refusal: the proxy's status and reason."""
    if refusal.startswith("407"):
        return proxy_login(url)
    return FetchRefusedError(f"{url}: the proxy does not connect to it ({' '.join(refusal.split())})", url=url)


def is_passing(error: FetchError) -> bool:
    """Whether the next attempt may succeed: after a broken connection. Not after a refusal; and not after a
    time-out, since the user has waited long enough."""
    return isinstance(error, FetchTruncatedError)


def _tls_error(error: ssl.SSLError | None, text: str, url: str) -> FetchError:
    if isinstance(error, ssl.SSLEOFError):
        return FetchTruncatedError(f"{url}: the connection broke", url=url)
    if isinstance(error, ssl.SSLCertVerificationError):
        reason, hint = error.verify_message, None
        if "ostname mismatch" in reason or "IP address mismatch" in reason:
            reason = "the certificate is for another name"
            hint = "ask for it by the name that the certificate is for"
        elif "issuer" in reason or "self-signed" in reason or "self signed" in reason:
            reason = "the certificate is of an unknown authority"
            hint = (
                "if that authority is known to you, add it by SSL_CERT_FILE, or in kurma.yml by "
                "plugins.fetchers.NAME.config.ca_file (NAME: https, appc for images by name, docker)"
            )
        elif "expired" in reason:
            reason = "the certificate has expired"
            hint = "its owner must renew it, if this machine's clock is right"
        return FetchTLSError(f"{url}: TLS failed: {reason}", hint=hint, url=url, reason="certificate")
    code = error.reason if error is not None else ""
    if code in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return FetchTLSError(f"{url}: TLS failed: the server does not speak TLS", url=url, reason="plain")
    reason = (code or text).lower().replace("_", " ")
    return FetchTLSError(f"{url}: TLS failed: {reason}", url=url, reason=code)


def _within(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """Returns the first exception of that kind among an exception, its arguments and its causes."""
    seen = 0
    while error is not None and seen < 10:
        if isinstance(error, kind):
            return error
        for argument in error.args:
            if isinstance(argument, kind):
                return argument
        error = error.__cause__ or error.__context__
        seen += 1
    return None
