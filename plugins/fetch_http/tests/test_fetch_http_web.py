"""Archives on web servers: each way of failing has its own error; broken downloads go on; nothing leaks."""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import kurma_fetch_http.plugin
import pytest
import trustme
from kurma_fetch_http.transport import Transport
from kurma_testing import load_driver
from kurma_testing.webserver import Page, WebServer, web_server

from kurma_core.errors import (
    ConfigError,
    FetchError,
    FetchNotFoundError,
    FetchRefusedError,
    FetchTimeoutError,
    FetchTLSError,
    FetchTruncatedError,
    FetchUnauthorizedError,
    UsageError,
)
from kurma_core.hookspecs.fetcher import FetchRequest, RemoteArchive

CONTENT = bytes(range(256)) * 1000
HTTP = frozenset({"http"})


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as server:
        server.pages["/image.aci"] = Page(CONTENT)
        yield server


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def resolve(tmp_path: Path, url: str, insecure: frozenset[str] = HTTP, **options: object) -> RemoteArchive:
    fetcher = load_driver(kurma_fetch_http.plugin, tmp_path, options)
    found = fetcher.resolve(url, FetchRequest("linux", "amd64", insecure))
    assert isinstance(found, RemoteArchive)
    return found


def content_of(archive: RemoteArchive, offset: int = 0) -> bytes:
    with archive.blob.open(offset) as stream:
        return b"".join(iter(lambda: stream.read(10_000), b""))


# --- getting it ---


def test_one_request_is_enough(tmp_path: Path, server: WebServer) -> None:
    archive = resolve(tmp_path, server.url("/image.aci"))
    assert archive.transport == "http"
    assert archive.blob.size == len(CONTENT)
    assert content_of(archive) == CONTENT
    assert len(server.requests("/image.aci")) == 1


def test_a_broken_download_goes_on_where_it_broke(tmp_path: Path, server: WebServer) -> None:
    server.pages["/image.aci"].cuts = [100_000, 50_000]
    assert content_of(resolve(tmp_path, server.url("/image.aci"))) == CONTENT
    _, second, third = server.requests("/image.aci")
    assert second.headers["Range"] == "bytes=100000-"
    assert second.headers["If-Range"] == '"one"'
    assert third.headers["Range"] == "bytes=150000-"


def test_it_goes_on_with_a_server_that_knows_no_ranges(tmp_path: Path, server: WebServer) -> None:
    page = server.pages["/image.aci"]
    page.cuts, page.ranges = [100_000], False
    assert content_of(resolve(tmp_path, server.url("/image.aci"))) == CONTENT


def test_a_file_that_changed_meanwhile_is_not_patched_together(tmp_path: Path, server: WebServer) -> None:
    archive = resolve(tmp_path, server.url("/image.aci"))
    server.pages["/image.aci"] = Page(CONTENT[::-1], etag='"two"')
    with pytest.raises(FetchTruncatedError, match="changed while it was fetched") as caught:
        content_of(archive, 1000)
    assert caught.value.data["changed"]


def test_without_a_validator_nothing_is_resumed(tmp_path: Path, server: WebServer) -> None:
    page = server.pages["/image.aci"]
    page.etag, page.cuts = "", [1000]
    archive = resolve(tmp_path, server.url("/image.aci"))
    assert archive.blob.key is None
    with pytest.raises(FetchTruncatedError):
        content_of(archive)


def test_a_server_that_only_cuts_is_given_up(tmp_path: Path, server: WebServer) -> None:
    server.pages["/image.aci"].cuts = [1000, 0, 0, 0]
    with pytest.raises(FetchTruncatedError, match=r"the connection broke|ended after"):
        content_of(resolve(tmp_path, server.url("/image.aci"), retries=2))


def test_a_failing_server_is_asked_again(tmp_path: Path, server: WebServer) -> None:
    server.pages["/image.aci"].statuses = [503, 502]
    assert content_of(resolve(tmp_path, server.url("/image.aci"))) == CONTENT
    assert len(server.requests("/image.aci")) == 3


def test_retry_after_is_heeded(tmp_path: Path, server: WebServer) -> None:
    page = server.pages["/image.aci"]
    page.statuses, page.headers = [429], {"Retry-After": "0"}
    assert content_of(resolve(tmp_path, server.url("/image.aci"))) == CONTENT


def test_retry_after_is_not_heeded_for_ever(tmp_path: Path, server: WebServer) -> None:
    page = server.pages["/image.aci"]
    page.statuses, page.headers = [429], {"Retry-After": "86400"}
    with pytest.raises(FetchRefusedError, match="too many requests"):
        resolve(tmp_path, server.url("/image.aci"))


def test_max_age_and_etag_are_told(tmp_path: Path, server: WebServer) -> None:
    server.pages["/image.aci"].headers = {"Cache-Control": "public, max-age=60"}
    archive = resolve(tmp_path, server.url("/image.aci"))
    assert archive.max_age == 60
    assert '"one"' in (archive.blob.key or "")


def known_of(tmp_path: Path, url: str, known: str | None = None) -> RemoteArchive:
    fetcher = load_driver(kurma_fetch_http.plugin, tmp_path, {})
    found = fetcher.resolve(url, FetchRequest("linux", "amd64", frozenset({"http"}), known))
    assert isinstance(found, RemoteArchive)
    return found


def test_what_is_known_is_not_sent_again(tmp_path: Path, server: WebServer) -> None:
    """And can be read all the same."""
    page = server.pages["/x.aci"] = Page(b"image", headers={"Cache-Control": "max-age=7"})
    server.pages["/moved"] = Page(redirect="/x.aci")
    first = known_of(tmp_path, server.url("/moved"))
    assert page.sent == 1
    again = known_of(tmp_path, server.url("/moved"), first.blob.key)
    assert page.sent == 1
    assert (again.blob.key, again.url, again.max_age) == (first.blob.key, first.url, 7)
    with again.blob.open(0) as stream:
        assert stream.read(100) == b"image"
    with again.blob.open(2) as stream:
        assert stream.read(100) == b"age"
    page.etag = '"two"'
    other = known_of(tmp_path, server.url("/moved"), first.blob.key)
    assert page.sent == 4
    assert other.blob.key != first.blob.key
    assert other.blob.size == 5


def test_another_place_with_the_same_validator_is_another_body(tmp_path: Path, server: WebServer) -> None:
    server.pages["/x.aci"], server.pages["/y.aci"] = Page(b"image"), Page(b"another")
    first = known_of(tmp_path, server.url("/x.aci"))
    other = known_of(tmp_path, server.url("/y.aci"), first.blob.key)
    assert other.blob.key != first.blob.key
    with other.blob.open(0) as stream:
        assert stream.read(100) == b"another"


def test_a_date_as_validator(tmp_path: Path, server: WebServer) -> None:
    server.pages["/x.aci"] = Page(b"x", etag="", headers={"Last-Modified": "Sat, 21 Nov 2026 10:00:00 GMT"})
    first = known_of(tmp_path, server.url("/x.aci"))
    known_of(tmp_path, server.url("/x.aci"), first.blob.key)
    assert server.seen[-1].headers["If-Modified-Since"] == "Sat, 21 Nov 2026 10:00:00 GMT"


@pytest.mark.parametrize("known", ["sha256:00", "web ", "web x", ""])
def test_a_key_of_another_kind_asks_for_all(tmp_path: Path, server: WebServer, known: str) -> None:
    server.pages["/x.aci"] = Page(b"x")
    known_of(tmp_path, server.url("/x.aci"), known)
    assert not [name for name in server.seen[-1].headers if name.startswith("If-")]


def test_a_304_that_nobody_asked_for(tmp_path: Path, server: WebServer) -> None:
    server.pages["/x.aci"] = Page(statuses=[304] * 9)
    with pytest.raises(FetchError, match="unexpected answer"):
        known_of(tmp_path, server.url("/x.aci"))


def test_the_signature_stands_beside_it(tmp_path: Path, server: WebServer) -> None:
    archive = resolve(tmp_path, server.url("/image.aci"))
    assert archive.blob.signature() is None
    server.pages["/image.aci.asc"] = Page(b"signature")
    found = archive.blob.signature()
    assert found is not None
    assert (found.data, found.over) == (b"signature", "archive")


def test_early_signatures_are_looked_for_last(tmp_path: Path, server: WebServer) -> None:
    archive = resolve(tmp_path, server.url("/image.aci"))
    assert archive.blob.signature() is None
    assert [one.path for one in server.seen][1:] == ["/image.aci.asc", "/image.sig", "/image.aci.sig"]
    for name, over in (("/image.aci.sig", "tar"), ("/image.sig", "tar"), ("/image.aci.asc", "archive")):
        server.pages[name] = Page(name.encode())
        found = archive.blob.signature()
        assert found is not None
        assert (found.data, found.over) == (name.encode(), over)


def test_something_huge_is_no_signature_on_the_web(tmp_path: Path, server: WebServer) -> None:
    archive = resolve(tmp_path, server.url("/image.aci"))
    server.pages["/image.aci.asc"] = Page(bytes(2 << 20))
    with pytest.raises(FetchError, match="larger than a signature can be"):
        archive.blob.signature()


def test_the_query_stays_behind_the_signatures_name(tmp_path: Path, server: WebServer) -> None:
    server.pages["/image.aci.asc"] = Page(b"signature")
    archive = resolve(tmp_path, server.url("/image.aci?token=1"))
    archive.blob.signature()
    assert server.seen[-1].path == "/image.aci.asc?token=1"
    assert "token" not in archive.url


# --- each failure its own error ---


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, FetchNotFoundError), (401, FetchUnauthorizedError), (403, FetchRefusedError), (418, FetchError)],
)
def test_statuses(tmp_path: Path, server: WebServer, status: int, kind: type[FetchError]) -> None:
    server.pages["/image.aci"].statuses = [status]
    with pytest.raises(FetchError) as caught:
        resolve(tmp_path, server.url("/image.aci"))
    assert type(caught.value) is kind
    assert server.host in caught.value.message


def test_a_server_that_keeps_failing(tmp_path: Path, server: WebServer) -> None:
    server.pages["/image.aci"].statuses = [500] * 5
    with pytest.raises(FetchError, match=r"the server failed \(status 500\)"):
        resolve(tmp_path, server.url("/image.aci"), retries=1)


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(FetchRefusedError, match="connection refused"):
            resolve(tmp_path, f"http://127.0.0.1:{port}/image.aci")


def test_no_answer_in_time(tmp_path: Path, server: WebServer) -> None:
    server.pages["/image.aci"].delay = 5.0
    with pytest.raises(FetchTimeoutError, match="no answer in time"):
        resolve(tmp_path, server.url("/image.aci"), timeout=0.2)


def test_plain_http_only_when_allowed(tmp_path: Path, server: WebServer) -> None:
    with pytest.raises(FetchRefusedError, match="plain http is not allowed") as caught:
        resolve(tmp_path, server.url("/image.aci"), frozenset())
    assert "--insecure-options=http" in (caught.value.hint or "")
    assert not server.seen


def test_redirects_end_somewhere(tmp_path: Path, server: WebServer) -> None:
    server.pages["/image.aci"].redirect = "/image.aci"
    with pytest.raises(FetchError, match="more than 10 redirects"):
        resolve(tmp_path, server.url("/image.aci"))


# --- TLS ---


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def tls_for(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[WebServer]:
    with web_server(tls_for(authority, "127.0.0.1")) as server:
        server.pages["/image.aci"] = Page(CONTENT)
        yield server


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


def test_tls_with_an_authority_of_ones_own(tmp_path: Path, secure: WebServer, ca_file: str) -> None:
    archive = resolve(tmp_path, secure.url("/image.aci"), frozenset(), ca_file=ca_file)
    assert archive.transport == "https"
    assert content_of(archive) == CONTENT


def test_ssl_cert_file_counts(
    tmp_path: Path, secure: WebServer, ca_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", ca_file)
    assert content_of(resolve(tmp_path, secure.url("/image.aci"), frozenset())) == CONTENT


def test_an_unknown_authority(tmp_path: Path, secure: WebServer) -> None:
    with pytest.raises(FetchTLSError, match="the certificate is of an unknown authority") as caught:
        resolve(tmp_path, secure.url("/image.aci"), frozenset())
    assert "plugins.fetchers.NAME.config.ca_file" in (caught.value.hint or "")


def test_a_certificate_for_another_name(tmp_path: Path, authority: trustme.CA, ca_file: str) -> None:
    with web_server(tls_for(authority, "example.com")) as server:
        with pytest.raises(FetchTLSError, match="the certificate is for another name") as caught:
            resolve(tmp_path, server.url("/image.aci"), frozenset(), ca_file=ca_file)
    assert "ca_file" not in (caught.value.hint or ""), "no authority would help"


def test_a_certificate_that_ran_out(tmp_path: Path, authority: trustme.CA, ca_file: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", not_after=datetime(2020, 1, 1, tzinfo=UTC)).configure_cert(context)
    with web_server(context) as server:
        with pytest.raises(FetchTLSError, match="the certificate has expired") as caught:
            resolve(tmp_path, server.url("/image.aci"), frozenset(), ca_file=ca_file)
    assert "clock" in (caught.value.hint or "")


def test_insecure_tls_takes_any_certificate(tmp_path: Path, secure: WebServer) -> None:
    assert content_of(resolve(tmp_path, secure.url("/image.aci"), frozenset({"tls"}))) == CONTENT


def test_a_server_without_tls(tmp_path: Path, server: WebServer) -> None:
    with pytest.raises(FetchTLSError, match="does not speak TLS"):
        resolve(tmp_path, server.url("/image.aci").replace("http:", "https:"), frozenset())


def test_no_redirect_from_https_to_http(
    tmp_path: Path, secure: WebServer, server: WebServer, ca_file: str
) -> None:
    secure.pages["/image.aci"].redirect = server.url("/image.aci")
    with pytest.raises(FetchRefusedError, match="redirects from https to plain http"):
        resolve(tmp_path, secure.url("/image.aci"), frozenset(), ca_file=ca_file)
    # Nor where plain http to that host would do by itself.
    transport = Transport(ca_file=ca_file, plain=lambda host: True)
    assert transport.request(server.url("/image.aci"))[0].status == 200
    with pytest.raises(FetchRefusedError, match="redirects from https to plain http"):
        transport.request(secure.url("/image.aci"))
    assert len(server.seen) == 1


# --- credentials and proxies ---


def write_auth(tmp_path: Path, host: str, mode: int = 0o600) -> None:
    directory = tmp_path / "auth.d"
    directory.mkdir()
    file = directory / "one.json"
    file.write_text(json.dumps({"hosts": [host], "type": "basic", "user": "u", "password": "p"}))
    file.chmod(mode)


def test_credentials_by_host(tmp_path: Path, server: WebServer) -> None:
    server.pages["/image.aci"].authorization = "Basic dTpw"
    write_auth(tmp_path, server.host)
    assert content_of(resolve(tmp_path, server.url("/image.aci"))) == CONTENT


def test_credentials_do_not_follow_to_another_host(tmp_path: Path, server: WebServer) -> None:
    with web_server() as other:
        other.pages["/image.aci"] = Page(CONTENT)
        server.pages["/image.aci"].redirect = other.url("/image.aci")
        write_auth(tmp_path, server.host)
        assert content_of(resolve(tmp_path, server.url("/image.aci"))) == CONTENT
        assert "Authorization" in server.seen[0].headers
        assert "Authorization" not in other.seen[0].headers


def test_credentials_that_others_may_read_are_refused(tmp_path: Path, server: WebServer) -> None:
    write_auth(tmp_path, server.host, 0o644)
    with pytest.raises(ConfigError, match="others may read these credentials"):
        resolve(tmp_path, server.url("/image.aci"))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"type": "bearer", "token": "secret\n"}, '"token" must be printable ASCII without spaces'),
        ({"type": "bearer", "token": "sécret"}, '"token" must be printable ASCII without spaces'),
        ({"type": "bearer", "token": ""}, '"token" must be printable ASCII without spaces'),
        ({"type": "basic", "user": "secret:u", "password": "p"}, '"user" must not hold a colon'),
    ],
)
def test_credentials_that_no_header_can_hold(
    tmp_path: Path, server: WebServer, entry: dict[str, str], said: str
) -> None:
    """They are told by the file's name, and not shown."""
    write_auth(tmp_path, server.host)
    file = tmp_path / "auth.d" / "one.json"
    file.write_text(json.dumps({"hosts": [server.host], **entry}))
    with pytest.raises(ConfigError, match=said) as caught:
        resolve(tmp_path, server.url("/image.aci"))
    assert str(caught.value).startswith(str(file))
    assert "cret" not in str(caught.value)
    assert not server.seen


@pytest.mark.parametrize("host", ["https://example.com", "example.com/a", "a b", ""])
def test_credentials_for_what_is_no_host(tmp_path: Path, server: WebServer, host: str) -> None:
    """They would be sent nowhere, and nobody would know why."""
    write_auth(tmp_path, host)
    with pytest.raises(ConfigError, match="is not a host") as caught:
        resolve(tmp_path, server.url("/image.aci"))
    assert "example.com:5000" in (caught.value.hint or "")


def test_credentials_are_read_from_regular_files_alone(tmp_path: Path, server: WebServer) -> None:
    write_auth(tmp_path, server.host)
    for make in (os.mkfifo, os.mkdir):
        odd = tmp_path / "auth.d" / "odd.json"
        make(odd, 0o600)
        with pytest.raises(ConfigError, match=r"odd.json: not a regular file"):
            resolve(tmp_path, server.url("/image.aci"))
        (odd.rmdir if odd.is_dir() else odd.unlink)()
    (tmp_path / "auth.d" / "odd.json").symlink_to("gone")
    with pytest.raises(ConfigError, match=r"odd.json: cannot be read as credentials: No such file"):
        resolve(tmp_path, server.url("/image.aci"))


def test_proxies_from_the_environment(tmp_path: Path, server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy is asked with the whole address as the path."""
    with web_server() as proxy:
        proxy.pages["http://images.invalid/image.aci"] = Page(CONTENT)
        monkeypatch.setenv("http_proxy", proxy.url(""))
        assert content_of(resolve(tmp_path, "http://images.invalid/image.aci")) == CONTENT
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert content_of(resolve(tmp_path, server.url("/image.aci"))) == CONTENT
        assert len(proxy.seen) == 1


@pytest.mark.parametrize("url", ["https://example.com:99999/x", "https://[::1", "https://u:secret@example.com:x/"])
def test_an_address_that_cannot_be_one(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="malformed: its host or port cannot be one") as caught:
        resolve(tmp_path, url, frozenset())
    assert "secret" not in caught.value.message
