"""Images and keys by name, from a real HTTPS server with certificates of a test authority (D1–D5).

Names resolve nowhere here: a proxy that the environment names leads ``example.com:443`` to the server's port, so
the client asks for, and checks the certificate of, the real name.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import kurma_fetch_http.names
import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kurma_testing import load_driver
from kurma_testing.fetchers import FetcherContract
from kurma_testing.webserver import Page, Proxy, WebServer, proxy, web_server

from kurma_core.errors import (
    FetchError,
    FetchNotFoundError,
    FetchRefusedError,
    FetchTLSError,
    FetchUnauthorizedError,
    UsageError,
)
from kurma_core.hookspecs.fetcher import FetcherHooks, FetchRequest, RemoteArchive

NAMES = ("example.com", "storage.example.com", "secret.example.com")
REQUEST = FetchRequest("linux", "amd64")
TEMPLATE = "https://storage.example.com/{name}-{version}-{os}-{arch}.{ext}"


def page(*tags: tuple[str, str], kind: str = "ac-discovery") -> Page:
    """A page with tags of (prefix, template)."""
    lines = "".join(f'<meta name="{kind}" content="{prefix} {target}">\n' for prefix, target in tags)
    return Page(f"<!DOCTYPE html><html><head>\n{lines}</head><body>hello</body></html>".encode(), etag="")


@dataclass
class Net:
    """One server for all names, and a proxy that leads to it."""

    server: WebServer
    proxy: Proxy
    ca_file: str
    directory: Path
    notes: list[str] = field(default_factory=list)

    @property
    def pages(self) -> dict[str, Page]:
        return self.server.pages

    @property
    def asked(self) -> list[str]:
        """Host, path and query of every request, in order."""
        return [seen.headers["Host"] + seen.path for seen in self.server.seen]

    def fetcher(self, **options: object) -> FetcherHooks:
        fetcher = load_driver(kurma_fetch_http.names, self.directory, {"ca_file": self.ca_file, **options})
        object.__setattr__(fetcher._driver._context, "note", self.notes.append)
        return fetcher  # type: ignore[no-any-return]

    def find(self, name: str, *insecure: str, **options: object) -> RemoteArchive:
        found = self.fetcher(**options).resolve(name, FetchRequest("linux", "amd64", frozenset(insecure)))
        with found.blob.open(0) as stream:
            stream.read(1 << 16)
        return found


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def net(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Net]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*NAMES).configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with web_server(context) as server, proxy({f"{name}:443": server.host for name in NAMES}) as way:
        for name in ("http_proxy", "no_proxy", "all_proxy", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.setenv("https_proxy", f"http://{way.host}")
        yield Net(server, way, str(tmp_path / "ca.pem"), tmp_path)


@pytest.mark.kurma_driver(kurma_fetch_http.names)
class TestContract(FetcherContract):
    @pytest.fixture
    def options(self, net: Net) -> dict[str, str]:
        return {"ca_file": net.ca_file}

    @pytest.fixture
    def good(self, net: Net) -> str:
        net.pages["example.com/app"] = page(("example.com", "https://storage.example.com/app-{version}.{ext}"))
        net.pages["storage.example.com/app-1.0.aci"] = Page(bytes(range(256)) * 100)
        return "example.com/app:1.0"

    @pytest.fixture
    def missing(self, good: str) -> str:
        return "example.com/app:2.0"

    @pytest.fixture
    def hanging(self, net: Net, good: str) -> Iterator[str]:
        gate = threading.Event()
        net.pages["storage.example.com/app-hanging.aci"] = Page(b"image", gate=gate)
        yield "example.com/app:hanging"
        gate.set()

    @pytest.fixture
    def stalling(self, net: Net, good: str) -> str:
        net.pages["storage.example.com/app-stalling.aci"] = Page(bytes(1000), stalls=[500])
        return "example.com/app:stalling"

    @pytest.fixture
    def malformed(self) -> str:
        return "not a name"


# --- which image (D1) ---


def test_the_template_is_filled(net: Net) -> None:
    net.pages["example.com/team/app"] = page(("example.com/team", TEMPLATE))
    net.pages["storage.example.com/example.com/team/app-1.0-linux-amd64.aci"] = Page(b"image")
    found = net.find("example.com/team/app:1.0")
    assert found.url == "https://storage.example.com/example.com/team/app-1.0-linux-amd64.aci"
    assert (found.locator, found.transport) == ("example.com/team/app:1.0", "https")
    assert net.asked[0] == "example.com/team/app?ac-discovery=1"


def test_version_and_platform_have_defaults(net: Net) -> None:
    net.pages["example.com/"] = page(("example.com", TEMPLATE))
    net.pages["storage.example.com/example.com/app-latest-linux-amd64.aci"] = Page(b"image")
    assert net.find("example.com/app").url.endswith("-latest-linux-amd64.aci")
    net.pages["storage.example.com/example.com/app-latest-freebsd-aarch64.aci"] = Page(b"image")
    found = net.fetcher().resolve("example.com/app", FetchRequest("freebsd", "aarch64"))
    assert found.url.endswith("-latest-freebsd-aarch64.aci")


def test_labels_fill_variables_and_the_users_platform_counts(net: Net) -> None:
    net.pages["example.com/"] = page(("example.com", "https://example.com/x/{arch}/{channel}/{version}.{ext}"))
    net.pages["example.com/x/aarch64/beta/1.aci"] = Page(b"image")
    assert (
        net.find("example.com/app:1,channel=beta,arch=aarch64").url == "https://example.com/x/aarch64/beta/1.aci"
    )


def test_what_a_label_holds_stays_in_the_path(net: Net) -> None:
    net.pages["example.com/"] = page(("example.com", "https://example.com/x/{channel}.{ext}"))
    with pytest.raises(FetchNotFoundError):
        net.find("example.com/app,channel=a?b#c%2F")
    assert "example.com/x/a%3Fb%23c%252F.aci" in net.asked


# --- walking up (D2) ---


def test_the_parent_is_asked_where_a_page_is_missing_or_says_nothing(net: Net) -> None:
    net.pages["example.com/a/b"] = page()
    net.pages["example.com/a"] = page(("example.com/other", "https://example.com/wrong.{ext}"))
    net.pages["example.com/"] = page(("example.com", "https://example.com/right.{ext}"))
    net.pages["example.com/right.aci"] = Page(b"image")
    assert net.find("example.com/a/b/c:1").url == "https://example.com/right.aci"
    paths = ["example.com/a/b/c", "example.com/a/b", "example.com/a", "example.com/"]
    assert net.asked == [f"{path}?ac-discovery=1" for path in paths] + ["example.com/right.aci"]


@pytest.mark.parametrize("status", [400, 401, 403, 410, 451])
def test_any_refusal_is_walked_past(net: Net, status: int) -> None:
    net.pages["example.com/a"] = Page(b"", statuses=[status])
    net.pages["example.com/"] = page(("example.com", "https://example.com/right.{ext}"))
    net.pages["example.com/right.aci"] = Page(b"image")
    assert net.find("example.com/a:1").url == "https://example.com/right.aci"


@pytest.mark.parametrize(("status", "said"), [(500, "the server failed"), (429, "too many requests")])
def test_a_server_that_fails_is_not_walked_past(net: Net, status: int, said: str) -> None:
    """The page above may lead elsewhere than the one that cannot be had for now."""
    net.pages["example.com/a"] = Page(b"", statuses=[status, status])
    net.pages["example.com/"] = page(("example.com", "https://example.com/other.{ext}"))
    net.pages["example.com/other.aci"] = Page(b"another image")
    with pytest.raises(FetchError, match=rf"example.com/a:1: https://example.com/a: {said}"):
        net.find("example.com/a:1", retries=1)
    assert net.asked == ["example.com/a?ac-discovery=1"] * 2


def test_a_failing_page_is_asked_again(net: Net) -> None:
    net.pages["example.com/a"] = page(("example.com", "https://example.com/right.{ext}"))
    net.pages["example.com/a"].statuses = [503]
    net.pages["example.com/right.aci"] = Page(b"image")
    assert net.find("example.com/a:1").url == "https://example.com/right.aci"


def test_redirects_are_followed(net: Net) -> None:
    net.pages["example.com/a"] = Page(redirect="https://storage.example.com/moved")
    net.pages["storage.example.com/moved"] = page(("example.com", "https://example.com/x.{ext}"))
    net.pages["example.com/x.aci"] = Page(redirect="/y.aci")
    net.pages["example.com/y.aci"] = Page(b"image")
    assert net.find("example.com/a:1").url == "https://example.com/y.aci"


def test_nothing_is_said_anywhere(net: Net) -> None:
    with pytest.raises(
        FetchNotFoundError, match=r"example.com/a/b:1: .*does not say where its images are"
    ) as caught:
        net.find("example.com/a/b:1")
    assert caught.value.hint == "name an address: https://HOST/FILE.aci"


@pytest.mark.parametrize("status", [401, 403, 405])
def test_a_host_without_pages(net: Net, status: int) -> None:
    """Such as a registry, which says so in several ways."""
    net.pages["example.com/a"] = net.pages["example.com/"] = Page(statuses=[status] * 9)
    net.pages["example.com/a.aci"] = Page(statuses=[status] * 9)
    with pytest.raises(FetchError) as caught:
        net.find("example.com/a:1")
    assert (status == 401) == ("auth.d" in (caught.value.hint or ""))


@pytest.mark.parametrize("text", ["busybox", "busybox:1"])
def test_a_word_is_no_domain(net: Net, text: str) -> None:
    with pytest.raises(FetchNotFoundError, match="without a domain") as caught:
        net.find(text)
    assert caught.value.hint == "add the domain: example.com/busybox"
    assert not net.proxy.asked


@pytest.mark.parametrize("text", ["a..b/c", f"{'a' * 64}.com/b", "a~b/c"])
def test_what_begins_with_no_host(net: Net, text: str) -> None:
    with pytest.raises(UsageError, match="is not a host"):
        net.find(text)
    assert not net.proxy.asked


def test_a_host_that_is_not_there(net: Net) -> None:
    with pytest.raises(FetchRefusedError, match="the proxy does not connect"):
        net.find("elsewhere.example.com/app")


# --- templates (D3) ---


def test_prefixes_match_whole_components(net: Net) -> None:
    net.pages["example.com/busybox"] = page(
        ("example.com/busy", "https://example.com/wrong.{ext}"),
        ("example.com/busybox/", "https://example.com/right.{ext}"),
    )
    net.pages["example.com/wrong.aci"] = Page(b"wrong")
    net.pages["example.com/right.aci"] = Page(b"image")
    assert net.find("example.com/busybox:1").url == "https://example.com/right.aci"


def test_templates_are_tried_in_order(net: Net) -> None:
    net.pages["example.com/a"] = page(
        ("example.com", "https://example.com/{unknown}/a.{ext}"),
        ("example.com", "hdfs://example.com/{name}.{ext}"),
        ("example.com", "https://example.com/b.{ext}?torrent"),
        ("example.com", "http://example.com/plain.{ext}"),
        ("example.com", "https://user:secret@example.com/login.{ext}"),
        ("example.com", "https://[/{name}.{ext}"),
        ("example.com", "https://[/{name}"),
        ("example.com", "https://missing.example.com/c.{ext}"),
        ("example.com", "https://storage.example.com/missing.{ext}"),
        ("example.com", "https://storage.example.com/d.{ext}"),
        ("example.com", "https://storage.example.com/late.{ext}"),
    )
    for host in ("example.com/a.aci", "example.com/b.aci", "storage.example.com/late.aci"):
        net.pages[host] = Page(b"wrong")
    net.pages["storage.example.com/d.aci"] = Page(b"image")
    assert net.find("example.com/a:1").url == "https://storage.example.com/d.aci"
    assert [note.partition("skipped")[2] for note in net.notes] == [
        ", for 'hdfs' is not understood: hdfs://example.com/{name}.{ext}",
        ", for torrents are not understood: https://example.com/b.{ext}?torrent",
    ]
    assert net.asked[1:] == ["storage.example.com/missing.aci", "storage.example.com/d.aci"]


def test_all_places_are_named_when_the_image_is_in_none(net: Net) -> None:
    net.pages["example.com/a"] = page(
        ("example.com", "https://example.com/x.{ext}"), ("example.com", "https://storage.example.com/y.{ext}")
    )
    with pytest.raises(FetchNotFoundError) as caught:
        net.find("example.com/a:1")
    assert caught.value.message == (
        "example.com/a:1: not found: asked https://example.com/x.aci, https://storage.example.com/y.aci"
    )


def test_the_late_signature(net: Net) -> None:
    net.pages["example.com/a"] = page(("example.com", "https://example.com/x.{ext}"))
    net.pages["example.com/x.aci"] = Page(b"image")
    found = net.find("example.com/a:1")
    assert found.blob.signature() is None
    net.pages["example.com/x.sig"] = Page(b"early")
    net.pages["example.com/x.aci.asc"] = Page(b"late")
    signature = found.blob.signature()
    assert signature is not None
    assert (signature.data, signature.over) == (b"late", "archive")
    assert signature.url == "https://example.com/x.aci.asc"
    del net.pages["example.com/x.aci.asc"]
    signature = found.blob.signature()
    assert signature is not None
    assert (signature.data, signature.over) == (b"early", "tar")


def test_a_template_without_an_extension(net: Net) -> None:
    """The late reading takes it for the archive's whole address; the early one puts its extensions behind it."""
    net.pages["example.com/a"] = page(("example.com", "https://example.com/x-{version}"))
    net.pages["example.com/x-1.aci"] = Page(b"image")
    net.pages["example.com/x-1.sig"] = Page(b"early")
    found = net.find("example.com/a:1")
    assert found.url == "https://example.com/x-1.aci"
    signature = found.blob.signature()
    assert signature is not None
    assert signature.over == "tar"
    net.pages["example.com/x-2"] = Page(b"image")
    net.pages["example.com/x-2.asc"] = Page(b"late")
    found = net.find("example.com/a:2")
    signature = found.blob.signature()
    assert signature is not None
    assert (found.url, signature.over) == ("https://example.com/x-2", "archive")


def test_the_early_reading_is_tried_on_404(net: Net) -> None:
    """The draft's own example: {name} is what follows the prefix."""
    template = "https://storage.example.com/{os}/{arch}/{name}-{version}.{ext}"
    net.pages["example.com/reduce-worker"] = page(("example.com", template))
    net.pages["storage.example.com/linux/amd64/reduce-worker-1.0.0.aci"] = Page(b"image")
    net.pages["storage.example.com/linux/amd64/reduce-worker-1.0.0.sig"] = Page(b"early")
    found = net.find("example.com/reduce-worker:1.0.0")
    assert found.url == "https://storage.example.com/linux/amd64/reduce-worker-1.0.0.aci"
    assert net.asked[1] == "storage.example.com/linux/amd64/example.com/reduce-worker-1.0.0.aci"
    signature = found.blob.signature()
    assert signature is not None
    assert signature.over == "tar"


def test_early_templates_are_rfc_6570(net: Net) -> None:
    net.pages["example.com/a/b"] = page(("example.com", "https://example.com/x/{+name}{/version}{.ext}{?os,arch}"))
    net.pages["example.com/x/a/b/1.aci"] = Page(b"image")
    assert net.find("example.com/a/b:1").url == "https://example.com/x/a/b/1.aci"
    assert net.asked[-1] == "example.com/x/a/b/1.aci?os=linux&arch=amd64"


# --- the early way (D4) ---


def test_a_bare_name_is_looked_for_beside_itself_first(net: Net) -> None:
    net.pages["example.com/reduce-worker-1.0.0.aci"] = Page(b"image")
    net.pages["example.com/reduce-worker-1.0.0.aci.asc"] = Page(b"late")
    found = net.find("example.com/reduce-worker-1.0.0")
    assert found.url == "https://example.com/reduce-worker-1.0.0.aci"
    assert len(net.asked) == 1
    signature = found.blob.signature()
    assert signature is not None
    assert (signature.data, signature.over) == (b"late", "archive")
    net.pages["example.com/reduce-worker-1.0.0.sig"] = Page(b"early")
    signature = found.blob.signature()
    assert signature is not None
    assert (signature.data, signature.over) == (b"early", "tar")


def test_one_with_a_version_or_labels_is_not(net: Net) -> None:
    net.pages["example.com/app.aci"] = Page(b"wrong")
    for text in ("example.com/app:1", "example.com/app,arch=amd64"):
        with pytest.raises(FetchNotFoundError):
            net.find(text)


def test_early_meta_discovery_follows(net: Net) -> None:
    """``x-1.0.0`` is asked for as ``x`` with the version 1.0.0, then as it stands."""
    template = "https://storage.example.com/{os}/{arch}/{name}-{version}.{ext}"
    net.pages["example.com/reduce-worker"] = page(("example.com", template))
    net.pages["storage.example.com/linux/amd64/reduce-worker-1.0.0.aci"] = Page(b"image")
    found = net.find("example.com/reduce-worker-1.0.0")
    assert found.url == "https://storage.example.com/linux/amd64/reduce-worker-1.0.0.aci"
    assert net.asked[:2] == ["example.com/reduce-worker-1.0.0.aci", "example.com/reduce-worker?ac-discovery=1"]


def test_then_the_late_way(net: Net) -> None:
    net.pages["example.com/worker-2.0"] = page(("example.com", "https://example.com/late-{version}.{ext}"))
    net.pages["example.com/late-latest.aci"] = Page(b"image")
    assert net.find("example.com/worker-2.0").url == "https://example.com/late-latest.aci"


def test_a_page_for_every_address_is_no_image(net: Net) -> None:
    net.pages["example.com/app.aci"] = Page(b"<html>", headers={"Content-Type": "text/html; charset=utf-8"})
    net.pages["example.com/app"] = page(("example.com", "https://example.com/x.{ext}"))
    net.pages["example.com/x.aci"] = Page(b"image")
    assert net.find("example.com/app").url == "https://example.com/x.aci"


def test_a_domain_alone_is_not_looked_for_at_another_host(net: Net) -> None:
    net.pages["example.com/"] = page(("example.com", "https://example.com/x.{ext}"))
    net.pages["example.com/x.aci"] = Page(b"image")
    assert net.find("example.com").url == "https://example.com/x.aci"
    assert set(net.proxy.asked) == {"example.com:443"}


# --- keys ---


@pytest.mark.parametrize("kind", ["ac-discovery-pubkeys", "ac-discovery-keys", "AC-Discovery-PubKeys"])
def test_keys(net: Net, kind: str) -> None:
    net.pages["example.com/a"] = page(("example.com", "https://example.com/x.{ext}"))
    net.pages["example.com/"] = page(
        ("example.com", "https://example.com/one.gpg"),
        ("example.com/other", "https://example.com/wrong.gpg"),
        ("example.com", "https://storage.example.com/two.gpg"),
        kind=kind,
    )
    net.pages["example.com/one.gpg"] = Page(b"one")
    net.pages["storage.example.com/two.gpg"] = Page(b"two")
    keys = net.fetcher().public_keys("example.com/a", REQUEST)
    assert [(key.data, key.url) for key in keys] == [
        (b"one", "https://example.com/one.gpg"),
        (b"two", "https://storage.example.com/two.gpg"),
    ]
    assert net.asked[:2] == ["example.com/a?ac-discovery=1", "example.com/?ac-discovery=1"], (
        "keys walk up by themselves"
    )


def test_no_keys(net: Net) -> None:
    assert net.fetcher().public_keys("example.com/a", REQUEST) == ()


def test_keys_that_are_not_where_the_page_says(net: Net) -> None:
    net.pages["example.com/a"] = page(("example.com", "https://example.com/x.gpg"), kind="ac-discovery-pubkeys")
    with pytest.raises(FetchNotFoundError, match=r"asked https://example.com/x.gpg"):
        net.fetcher().public_keys("example.com/a", REQUEST)
    net.pages["example.com/x.gpg"] = Page(bytes(2 << 20))
    with pytest.raises(FetchError, match="larger than keys can be"):
        net.fetcher().public_keys("example.com/a", REQUEST)


# --- credentials and plain http (D5) ---


def auth(net: Net, *entries: dict[str, object]) -> None:
    directory = net.directory / "auth.d"
    directory.mkdir()
    for number, entry in enumerate(entries):
        (directory / f"{number}.json").write_text(json.dumps(entry))
        (directory / f"{number}.json").chmod(0o600)


BASIC = "Basic dTpw"
ENTRIES = {
    "basic": ({"hosts": ["secret.example.com"], "type": "basic", "user": "u", "password": "p"}, BASIC),
    "bearer": ({"hosts": ["secret.example.com"], "type": "bearer", "token": "t"}, "Bearer t"),
    "rkt basic": (
        {
            "rktKind": "auth",
            "rktVersion": "v1",
            "domains": ["secret.example.com"],
            "type": "basic",
            "credentials": {"user": "u", "password": "p"},
        },
        BASIC,
    ),
    "rkt oauth": (
        {
            "rktKind": "auth",
            "rktVersion": "v1",
            "domains": ["secret.example.com"],
            "type": "oauth",
            "credentials": {"token": "t"},
        },
        "Bearer t",
    ),
    "rkt docker": (
        {
            "rktKind": "dockerAuth",
            "rktVersion": "v1",
            "registries": ["secret.example.com"],
            "credentials": {"user": "u", "password": "p"},
        },
        BASIC,
    ),
}


@pytest.mark.parametrize("kind", ENTRIES)
def test_credentials_go_to_their_host_alone(net: Net, kind: str) -> None:
    entry, wanted = ENTRIES[kind]
    auth(net, entry)
    net.pages["example.com/a"] = page(("example.com", "https://secret.example.com/x.{ext}"))
    net.pages["secret.example.com/x.aci"] = Page(b"image", authorization=wanted)
    net.pages["secret.example.com/x.aci.asc"] = Page(b"late", authorization=wanted)
    assert net.find("example.com/a:1").blob.signature() is not None
    sent = {seen.headers["Host"]: seen.headers.get("Authorization") for seen in net.server.seen}
    assert sent == {"example.com": None, "secret.example.com": wanted}


def test_without_credentials(net: Net) -> None:
    net.pages["example.com/a"] = page(
        ("example.com", "https://secret.example.com/x.{ext}"), ("example.com", "https://example.com/missing.{ext}")
    )
    net.pages["secret.example.com/x.aci"] = Page(b"image", authorization=BASIC)
    with pytest.raises(
        FetchUnauthorizedError, match=r"example.com/a:1: https://secret.example.com/x.aci: requires"
    ) as caught:
        net.find("example.com/a:1")
    assert "secret.example.com" in (caught.value.hint or "")


def test_a_page_that_asks_for_credentials(net: Net) -> None:
    net.pages["example.com/a"] = Page(b"", authorization=BASIC)
    with pytest.raises(FetchUnauthorizedError):
        net.find("example.com/a:1")


def test_a_template_that_downgrades(net: Net) -> None:
    net.pages["example.com/a"] = page(("example.com", "http://example.com/x.{ext}"))
    with pytest.raises(FetchRefusedError, match="plain http is not allowed") as caught:
        net.find("example.com/a:1")
    assert "--insecure-options=http" in (caught.value.hint or "")


@pytest.mark.parametrize("where", ["example.com/a", "example.com/x.aci"])
def test_a_redirect_that_downgrades(net: Net, where: str) -> None:
    net.pages["example.com/a"] = page(("example.com", "https://example.com/x.{ext}"))
    net.pages[where] = Page(redirect="http://example.com/plain")
    with pytest.raises(FetchRefusedError, match="redirects from https to plain http"):
        net.find("example.com/a:1")


@pytest.mark.parametrize(
    "target", ["ftp://example.com/x", "https://[/", "https://u:p@example.com/", "https://a:b/"]
)
def test_a_redirect_to_nonsense(net: Net, target: str) -> None:
    net.pages["example.com/a"] = Page(redirect=target)
    with pytest.raises(FetchError, match="redirects"):
        net.find("example.com/a:1")


def test_an_unknown_authority_is_refused_and_not_tried_in_plain(net: Net) -> None:
    with pytest.raises(FetchTLSError, match="unknown authority"):
        net.find("example.com/a", ca_file="")


@pytest.fixture
def plain(net: Net, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A server that plain requests for any name come to: as a proxy, it is asked for the whole address."""
    with web_server() as server:
        monkeypatch.setenv("http_proxy", server.url(""))
        yield server


def test_plain_http_when_allowed(net: Net, plain: WebServer) -> None:
    """https is asked first, at each place."""
    plain.pages["http://example.com/a"] = page(("example.com", "http://example.com/x.{ext}"))
    plain.pages["http://example.com/x.aci"] = Page(b"image")
    with pytest.raises(FetchNotFoundError):
        net.find("example.com/a:1")
    assert not plain.seen
    net.server.seen.clear()
    found = net.find("example.com/a:1", "http")
    assert (found.url, found.transport) == ("http://example.com/x.aci", "http")
    assert net.asked == ["example.com/a?ac-discovery=1"]


def test_keys_over_plain_http_when_allowed(net: Net, plain: WebServer) -> None:
    plain.pages["http://example.com/a"] = page(
        ("example.com", "http://example.com/k"), kind="ac-discovery-pubkeys"
    )
    plain.pages["http://example.com/k"] = Page(b"key")
    assert net.fetcher().public_keys("example.com/a", REQUEST) == ()
    keys = net.fetcher().public_keys("example.com/a", FetchRequest("linux", "amd64", frozenset({"pubkey"})))
    assert [key.data for key in keys] == [b"key"]


# --- whatever stands there ---

_word = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
_pieces = st.one_of(
    _word,
    st.sampled_from(
        ["{name}", "{version}", "{ext}", "{", "}", "{+name}", "{ext:x}", "https://example.com/", "@", "["]
    ),
)


@given(target=st.lists(_pieces, min_size=1, max_size=6).map("".join), body=st.binary(max_size=40))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_page_crashes_it(net: Net, target: str, body: bytes) -> None:
    """An image is found or an error of ours says why not; the user's words are not blamed."""
    html = f'<meta name=ac-discovery content="example.com https://example.com/{target}">'
    net.pages["example.com/a"] = Page(html.encode("utf-8", "replace") + body, etag="")
    with contextlib.suppress(FetchError):
        net.find("example.com/a:1", retries=0)
