"""Images are pushed to a registry: with credentials, over connections that break, and once only."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.integration.acceptance.test_images_saved import SAID, layered, ran, skopeo
from tests.kit.command import Kurma, one_line
from tests.kit.images import archive
from tests.kit.registry import Registry, running_registry
from tests.kit.waiting import until

pytestmark = pytest.mark.root
__all__ = ("layered",)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Registry]:
    """A registry that asks for user and password."""
    users = str(tmp_path / "users")
    subprocess.run(["htpasswd", "-Bbc", users, "user", "secret"], check=True, capture_output=True)
    with running_registry(tmp_path / "closed", auth={"htpasswd": {"realm": "test", "path": users}}) as found:
        yield found


@pytest.fixture
def image(kurma: Kurma, layered: str) -> str:
    return kurma.out("image", "fetch", layered).strip()


@pytest.fixture
def own(kurma: Kurma, tmp_path: Path) -> Kurma:
    """The shared images, and credentials of the test's own."""
    return kurma.configured(tmp_path / "kurma.json", auth_dir=f"{tmp_path}/auth.d")


def uploads(registry: Registry, name: str) -> list[Path]:
    return list((registry.storage / "docker/registry/v2/repositories" / name).glob("_uploads/*"))


def test_a_pushed_image_is_pulled_and_runs(
    own: Kurma, fresh: Kurma, image: str, closed: Registry, tmp_path: Path
) -> None:
    name = f"{closed.host}/team/app:v2"
    refused = own("image", "push", image, name)
    assert refused.returncode == 125
    assert "requires credentials" in refused.stderr
    assert f"kurma login {closed.host}" in refused.stderr
    own.out("login", "-u", "user", "--password-stdin", closed.host, input="secret\n")
    digest = own.out("image", "push", image, name, "--digest-file", f"{tmp_path}/digest").strip()
    assert (tmp_path / "digest").read_text() == digest
    address = f"docker://{closed.host}/team/app"
    creds = ("--tls-verify=false", "--creds", "user:secret")
    assert json.loads(skopeo("inspect", *creds, f"{address}:v2"))["Digest"] == digest
    (tmp_path / "creds").write_text("user:secret\n")
    fresh.out("image", "fetch", "--creds-file", f"{tmp_path}/creds", f"{address}@{digest}")
    assert ran(fresh, f"{address}@{digest}") == (5, SAID)
    assert own.out("image", "push", image, f"{address}:v3").strip() == digest
    assert uploads(closed, "team/app") == []


def test_credentials_of_one_push(own: Kurma, image: str, closed: Registry, tmp_path: Path) -> None:
    for secret, code in (("wrong", 125), ("secret", 0)):
        (tmp_path / "creds").write_text(f"user:{secret}\n")
        done = own("image", "push", "--creds-file", f"{tmp_path}/creds", image, f"docker://{closed.host}/x:v1")
        assert done.returncode == code, done.stderr
    assert not (tmp_path / "auth.d").exists()


def test_back_to_where_it_came_from(kurma: Kurma, fresh: Kurma, registry: Registry, layered: str) -> None:
    registry.push(layered, "team/back:v1")
    address = f"docker://{registry.host}/team/back:v1"
    before = json.loads(skopeo("inspect", "--tls-verify=false", address))["Digest"]
    fresh.out("image", "fetch", address)
    digest = fresh.out("image", "push", address).strip()
    assert digest != before
    assert json.loads(skopeo("inspect", "--tls-verify=false", address))["Digest"] == digest


@pytest.mark.parametrize(
    ("destination", "code", "said", "hint"),
    [
        ((), 2, "came from no registry", "DESTINATION"),
        (("app",), 2, "without a host", "docker://docker.io/library/app"),
        (("example.com:5000/UPPER",), 2, "names are in lower case", None),
        (("docker://example.com/UPPER",), 2, "lower case", None),
        ((f"docker://example.com/x@sha256:{'0' * 64}",), 2, "not to a digest", None),
        (("docker://127.0.0.1:1/x",), 125, "127.0.0.1:1", None),
    ],
)
def test_what_cannot_be_says_so(
    kurma: Kurma, image: str, destination: tuple[str, ...], code: int, said: str, hint: str | None
) -> None:
    one_line(kurma("image", "push", image, *destination), said, code=code, hint=hint)


class Front:
    """Stands before a registry: asks for tokens, and breaks connections.

    :ivar breaks: how many uploads are cut in the middle. :ivar holds: uploads stay in the middle.
    :ivar begun: set when an upload stays. :ivar puts: bytes of the bodies that came whole.
    """

    def __init__(self, target: str) -> None:
        self.breaks = 0
        self.holds = False
        self.begun, self.over = threading.Event(), threading.Event()
        self.puts: list[int] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, target))
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_address[1]}"


def _handler(front: Front, target: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Tests look at ``puts``."""

        def answer(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/token":
                known = self.headers["Authorization"] == "Basic dXNlcjpzZWNyZXQ="
                self.say(200 if known else 401, json.dumps({"token": parse_qs(parts.query)["scope"][0]}).encode())
                return
            right = "pull" if self.command in ("HEAD", "GET") else "pull,push"
            name = parts.path.removeprefix("/v2/").partition("/blobs/")[0].partition("/manifests/")[0]
            scope = f"repository:{name}:{right}"
            if not self.headers.get("Authorization", "").startswith(f"Bearer {scope}"):
                where = f'Bearer realm="http://{front.host}/token",service="s",scope="{scope}"'
                self.close_connection = True
                self.say(401, b"{}", {"WWW-Authenticate": where})
                return
            self.hand_on(int(self.headers.get("Content-Length") or 0))

        def hand_on(self, length: int) -> None:
            if self.command == "PUT" and "/uploads/" in self.path and (front.holds or front.breaks):
                self.rfile.read(min(length, 16))
                front.begun.set()
                if front.holds:
                    front.over.wait()
                else:
                    front.breaks -= 1
                self.close_connection = True
                return
            body = self.rfile.read(length)
            if self.command == "PUT":
                front.puts.append(len(body))
            kept = {key: self.headers[key] for key in ("Content-Type", "Accept") if key in self.headers}
            with closing(http.client.HTTPConnection(target, timeout=20)) as connection:
                connection.request(self.command, self.path, body=body, headers={**kept, "Host": front.host})
                found = connection.getresponse()
                names = ("Location", "Docker-Content-Digest", "Content-Type")
                headers = {key: found.headers[key] for key in names if key in found.headers}
                self.say(found.status, found.read(), headers)

        def say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    return Handler


@pytest.fixture
def front(registry: Registry) -> Iterator[Front]:
    found = Front(registry.host)
    thread = threading.Thread(target=found.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield found
    found.over.set()
    found.server.shutdown()
    found.server.server_close()
    thread.join()


def test_tokens_and_broken_connections(own: Kurma, image: str, front: Front, tmp_path: Path) -> None:
    """The right to push is asked for; a broken upload begins again; what is there is not sent."""
    front.breaks = 2
    (tmp_path / "creds").write_text("user:secret\n")
    words = ("image", "push", "--creds-file", f"{tmp_path}/creds", image, f"docker://{front.host}/team/tokens:v1")
    digest = own.out(*words).strip()
    assert front.breaks == 0
    assert len(front.puts) == 5, "three layers, the configuration, the manifest"
    front.puts.clear()
    assert own.out(*words).strip() == digest
    assert len(front.puts) == 1, "the manifest"


@pytest.mark.full
def test_a_killed_push_leaves_nothing(own: Kurma, registry: Registry, front: Front, tmp_path: Path) -> None:
    """No file here, and no name in the registry; the next push is whole."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root/large").write_bytes(os.urandom(8 << 20))
    path = archive(f"{tmp_path}/root", f"{tmp_path}/large.aci", "example.com/pushed")
    image = own.out("image", "fetch", path).strip()
    (tmp_path / "creds").write_text("user:secret\n")
    words = ("image", "push", "--creds-file", f"{tmp_path}/creds", image, f"docker://{front.host}/team/killed:v1")
    front.holds = True
    running = own.popen(*words)
    until(front.begun.is_set, "an upload has begun")
    before = {str(one) for one in own.state.rglob("*")}
    running.kill()
    running.communicate()
    assert {str(one) for one in own.state.rglob("*")} == before
    plugin = own.state / "plugins/kurma.fetchers/docker"
    assert [one for one in plugin.rglob("*") if one.is_file() and "archives" not in one.parts] == []
    tags = registry.storage / "docker/registry/v2/repositories/team/killed/_manifests/tags"
    assert not tags.exists()
    front.holds = False
    front.over.set()
    own.out(*words)
    assert [one.name for one in tags.iterdir()] == ["v1"]
