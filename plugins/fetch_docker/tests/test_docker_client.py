"""What a real registry does not do on demand: cut, redirect, hand out tokens, refuse."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path

import kurma_fetch_docker.plugin
import pytest
import trustme
from kurma_fetch_docker.logins import Login, Logins
from kurma_fetch_docker.plugin import DockerFetcher
from kurma_fetch_docker.registries import Endpoints, is_loopback
from kurma_fetch_docker.registry_client import Client
from kurma_fetch_docker.registry_tokens import RegistryAuthorizer, parse_challenge
from kurma_fetch_http.transport import Transport
from kurma_testing import driver_context, load_driver
from kurma_testing.webserver import Page, WebServer, proxy, web_server

from kurma_core.errors import (
    FetchDigestError,
    FetchError,
    FetchNotFoundError,
    FetchRefusedError,
    FetchTimeoutError,
    FetchUnauthorizedError,
)
from kurma_core.hookspecs.fetcher import FetchRequest, RemoteLayers
from kurma_core.value import replace
from plugins.fetch_docker.tests.docker_parts import BLOB, CONFIG, MANIFEST, PACKED, serve, sha256
from plugins.fetch_http.tests.endless import endless

MANIFEST_PATH = "/v2/app/manifests/v1"


def resolve(tmp_path: Path, locator: str, **options: object) -> RemoteLayers:
    fetcher = load_driver(kurma_fetch_docker.plugin, tmp_path, {"docker_config": f"{tmp_path}/none", **options})
    found = fetcher.resolve(locator, FetchRequest("linux", "amd64"))
    assert isinstance(found, RemoteLayers)
    return found


def content_of(found: RemoteLayers, offset: int = 0) -> bytes:
    with found.layers[0].blob.open(offset) as stream:
        return b"".join(iter(lambda: stream.read(10_000), b""))


def test_a_layer_goes_on_where_it_broke(tmp_path: Path, server: WebServer) -> None:
    locator = serve(server)
    server.pages[BLOB].cuts = [100_000]
    assert content_of(resolve(tmp_path, locator)) == PACKED
    assert server.requests(BLOB)[1].headers["Range"] == "bytes=100000-"


def test_blobs_are_redirected_and_credentials_stay_behind(tmp_path: Path, server: WebServer) -> None:
    with web_server() as store:
        locator = serve(server)
        for page in server.pages.values():
            page.authorization = "Basic dTpw"
            page.headers = {"WWW-Authenticate": 'Basic realm="r"'}
        store.pages["/content"] = Page(PACKED)
        server.pages[BLOB].redirect = store.url("/content?signature=1")
        (tmp_path / "config").write_text(json.dumps({"auths": {f"http://{server.host}/v1/": {"auth": "dTpw"}}}))
        found = resolve(tmp_path, locator, docker_config=str(tmp_path / "config"))
        assert content_of(found) == PACKED
        assert "Authorization" in server.requests(BLOB)[0].headers
        assert [seen.path for seen in store.seen] == ["/content?signature=1"]
        assert "Authorization" not in store.seen[0].headers


def tokens(server: WebServer, answer: object = None) -> str:
    """Has the image and asks for a bearer token, which ``/token`` hands out."""
    locator = serve(server)
    realm = f'Bearer realm="{server.url("/token")}",service="s",scope="repository:app:pull,push"'
    for page in server.pages.values():
        page.authorization, page.headers = "Bearer t0", {"WWW-Authenticate": realm}
    server.pages["/token"] = Page(json.dumps(answer or {"token": "t0"}).encode())
    return locator


def test_a_token_is_fetched_once(tmp_path: Path, server: WebServer) -> None:
    found = resolve(tmp_path, tokens(server))
    assert content_of(found) == PACKED
    (asked,) = server.requests("/token")
    assert asked.path == "/token?service=s&scope=repository%3Aapp%3Apull%2Cpush"
    assert "Authorization" not in asked.headers


def test_a_challenge_without_a_scope(tmp_path: Path, server: WebServer) -> None:
    """What is wanted is known: to read the repository."""
    locator = tokens(server)
    for page in server.pages.values():
        page.headers = {"WWW-Authenticate": f'Bearer realm="{server.url("/token")}"'}
    assert content_of(resolve(tmp_path, locator)) == PACKED
    assert [asked.path for asked in server.requests("/token")] == ["/token?scope=repository%3Aapp%3Apull"]


def test_every_kind_of_manifest_is_asked_for(tmp_path: Path, server: WebServer) -> None:
    """A registry hands out what the client says that it knows, and may turn the rest into what is out of use."""
    resolve(tmp_path, serve(server))
    (asked,) = server.requests(MANIFEST_PATH)
    assert set(asked.headers["Accept"].split(", ")) == {
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    }


def test_a_token_that_ran_out_is_fetched_anew(tmp_path: Path, server: WebServer) -> None:
    found = resolve(tmp_path, tokens(server))
    server.pages[BLOB].authorization = "Bearer t1"
    server.pages["/token"] = Page(b'{"access_token": "t1"}')
    assert content_of(found) == PACKED
    assert len(server.requests("/token")) == 2


def test_an_identity_token_is_exchanged(tmp_path: Path, server: WebServer) -> None:
    locator = tokens(server)
    (tmp_path / "config").write_text(json.dumps({"auths": {server.host: {"identitytoken": "id"}}}))
    resolve(tmp_path, locator, docker_config=str(tmp_path / "config"))
    (asked,) = server.requests("/token")
    assert asked.method == "POST"
    assert b"refresh_token=id" in asked.body


@pytest.mark.parametrize("answer", [{"token": 1}, {"nothing": "x"}, {"token": "a\nb"}])
def test_tokens_that_are_none(tmp_path: Path, server: WebServer, answer: object) -> None:
    with pytest.raises(FetchUnauthorizedError, match="sent no token"):
        resolve(tmp_path, tokens(server, answer))


def test_too_many_requests(tmp_path: Path, server: WebServer) -> None:
    locator = serve(server)
    page = server.pages[MANIFEST_PATH]
    page.statuses, page.headers = [429], {"Retry-After": "0"}
    assert resolve(tmp_path, locator).digest == sha256(MANIFEST)
    page.statuses, page.headers = [429], {"Retry-After": "3600"}
    with pytest.raises(FetchRefusedError, match="too many requests"):
        resolve(tmp_path, locator)


def test_a_manifest_that_is_not_the_one_pinned(tmp_path: Path, server: WebServer) -> None:
    locator = serve(server)
    pinned = sha256(b"another")
    server.pages[f"/v2/app/manifests/{pinned}"] = Page(MANIFEST)
    with pytest.raises(FetchDigestError, match="its digest is"):
        resolve(tmp_path, f"{locator}@{pinned}")
    server.pages[f"/v2/app/manifests/{sha256(MANIFEST)}"] = Page(MANIFEST)
    assert resolve(tmp_path, f"{locator}@{sha256(MANIFEST)}").pinned
    server.pages[MANIFEST_PATH] = Page(b"the tag has moved on")
    assert resolve(tmp_path, f"{locator}@{sha256(MANIFEST)}").digest == sha256(MANIFEST)


def test_a_configuration_that_was_changed(tmp_path: Path, server: WebServer) -> None:
    locator = serve(server)
    server.pages[f"/v2/app/blobs/{sha256(CONFIG)}"].content = CONFIG.replace(b"/file", b"/evil")
    with pytest.raises(FetchDigestError):
        resolve(tmp_path, locator)


@pytest.mark.parametrize(
    "content",
    [
        b"not json",
        b"[]",
        b'{"schemaVersion": 1}',
        b'{"mediaType": "application/vnd.oci.artifact"}',
        b'{"config": {"digest": "sha256:../../etc/passwd", "size": 1}, "layers": []}',
        b'{"manifests": [{"digest": "sha256:00", "size": -1}]}',
        b"[" * 100_000,
        b" " * (5 << 20),
    ],
)
def test_manifests_that_are_none(tmp_path: Path, server: WebServer, content: bytes) -> None:
    locator = serve(server)
    server.pages[MANIFEST_PATH] = Page(content)
    with pytest.raises(FetchError) as caught:
        resolve(tmp_path, locator)
    assert "\n" not in caught.value.message


def test_an_index_that_holds_itself_ends(tmp_path: Path, server: WebServer) -> None:
    """It cannot hold its own digest; a long chain can be made."""
    locator = serve(server)
    content = MANIFEST
    for _ in range(5):
        digest = sha256(content)
        server.pages[f"/v2/app/manifests/{digest}"] = Page(content)
        content = json.dumps({"manifests": [{"digest": digest, "size": len(content)}]}).encode()
    server.pages[MANIFEST_PATH] = Page(content)
    with pytest.raises(FetchError, match="too deeply"):
        resolve(tmp_path, locator)


def test_mirrors_are_asked_first_and_may_fail(tmp_path: Path, server: WebServer) -> None:
    serve(server)
    notes: list[str] = []
    with web_server() as mirror:
        mirror.pages["/v2/"] = Page(b"{}")
        context = replace(
            driver_context(tmp_path, {"retries": 0}, note=notes.append),
            registries={"insecure": [], "mirrors": {server.host: ["m.example:99999", "x/y", mirror.host]}},
        )
        found = DockerFetcher(context).resolve(f"docker://{server.host}/app:v1", FetchRequest("linux", "amd64"))
        assert len(mirror.requests(MANIFEST_PATH)) == 1
    assert found.url.startswith(server.url("/v2/app"))
    assert [note.partition(" of ")[0] for note in notes if note.startswith("mirror ")] == [
        "mirror m.example:99999",
        "mirror x/y",
        f"mirror {mirror.host}",
    ]
    assert "'m.example:99999' is not a host[:port]" in notes[0]


def test_hosts_elsewhere_are_never_spoken_to_in_plain(tmp_path: Path) -> None:
    """Unless they are listed, not even asked whether they would: nothing listens at these."""
    context = driver_context(tmp_path, {"timeout": 0.1})
    request = FetchRequest("linux", "amd64")
    assert Endpoints(context, request).client("192.0.2.1:5000", "app").base == "https://192.0.2.1:5000"
    listed = replace(context, registries={"insecure": ["192.0.2.1:5000"], "mirrors": {}})
    with pytest.raises(FetchError):
        Endpoints(listed, request).client("192.0.2.1:5000", "app")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1:5000", True),
        ("127.9.9.9", True),
        ("[::1]:5000", True),
        ("[::1]", True),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("10.0.0.1:5000", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_challenges() -> None:
    text = 'Bearer realm="https://a/t?x=1",service=s, scope="repository:a:pull,push"'
    assert parse_challenge(text) == (
        "bearer",
        {"realm": "https://a/t?x=1", "service": "s", "scope": "repository:a:pull,push"},
    )
    assert parse_challenge("") == ("", {})


def test_not_found(tmp_path: Path, server: WebServer) -> None:
    locator = serve(server)
    with pytest.raises(FetchNotFoundError):
        resolve(tmp_path, locator + "x")


def test_credentials_do_not_leave_tls() -> None:
    """A registry over TLS that sends us to a token server without it gets nothing."""
    client = RegistryAuthorizer(None, "https://r.example", "r.example", "app", Logins("/nowhere", ""))  # type: ignore[arg-type]
    with pytest.raises(FetchRefusedError, match="plain http"):
        client.token({"realm": "http://r.example/token"}, None)


def test_layers_that_registries_do_not_hand_out(tmp_path: Path, server: WebServer) -> None:
    """They are asked of the registry first, then of where the manifest says: over TLS, and without credentials."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with web_server(context) as elsewhere:
        locator = serve(server)
        elsewhere.pages["/layer"] = Page(PACKED, cuts=[100_000])
        document = json.loads(MANIFEST)
        document["layers"][0]["urls"] = ["http://127.0.0.1:1/layer", elsewhere.url("/layer"), 5]
        server.pages[MANIFEST_PATH] = Page(json.dumps(document).encode())
        (tmp_path / "config").write_text(json.dumps({"auths": {elsewhere.host: {"auth": "dTpw"}}}))
        options = {"ca_file": f"{tmp_path}/ca.pem", "docker_config": f"{tmp_path}/config"}
        (layer,) = resolve(tmp_path, locator, **options).layers
        (other,) = layer.others
        assert (other.key, other.digest, other.size) == (layer.blob.key, layer.blob.digest, layer.blob.size)
        with other.open(1000) as stream:
            assert b"".join(iter(lambda: stream.read(10_000), b"")) == PACKED[1000:]
        assert [seen.headers.get("Range") for seen in elsewhere.seen] == ["bytes=1000-", "bytes=101000-"]
        assert all("Authorization" not in seen.headers for seen in elsewhere.seen)


def test_credentials_of_a_plain_registry_stay_with_its_host() -> None:
    """Whoever answers in its place could send for them to any address."""
    transport = Transport(insecure={"http"}, retries=0)
    with web_server() as server:
        login = Login("u", "p", "auth.json")
        logins = Logins("/nowhere", "")
        client = RegistryAuthorizer(transport, "http://r.example:5000", "r.example:5000", "app", logins)
        for realm in (server.url("/token"), server.url("/token").replace("http", "HTTP", 1)):
            with pytest.raises(FetchRefusedError, match="sent over plain http to another host: "):
                client.token({"realm": realm}, login)
        assert server.seen == []
        server.pages["/token"] = Page(b'{"token": "t"}')
        here = RegistryAuthorizer(transport, server.url(""), server.host, "app", logins)
        assert here.token({"realm": server.url("/token")}, login) == "t"
        assert client.token({"realm": server.url("/token")}, None) == "t", "nothing is given away"


def test_a_manifest_that_trickles(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while True:
                connection.sendall(b" ")
                time.sleep(0.01)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    transport = Transport(insecure={"http"}, retries=0, document_seconds=0.3)
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with pytest.raises(FetchTimeoutError, match="is too slow"):
            Client(transport, base, "r.example", "app", Logins("/nowhere", "/nowhere")).manifest("v1")
    finally:
        listener.close()
        thread.join()


def test_a_plain_registry_that_sends_for_tokens_over_the_network(tmp_path: Path, server: WebServer) -> None:
    """What this machine's own registry may hear over plain http, another host may not."""
    locator = tokens(server)
    (tmp_path / "config").write_text(json.dumps({"auths": {server.host: {"auth": "dTpw"}}}))
    for page in server.pages.values():
        page.headers = {"WWW-Authenticate": 'Bearer realm="http://192.0.2.1/token"'}
    with pytest.raises(FetchRefusedError, match=r"plain http to another host: http://192\.0\.2\.1/token"):
        resolve(tmp_path, locator, docker_config=str(tmp_path / "config"))
    for page in server.pages.values():
        page.headers = {"WWW-Authenticate": 'Bearer realm="token"'}
    with pytest.raises(FetchError, match="has an invalid token address"):
        resolve(tmp_path, locator, docker_config=str(tmp_path / "config"))


def test_a_refusal_without_end(tmp_path: Path) -> None:
    """What a registry says beside 401 is not read to its end."""
    head = b'HTTP/1.1 401 Who\r\nWWW-Authenticate: Basic realm="x"\r\n\r\n'
    with endless(head, b"x" * (1 << 16)) as (url, _):
        client = Client(
            Transport(insecure={"http"}, timeout=5.0, retries=0),
            url,
            "r.example",
            "app",
            Logins("/nowhere", "/nowhere"),
        )
        with pytest.raises(FetchUnauthorizedError, match="kurma has none"):
            client.manifest("v1")


def test_this_machines_own_registry_is_asked_without_a_proxy(
    tmp_path: Path, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain http will do there because nobody stands between."""
    locator = serve(server)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with proxy({}) as way:
        monkeypatch.setenv("http_proxy", way.host)
        monkeypatch.setenv("https_proxy", way.host)
        assert content_of(resolve(tmp_path, locator)) == PACKED
        assert not way.asked
        with pytest.raises(FetchRefusedError, match="the proxy does not connect"):
            resolve(tmp_path, "docker://registry.example/app:v1")
        assert way.asked == ["registry.example:443"]
