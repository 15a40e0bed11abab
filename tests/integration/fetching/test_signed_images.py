"""Signatures by real keys, old and new, on images from files and the web (K3, K4, S4)."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from kurma_core.errors import TrustError
from kurma_core.testing.webserver import Page, WebServer, web_server
from tests.integration.fetching.parts import Machine, MakeMachine
from tests.trust.signers import Signers, gnupg_home

pytestmark = pytest.mark.root

NAME = "example.com/busybox"
HTTP = frozenset({"http"})


@pytest.fixture(scope="module")
def signers() -> Iterator[Signers]:
    with gnupg_home() as made:
        made.make("alice")
        made.make("mallory")
        yield made


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The keystore."""
    return tmp_path / "keys"


@pytest.fixture
def here(machine: MakeMachine, keys: Path) -> Machine:
    return machine(trustedkeys=[str(keys)])


def trust(keys: Path, signers: Signers, name: str, place: str) -> Path:
    directory = keys / place
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / signers.fingerprints[name]
    file.write_bytes(signers.public(name))
    return file


def build(here: Machine, tmp_path: Path, name: str = NAME, content: str = "x") -> Path:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    (root / "file").write_text(content)
    path = tmp_path / (name.replace("/", "_") + ".aci")
    here.images.build(
        str(root),
        {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": name},
        str(path),
    )
    return path


# --- early signatures, over the tar ---


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("armor", [True, False])
def test_an_early_signature_is_over_the_tar(
    here: Machine, tmp_path: Path, keys: Path, signers: Signers, pack, armor: bool
) -> None:
    tar = build(here, tmp_path)
    signature = signers.sign(tar, "alice", armor=armor)
    packed = tmp_path / "packed.aci"
    packed.write_bytes(pack(tar.read_bytes()))
    (tmp_path / "packed.sig").write_bytes(signature)
    trust(keys, signers, "alice", f"prefix.d/{NAME}")
    record = here.images.fetch(str(packed))
    assert (record.trust, record.provenance[0].fingerprint) == ("signed", signers.fingerprints["alice"])


def test_an_early_signature_over_the_packed_bytes_is_none(
    here: Machine, tmp_path: Path, keys: Path, signers: Signers
) -> None:
    packed = tmp_path / "packed.aci"
    packed.write_bytes(gzip.compress(build(here, tmp_path).read_bytes()))
    (tmp_path / "packed.sig").write_bytes(signers.sign(packed, "alice"))
    trust(keys, signers, "alice", "root.d")
    with pytest.raises(TrustError, match="does not fit"):
        here.images.fetch(str(packed))
    (tmp_path / "packed.aci.asc").write_bytes(signers.sign(packed, "alice"))
    assert here.images.fetch(str(packed)).trust == "signed", "the late one is asked first"


def test_an_early_signature_from_the_web(
    here: Machine, tmp_path: Path, keys: Path, signers: Signers, server: WebServer
) -> None:
    tar = build(here, tmp_path)
    server.pages["/app.aci"] = Page(gzip.compress(tar.read_bytes()))
    server.pages["/app.sig"] = Page(signers.sign(tar, "alice", armor=False))
    trust(keys, signers, "alice", "root.d")
    assert here.images.fetch(server.url("/app.aci"), insecure=HTTP).trust == "signed"


# --- whose keys ---


def test_a_key_for_a_prefix_ends_at_a_component(
    here: Machine, tmp_path: Path, keys: Path, signers: Signers, server: WebServer
) -> None:
    path = build(here, tmp_path)
    server.pages["/app.aci"] = Page(path.read_bytes())
    server.pages["/app.aci.asc"] = Page(signers.sign(path, "alice"))
    trust(keys, signers, "alice", "prefix.d/example.com/busy")
    with pytest.raises(TrustError, match="not trusted for it") as caught:
        here.images.fetch(server.url("/app.aci"), insecure=HTTP)
    assert f"kurma trust add --prefix {NAME}" in (caught.value.hint or "")
    assert here.images.list() == ()
    trust(keys, signers, "alice", "prefix.d/example.com")
    assert here.images.fetch(server.url("/app.aci"), insecure=HTTP).trust == "signed"


def test_a_masked_key_signs_nothing(machine: MakeMachine, tmp_path: Path, signers: Signers) -> None:
    system, local = tmp_path / "system", tmp_path / "local"
    here = machine(trustedkeys=[str(system), str(local)], trust={"file": "signed"})
    path = build(here, tmp_path)
    Path(f"{path}.asc").write_bytes(signers.sign(path, "alice"))
    trust(system, signers, "alice", "root.d")
    assert here.images.fetch(str(path)).trust == "signed"
    (local / "root.d").mkdir(parents=True)
    (local / "root.d" / signers.fingerprints["alice"]).touch()
    with pytest.raises(TrustError, match="not trusted for it"):
        here.images.fetch(str(build(here, tmp_path, content="other")))
