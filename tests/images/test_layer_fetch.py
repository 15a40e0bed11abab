"""Layers of one image: the first that fails gives up the others (R1)."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import ArchiveError, FetchNotFoundError
from kurma_core.fetching import Fetching
from kurma_core.hookspecs.fetcher import RemoteBlobHooks, RemoteLayer, RemoteLayers
from kurma_core.image_store import ImageStore
from kurma_core.image_store.tar_entries import Limits
from kurma_core.images.layer_fetch import fetch_layers

PIECES = 400


class Missing(RemoteBlobHooks):
    key, size, digest = None, None, None

    def open(self, offset: int) -> io.BytesIO:
        raise FetchNotFoundError("https://r.example/blob: not found")


class Slow(RemoteBlobHooks, io.RawIOBase):
    """A layer that takes its time, and counts how often it was asked."""

    key, size, digest = None, None, None
    asked = 0

    def open(self, offset: int) -> Slow:
        return self

    def read(self, size: int = -1) -> bytes:
        self.asked += 1
        time.sleep(0.01)
        return bytes(512) if self.asked < PIECES else b""


class Zeros(RemoteBlobHooks, io.BytesIO):
    key, size, digest = None, None, None

    def open(self, offset: int) -> Zeros:
        return self


def test_a_limit_is_told_with_the_layer_that_broke_it(tmp_path: Path) -> None:
    store = ImageStore(f"{tmp_path}/images", limits=Limits(total_size=1024))
    layer = RemoteLayer("sha256:" + "1" * 64, Zeros(bytes(4096)), "")  # type: ignore[arg-type]
    manifest = ImageManifest(name="a")
    remote = RemoteLayers("docker://a", "https://r", "https", manifest, (layer,), "sha256:" + "0" * 64)
    with pytest.raises(ArchiveError, match=r"^layer 111111111111: the archive is larger than 1024 bytes"):
        fetch_layers(store, Fetching(lambda scheme: None, f"{tmp_path}/partial"), remote, None)  # type: ignore[arg-type,return-value]


def test_one_that_fails_gives_up_the_others(tmp_path: Path) -> None:
    store = ImageStore(f"{tmp_path}/images")
    slow = Slow()
    layers = tuple(
        RemoteLayer("sha256:" + digit * 64, blob, "")  # type: ignore[arg-type]
        for digit, blob in (("1", slow), ("2", Missing()))
    )
    remote = RemoteLayers(
        "docker://a", "https://r", "https", ImageManifest(name="a"), layers, "sha256:" + "0" * 64
    )
    with pytest.raises(FetchNotFoundError):
        fetch_layers(store, Fetching(lambda scheme: None, f"{tmp_path}/partial"), remote, None)  # type: ignore[arg-type,return-value]
    assert slow.asked < PIECES
    assert not (tmp_path / "images/layers").exists() or list((tmp_path / "images/layers").iterdir()) == []
    assert not (tmp_path / "images/tmp").exists() or list((tmp_path / "images/tmp").iterdir()) == []
