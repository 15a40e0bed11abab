"""The contract suite for fetchers (:class:`kurma_core.hookspecs.fetcher.FetcherHooks`).

A plugin's test subclasses :class:`FetcherContract` and defines its fixtures.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import tarfile
import threading
import time
from typing import BinaryIO

import pytest

from kurma_core.appc.image import App, ImageManifest, NameValue
from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import ArchiveError, Cancelled, FetchError, FetchNotFoundError, KurmaError, UsageError
from kurma_core.hookspecs.fetcher import (
    FetcherHooks,
    FetchRequest,
    RemoteArchive,
    RemoteBlobHooks,
    RemoteLayers,
    StoredImage,
)
from kurma_core.models.image import TRANSPORTS
from kurma_testing.contract import (
    HOSTILE,
    DriverContract,
    MakeDriver,
    cancelled,
    cancelled_midway,
    check_refusal,
    nothing_left_open,
    refusing,
)

#: Seconds within which a wait ends.
PATIENCE = 5.0
REQUEST = FetchRequest("linux", "amd64")


class _Layer:
    """A layer with one file."""

    def __init__(self, name: str, data: bytes) -> None:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        self.content = out.getvalue()

    def write(self, out: BinaryIO) -> None:
        out.write(self.content)


class _Broken:
    """A layer that cannot be read to its end."""

    def write(self, out: BinaryIO) -> None:
        out.write(bytes(512))
        raise ArchiveError("a file of the layer cannot be read")


LAYERS = (_Layer("one", bytes(1000)), _Layer("two", b"two"))
#: An image as the core gives it to the hook ``push``.
IMAGE = StoredImage(
    ImageManifest(
        name="example.com/pushed",
        labels=(NameValue("version", "1"), NameValue("os", "linux"), NameValue("arch", "amd64")),
        app=App(exec=("/bin/app", "word"), user="0", group="0"),
    ),
    LAYERS,
)


class FetcherContract(DriverContract):
    """Tests the behaviour on which the core relies. A subclass has the mark ``kurma_driver`` and defines the
    fixtures ``good`` (the locator of an existing image), ``missing`` (the locator of an image that does not exist)
    and ``malformed`` (a malformed locator), and may change ``request_for`` (a :class:`FetchRequest`). A fetcher
    that asks a server defines ``hanging`` and ``stalling``, too; one that expands names, ``short_name``; one that
    logs in, ``login``; one that writes images, ``destination``."""

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
    def hanging(self) -> str:
        """The locator of an image whose server does not answer."""
        pytest.skip("no fixture hanging: the fetcher asks no server")

    @pytest.fixture
    def stalling(self) -> str:
        """The locator of an image whose server stops in the middle of a blob."""
        pytest.skip("no fixture stalling: the fetcher asks no server")

    @pytest.fixture
    def short_name(self) -> str:
        """A name without a host that the fetcher expands."""
        pytest.skip("no fixture short_name: the fetcher does not expand names")

    @pytest.fixture
    def login(self) -> tuple[str, str, str]:
        """The address ``SCHEME://HOST`` of a source that asks for credentials, and a user and a secret that it
        accepts."""
        pytest.skip("no fixture login: the fetcher does not log in")

    @pytest.fixture
    def destination(self) -> str:
        """The locator of a new image that the fetcher can write."""
        pytest.skip("no fixture destination: the fetcher does not write images")

    @pytest.fixture
    def request_for(self) -> FetchRequest:
        return REQUEST

    def test_an_image_is_an_archive_or_layers(
        self, driver: FetcherHooks, good: str, request_for: FetchRequest
    ) -> None:
        found = driver.resolve(good, request_for)
        assert isinstance(found, RemoteArchive | RemoteLayers)
        assert found.locator == good
        assert found.transport in TRANSPORTS
        if isinstance(found, RemoteLayers):
            assert found.layers
            assert found.digest.startswith("sha256:")
            assert all(layer.diff_id.startswith("sha256:") for layer in found.layers)

    def test_it_is_found_alike_each_time(self, driver: FetcherHooks, good: str, request_for: FetchRequest) -> None:
        first, second = driver.resolve(good, request_for), driver.resolve(good, request_for)
        assert [blob.key for blob in _blobs(first)] == [blob.key for blob in _blobs(second)]
        if isinstance(first, RemoteLayers) and isinstance(second, RemoteLayers):
            assert first.manifest == second.manifest
            assert first.digest == second.digest

    def test_blobs_are_what_they_say(self, driver: FetcherHooks, good: str, request_for: FetchRequest) -> None:
        for blob in _blobs(driver.resolve(good, request_for)):
            content = _read(blob, 0)
            assert blob.size in (None, len(content))
            if blob.digest is not None:
                algorithm, _, digits = blob.digest.partition(":")
                assert hashlib.new(algorithm, content).hexdigest() == digits

    def test_blobs_are_read_from_any_offset(
        self, driver: FetcherHooks, good: str, request_for: FetchRequest
    ) -> None:
        for blob in _blobs(driver.resolve(good, request_for)):
            content = _read(blob, 0)
            middle = len(content) // 2
            assert _read(blob, middle) == content[middle:]

    def test_a_pushed_image_is_found(
        self, driver: FetcherHooks, destination: str, request_for: FetchRequest
    ) -> None:
        """With its layers and its app; and the same image has the same digest each time."""
        digest = driver.push(destination, IMAGE, request_for)
        assert driver.push(destination, IMAGE, request_for) == digest
        found = driver.resolve(destination, request_for)
        assert isinstance(found, RemoteLayers)
        assert found.digest == digest
        assert [layer.diff_id for layer in found.layers] == [
            f"sha256:{hashlib.sha256(layer.content).hexdigest()}" for layer in LAYERS
        ]
        assert found.manifest.app is not None
        assert tuple(found.manifest.app.exec) == ("/bin/app", "word")

    def test_a_push_that_fails_leaves_no_image(
        self, driver: FetcherHooks, destination: str, request_for: FetchRequest
    ) -> None:
        with pytest.raises(ArchiveError):
            driver.push(destination, StoredImage(IMAGE.manifest, (*LAYERS, _Broken())), request_for)
        with pytest.raises(FetchNotFoundError):
            driver.resolve(destination, request_for)

    def test_a_missing_image_is_told_as_missing(
        self, driver: FetcherHooks, missing: str, request_for: FetchRequest
    ) -> None:
        with pytest.raises(FetchNotFoundError) as caught:
            driver.resolve(missing, request_for)
        check_refusal(caught.value)

    def test_a_malformed_locator_is_the_users_error(
        self, driver: FetcherHooks, malformed: str, request_for: FetchRequest
    ) -> None:
        with pytest.raises(UsageError) as caught:
            driver.resolve(malformed, request_for)
        check_refusal(caught.value)

    def test_hostile_locators_are_refused(
        self, driver: FetcherHooks, good: str, request_for: FetchRequest
    ) -> None:
        """Locators come from command lines, but from pod files, image manifests and the API, too."""
        scheme = good.partition(":")[0]
        for text in HOSTILE:
            for locator in (f"{scheme}:{text}", f"{scheme}://{text}"):
                with refusing(KurmaError, given=text):
                    driver.resolve(locator, request_for)

    @pytest.mark.parametrize("registry", ["", "registry.example"])
    def test_names_are_expanded_to_whole_locators(self, driver: FetcherHooks, good: str, registry: str) -> None:
        """The core passes each name that the store lacks."""
        scheme = good.partition(":")[0]
        for name in ("name", "name:tag", "team/name", "registry.example/name", "other.example/name", *HOSTILE):
            found = driver.expand_name(name, registry)
            assert isinstance(found, tuple), f"{name!r}: {found!r}"
            assert all(one.startswith(f"{scheme}:") for one in found), f"{name!r}: {found}"
            assert driver.expand_name(name, registry) == found

    def test_names_with_another_host_are_left_to_discovery(self, driver: FetcherHooks) -> None:
        """``short_names`` names the host of names without one."""
        assert driver.expand_name("other.example/team/name", "registry.example") == ()

    def test_a_short_name_is_expanded_with_the_host(self, driver: FetcherHooks, short_name: str) -> None:
        assert driver.expand_name(short_name, ""), "without a host, the core prints the first address as a hint"
        found = driver.expand_name(short_name, "registry.example")
        assert found, f"{short_name!r} is not expanded"
        assert all("registry.example" in one for one in found), found

    def test_credentials_are_checked_and_kept(
        self, make_driver: MakeDriver, login: tuple[str, str, str], request_for: FetchRequest
    ) -> None:
        """For other processes, until they are removed; nobody else may read them."""
        locator, user, secret = login
        for given in (secret + "x", secret):
            with pytest.raises(FetchError) as none:
                make_driver().log_out(locator)
            check_refusal(none.value)
            if given != secret:
                with pytest.raises(FetchError) as refused:
                    make_driver().log_in(locator, user, given, request_for)
                check_refusal(refused.value)
                assert given not in refused.value.message
        file = make_driver().log_in(locator, user, secret, request_for)
        assert not os.stat(file).st_mode & 0o077
        assert make_driver().log_in(locator, user, secret, request_for) == file
        assert make_driver().log_out(locator) == file
        with pytest.raises(FetchError):
            make_driver().log_out(locator)

    def test_hostile_addresses_are_not_logged_out(self, driver: FetcherHooks, good: str) -> None:
        scheme = good.partition(":")[0]
        for text in HOSTILE:
            with pytest.raises(KurmaError) as caught:
                driver.log_out(f"{scheme}://{text}")
            check_refusal(caught.value, text)

    def test_a_cancelled_operation_ends(self, driver: FetcherHooks, good: str, request_for: FetchRequest) -> None:
        """By Cancelled, or as ever: no error, and nothing stays open."""
        with cancelled():
            driver.resolve(good, request_for)
        for blob in _blobs(driver.resolve(good, request_for)):
            with cancelled(), blob.open(0) as stream:
                stream.read(1000)
            with nothing_left_open(), cancelled(), blob.open(0) as stream:
                stream.read(1000)

    def test_it_can_be_cancelled_at_any_point(
        self, driver: FetcherHooks, good: str, request_for: FetchRequest
    ) -> None:
        blobs = _blobs(driver.resolve(good, request_for))  # may keep a connection
        with nothing_left_open():
            cancelled_midway(lambda: driver.resolve(good, request_for))
        for blob in blobs:
            _read(blob, 0)
            with nothing_left_open():
                cancelled_midway(functools.partial(_read, blob, 0))

    def test_a_wait_for_the_server_ends_when_it_is_cancelled(
        self, driver: FetcherHooks, hanging: str, request_for: FetchRequest
    ) -> None:
        operation = Cancellation()
        ended: list[BaseException | None] = []

        def resolve() -> None:
            try:
                with governing(operation):
                    driver.resolve(hanging, request_for)
                ended.append(None)
            except BaseException as error:  # noqa: BLE001 (looked at below)
                ended.append(error)

        waiting = threading.Thread(target=resolve, daemon=True)
        waiting.start()
        waiting.join(0.2)  # not for a state: it comes to its wait
        assert waiting.is_alive(), f"the server of hanging answers: {ended}"
        operation.cancel()
        waiting.join(PATIENCE)
        assert isinstance(ended[0] if ended else None, Cancelled), f"it waits on, or ends otherwise: {ended}"

    def test_a_read_that_waits_ends_when_the_stream_is_closed(
        self, driver: FetcherHooks, stalling: str, request_for: FetchRequest
    ) -> None:
        """The core closes it for an operation that was cancelled. What ``read`` does then is of no interest."""
        (blob, *_) = _blobs(driver.resolve(stalling, request_for))

        def read() -> None:
            with contextlib.suppress(KurmaError, OSError, ValueError):
                while stream.read(1000):
                    reads.append(1)

        reads: list[int] = []
        stream = blob.open(0)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while reader.is_alive() and not reads:
            time.sleep(0.01)
        stream.close()
        reader.join(PATIENCE)
        assert not reader.is_alive(), "read waits on after close"

    def test_a_stream_can_be_closed_at_any_time(
        self, driver: FetcherHooks, good: str, request_for: FetchRequest
    ) -> None:
        """The core closes it from another thread, and again at the end."""
        for blob in _blobs(driver.resolve(good, request_for)):
            _read(blob, 0)
            with nothing_left_open():
                for read in (0, 1):
                    stream = blob.open(0)
                    stream.read(read)
                    closer = threading.Thread(target=stream.close)
                    closer.start()
                    closer.join()
                    stream.close()


def _blobs(found: RemoteArchive | RemoteLayers) -> list[RemoteBlobHooks]:
    return [found.blob] if isinstance(found, RemoteArchive) else [layer.blob for layer in found.layers]


def _read(blob: RemoteBlobHooks, offset: int) -> bytes:
    with blob.open(offset) as stream:
        return b"".join(iter(lambda: stream.read(1000), b""))
