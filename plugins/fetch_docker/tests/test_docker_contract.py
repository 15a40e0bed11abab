"""The fetcher keeps the contract of its kind, for registries, layouts and archives."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import kurma_fetch_docker.local_images
import kurma_fetch_docker.plugin
import pytest

from kurma_core.hookspecs.fetcher import FetcherHooks
from kurma_core.testing import load_driver
from kurma_core.testing.fetchers import FetcherContract
from kurma_core.testing.webserver import WebServer, web_server
from plugins.fetch_docker.tests.docker_parts import serve, write_layout


class TestRegistry(FetcherContract):
    @pytest.fixture
    def fetcher(self, tmp_path: Path) -> FetcherHooks:
        driver: FetcherHooks = load_driver(kurma_fetch_docker.plugin, tmp_path)
        return driver

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


class TestLayout(FetcherContract):
    @pytest.fixture
    def fetcher(self, tmp_path: Path) -> FetcherHooks:
        driver: FetcherHooks = load_driver(kurma_fetch_docker.local_images, tmp_path)
        return driver

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


class TestArchive(TestLayout):
    @pytest.fixture
    def good(self, tmp_path: Path) -> str:
        write_layout(tmp_path / "layout")
        with tarfile.open(tmp_path / "saved.tar", "w") as tar:
            tar.add(tmp_path / "layout", ".")
        return f"oci-archive:{tmp_path}/saved.tar:v1"
