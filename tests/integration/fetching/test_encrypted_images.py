"""A1: encrypted images, signed over what was shipped, opened by a passphrase, and never with host privilege."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kurma_testing.webserver import Page, WebServer

from kurma_core.config import load
from kurma_core.errors import ArchiveError, DecryptionError, TrustError
from kurma_core.images.manager import ImageManager
from kurma_core.plugins.registry import PluginRegistry
from tests.kit.keys import Signers

pytestmark = pytest.mark.root

NAME = "example.com/secret"
HTTP = frozenset({"http"})


class Given:
    attempts = 1

    def __init__(self, passphrase: bytes | None) -> None:
        self._passphrase = passphrase

    def get(self, what: str, *, wrong: bool) -> bytes | None:
        return self._passphrase


@pytest.fixture
def keys(tmp_path: Path, signers: Signers) -> Path:
    """A keystore in which alice may sign anything."""
    signers.put("alice", tmp_path / "keys", "root.d")
    return tmp_path / "keys"


class Make:
    def __init__(self, tmp_path: Path, keys: Path) -> None:
        self._tmp_path = tmp_path
        self._keys = keys

    def __call__(self, passphrase: bytes | None = b"open sesame", **values: Any) -> ImageManager:
        file = self._tmp_path / "kurma.json"
        file.write_text(json.dumps({"trustedkeys": [str(self._keys)], **values}))
        config = load(str(file), str(self._tmp_path / "state"))
        registry = PluginRegistry(config, lambda text: None)
        return ImageManager(config, registry, lambda text: None, lambda: Given(passphrase))


@pytest.fixture
def make(tmp_path: Path, keys: Path) -> Make:
    return Make(tmp_path, keys)


@pytest.fixture
def archive(make: Make, tmp_path: Path) -> Path:
    """An encrypted image."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("content")
    manifest = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": NAME}
    plain = make().files.build(str(root), manifest, str(tmp_path / "plain.aci"), compress="gzip")
    path = tmp_path / "secret.aci"
    assert make().files.build(str(root), manifest, str(path), compress="gzip", passphrase=b"open sesame") == plain
    assert b"content" not in path.read_bytes()
    return path


def test_signed_over_the_bytes_as_shipped(
    make: Make, archive: Path, signers: Signers, server: WebServer, tmp_path: Path
) -> None:
    server.pages["/secret.aci"] = Page(archive.read_bytes())
    server.pages["/secret.aci.asc"] = Page(signers.sign(tmp_path / "plain.aci", "alice"))
    images = make()
    with pytest.raises(TrustError, match="does not fit"):
        images.fetch(server.url("/secret.aci"), insecure=HTTP)
    assert images.list() == ()
    server.pages["/secret.aci.asc"] = Page(signers.sign(archive, "alice"))
    record = images.fetch(server.url("/secret.aci"), insecure=HTTP)
    assert (record.trust, record.provenance[0].fingerprint) == ("signed", signers.fingerprints["alice"])
    assert record.provenance[0].encrypted
    assert images.cat_manifest(record.id)
    images.verify(record.id)
    # From now on nobody needs the passphrase: not to verify, not to use it.
    assert make(None).verify(record.id).image == record
    assert make(None).fetch(server.url("/secret.aci"), insecure=HTTP).id == record.id


@pytest.mark.full
@pytest.mark.parametrize("compress", ["", "gzip", "bzip2", "xz", "zstd"])
def test_every_compression_within(make: Make, tmp_path: Path, compress: str) -> None:
    """What is built so is fetched as the image that it is without a passphrase, and kept as that archive."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_bytes(b"content" * 10_000)
    manifest = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": NAME}
    open_, secret = tmp_path / "open.aci", tmp_path / "secret.aci"
    images = make()
    ident = images.files.build(str(tmp_path / "root"), manifest, str(open_), compress=compress)
    packed = images.files.build(
        str(tmp_path / "root"), manifest, str(secret), compress=compress, passphrase=b"open sesame"
    )
    assert packed == ident
    record = images.fetch(str(secret))
    assert (record.id, record.provenance[0].encrypted) == (ident, True)
    kept = images.store.archive_path(ident)
    assert kept is not None
    assert Path(kept).read_bytes() == open_.read_bytes()


def test_an_early_signature_is_over_the_tar_in_it(
    make: Make, archive: Path, signers: Signers, tmp_path: Path
) -> None:
    images = make()
    plain = images.fetch(str(tmp_path / "plain.aci"))
    with open(tmp_path / "image.tar", "wb") as out:
        images.store.export(plain.id, out)
    Path(tmp_path, "secret.sig").write_bytes(signers.sign(tmp_path / "image.tar", "alice", armor=False))
    assert make().fetch(str(archive)).trust == "signed"


@pytest.mark.parametrize(("passphrase", "words"), [(b"wrong", "the passphrase is wrong"), (None, "no passphrase")])
def test_without_it_nothing_comes_in(make: Make, archive: Path, passphrase: bytes | None, words: str) -> None:
    images = make(passphrase)
    with pytest.raises(ArchiveError, match=rf"secret\.aci: the archive is encrypted, and .*{words}"):
        images.fetch(str(archive))
    assert images.list() == ()
    for name in ("tmp", "archives", "layers"):
        assert list(Path(images.store.path(name)).iterdir()) == []


def test_never_with_host_privilege(make: Make, archive: Path, signers: Signers) -> None:
    """Not though it is signed by the right key; and not because it was fetched for something else before."""
    signers.sign_beside(archive, "alice")
    images = make(trusted_host_keys=[signers.fingerprints["alice"]])
    for fetch in (False, True):
        if fetch:
            assert images.fetch(str(archive)).trust == "signed"
        for pull in ("new", "always"):
            with pytest.raises(DecryptionError, match="host privilege must not be"):
                images.host_image(str(archive), pull=pull)
