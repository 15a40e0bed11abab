"""Fetchers of a stranger's distribution: locators, what is remembered, trust (18.2).

Two schemes: ``vault:NAME`` gives an archive over TLS, ``shelf:NAME`` layers. Their server is one of the tests.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kurma_testing.webserver import Page, WebServer, web_server

from tests.kit.command import Kurma
from tests.kit.images import busybox_root
from tests.kit.installed import unpack

pytestmark = pytest.mark.root

MODULE = """
import hashlib, http.client, io, json
from kurma_core.appc.image import ImageManifest
from kurma_core.errors import FetchError, UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, Option
from kurma_core.hookspecs.fetcher import RemoteArchive, RemoteLayer, RemoteLayers


class Blob:
    def __init__(self, server, path, key):
        self.key, self.size, self.digest, self._server, self._path = key, None, None, server, path

    @hookimpl
    def open(self, offset):
        return io.BytesIO(self._server(self._path)[offset:])


class Server:
    def __init__(self, port):
        self._port = port

    def __call__(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read()
        except OSError as error:
            raise FetchError(f"the server of the stranger is down: {error}") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise FetchError(f"{path}: {answer.status}")
        return content


class Vault:
    def __init__(self, context):
        self._server = Server(context.config["port"])

    @hookimpl
    def resolve(self, locator, request):
        name = locator.removeprefix("vault:")
        if "/" in name or not name:
            raise UsageError(f"{locator}: not a name", hint="write vault:NAME")
        key = hashlib.sha256(self._server(f"/{name}.aci")).hexdigest()
        return RemoteArchive(locator, f"vault://{name}", "https", Blob(self._server, f"/{name}.aci", key))


class Shelf(Vault):
    @hookimpl
    def resolve(self, locator, request):
        name = locator.removeprefix("shelf:")
        facts = json.loads(self._server(f"/{name}.json"))
        manifest = ImageManifest.parse(facts["manifest"])
        layer = RemoteLayer(facts["diff_id"], Blob(self._server, f"/{name}.tar", facts["diff_id"]))
        return RemoteLayers(locator, f"shelf://{name}", "https", manifest, (layer,), facts["diff_id"])


class Vaults:
    @staticmethod
    @hookimpl
    def kurma_fetcher():
        return Driver(Vault, options=(PORT,), locators="name", example="vault:NAME")


class Shelves:
    @staticmethod
    @hookimpl
    def kurma_fetcher():
        return Driver(Shelf, options=(PORT,), locators="name")


PORT = Option("port", int, 0, "of the server")
"""


@pytest.fixture
def server(kurma: Kurma, tmp_path: Path) -> Iterator[WebServer]:
    root = busybox_root(str(tmp_path / "root"))
    with tarfile.open(tmp_path / "box.tar", "w") as tar:
        tar.add(root, ".")
    layer = (tmp_path / "box.tar").read_bytes()
    app = {"exec": ["/bin/sh"], "user": "0", "group": "0"}
    manifest = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/shelf", "app": app}
    facts = {"manifest": manifest, "diff_id": f"sha256:{hashlib.sha256(layer).hexdigest()}"}
    with web_server() as server:
        server.pages["/box.aci"] = Page(Path(kurma.image).read_bytes())
        server.pages["/box.tar"] = Page(layer)
        server.pages["/box.json"] = Page(json.dumps(facts).encode())
        yield server


@pytest.fixture
def stranger(fresh: Kurma, server: WebServer, tmp_path: Path) -> Kurma:
    """The command, with the stranger's distribution beside Kurma's own."""
    entries = "[kurma.fetchers]\nvault = kurma_stranger:Vaults\nshelf = kurma_stranger:Shelves"
    unpack(tmp_path / "site", "kurma-stranger", entries, {"kurma_stranger": MODULE})
    return configured(fresh, server, tmp_path, https="digest")


def configured(kurma: Kurma, server: WebServer, tmp_path: Path, **trust: str) -> Kurma:
    port = {"config": {"port": int(server.host.rpartition(":")[2])}}
    values = {"trust": trust, "plugins": {"fetchers": {"vault": port, "shelf": port}}}
    found = kurma.configured(tmp_path / "stranger.json", **values)
    found.environment["PYTHONPATH"] = str(tmp_path / "site")
    return found


def hello(kurma: Kurma, locator: str, *options: str, cwd: Path) -> tuple[int, str]:
    words = ("run", "--rm", "--net", "none", *options, locator, "--", "-c", "echo hello")
    done = kurma(*words, cwd=cwd)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("locator", ["vault:box", "shelf:box"])
def test_an_image_of_the_store_runs_while_its_server_is_down(
    stranger: Kurma, server: WebServer, tmp_path: Path, locator: str
) -> None:
    assert hello(stranger, locator, cwd=tmp_path) == (0, "hello\n"), "the locator is not a path of this directory"
    asked = len(server.seen)
    assert hello(stranger, locator, cwd=tmp_path) == (0, "hello\n")
    assert len(server.seen) == asked, "the image is in the store, and its fetcher is not asked"
    server.stop()
    assert hello(stranger, locator, cwd=Path("/")) == (0, "hello\n")
    code, said = hello(stranger, locator, "--pull", "always", cwd=tmp_path)
    assert code == 125
    assert "the server of the stranger is down" in said
    (came,) = stranger.json("image", "show", locator)["provenance"]
    assert (came["source"], came["transport"]) == ("https" if locator[0] == "v" else "registry", "https")


@pytest.mark.parametrize(
    ("locator", "trust", "refusal"),
    [
        ("vault:box", {"https": "signed", "registry": "any"}, "is not signed"),
        ("shelf:box", {"https": "any", "registry": "signed"}, "images from registries have none"),
    ],
)
def test_the_policy_goes_by_what_the_fetcher_says(
    stranger: Kurma, server: WebServer, tmp_path: Path, locator: str, trust: dict[str, str], refusal: str
) -> None:
    """Also for an image that came in under a weaker policy."""
    assert hello(stranger, locator, cwd=tmp_path) == (0, "hello\n")
    strict = configured(stranger, server, tmp_path, **trust)
    code, said = hello(strict, locator, cwd=tmp_path)
    assert code == 125
    assert refusal in said


def test_hints_show_the_examples_of_installed_fetchers(stranger: Kurma, tmp_path: Path) -> None:
    values = {"fetchers": {"names": "none"}}
    without = stranger.configured(tmp_path / "without.json", **values)
    without.environment["PYTHONPATH"] = str(tmp_path / "site")
    done = without("image", "fetch", "example.com/app")
    assert done.returncode == 125
    assert "no plugin finds images by name (fetcher none)" in done.stderr
    assert "vault:NAME" in done.stderr
    assert "docker://HOST/NAME:TAG" in done.stderr
