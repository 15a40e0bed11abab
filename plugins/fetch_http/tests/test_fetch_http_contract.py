"""The fetcher keeps the contract of its kind, for files and for web servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import kurma_fetch_http.file_archive
import kurma_fetch_http.plugin
import pytest
from kurma_testing.fetchers import FetcherContract
from kurma_testing.webserver import Page, WebServer, web_server

from kurma_core.hookspecs.fetcher import FetchRequest

CONTENT = bytes(range(256)) * 100


@pytest.mark.kurma_driver(kurma_fetch_http.file_archive)
class TestFiles(FetcherContract):
    @pytest.fixture
    def good(self, tmp_path: Path) -> str:
        (tmp_path / "a b.aci").write_bytes(CONTENT)
        return f"file://{tmp_path}/a%20b.aci"

    @pytest.fixture
    def missing(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/none.aci"

    @pytest.fixture
    def malformed(self) -> str:
        return "file://elsewhere/image.aci"


@pytest.mark.kurma_driver(kurma_fetch_http.plugin)
class TestWeb(FetcherContract):
    @pytest.fixture
    def server(self) -> Iterator[WebServer]:
        with web_server() as server:
            server.pages["/image.aci"] = Page(CONTENT)
            yield server

    @pytest.fixture
    def good(self, server: WebServer) -> str:
        return server.url("/image.aci")

    @pytest.fixture
    def missing(self, server: WebServer) -> str:
        return server.url("/none.aci")

    @pytest.fixture
    def hanging(self, server: WebServer) -> Iterator[str]:
        gate = threading.Event()
        server.pages["/hanging.aci"] = Page(CONTENT, gate=gate)
        yield server.url("/hanging.aci")
        gate.set()

    @pytest.fixture
    def stalling(self, server: WebServer) -> str:
        server.pages["/stalling.aci"] = Page(CONTENT, stalls=[len(CONTENT) // 2])
        return server.url("/stalling.aci")

    @pytest.fixture
    def malformed(self) -> str:
        return "https://user:secret@127.0.0.1/image.aci"

    @pytest.fixture
    def request_for(self) -> FetchRequest:
        return FetchRequest("linux", "amd64", frozenset({"http"}))
