"""Images that run with host privilege: signed by a listed key or pinned, and checked at each use (K5, G1, H1)."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kurma_testing import bound
from kurma_testing.webserver import Page, WebServer

from kurma_core.errors import FetchRefusedError, ImageError, PluginError, StoreError, TrustError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.stager import StagerImageHooks
from tests.integration.fetching.parts import Machine, MakeMachine
from tests.kit.registry import BUSYBOX, OciDir

pytestmark = pytest.mark.root

MANIFEST = {
    "acKind": "ImageManifest",
    "acVersion": "0.8.11",
    "name": "example.com/stager",
    "app": {"exec": ["/bin/busybox"], "user": "0", "group": "0"},
}


class Source:
    """A stager's image as a plugin brings one; counts how often it is built."""

    def __init__(self) -> None:
        self.built = 0
        self.mark = "one"

    def fingerprint(self) -> str:
        return self.mark

    def build(self, rootfs: str) -> Mapping[str, Any]:
        self.built += 1
        os.mkdir(f"{rootfs}/bin")
        shutil.copyfile(BUSYBOX, f"{rootfs}/bin/busybox")
        Path(rootfs, "mark").write_text(self.mark)
        for path in ("bin/busybox", "bin", "mark", "."):
            os.utime(f"{rootfs}/{path}", ns=(0, 0))
        return MANIFEST


@pytest.fixture
def here(machine: MakeMachine) -> Machine:
    return machine()


def archive(here: Machine, tmp_path: Path, **more: Any) -> str:
    root = tmp_path / "stager"
    root.mkdir()
    Path(root, "file").write_bytes(b"content")
    here.images.files.build(str(root), {**MANIFEST, **more}, str(tmp_path / "stager.aci"))
    return str(tmp_path / "stager.aci")


# --- built here ---


def test_built_and_signed_once(here: Machine, machine: MakeMachine) -> None:
    source = Source()
    first = here.images.host_image_from_source("default", source)
    assert first.manifest.name == "example.com/stager"
    assert Path(first.path, "mark").read_text() == "one"
    assert first.fingerprint == here.images._trust.machine_key()
    record = here.images.get(first.id)
    assert (record.trust, record.provenance[0].fingerprint) == ("built", first.fingerprint)
    assert machine().images.host_image_from_source("default", source) == first
    assert source.built == 1
    source.mark = "two"
    second = here.images.host_image_from_source("default", source)
    assert second.id != first.id
    assert source.built == 2


def test_an_invalid_manifest_is_the_plugins_fault(here: Machine) -> None:
    """18.3."""

    class Wrong:
        @hookimpl
        def fingerprint(self) -> str:
            return "one"

        @hookimpl
        def build(self) -> Mapping[str, Any]:
            return {}

    source = bound(StagerImageHooks, Wrong(), "kurma.stagers", "wild")
    with pytest.raises(PluginError) as caught:
        here.images.host_image_from_source("default", source)
    said = f"stager plugin 'wild' of {__name__} returned for stager default an invalid manifest: $.acKind"
    assert str(caught.value).startswith(said)


def test_a_byte_changed_stops_the_next_run(here: Machine) -> None:
    source = Source()
    image = here.images.host_image_from_source("default", source)
    binary = Path(image.path, "bin/busybox")
    before = binary.stat()
    content = bytearray(binary.read_bytes())
    content[1000] ^= 1
    binary.write_bytes(content)
    os.utime(binary, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(
        StoreError, match=r"cannot run the stored image, which was changed: .*bin/busybox"
    ) as caught:
        here.images.host_image_from_source("default", source)
    assert f"kurma image rm {image.id[:19]}" in (caught.value.hint or "")
    assert "kurma stager build default" in (caught.value.hint or "")
    again = here.images.host_image_from_source("default", source, rebuild=True)
    assert again.id == image.id, "built anew it is the same"
    assert here.images.host_image_from_source("default", source) == again


def test_the_way_out_that_the_hint_names(here: Machine) -> None:
    source = Source()
    image = here.images.host_image_from_source("default", source)
    Path(image.path, "more").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot run the stored image, which was changed"):
        here.images.host_image_from_source("default", source)
    here.images.remove(image.id)
    assert here.images.host_image_from_source("default", source).id == image.id
    assert source.built == 2


def test_touched_files_are_read_and_found_good(here: Machine) -> None:
    source = Source()
    image = here.images.host_image_from_source("default", source)
    binary = Path(image.path, "bin/busybox")
    os.chmod(binary, binary.stat().st_mode)
    assert here.images.host_image_from_source("default", source) == image, "only its ctime is another"


def test_a_machine_whose_configuration_leaves_its_own_key_out(machine: MakeMachine) -> None:
    here = machine(trusted_host_keys=["A" * 40])
    with pytest.raises(TrustError, match="does not list its signer") as caught:
        here.images.host_image_from_source("default", Source())
    assert here.images._trust.machine_key() in (caught.value.hint or "")
    assert "trusted_host_keys" in (caught.value.hint or "")


def test_gc_leaves_the_stager_in_use(here: Machine) -> None:
    source = Source()
    old = here.images.host_image_from_source("default", source)
    source.mark = "two"
    new = here.images.host_image_from_source("default", source)
    here.images.gc([], 0)
    assert [record.id for record in here.images.list()] == [new.id] != [old.id]


# --- by locator ---


def test_an_unsigned_stager_is_refused(here: Machine, tmp_path: Path) -> None:
    path = archive(here, tmp_path)
    with pytest.raises(TrustError, match="cannot run with host privilege: it is not signed") as caught:
        here.images.host_image(path)
    assert "host_image_digests" in (caught.value.hint or "")
    assert here.images.list() == ()


def test_one_that_is_in_the_store_already_is_refused_as_well(here: Machine, tmp_path: Path) -> None:
    """Whatever it came in for, it was not verified for this."""
    path = archive(here, tmp_path)
    here.images.fetch(path)
    here.images.fetch(path, insecure={"image"})
    with pytest.raises(TrustError, match="is not signed"):
        here.images.host_image(path)


def test_signed_by_a_listed_key(here: Machine, tmp_path: Path, machine: MakeMachine) -> None:
    path = archive(here, tmp_path)
    Path(path + ".asc").write_bytes(here.images._trust.sign(path))
    image = here.images.host_image(path)
    assert image.fingerprint == here.images._trust.machine_key()
    assert Path(image.path, "file").read_bytes() == b"content"
    assert here.images.host_image(path) == image
    # The key is struck off the list: what it vouched for counts no more.
    with pytest.raises(TrustError):
        machine(trusted_host_keys=["A" * 40]).images.host_image(path)


def test_a_signature_over_something_else(here: Machine, tmp_path: Path) -> None:
    path = archive(here, tmp_path)
    (tmp_path / "other").write_bytes(b"other")
    Path(path + ".asc").write_bytes(here.images._trust.sign(str(tmp_path / "other")))
    with pytest.raises(TrustError):
        here.images.host_image(path)
    assert here.images.list() == ()


def test_a_stored_one_that_was_changed(here: Machine, tmp_path: Path) -> None:
    path = archive(here, tmp_path)
    Path(path + ".asc").write_bytes(here.images._trust.sign(path))
    image = here.images.host_image(path)
    Path(image.path, "file").write_bytes(b"contenT")
    with pytest.raises(StoreError, match="cannot run the stored image, which was changed"):
        here.images.host_image(path)


def test_a_pinned_registry_image(machine: MakeMachine, tmp_path: Path, oci: OciDir, busybox_layer: bytes) -> None:
    entry = oci.image("v1", [busybox_layer], {"Cmd": ["/bin/busybox"]})
    locator = f"oci:{oci.path}:v1"
    with pytest.raises(TrustError, match="images from registries have no signatures") as caught:
        machine("none").images.host_image(locator)
    assert entry["digest"] in (caught.value.hint or "")
    with pytest.raises(TrustError, match="pins"):
        machine("wrong", host_image_digests={locator: "sha256:" + "0" * 64}).images.host_image(locator)
    here = machine("right", host_image_digests={locator: entry["digest"]})
    image = here.images.host_image(locator)
    assert image.fingerprint is None
    assert os.access(Path(image.path, "bin/busybox"), os.X_OK)
    assert here.images.host_image(locator) == image
    with pytest.raises(TrustError):
        machine("right", host_image_digests={locator: "sha256:" + "0" * 64}).images.host_image(locator)


def test_a_pinned_archive_from_a_plain_web_server(
    machine: MakeMachine, here: Machine, tmp_path: Path, server: WebServer
) -> None:
    """What cannot be trusted on its way is told by its digest: its ID, or the file's."""
    path = Path(archive(here, tmp_path))
    server.pages["/stager.aci"] = Page(path.read_bytes())
    locator = server.url("/stager.aci")
    with pytest.raises(FetchRefusedError, match="plain http is not allowed"):
        here.images.host_image(locator)
    ident = here.images.fetch(str(path)).id
    digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    for name, pin in (("id", ident), ("file", digest)):
        image = machine(name, host_image_digests={locator: pin}).images.host_image(locator)
        assert (image.id, image.fingerprint) == (ident, None)
    server.pages["/stager.aci"] = Page(path.read_bytes() + b"\0" * 512, etag='"two"')
    for name, pin in (("other", ident), ("another", digest)):
        changed = machine(name, host_image_digests={locator: pin}).images
        with pytest.raises(TrustError, match=r"its digest is sha256:.*, and kurma\.yml pins") as caught:
            changed.host_image(locator)
        assert pin in str(caught.value)
        assert changed.list() == ()


def test_a_pin_for_another_locator_is_none(machine: MakeMachine, tmp_path: Path) -> None:
    path = archive(machine(), tmp_path)
    digest = f"sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
    here = machine("pinned", host_image_digests={f"{path}x": digest})
    with pytest.raises(TrustError, match="is not signed"):
        here.images.host_image(path)


def test_a_file_that_is_pinned_is_the_same_by_any_path(
    machine: MakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(machine(), tmp_path)
    digest = f"sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
    monkeypatch.chdir(tmp_path)
    for pin in (path, f"file://{path}", f"{tmp_path}//./stager.aci"):
        here = machine("pinned", host_image_digests={"example.com/other": "sha256:" + 64 * "0", pin: digest})
        for locator in (path, f"file://{path}", "./stager.aci", "stager.aci"):
            assert here.images.host_image(locator).manifest.name == "example.com/stager"
    # A pin by a relative path would be for whatever is there where it is read.
    here = machine("relative", host_image_digests={"./stager.aci": digest})
    with pytest.raises(TrustError, match="is not signed"):
        here.images.host_image(path)


def test_a_stager_with_dependencies_is_refused(here: Machine, tmp_path: Path) -> None:
    path = archive(here, tmp_path, dependencies=[{"imageName": "example.com/x"}])
    Path(path + ".asc").write_bytes(here.images._trust.sign(path))
    with pytest.raises(ImageError, match="must not depend on others"):
        here.images.host_image(path)
