"""The fetcher keeps the contract of its kind, for registries, layouts and archives."""

from __future__ import annotations

import base64
import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import kurma_fetch_docker.local_images
import kurma_fetch_docker.plugin
import pytest
from kurma_fetch_docker import conversion
from kurma_testing.fetchers import FetcherContract
from kurma_testing.webserver import Page, WebServer, web_server

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import FetchError, FetchNotFoundError, UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_core.hookspecs.fetcher import (
    FetcherHooks,
    FetchRequest,
    ImageFiles,
    RemoteBlobHooks,
    RemoteLayer,
    RemoteLayers,
)
from kurma_core.hookspecs.renderer import ImageLayer
from kurma_core.images import user_groups
from plugins.fetch_docker.tests.docker_parts import CONFIG, LAYER, serve, sha256, write_layout


@pytest.mark.kurma_driver(kurma_fetch_docker.plugin)
class TestRegistry(FetcherContract):
    @pytest.fixture
    def server(self) -> Iterator[WebServer]:
        with web_server() as server:
            yield server

    @pytest.fixture
    def good(self, server: WebServer) -> str:
        return serve(server)

    @pytest.fixture
    def missing(self, server: WebServer) -> str:
        return serve(server) + "x"

    @pytest.fixture
    def malformed(self) -> str:
        return "docker://UPPER"

    @pytest.fixture
    def short_name(self) -> str:
        return "alpine:3"

    @pytest.fixture
    def login(self, server: WebServer) -> tuple[str, str, str]:
        basic = base64.b64encode(b"user:secret").decode()
        server.pages["/v2/"] = Page(
            b"{}", authorization=f"Basic {basic}", headers={"WWW-Authenticate": 'Basic realm="r"'}
        )
        return f"docker://{server.host}", "user", "secret"


@pytest.mark.kurma_driver(kurma_fetch_docker.local_images)
class TestLayout(FetcherContract):
    @pytest.fixture
    def good(self, tmp_path: Path) -> str:
        write_layout(tmp_path / "layout")
        return f"oci:{tmp_path}/layout:v1"

    @pytest.fixture
    def missing(self, good: str) -> str:
        return good + "x"

    @pytest.fixture
    def malformed(self, good: str) -> str:
        return good + "@sha256:00"

    @pytest.fixture
    def destination(self, tmp_path: Path) -> str:
        return f"oci:{tmp_path}/new:v1"


class TestArchive(TestLayout):
    @pytest.fixture
    def good(self, tmp_path: Path) -> str:
        write_layout(tmp_path / "layout")
        with tarfile.open(tmp_path / "saved.tar", "w") as tar:
            tar.add(tmp_path / "layout", ".")
        return f"oci-archive:{tmp_path}/saved.tar:v1"

    @pytest.fixture
    def destination(self, tmp_path: Path) -> str:
        return f"oci-archive:{tmp_path}/new.tar:v1"


class TestDockerArchive(TestLayout):
    @pytest.fixture
    def good(self, tmp_path: Path) -> str:
        names = {f"{sha256(content)[7:]}": content for content in (CONFIG, LAYER)}
        entry = {"Config": sha256(CONFIG)[7:], "RepoTags": ["example.com/x:v1"], "Layers": [sha256(LAYER)[7:]]}
        with tarfile.open(tmp_path / "docker.tar", "w") as tar:
            for name, content in {**names, "manifest.json": json.dumps([entry]).encode()}.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return f"docker-archive:{tmp_path}/docker.tar:example.com/x:v1"

    @pytest.fixture
    def malformed(self, good: str) -> str:
        return good + "/UPPER"

    @pytest.fixture
    def destination(self, tmp_path: Path) -> str:
        return f"docker-archive:{tmp_path}/new.tar:example.com/new:v1"


class Bundles:
    """A fetcher of another distribution: ``bundle:DIRECTORY`` with ``config.json`` and ``layer.tar``. It depends
    on kurma-fetch-docker and uses its public module alone."""

    def __init__(self, context: DriverContext) -> None:
        pass

    @hookimpl
    def resolve(self, locator: str, request: FetchRequest) -> RemoteLayers:
        directory = Path(locator.removeprefix("bundle:"))
        if not directory.is_absolute():
            raise UsageError(f"{locator}: not a directory")
        try:
            text = (directory / "config.json").read_bytes()
        except FileNotFoundError:
            raise FetchNotFoundError(f"{locator}: no config.json", url=locator) from None
        except (OSError, ValueError) as error:
            raise FetchError(f"{locator}: {error}", url=locator) from None
        config = json.loads(text)
        manifest = conversion.image_manifest(config, conversion.ImageOrigin("", "bundle", None), request)
        (diff_id,) = conversion.diff_ids(config, locator)
        layer = RemoteLayer(diff_id, TarFile(directory / "layer.tar"))
        return RemoteLayers(locator, locator, "file", manifest, (layer,), sha256(text))

    @hookimpl
    def complete_manifest(self, manifest: ImageManifest, files: ImageFiles) -> ImageManifest:
        return conversion.complete_manifest(manifest, files)


class TarFile(RemoteBlobHooks):
    digest = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self.key, self.size = str(path), path.stat().st_size

    @hookimpl
    def open(self, offset: int) -> BinaryIO:
        stream = self._path.open("rb")
        stream.seek(offset)
        return stream


@hookimpl
def kurma_fetcher() -> Driver:
    return Driver(Bundles)


@pytest.mark.kurma_driver(sys.modules[__name__])
class TestBundles(FetcherContract):
    """The public conversion is enough for a fetcher of OCI images."""

    @pytest.fixture
    def good(self, tmp_path: Path) -> str:
        (tmp_path / "config.json").write_bytes(CONFIG)
        (tmp_path / "layer.tar").write_bytes(LAYER)
        return f"bundle:{tmp_path}"

    @pytest.fixture
    def missing(self, tmp_path: Path) -> str:
        return f"bundle:{tmp_path}/none"

    @pytest.fixture
    def malformed(self) -> str:
        return "bundle:relative"

    def test_its_manifest_is_completed(self, driver: FetcherHooks, good: str, tmp_path: Path) -> None:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc/passwd").write_text("root:x:0:42::/:/bin/sh\n")
        found = driver.resolve(good, FetchRequest("linux", "amd64"))
        assert isinstance(found, RemoteLayers)
        files = user_groups.ImageFiles([ImageLayer("l", str(tmp_path), (), ())])
        completed = driver.complete_manifest(found.manifest, files)
        assert completed is not None
        assert completed.app is not None
        assert completed.app.group == "42"
