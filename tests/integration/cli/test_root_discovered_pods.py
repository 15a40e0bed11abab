"""Pods whose images are not in the store: found by their names over HTTPS, held to the IDs that are given (D4, E5
to E7, I4, P2)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.shop import Done, Shop, one_line, open_shop
from tests.integration.pods.early import app_manifest, archive, fileset_manifest, tree
from tests.kit.command import Kurma
from tests.kit.images import busybox_root
from tests.kit.keys import Signers

pytestmark = pytest.mark.root
CUT = len("sha256-") + 40


@pytest.fixture
def shop(kurma_command: Kurma, signers: Signers, tmp_path: Path) -> Iterator[Shop]:
    with open_shop(kurma_command, signers, tmp_path) as made:
        made.trust()
        yield made


def put_early(shop: Shop, name: str, path: str) -> None:
    """By simple discovery, with a binary signature over the tar."""
    shop.owner.put(f"/{name}.aci", Path(path), signer="")
    shop.owner.put(f"/{name}.sig", Path(path), signer="")
    shop.owner.server.pages[f"/{name}.sig"].content = shop.owner.signers.sign(Path(path), "alice", armor=False)


@pytest.fixture
def early(shop: Shop, tmp_path: Path) -> dict[str, str]:
    """IDs by name of images of the draft that the owner publishes: worker needs base and libs."""
    at = tmp_path / "early"
    at.mkdir()
    base = archive(
        at / "base.aci", busybox_root(str(at / "base")), None, fileset_manifest("example.com/base-1.0.0")
    )
    libs = archive(
        at / "libs.aci", tree(at / "libs", lib="of libs\n"), None, fileset_manifest("example.com/libs-2.1")
    )
    worker = archive(
        at / "worker.aci",
        tree(at / "worker", own="its own\n"),
        app_manifest("example.com/worker-1.0.0", "cat /opt/libs/lib /own"),
        fileset_manifest(
            "example.com/worker-1.0.0",
            {"hash": base[1], "name": "example.com/base-1.0.0", "root": "/"},
            {"hash": libs[1][:CUT], "name": "example.com/libs-2.1", "root": "/opt/libs"},
        ),
    )
    for name, (path, _) in {"worker-1.0.0": worker, "base-1.0.0": base, "libs-2.1": libs}.items():
        put_early(shop, name, path)
    return {"worker": worker[1], "base": base[1], "libs": libs[1]}


def run(shop: Shop, tmp_path: Path, document: dict[str, Any], *options: str) -> Done:
    (tmp_path / "pod.json").write_text(json.dumps(document))
    return shop("run", "--rm", "--net", "none", *options, "--pod", str(tmp_path / "pod.json"))


def early_pod(image_id: str, app: str = "example.com/worker-1.0.0") -> dict[str, Any]:
    return {
        "acVersion": "0.1.0",
        "acKind": "ContainerRuntimeManifest",
        "apps": [{"app": app, "imageID": image_id}],
    }


@pytest.mark.parametrize("digits", [None, pytest.param(CUT, marks=pytest.mark.full)], ids=["whole", "truncated"])
def test_an_early_pod_is_found_with_all_that_it_needs(
    shop: Shop, early: dict[str, str], tmp_path: Path, digits: int | None
) -> None:
    pod = early_pod(early["worker"][:digits])
    done = run(shop, tmp_path, pod)
    assert (done.returncode, done.stdout) == (0, "of libs\nits own\n"), done.stderr
    assert len(shop.new()) == 3
    for name in ("worker-1.0.0", "base-1.0.0", "libs-2.1"):
        assert shop.bodies(f"/{name}.aci") == 1
        assert shop.bodies(f"/{name}.sig") == 1
    shown = json.loads(shop.out("image", "show", early["worker"], "--format", "json"))
    assert shown["provenance"][-1]["trust"] == "signed"
    assert shown["provenance"][-1]["locator"] == "example.com/worker-1.0.0"
    before = len(shop.owner.server.seen)
    again = run(shop, tmp_path, pod)
    assert (again.returncode, again.stdout) == (0, "of libs\nits own\n"), again.stderr
    assert len(shop.owner.server.seen) == before, "what is in the store was asked for"


@pytest.mark.full
def test_another_early_image_than_the_pod_gives(shop: Shop, early: dict[str, str], tmp_path: Path) -> None:
    wrong = "sha256-" + "0" * 64
    for given in (wrong, wrong[:CUT]):
        done = run(shop, tmp_path, early_pod(given))
        one_line(done, f"has the ID {early['worker'][:19]}…, not {given[:19]}…", "/worker-1.0.0.aci")
    assert shop.clean()


def test_an_early_app_must_be_its_images(shop: Shop, early: dict[str, str], tmp_path: Path) -> None:
    """Whether the image comes, or is there already."""
    other = early_pod(early["worker"], app="example.com/other-1.0.0")
    shop.owner.server.pages["/other-1.0.0.aci"] = shop.owner.server.pages["/worker-1.0.0.aci"]
    shop.owner.server.pages["/other-1.0.0.sig"] = shop.owner.server.pages["/worker-1.0.0.sig"]
    done = run(shop, tmp_path, other)
    one_line(done, "example.com/other-1.0.0: the image at", "is another one: example.com/worker:1.0.0")
    assert shop.clean()
    shop.out("image", "fetch", "example.com/worker-1.0.0")
    done = run(shop, tmp_path, other)
    one_line(done, f"the image with the ID {early['worker']} is example.com/worker:1.0.0", "not example.com/other")


@pytest.mark.full
def test_a_fileset_of_another_id(shop: Shop, early: dict[str, str], tmp_path: Path) -> None:
    """What came before it stays; it does not. Whole IDs: :mod:`.test_named_images`."""
    wrong = "sha256-" + "0" * 40
    needs = {"hash": wrong, "name": "example.com/base-1.0.0", "root": "/"}
    path, ident = archive(
        tmp_path / "needy.aci",
        tree(tmp_path / "needy", own="x"),
        app_manifest("example.com/needy-1.0.0", "true"),
        fileset_manifest("example.com/needy-1.0.0", needs),
    )
    put_early(shop, "needy-1.0.0", path)
    done = run(shop, tmp_path, early_pod(ident, app="example.com/needy-1.0.0"))
    one_line(
        done,
        f"example.com/needy depends on example.com/base-1.0.0 ({wrong[:19]}…): ",
        f"has the ID {early['base'][:19]}…, not {wrong[:19]}…",
    )
    assert len(shop.new()) == 1
    assert not shop.leftovers()


def test_pull_never_asks_nobody(shop: Shop, early: dict[str, str], tmp_path: Path) -> None:
    done = run(shop, tmp_path, early_pod(early["worker"]), "--pull", "never")
    one_line(done, f"the store holds no image {early['worker']}", "--pull never forbids fetching")
    assert not shop.owner.server.seen


# --- late pods ---


@pytest.fixture
def late(shop: Shop, tmp_path: Path) -> str:
    """ID of ``example.com/late``, version 1, an app; it gives its dependency by its whole ID."""
    shop.owner.page()
    root = busybox_root(str(tmp_path / "busybox"))
    base = publish(shop, tmp_path, "example.com/busy", root)
    app = {"exec": ["/bin/cat", "/own"], "user": "0", "group": "0"}
    dependencies = [{"imageName": "example.com/busy", "imageID": base, "labels": [label("version", "1")]}]
    own = tree(tmp_path / "own", own="late\n")
    return publish(shop, tmp_path, "example.com/late", str(own), app=app, dependencies=dependencies)


def label(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def publish(shop: Shop, tmp_path: Path, name: str, root: str, **manifest: Any) -> str:
    from tests.kit.images import archive as late_archive

    path = Path(late_archive(root, str(tmp_path / f"{name.replace('/', '_')}.aci"), name, **manifest))
    shop.owner.put(f"/images/{name}-1.aci", path)
    return "sha512-" + hashlib.sha512(path.read_bytes()).hexdigest()


def late_pod(image_id: str, name: str = "example.com/late", version: str = "1") -> dict[str, Any]:
    image = {"id": image_id, "name": name, "labels": [label("version", version)]}
    return {
        "acVersion": "0.8.11",
        "acKind": "PodManifest",
        "apps": [{"name": "late", "image": image}],
    }


def test_a_late_pod_is_found_with_what_it_needs(shop: Shop, late: str, tmp_path: Path) -> None:
    done = run(shop, tmp_path, late_pod(late))
    assert (done.returncode, done.stdout) == (0, "late\n"), done.stderr
    assert late in shop.new()
    assert len(shop.new()) == 2
    assert shop.bodies("/images/example.com/late-1.aci") == shop.bodies("/images/example.com/busy-1.aci") == 1


def test_a_late_pod_that_gives_the_id_of_another_image(shop: Shop, late: str, tmp_path: Path) -> None:
    """Whether the image comes, or is there already."""
    wrong = "sha512-" + "0" * 128
    one_line(run(shop, tmp_path, late_pod(wrong)), f"has the ID {late[:19]}…, not {wrong[:19]}…")
    assert shop.clean()
    shop.out("image", "fetch", "example.com/late:1")
    for name, version in (("example.com/other", "1"), ("example.com/late", "2")):
        done = run(shop, tmp_path, late_pod(late, name, version))
        one_line(done, f"is example.com/late:1, not {name}:{version}")


@pytest.mark.full
def test_a_late_dependency_of_another_id(shop: Shop, late: str, tmp_path: Path) -> None:
    wrong = "sha512-" + "0" * 128
    dependencies = [{"imageName": "example.com/busy", "imageID": wrong, "labels": [label("version", "1")]}]
    own = tree(tmp_path / "needy", own="x")
    needy = publish(shop, tmp_path, "example.com/needy", str(own), dependencies=dependencies)
    done = run(shop, tmp_path, late_pod(needy, "example.com/needy"))
    one_line(done, "example.com/needy depends on example.com/busy:1 (sha512-000000000000…): ", "has the ID sha5")
    assert shop.new() == {needy}
    assert not shop.leftovers()
