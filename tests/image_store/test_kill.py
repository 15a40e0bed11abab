"""S1: killed at any step, the image is wholly there or not there; what is left over goes with the next sweep."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

import pytest

from kurma_core.image_store import ImageStore
from tests.kit.archives import LOCAL, file, image, stage_and_commit

pytestmark = pytest.mark.full

PROGRAM = """
import hashlib, io, os, signal, sys
from kurma_core.appc.image import ImageManifest
from kurma_core.image_store import ImageStore
from kurma_core.models.image import Provenance

root, archive, what, at = sys.argv[1:]

def step(name):
    print(name, flush=True)
    if name == at:
        os.kill(os.getpid(), signal.SIGKILL)

store = ImageStore(root, step=step)
provenance = Provenance("file:///new", "2026-01-02T00:00:00Z", "local")
if what == "image":
    with open(archive, "rb") as file, store.stage_archive(file) as staged:
        staged.commit(provenance)
elif what == "layered":
    with open(archive, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
        file.seek(0)
        key = store.add_layer(file, f"sha256:{digest}")
    document = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/layered"}
    manifest = ImageManifest.parse(document)
    store.add_layered(manifest, (key,), provenance)
elif what == "remove":
    store.remove(store.find("example.com/thing").id)
elif what == "tree":
    def build(path):
        with open(path + "/f", "w") as file:
            file.write("x")
    store.cache.tree("key", build)
"""

IMAGE = ["staging", "extracted", "recorded", "synced", "archive placed", "layer placed", "image placed", "done"]
LAYERED = [
    *("staging", "extracted", "layer synced", "layer placed"),
    *("identified", "recorded", "synced", "image placed", "done"),
]
REMOVE = ["image taken away", "archive taken away", "layer taken away", "taken away"]


@pytest.fixture
def archive(tmp_path: object) -> str:
    path = f"{tmp_path}/image.aci"
    with open(path, "wb") as out:
        out.write(image(*[file(f"rootfs/f{number}", b"x" * number) for number in range(20)]))
    return path


def run(store: ImageStore, archive: str, what: str, at: str) -> list[str]:
    """Run a change, and kill the process at the step ``at``; all steps that it came to."""
    command = [sys.executable, "-c", PROGRAM, store.root, archive, what, at]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert result.returncode == (-signal.SIGKILL if at else 0)
    return result.stdout.splitlines()


def check_whole(store: ImageStore) -> None:
    """Whatever the store lists is whole, and a sweep leaves nothing but that."""
    for found in store.list():
        store.verify(found.id, deep=True)
        store.export(found.id, io.BytesIO())
    known = {found.id for found in store.list()}
    store.gc(known, -1)
    assert os.listdir(store.path("tmp")) == []
    assert {name.removesuffix(".aci") for name in os.listdir(store.path("archives"))} <= known
    needed = {key for found in store.list() for key in found.layers}
    assert set(os.listdir(store.path("layers"))) == needed


def test_the_steps_are_these(store: ImageStore, archive: str) -> None:
    assert run(store, archive, "image", "") == IMAGE
    assert run(store, archive, "layered", "") == LAYERED
    assert run(store, archive, "remove", "") == REMOVE
    assert run(store, archive, "tree", "") == ["tree built", "tree placed"]


@pytest.mark.parametrize("at", IMAGE)
def test_killed_while_an_image_comes_in(at: str, store: ImageStore, archive: str) -> None:
    run(store, archive, "image", at)
    assert len(store.list()) == (1 if at in ("image placed", "done") else 0)
    check_whole(store)
    # Nothing is in the way of trying again.
    run(store, archive, "image", "")
    assert len(store.list()) == 1
    check_whole(store)


@pytest.mark.parametrize("at", ["archive placed", "layer placed"])
def test_leftovers_in_place_are_taken_over(at: str, store: ImageStore, archive: str) -> None:
    run(store, archive, "image", at)
    run(store, archive, "image", "")
    assert len(store.list()) == 1
    check_whole(store)


@pytest.mark.parametrize("at", LAYERED)
def test_killed_while_a_layered_image_comes_in(at: str, store: ImageStore, archive: str) -> None:
    run(store, archive, "layered", at)
    assert len(store.list()) == (1 if at in ("image placed", "done") else 0)
    check_whole(store)
    run(store, archive, "layered", "")
    check_whole(store)


@pytest.mark.parametrize("at", ["recorded", "synced", "image placed", "provenance added", "done"])
def test_killed_while_provenance_is_added(at: str, store: ImageStore, archive: str) -> None:
    with open(archive, "rb") as whole:
        stage_and_commit(store, whole.read())
    run(store, archive, "image", at)
    (found,) = store.list()
    assert len(found.provenance) == (2 if at in ("provenance added", "done") else 1)
    assert found.provenance[0] == LOCAL
    check_whole(store)


@pytest.mark.parametrize("at", REMOVE)
def test_killed_while_an_image_is_removed(at: str, store: ImageStore, archive: str) -> None:
    with open(archive, "rb") as whole:
        stage_and_commit(store, whole.read())
    run(store, archive, "remove", at)
    assert store.list() == ()
    check_whole(store)


def test_killed_while_a_tree_is_built(store: ImageStore, archive: str) -> None:
    run(store, archive, "tree", "tree built")
    assert os.listdir(store.path("trees")) == []
    check_whole(store)


def test_a_sweep_leaves_the_living_alone(store: ImageStore, archive: str) -> None:
    with open(archive, "rb") as whole, store.stage_archive(whole) as staged:
        program = "from kurma_core.image_store import ImageStore\n"
        program += f"print(ImageStore({store.root!r}).gc((), -1).removed)"
        command = [sys.executable, "-c", program]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        assert result.stdout == "()\n"
        staged.commit(LOCAL)
    check_whole(store)
    assert len(store.list()) == 1
