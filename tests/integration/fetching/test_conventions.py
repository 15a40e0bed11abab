"""What an image expects of its executor: said once, by the fetcher that understands its annotations (18.2)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kurma_core.models.image import Conventions
from tests.integration.fetching.parts import MakeMachine
from tests.kit.images import archive, busybox_root, shell
from tests.kit.registry import OciDir, sha256

pytestmark = pytest.mark.root

#: As docker2aci writes them.
DOCKER = {"appc.io/docker/entrypoint": '["/bin/sh"]', "appc.io/docker/cmd": '["-c", "true"]'}
EXPECTED = Conventions(("/bin/sh",), 15, True, True, True)
OFF = {"plugins": {"fetchers": {name: {"enabled": False} for name in ("docker", "oci", "oci-archive")}}}
OFF["plugins"]["fetchers"]["docker-archive"] = {"enabled": False}


def converted(tmp_path: Path, **annotations: str) -> str:
    pairs = [{"name": name, "value": value} for name, value in annotations.items()]
    root = busybox_root(str(tmp_path / "root"))
    return archive(root, str(tmp_path / "a.aci"), "example.com/a", app=shell("true"), annotations=pairs)


def test_an_aci_of_docker2aci_whoever_brings_it(machine: MakeMachine, tmp_path: Path) -> None:
    """It came from a file; the fetcher ``docker`` is asked."""
    here = machine()
    found = here.images.fetch(converted(tmp_path, **DOCKER))
    assert found.conventions == EXPECTED
    assert machine(**OFF).images.get(found.id).conventions == EXPECTED, "kept, without the fetcher"
    plain = archive(str(tmp_path / "root"), str(tmp_path / "b.aci"), "example.com/b", app=shell("true"))
    assert here.images.fetch(plain).conventions == Conventions()


def test_one_fetcher_of_the_distribution_is_enough(machine: MakeMachine, tmp_path: Path) -> None:
    some = {"plugins": {"fetchers": {"docker": {"enabled": False}}}}
    assert machine(**some).images.fetch(converted(tmp_path, **DOCKER)).conventions == EXPECTED


def test_without_the_fetcher_it_is_an_app_container_image(machine: MakeMachine, tmp_path: Path) -> None:
    """Until it comes again, when the fetcher is there."""
    path = converted(tmp_path, **DOCKER)
    found = machine(**OFF).images.fetch(path)
    assert found.conventions == Conventions()
    os.utime(path)  # so that it is read again
    assert machine().images.fetch(path).id == found.id
    assert machine().images.get(found.id).conventions == EXPECTED


def test_an_image_of_layers(machine: MakeMachine, oci: OciDir, busybox_layer: bytes) -> None:
    config = {
        "os": "linux",
        "architecture": os.uname().machine.replace("x86_64", "amd64").replace("aarch64", "arm64"),
        "config": {"Entrypoint": ["/bin/sh"], "Cmd": ["-c", "true"], "StopSignal": "SIGQUIT", "User": "alice"},
        "rootfs": {"type": "layers", "diff_ids": [sha256(busybox_layer)]},
    }
    kind = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": {"mediaType": f"{kind}.config.v1+json", **oci.blob(json.dumps(config).encode())},
        "layers": [{"mediaType": f"{kind}.layer.v1.tar", **oci.blob(busybox_layer)}],
    }
    oci.enter({"mediaType": manifest["mediaType"], **oci.blob(json.dumps(manifest).encode())}, "v1")
    here = machine()
    found = here.images.fetch(f"oci:{oci.path}:v1")
    assert found.conventions == Conventions(("/bin/sh",), 3, True, True, True)
    app = here.images.manifest(found.id).app
    assert app is not None
    assert app.group != "", "the fetcher has filled in the user's group by the image's files"
