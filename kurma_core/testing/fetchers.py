"""The contract suite for fetchers (:class:`kurma_core.hookspecs.fetcher.FetcherHooks`).

A plugin's test subclasses :class:`FetcherContract` and defines its fixtures.
"""

from __future__ import annotations

import hashlib

import pytest

from kurma_core.errors import FetchError, FetchNotFoundError, UsageError
from kurma_core.hookspecs.fetcher import FetcherHooks, FetchRequest, RemoteArchive, RemoteBlob, RemoteLayers
from kurma_core.models.image import TRANSPORTS

REQUEST = FetchRequest("linux", "amd64")


class FetcherContract:
    """Tests the behaviour on which the core relies. A subclass defines the fixtures ``fetcher``, ``good`` (the
    locator of an existing image), ``missing`` (the locator of an image that does not exist) and ``malformed`` (a
    malformed locator), and may change ``request_for`` (a :class:`FetchRequest`)."""

    @pytest.fixture
    def fetcher(self) -> FetcherHooks:
        raise NotImplementedError("give a fixture fetcher")

    @pytest.fixture
    def good(self) -> str:
        raise NotImplementedError("give a fixture good")

    @pytest.fixture
    def missing(self) -> str:
        raise NotImplementedError("give a fixture missing")

    @pytest.fixture
    def malformed(self) -> str:
        raise NotImplementedError("give a fixture malformed")

    @pytest.fixture
    def request_for(self) -> FetchRequest:
        return REQUEST

    def test_an_image_is_an_archive_or_layers(
        self, fetcher: FetcherHooks, good: str, request_for: FetchRequest
    ) -> None:
        found = fetcher.resolve(good, request_for)
        assert isinstance(found, RemoteArchive | RemoteLayers)
        assert found.locator == good
        assert found.transport in TRANSPORTS
        if isinstance(found, RemoteLayers):
            assert found.layers
            assert found.digest.startswith("sha256:")
            assert all(layer.diff_id.startswith("sha256:") for layer in found.layers)

    def test_it_is_found_alike_each_time(
        self, fetcher: FetcherHooks, good: str, request_for: FetchRequest
    ) -> None:
        first, second = fetcher.resolve(good, request_for), fetcher.resolve(good, request_for)
        assert [blob.key for blob in _blobs(first)] == [blob.key for blob in _blobs(second)]
        if isinstance(first, RemoteLayers) and isinstance(second, RemoteLayers):
            assert first.manifest == second.manifest
            assert first.digest == second.digest

    def test_blobs_are_what_they_say(self, fetcher: FetcherHooks, good: str, request_for: FetchRequest) -> None:
        for blob in _blobs(fetcher.resolve(good, request_for)):
            content = _read(blob, 0)
            assert blob.size in (None, len(content))
            if blob.digest is not None:
                algorithm, _, digits = blob.digest.partition(":")
                assert hashlib.new(algorithm, content).hexdigest() == digits

    def test_blobs_are_read_from_any_offset(
        self, fetcher: FetcherHooks, good: str, request_for: FetchRequest
    ) -> None:
        for blob in _blobs(fetcher.resolve(good, request_for)):
            content = _read(blob, 0)
            middle = len(content) // 2
            assert _read(blob, middle) == content[middle:]

    def test_a_missing_image_is_told_as_missing(
        self, fetcher: FetcherHooks, missing: str, request_for: FetchRequest
    ) -> None:
        with pytest.raises(FetchNotFoundError) as caught:
            fetcher.resolve(missing, request_for)
        _one_line(caught.value)

    def test_a_malformed_locator_is_the_users_error(
        self, fetcher: FetcherHooks, malformed: str, request_for: FetchRequest
    ) -> None:
        with pytest.raises(UsageError) as caught:
            fetcher.resolve(malformed, request_for)
        _one_line(caught.value)


def _blobs(found: RemoteArchive | RemoteLayers) -> list[RemoteBlob]:
    return [found.blob] if isinstance(found, RemoteArchive) else [layer.blob for layer in found.layers]


def _read(blob: RemoteBlob, offset: int) -> bytes:
    with blob.open(offset) as stream:
        return b"".join(iter(lambda: stream.read(1000), b""))


def _one_line(error: FetchError | UsageError) -> None:
    assert error.message
    assert "\n" not in error.message
