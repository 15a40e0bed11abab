"""Signatures by real keys, old and new, on images from files and the web (K3, K4, S4)."""

from __future__ import annotations

import bz2
import gzip
import lzma
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kurma_testing.webserver import Page, WebServer

from kurma_core.errors import ImageError, RenderError, TrustError
from tests.integration.fetching.parts import Machine, MakeMachine
from tests.kit.keys import Signers

pytestmark = pytest.mark.root

NAME = "example.com/busybox"
HTTP = frozenset({"http"})


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The keystore."""
    return tmp_path / "keys"


@pytest.fixture
def here(machine: MakeMachine, keys: Path) -> Machine:
    return machine(trustedkeys=[str(keys)])


def build(here: Machine, tmp_path: Path, name: str = NAME, content: str = "x") -> Path:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    (root / "file").write_text(content)
    path = tmp_path / (name.replace("/", "_") + ".aci")
    here.images.files.build(
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
    signers.put("alice", keys, f"prefix.d/{NAME}")
    record = here.images.fetch(str(packed))
    assert (record.trust, record.provenance[0].fingerprint) == ("signed", signers.fingerprints["alice"])


def test_an_early_signature_over_the_packed_bytes_is_none(
    here: Machine, tmp_path: Path, keys: Path, signers: Signers
) -> None:
    packed = tmp_path / "packed.aci"
    packed.write_bytes(gzip.compress(build(here, tmp_path).read_bytes()))
    (tmp_path / "packed.sig").write_bytes(signers.sign(packed, "alice"))
    signers.put("alice", keys, "root.d")
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
    signers.put("alice", keys, "root.d")
    assert here.images.fetch(server.url("/app.aci"), insecure=HTTP).trust == "signed"


# --- whose keys ---


def test_a_key_for_a_prefix_ends_at_a_component(
    here: Machine, tmp_path: Path, keys: Path, signers: Signers, server: WebServer
) -> None:
    path = build(here, tmp_path)
    server.pages["/app.aci"] = Page(path.read_bytes())
    server.pages["/app.aci.asc"] = Page(signers.sign(path, "alice"))
    signers.put("alice", keys, "prefix.d/example.com/busy")
    with pytest.raises(TrustError, match="not trusted for it") as caught:
        here.images.fetch(server.url("/app.aci"), insecure=HTTP)
    assert f"kurma trust add --prefix {NAME}" in (caught.value.hint or "")
    assert here.images.list() == ()
    signers.put("alice", keys, "prefix.d/example.com")
    assert here.images.fetch(server.url("/app.aci"), insecure=HTTP).trust == "signed"


def test_a_masked_key_signs_nothing(machine: MakeMachine, tmp_path: Path, signers: Signers) -> None:
    system, local = tmp_path / "system", tmp_path / "local"
    here = machine(trustedkeys=[str(system), str(local)], trust={"file": "signed"})
    path = build(here, tmp_path)
    signers.sign_beside(path, "alice")
    signers.put("alice", system, "root.d")
    assert here.images.fetch(str(path)).trust == "signed"
    (local / "root.d").mkdir(parents=True)
    (local / "root.d" / signers.fingerprints["alice"]).touch()
    with pytest.raises(TrustError, match="not trusted for it"):
        here.images.fetch(str(build(here, tmp_path, content="other")))


# --- what came in stays what it was ---


@pytest.fixture
def signed(here: Machine, tmp_path: Path, keys: Path, signers: Signers, server: WebServer) -> str:
    """The address of an image that alice signed, and that is in the store."""
    path = build(here, tmp_path)
    server.pages["/app.aci"] = Page(path.read_bytes())
    server.pages["/app.aci.asc"] = Page(signers.sign(path, "alice"))
    signers.put("alice", keys, f"prefix.d/{NAME}")
    url = server.url("/app.aci")
    assert here.images.resolve(url, insecure=HTTP).trust == "signed"
    assert here.images.resolve(NAME).name == NAME
    return url


def test_a_signer_that_is_trusted_no_longer(
    here: Machine, signed: str, signers: Signers, server: WebServer
) -> None:
    """By address it is fetched and judged anew; by name it is refused; by its ID it is the content that counts."""
    (record,) = here.images.list()
    alice = signers.fingerprints["alice"]
    here.images.keys.remove(alice, NAME)
    server.seen.clear()
    with pytest.raises(TrustError, match="not trusted for it"):
        here.images.resolve(signed, insecure=HTTP)
    assert server.seen, "it was taken from the store"
    with pytest.raises(TrustError, match=rf"not trusted for it \(key {alice}\)") as caught:
        here.images.resolve(NAME)
    assert f"kurma trust add --prefix {NAME}" in (caught.value.hint or "")
    assert here.images.resolve(record.id).id == record.id
    here.images.keys.add(here.images.keys.parse(signers.public("alice"), "x")[0], "example.com")
    assert here.images.resolve(NAME).id == record.id


def test_a_signer_whose_key_was_revoked(here: Machine, signed: str, signers: Signers) -> None:
    revoked = here.images.keys.parse(signers.public("alice") + signers.revocation_of("alice"), "x")[0]
    here.images.keys.add(revoked, NAME)
    with pytest.raises(TrustError, match="was revoked"):
        here.images.resolve(signed, insecure=HTTP)
    with pytest.raises(TrustError, match=r"signed by a key that was revoked \(key") as caught:
        here.images.resolve(NAME)
    assert "trust add" not in (caught.value.hint or ""), "it is there"
    (record,) = here.images.list()
    assert (here.images.trust(record), here.images.lapse(record)) == ("unverified", "revoked")


@pytest.fixture
def signed_file(here: Machine, keys: Path, tmp_path: Path, signers: Signers) -> str:
    """Path of an archive that came in, signed by alice."""
    archive = build(here, tmp_path)
    signers.sign_beside(archive, "alice")
    signers.put("alice", keys, "root.d")
    assert here.images.fetch(str(archive)).trust == "signed"
    return str(archive)


@pytest.mark.parametrize("pull", ["new", "always"])
def test_a_file_whose_signer_was_revoked(here: Machine, signed_file: str, signers: Signers, pull: str) -> None:
    """It is judged as if it had never come in."""
    revoked = here.images.keys.parse(signers.public("alice") + signers.revocation_of("alice"), "x")[0]
    here.images.keys.add(revoked, None)
    for get in (here.images.fetch, here.images.resolve):
        with pytest.raises(TrustError, match="was revoked"):
            get(signed_file, pull=pull)
    assert here.images.resolve(signed_file, insecure=frozenset({"image"})).name == NAME


def test_a_file_whose_signer_is_trusted_no_longer(
    here: Machine, keys: Path, signed_file: str, signers: Signers
) -> None:
    here.images.keys.remove(signers.fingerprints["alice"], None)
    signers.put("mallory", keys, "root.d")
    with pytest.raises(TrustError, match="not trusted for it"):
        here.images.resolve(signed_file)
    here.images.keys.remove(signers.fingerprints["mallory"], None)
    came = here.images.resolve(signed_file).provenance
    assert [one.trust for one in came][-1] == "local", (
        "nobody is trusted for the name: it is a file like any other"
    )
    assert here.images.resolve(signed_file).provenance == came, "and is not read again"


@pytest.mark.parametrize("signature", [b"", b"no signature", "mallory"])
def test_a_file_that_has_a_signature_by_now(
    here: Machine, keys: Path, tmp_path: Path, signers: Signers, signature: bytes | str
) -> None:
    """It came in when nobody was trusted for its name; since somebody is, what lies beside it must be right."""
    archive = build(here, tmp_path)
    beside = Path(f"{archive}.asc")
    assert here.images.fetch(str(archive)).trust == "local"
    signers.put("alice", keys, "root.d")
    assert here.images.resolve(str(archive)).trust == "local", "it has none"
    beside.write_bytes(signers.sign(archive, signature) if isinstance(signature, str) else signature)
    for get in (here.images.fetch, here.images.resolve):
        with pytest.raises(TrustError):
            get(str(archive))
    beside.write_bytes(signers.sign(archive, "alice"))
    assert here.images.resolve(str(archive)).trust == "signed"


def test_a_file_of_that_name_changes_nothing_for_the_signed_one(
    here: Machine, signed: str, tmp_path: Path
) -> None:
    (genuine,) = here.images.list()
    forged = here.images.fetch(str(build(here, tmp_path, content="forged")))
    assert forged.trust == "local"
    assert here.images.get(NAME).id == forged.id, "it is the newest of that name"
    assert here.images.resolve(NAME).id == genuine.id


def test_relaxations_are_told_for_what_is_in_the_store_too(here: Machine, tmp_path: Path) -> None:
    here.images.fetch(str(build(here, tmp_path)))
    here.notes.clear()
    here.images.resolve(NAME, insecure={"image"})
    assert here.notes == [f"{NAME}: images are not verified (--insecure-options=image)"]


_RESOLVE = """
import sys
started = []
sys.addaudithook(lambda event, _: started.append(event) if event in ("subprocess.Popen", "os.fork") else None)
from kurma_core.config import load
from kurma_core.images.manager import ImageManager
from kurma_core.plugins.registry import PluginRegistry
config = load(*sys.argv[1:3])
images = ImageManager(config, PluginRegistry(config, lambda text: None))
for reference in sys.argv[3:]:
    images.resolve(reference, insecure=("http",) if ":" in reference else ())
print(len(started), "gnupg" in sys.modules)
"""


def test_what_is_in_the_store_is_used_without_gnupg(
    here: Machine, signed: str, tmp_path: Path, signers: Signers
) -> None:
    """Start-up latency is the product: a key file that is younger than the image is asked of once."""

    def told(*references: str) -> str:
        command = [sys.executable, "-c", _RESOLVE, f"{tmp_path}/state.json", f"{tmp_path}/state", *references]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    (key,) = here.images.keys.parse(signers.public("alice"), "x")
    time.sleep(1.1)  # an image's age is known to the second
    here.images.keys.add(key, NAME)
    time.sleep(0.2)
    assert told(NAME).endswith("True"), "the key file is read, for it may hold a revocation"
    assert told(NAME, signed) == "0 False"


# --- dependencies ---


def with_dependency(here: Machine, tmp_path: Path) -> Path:
    path = tmp_path / "app.aci"
    (tmp_path / "root").mkdir(exist_ok=True)
    here.images.files.build(
        str(tmp_path / "root"),
        {
            "acKind": "ImageManifest",
            "acVersion": "0.8.11",
            "name": "example.com/app",
            "dependencies": [{"imageName": NAME}],
        },
        str(path),
    )
    return path


def test_a_signed_image_does_not_stand_on_an_unverified_one(
    here: Machine, tmp_path: Path, keys: Path, signers: Signers
) -> None:
    app = with_dependency(here, tmp_path)
    signers.sign_beside(app, "alice")
    file = signers.put("alice", keys, "root.d")
    app_id = here.images.fetch(str(app)).id
    base = here.images.fetch(str(build(here, tmp_path)), insecure={"image"})
    with pytest.raises(RenderError, match="is unverified"):
        here.images.render(app_id)
    relaxed = here.images.render(app_id, insecure={"image"})
    assert base.id in relaxed.manifests
    with pytest.raises(ImageError, match="a pod uses it"):
        here.images.remove(base.id, [app_id])
    here.images.gc([app_id], 0)
    assert {record.id for record in here.images.list()} == {app_id, base.id}, "a pod may run so"
    # The image above is vouched for no longer: neither of the two is worth more than the other.
    file.unlink()
    assert base.id in here.images.render(app_id).manifests
    assert here.images.get(app_id).provenance[0].trust == "signed", "what was, was"


def test_a_dependency_whose_signer_is_trusted_no_longer(
    here: Machine, tmp_path: Path, keys: Path, signers: Signers
) -> None:
    app, base = with_dependency(here, tmp_path), build(here, tmp_path)
    signers.sign_beside(app, "alice")
    signers.sign_beside(base, "mallory")
    signers.put("alice", keys, "root.d")
    mallory = signers.put("mallory", keys, f"prefix.d/{NAME}")
    app_id, base_id = here.images.fetch(str(app)).id, here.images.fetch(str(base)).id
    assert base_id in here.images.render(app_id).manifests
    mallory.unlink()
    with pytest.raises(RenderError, match="its signer is not trusted for it"):
        here.images.render(app_id)


# --- images with host privilege ---


def test_a_host_keys_image_is_not_its_names_image(here: Machine, tmp_path: Path) -> None:
    """The key counts for stagers; for images of that name nobody said so (K2, K5)."""
    path = build(here, tmp_path)
    Path(f"{path}.asc").write_bytes(here.images._trust.sign(str(path)))
    here.images.host_image(str(path))
    with pytest.raises(TrustError, match=r"not trusted for it \("):  # it never was
        here.images.resolve(NAME)


def test_no_trust_command_widens_what_runs_with_host_privilege(
    here: Machine, tmp_path: Path, keys: Path, signers: Signers
) -> None:
    mallory = signers.fingerprints["mallory"]
    path = build(here, tmp_path)
    signers.sign_beside(path, "mallory")
    (key,) = here.images.keys.parse(signers.public("mallory"), "x")
    here.images.keys.add(key, None)
    here.images.keys.add(key, NAME)
    assert here.images.fetch(str(path)).trust == "signed"
    with pytest.raises(TrustError, match=f"does not list its signer {mallory}") as caught:
        here.images.host_image(str(path))
    assert f"trusted_host_keys: [{mallory}]" in (caught.value.hint or "")
    with pytest.raises(TrustError):
        here.images.keys.add(key, "../host.d")
    assert not (keys / "host.d").exists()


def test_an_early_signature_vouches_for_a_stager_too(here: Machine, tmp_path: Path) -> None:
    path = build(here, tmp_path)
    packed = tmp_path / "stager.aci"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "stager.sig").write_bytes(here.images._trust.sign(str(path)))
    assert here.images.host_image(str(packed)).fingerprint == here.images._trust.machine_key()


def test_a_host_key_that_was_revoked(machine: MakeMachine, tmp_path: Path, keys: Path, signers: Signers) -> None:
    alice = signers.fingerprints["alice"]
    here = machine(trustedkeys=[str(keys)], trusted_host_keys=[alice])
    path = build(here, tmp_path)
    signers.sign_beside(path, "alice")
    file = signers.put("alice", keys, "host.d")
    assert here.images.host_image(str(path)).fingerprint == alice
    assert here.images.host_image(str(path), pull="never").fingerprint == alice
    file.write_bytes(signers.public("alice") + signers.revocation_of("alice"))
    with pytest.raises(TrustError, match="was revoked"):
        here.images.host_image(str(path))
