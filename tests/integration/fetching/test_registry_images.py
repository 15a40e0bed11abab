"""Kinds of layers, IDs by source, and what docs/howto/registries.md shows (R1, R2, R3)."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kurma_core.errors import ArchiveError, ImageNotFoundError
from kurma_core.models.image import ImageRecord
from tests.docs.pages import find_page
from tests.integration.fetching.parts import Machine, MakeMachine
from tests.kit.command import KURMA
from tests.kit.registry import OciDir, Registry, layer_tar, sha256

pytestmark = pytest.mark.root

DOCS = find_page("registries.md")


def skopeo(*words: str) -> None:
    done = subprocess.run(
        ["skopeo", "--insecure-policy", "copy", "--quiet", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def with_layers(oci: OciDir, tag: str, layers: list[tuple[str, bytes, bytes]]) -> None:
    """:param layers: media type, content as shipped, content unpacked."""
    config = {
        "os": "linux",
        "architecture": os.uname().machine.replace("x86_64", "amd64").replace("aarch64", "arm64"),
        "config": {"Cmd": ["/x"]},
        "rootfs": {"type": "layers", "diff_ids": [sha256(plain) for _, _, plain in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            **oci.blob(json.dumps(config).encode()),
        },
        "layers": [{"mediaType": kind, **oci.blob(shipped)} for kind, shipped, _ in layers],
    }
    oci.enter({"mediaType": manifest["mediaType"], **oci.blob(json.dumps(manifest).encode())}, tag)


def tree_of(here: Machine, record: ImageRecord) -> dict[str, bytes]:
    (layer,) = here.images.render(record.id, "copy").layers
    root = Path(layer.path)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_limit_is_told_with_the_locator(machine: MakeMachine, registry: Registry, oci: OciDir) -> None:
    tar = layer_tar({"file": bytes(4096)})
    with_layers(oci, "large", [("application/vnd.oci.image.layer.v1.tar", tar, tar)])
    registry.push(f"oci:{oci.path}:large", "app:large", "--preserve-digests")
    here = machine(limits={"total_size": 1024})
    for locator in (f"docker://{registry.host}/app:large", f"oci:{oci.path}:large"):
        with pytest.raises(ArchiveError) as caught:
            here.images.fetch(locator)
        layer = sha256(tar).partition(":")[2][:12]
        assert caught.value.message.startswith(f"{locator}: layer {layer}: the archive is larger than 1024 bytes")


def test_layers_of_every_kind(machine: MakeMachine, registry: Registry, oci: OciDir) -> None:
    """What the bytes say counts, whatever the media type says; a layer that another image packed otherwise is not
    stored twice."""
    tars = [layer_tar({f"file{number}": b"%d" % number}) for number in range(4)]
    kind = "application/vnd.oci.image.layer.v1.tar"
    zstd: Callable[[bytes], bytes] = zstandard.ZstdCompressor().compress
    with_layers(
        oci,
        "kinds",
        [
            (kind, tars[0], tars[0]),
            (f"{kind}+gzip", gzip.compress(tars[1]), tars[1]),
            (f"{kind}+zstd", zstd(tars[2]), tars[2]),
            (f"{kind}+gzip", zstd(tars[3]), tars[3]),
        ],
    )
    with_layers(oci, "repacked", [(f"{kind}+zstd", zstd(tar), tar) for tar in tars])
    here = machine()
    records = []
    for tag in ("kinds", "repacked"):
        registry.push(f"oci:{oci.path}:{tag}", f"app:{tag}", "--preserve-digests")
        records.append(here.images.fetch(f"docker://{registry.host}/app:{tag}"))
    assert tree_of(here, records[0]) == {f"file{number}": b"%d" % number for number in range(4)}
    assert records[0].layers == records[1].layers
    assert len(list((here.state / "images/layers").iterdir())) == 4


def test_a_path_that_is_removed_and_made_again(machine: MakeMachine, registry: Registry, oci: OciDir) -> None:
    """Over three layers, in every order that the entries of one layer may stand in."""
    base = layer_tar({"d": None, "d/old": b"old", "d/kept": b"kept", "f": b"one", "o": None, "o/old": b"old"})
    first = layer_tar(
        {"d/new": b"new", ".wh.d": b"", "f": b"two", ".wh.f": b"", "o/a": b"a", "o/.wh..wh..opq": b""}
    )
    last = layer_tar({".wh.f": b"", "f": None, "f/x": b"x", "o/.wh.a": b"", "o/b": b"b"})
    packed = [("application/vnd.oci.image.layer.v1.tar", tar, tar) for tar in (base, first, last)]
    with_layers(oci, "again", packed)
    registry.push(f"oci:{oci.path}:again", "app:again")
    here = machine()
    record = here.images.fetch(f"docker://{registry.host}/app:again")
    assert tree_of(here, record) == {"d/new": b"new", "f/x": b"x", "o/b": b"b"}
    (whole,) = here.images.render(record.id, "overlay").layers
    assert sorted(os.listdir(whole.path)) == ["d", "f", "o"]


def test_ids_by_source(machine: MakeMachine, registry: Registry, oci: OciDir, tmp_path: Path) -> None:
    """The same input has the same ID, whatever way it took; another source has another, over the same layers."""
    oci.image("v1", [layer_tar({"file": b"1"}), layer_tar({"file": b"2"})], {"Cmd": ["/file"]})
    registry.push(f"oci:{oci.path}:v1", "team/app:v1")
    name, source = "example.com/team/app:v1", f"oci:{oci.path}:v1"
    skopeo(source, f"docker-archive:{tmp_path}/one.tar:{name}")
    skopeo(source, f"docker-archive:{tmp_path}/two.tar:{name}", "--additional-tag", "example.com/team/app:v2")
    skopeo(source, f"oci-archive:{tmp_path}/one.oci:{name}")
    skopeo(source, f"oci:{tmp_path}/copied:{name}")
    subprocess.run(["gzip", "-k", f"{tmp_path}/one.tar"], check=True)
    mirrored: dict[str, Any] = {"registries": {"mirrors": {"example.com": [registry.host]}}}
    records = {
        locator: machine(f"m{number}", **mirrored).images.fetch(locator)
        for number, locator in enumerate(
            (
                f"docker-archive:{tmp_path}/one.tar",
                f"docker-archive:{tmp_path}/one.tar.gz",
                f"docker-archive:{tmp_path}/two.tar:{name}",
                f"oci-archive:{tmp_path}/one.oci",
                f"oci:{tmp_path}/copied",
                f"docker://{name}",
            )
        )
    }
    assert len({record.layers for record in records.values()}) == 1
    assert {(record.name, record.version) for record in records.values()} == {("example.com/team/app", "v1")}
    ids = [record.id for record in records.values()]
    assert ids[0] == ids[1] == ids[2], "one docker archive, compressed or among others"
    # A layout holds the registry's own manifest: name, digests and all else are the same, and so is the image.
    assert ids[3] == ids[4] == ids[5]
    assert ids[0] != ids[3], "a docker archive has no manifest of the registry's kind"


def test_an_image_without_a_command(registry: Registry, oci: OciDir, tmp_path: Path) -> None:
    """It can be fetched; running it says that it gives none, and how to give one (R4)."""
    oci.image("none", [layer_tar({"file": b"1"})], {"Env": ["A=b"]})
    registry.push(f"oci:{oci.path}:none", "none:1")
    locator = f"docker://{registry.host}/none:1"

    def kurma(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*KURMA, "--dir", str(tmp_path / "state"), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert kurma("image", "fetch", locator).returncode == 0
    done = kurma("run", locator)
    name = f"{registry.host.replace(':', '_')}/none"
    assert done.returncode == 125
    assert f"kurma: app none has nothing to run: image {name} gives no command" in done.stderr
    assert "hint: give one: `kurma run IMAGE -- COMMAND ARG…`" in done.stderr


def test_the_commands_of_the_documentation(
    machine: MakeMachine, registry: Registry, oci: OciDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locators = re.findall(r"^kurma image fetch (\S+)", DOCS.read_text(), re.MULTILINE)
    assert len(locators) == 5
    oci.image("v1", [layer_tar({"file": b"1"})], {"Cmd": ["/file"]})
    registry.push(f"oci:{oci.path}:v1", "library/redis:7")
    registry.push(f"oci:{oci.path}:v1", "team/app:v1")
    skopeo(f"oci:{oci.path}:v1", f"oci-archive:{tmp_path}/app.oci.tar:v1")
    skopeo(f"oci:{oci.path}:v1", f"docker-archive:{tmp_path}/saved.tar:quay.io/team/app:v1")
    monkeypatch.chdir(tmp_path)
    here = machine(registries={"mirrors": {"docker.io": [registry.host], "quay.io": [registry.host]}})
    names = [here.images.fetch(locator).name for locator in locators]
    assert names == [
        "registry-1.docker.io/library/redis",
        "quay.io/team/app",
        "layout",
        "app.oci",
        "quay.io/team/app",
    ]


def test_an_image_is_meant_by_the_address_that_it_came_by(
    machine: MakeMachine, registry: Registry, oci: OciDir
) -> None:
    tar = layer_tar({"a": b"1"})
    with_layers(oci, "named", [("application/vnd.oci.image.layer.v1.tar", tar, tar)])
    registry.push(f"oci:{oci.path}:named", "app:named", "--preserve-digests")
    here = machine()
    locator = f"docker://{registry.host}/app:named"
    record = here.images.fetch(locator)
    assert here.images.get(locator).id == record.id
    with pytest.raises(ImageNotFoundError, match=":other"):
        here.images.get(f"docker://{registry.host}/app:other")
    here.images.remove(locator)
    assert here.images.list() == ()
    with pytest.raises(ImageNotFoundError):
        here.images.remove(locator)
