"""Images from files and web servers: policy, provenance, names, dependencies, removal (K4, S3, S4, S5, S6, I4)."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kurma_testing.webserver import Page, WebServer

from kurma_core.errors import (
    ArchiveError,
    FetchError,
    FetchTruncatedError,
    ImageError,
    ImageNotFoundError,
    RenderError,
    TrustError,
    UsageError,
)
from tests.integration.fetching.parts import Machine, MakeMachine, watched_steps

pytestmark = pytest.mark.root


def manifest(name: str = "example.com/app", **more: Any) -> dict[str, Any]:
    app = {"exec": ["/bin/sh"], "user": "0", "group": "0"}
    return {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": name, "app": app, **more}


@pytest.fixture
def here(machine: MakeMachine) -> Machine:
    return machine()


def build(
    here: Machine, tmp_path: Path, name: str = "example.com/app", content: bytes = b"x", **more: Any
) -> tuple[str, str]:
    """An archive's path and ID."""
    place = tmp_path / name.replace("/", "_")
    (place / "bin").mkdir(parents=True, exist_ok=True)
    (place / "bin" / "sh").write_bytes(content)
    path = str(place) + ".aci"
    return path, here.images.files.build(str(place), manifest(name, **more), path)


def labels(version: str) -> list[dict[str, str]]:
    return [{"name": "version", "value": version}]


# --- files ---


def test_a_file_is_extracted_once_until_it_changes(here: Machine, tmp_path: Path) -> None:
    path, ident = build(here, tmp_path)
    steps: list[str] = []
    here.images.store.step = steps.append
    first = here.images.resolve(path)
    assert (first.id, first.trust) == (ident, "local")
    assert here.images.resolve(path).id == here.images.resolve(path, pull="always").id == ident
    assert steps.count("staging") == 1, "it was read again"
    path, other = build(here, tmp_path, content=b"changed")
    assert here.images.resolve(path).id == other != ident
    assert steps.count("staging") == 2
    os.unlink(path)
    assert here.images.resolve(path, pull="never").id == other


def test_what_is_no_image(here: Machine, tmp_path: Path) -> None:
    for content in (b"", b"no archive at all" * 100, b"\x1f\x8b" + bytes(100)):
        (tmp_path / "x.aci").write_bytes(content)
        with pytest.raises(ArchiveError):
            here.images.fetch(str(tmp_path / "x.aci"))
    assert here.images.list() == ()
    assert list((here.state / "images" / "tmp").iterdir()) == []


def test_a_wrong_option(here: Machine) -> None:
    with pytest.raises(UsageError, match="unknown check"):
        here.images.fetch("/x.aci", insecure={"everything"})
    with pytest.raises(UsageError, match="no way to pull"):
        here.images.fetch("/x.aci", pull="sometimes")


# --- policy and provenance ---


def test_an_unsigned_image_from_the_web_is_refused(here: Machine, tmp_path: Path, server: WebServer) -> None:
    path, _ = build(here, tmp_path)
    server.pages["/app.aci"] = Page(Path(path).read_bytes())
    with pytest.raises(TrustError, match="is not signed") as caught:
        here.images.fetch(server.url("/app.aci"), insecure={"http"})
    assert "--insecure-options=image" in (caught.value.hint or "")
    assert here.images.list() == ()


def test_a_signed_image_and_one_changed_after_signing(
    machine: MakeMachine, tmp_path: Path, server: WebServer
) -> None:
    """Signed with the machine's own key, which stands in for a publisher's."""
    here = machine(trustedkeys=[str(tmp_path / "keys")])
    path, ident = build(here, tmp_path)
    server.pages["/app.aci"] = Page(Path(path).read_bytes())
    trust = here.images._trust
    server.pages["/app.aci.asc"] = Page(trust.sign(path))
    fingerprint = trust.machine_key()
    with pytest.raises(TrustError):
        here.images.fetch(server.url("/app.aci"), insecure={"http"})
    prefix = tmp_path / "keys" / "prefix.d" / "example.com"
    prefix.mkdir(parents=True)
    (prefix / fingerprint.lower()).write_bytes((here.state / "keys" / "public.asc").read_bytes())
    record = here.images.fetch(server.url("/app.aci"), insecure={"http"})
    assert (record.id, record.trust, record.provenance[0].fingerprint) == (ident, "signed", fingerprint)
    assert here.images.resolve("example.com/app").id == ident
    other, _ = build(here, tmp_path, "example.com/app2", b"evil")
    server.pages["/app.aci"] = Page(Path(other).read_bytes(), etag='"two"')
    with pytest.raises(TrustError):
        here.images.fetch(server.url("/app.aci"), insecure={"http"}, pull="always")


def test_relaxations_are_told_recorded_and_not_forgotten(here: Machine, tmp_path: Path, server: WebServer) -> None:
    """What is unverified is not taken for a verified image later (S4)."""
    path, ident = build(here, tmp_path, labels=labels("1"))
    server.pages["/app.aci"] = Page(Path(path).read_bytes())
    record = here.images.fetch(server.url("/app.aci"), insecure={"http", "image"})
    assert record.trust == "unverified"
    assert record.provenance[0].insecure == ("http", "image")
    assert any("images are not verified" in note for note in here.notes)
    with pytest.raises(TrustError, match="is not signed"):
        here.images.resolve(server.url("/app.aci"), insecure={"http"})
    with pytest.raises(TrustError, match="was fetched unverified"):
        here.images.resolve("example.com/app:1")
    assert here.images.resolve("example.com/app:1", insecure={"image"}).id == ident
    assert here.images.resolve(ident).id == ident


def test_a_local_files_name_is_not_the_names_image(here: Machine, tmp_path: Path) -> None:
    path, ident = build(here, tmp_path)
    here.images.fetch(path)
    with pytest.raises(TrustError, match="from a local file, without a signature") as caught:
        here.images.resolve("example.com/app")
    assert ident[:19] in (caught.value.hint or "")


def test_names_that_are_not_in_the_store(here: Machine) -> None:
    with pytest.raises(FetchError, match=r"example\.com/none:1: .*does not resolve"):
        here.images.resolve("example.com/none:1")
    with pytest.raises(ImageNotFoundError):
        here.images.resolve("example.com/none:1", pull="never")
    with pytest.raises(ImageNotFoundError):
        here.images.resolve("sha512-" + "0" * 20)


# --- the web ---


RELAXED = frozenset({"http", "image"})


def test_etag_and_max_age_save_work(
    here: Machine, tmp_path: Path, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ident = build(here, tmp_path)
    page = server.pages["/app.aci"] = Page(Path(path).read_bytes())
    url = server.url("/app.aci")
    steps: list[str] = []
    here.images.store.step = steps.append
    assert here.images.fetch(url, insecure=RELAXED).id == ident
    assert here.images.fetch(url, insecure=RELAXED).id == ident
    assert len(server.seen) == 1, "pull=new asks for what is there"
    here.images.fetch(url, insecure=RELAXED, pull="always")
    assert len(server.seen) == 2
    assert steps.count("staging") == 1, "what has not changed was read again"
    page.headers = {"Cache-Control": "max-age=3600"}
    path, other = build(here, tmp_path, content=b"other")
    page.content, page.etag = Path(path).read_bytes(), '"two"'
    assert here.images.fetch(url, insecure=RELAXED, pull="always").id == other
    assert here.images.fetch(url, insecure=RELAXED, pull="always").id == other
    assert len(server.seen) == 3, "the server itself said that it is fresh"
    later = time.time() + 3601
    monkeypatch.setattr(time, "time", lambda: later)
    assert here.images.fetch(url, insecure=RELAXED, pull="always").id == other
    assert len(server.seen) == 4, "and for how long"
    assert steps.count("staging") == 2


@pytest.mark.full
def test_an_interrupted_fetch_goes_on_in_the_next_run(here: Machine, tmp_path: Path, server: WebServer) -> None:
    path, ident = build(here, tmp_path, content=os.urandom(600_000))
    page = server.pages["/app.aci"] = Page(Path(path).read_bytes())
    page.cuts = [300_000, 0, 0, 0, 0, 0]
    url = server.url("/app.aci")
    with pytest.raises(FetchTruncatedError):
        here.images.fetch(url, insecure=RELAXED)
    (partial,) = here.partials()
    assert partial.stat().st_size == 300_000
    page.cuts = []
    assert here.images.fetch(url, insecure=RELAXED).id == ident
    assert server.seen[-1].headers["Range"] == "bytes=300000-"
    assert here.partials() == []


@pytest.mark.full
def test_a_killed_fetch_goes_on_and_leaves_no_image(here: Machine, tmp_path: Path, server: WebServer) -> None:
    """kill -9 while the body comes slowly."""
    path, ident = build(here, tmp_path, content=os.urandom(600_000))
    page = server.pages["/app.aci"] = Page(Path(path).read_bytes())
    page.cuts = [300_000]
    url = server.url("/app.aci")
    script = f"""
from kurma_core.config import load
from kurma_core.images.manager import ImageManager
from kurma_core.plugins.registry import PluginRegistry
import kurma_fetch_http.resuming_reader, os
# The moment at which the connection breaks is when the process is killed.
kurma_fetch_http.resuming_reader.backoff = lambda attempt: os.kill(os.getpid(), 9)
config = load({str(tmp_path / "state.json")!r}, {str(here.state)!r})
ImageManager(config, PluginRegistry(config)).fetch({url!r}, insecure={{"http", "image"}})
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL
    assert here.images.list() == ()
    assert here.images.fetch(url, insecure=RELAXED).id == ident
    assert server.seen[-1].headers["Range"] == "bytes=300000-"


def test_asked_twice_at_once_it_is_read_once(
    here: Machine, machine: MakeMachine, tmp_path: Path, server: WebServer
) -> None:
    path, ident = build(here, tmp_path, content=os.urandom(3_000_000))
    server.pages["/app.aci"] = Page(Path(path).read_bytes())
    url = server.url("/app.aci")
    found = []
    machines = (here, machine())
    steps = watched_steps(machines)
    threads = [
        threading.Thread(
            target=lambda images=each.images: found.append(images.fetch(url, insecure=RELAXED))  # type: ignore[misc]
        )
        for each in machines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [record.id for record in found] == [ident, ident]
    assert steps.count("staging") == 1
    assert here.partials() == []


# --- dependencies ---


def test_dependencies_by_id_and_by_name(here: Machine, tmp_path: Path) -> None:
    base, base_id = build(here, tmp_path, "example.com/base", b"base", labels=labels("1"))
    lib, _ = build(here, tmp_path, "example.com/lib", b"lib", labels=labels("2"))
    dependencies = [
        {"imageName": "example.com/base", "imageID": base_id, "size": os.path.getsize(base)},
        {"imageName": "example.com/lib", "labels": labels("2")},
    ]
    app, _ = build(here, tmp_path, dependencies=dependencies)
    record = here.images.fetch(app)
    with pytest.raises(RenderError, match=r"depends on example\.com/base .*not in the store") as caught:
        here.images.render(record.id)
    assert "kurma image fetch" in (caught.value.hint or "")
    here.images.fetch(base)
    with pytest.raises(RenderError, match=r"depends on example\.com/lib:2, which is not in the store"):
        here.images.render(record.id)
    here.images.fetch(lib)
    rendered = here.images.render(record.id)
    assert Path(rendered.layers[0].path, "bin/sh").read_bytes() == b"x"
    assert set(rendered.manifests) == {layer.id for layer in rendered.layers}


def test_a_dependency_that_is_another_than_it_says(here: Machine, tmp_path: Path) -> None:
    base, base_id = build(here, tmp_path, "example.com/base")
    here.images.fetch(base)
    for number, wrong in enumerate(
        [
            {"imageName": "example.com/other", "imageID": base_id},
            {"imageName": "example.com/base", "imageID": base_id, "size": 1},
        ]
    ):
        app, _ = build(here, tmp_path, f"example.com/app{number}", dependencies=[wrong])
        with pytest.raises(RenderError, match=r"depends on example\.com/"):
            here.images.render(here.images.fetch(app).id)


def test_an_image_that_depends_on_itself(here: Machine, tmp_path: Path) -> None:
    app, ident = build(here, tmp_path, dependencies=[{"imageName": "example.com/app"}])
    with pytest.raises(RenderError, match="circular dependencies"):
        here.images.fetch(app)
    with pytest.raises(RenderError, match="circular dependencies"):
        here.images.render(ident)


def test_tampering_is_found_before_a_run_that_asks_for_it(here: Machine, tmp_path: Path) -> None:
    path, ident = build(here, tmp_path, content=b"honest")
    here.images.fetch(path)
    tree = here.images.render(ident, verify=True).layers[0].path
    (Path(tree) / "bin" / "sh").write_bytes(b"crooked")
    with pytest.raises(ImageError, match="bin/sh"):
        here.images.render(ident, verify=True)


def test_tampering_with_a_dependency_is_found(here: Machine, tmp_path: Path) -> None:
    """S2: whatever of the image's own is as it was; by a stack of layers and in one tree of its own."""
    base, base_id = build(here, tmp_path, "example.com/base", b"honest")
    app, app_id = build(here, tmp_path, dependencies=[{"imageName": "example.com/base", "imageID": base_id}])
    for path in (base, app):
        here.images.fetch(path)
    for renderer in ("overlay", "copy"):
        here.images.render(app_id, renderer, verify=True)
    (Path(here.images.store.layers(base_id)[0].path) / "bin" / "sh").write_bytes(b"crooked")
    for renderer in ("overlay", "copy"):
        with pytest.raises(ImageError, match=rf"bin/sh.*{base_id}"):
            here.images.render(app_id, renderer, verify=True)


def test_tampering_with_a_rendered_tree_is_found(here: Machine, tmp_path: Path) -> None:
    """S2: where every layer is as it was; before a run, and by `kurma image verify`."""
    path, ident = build(here, tmp_path, content=b"honest")
    here.images.fetch(path)
    tree = here.images.render(ident, "copy", verify=True).layers[0].path
    here.images.verify(ident)
    (Path(tree) / "bin" / "sh").write_bytes(b"crooked")
    here.images.render(ident, "overlay", verify=True)
    with pytest.raises(ImageError, match=r"bin/sh.*/trees/"):
        here.images.render(ident, "copy", verify=True)
    with pytest.raises(ImageError, match=r"bin/sh.*/trees/"):
        here.images.verify(ident)


# --- removal ---


def test_what_pods_use_stays(here: Machine, tmp_path: Path) -> None:
    base, base_id = build(here, tmp_path, "example.com/base", b"base")
    app, app_id = build(here, tmp_path, dependencies=[{"imageName": "example.com/base", "imageID": base_id}])
    other, other_id = build(here, tmp_path, "example.com/other")
    for path in (base, app, other):
        here.images.fetch(path)
    tree = here.images.render(app_id, "copy").layers[0]
    for ident in (app_id, base_id):
        with pytest.raises(ImageError, match="a pod uses it"):
            here.images.remove(ident, [app_id])
    here.images.gc([app_id], 0)
    assert {record.id for record in here.images.list()} == {app_id, base_id}
    assert os.path.isdir(tree.path), "a tree that a pod may stand on"
    here.images.gc([], 0)
    assert here.images.list() == ()
    assert not os.path.exists(tree.path)
    assert here.images.fetch(other).id == other_id, "what is remembered of a locator must not outlive the image"


def test_export_is_the_image(here: Machine, tmp_path: Path) -> None:
    path, ident = build(here, tmp_path)
    here.images.fetch(path)
    with open(tmp_path / "out.aci", "wb") as out:
        here.images.store.export(ident, out)
    assert here.images.files.inspect(str(tmp_path / "out.aci")).contents.manifest.name == "example.com/app"
    assert here.images.fetch(str(tmp_path / "out.aci")).id == ident
    none = io.BytesIO()
    with pytest.raises(ImageNotFoundError):
        here.images.store.export("sha512-" + "0" * 128, none)
    assert none.getvalue() == b""


def test_a_sweep_says_before_what_it_then_does(here: Machine, tmp_path: Path) -> None:
    path, ident = build(here, tmp_path)
    here.images.fetch(path)
    here.images.render(ident, "copy")
    partial = here.state / "images" / "partial"
    (partial / "half").write_bytes(b"half a download")
    (here.state / "images" / "tmp" / "999999999-dead").mkdir()
    half = here.state / "locators" / "0123.999999999.tmp"
    half.write_bytes(b"{")
    said = here.images.gc([], 0, dry_run=True)
    assert half.exists()
    assert [record.id for record in here.images.list()] == [ident]
    leftovers = tuple(one for one in said.removed if one.kind == "leftover")
    assert here.images.gc([], 3600).removed == leftovers
    done = here.images.gc([], 0)
    kinds = ["leftover", "image", "tree", "archive", "layer", "download", "leftover"]
    assert [one.kind for one in said.removed] == kinds
    assert done.removed == said.removed[1:-1]
    assert list(partial.iterdir()) == []
    assert list((here.state / "locators").iterdir()) == [], "what is remembered of a locator goes with its image"


def test_a_download_that_is_going_on_is_not_swept(here: Machine, server: WebServer) -> None:
    from kurma_core.fetching.download import Partial

    partial = Partial.lock(str(here.state / "images" / "partial"), "key", lambda: None)
    partial.append(b"half")
    here.images.store.prepare()
    assert here.images.gc([], 0).removed == ()
    partial.release(keep=True)
    assert [one.kind for one in here.images.gc([], 0).removed] == ["download"]


def test_a_replaced_image_that_is_used_during_the_sweep_stays(here: Machine, tmp_path: Path) -> None:
    path, old = build(here, tmp_path, "example.com/x", b"old")
    here.images.fetch(path)
    build(here, tmp_path, "example.com/x", b"new")
    here.images.fetch(path)

    def used() -> tuple[str, ...]:
        with here.images.keeping():
            here.images.render(old)
        return ()

    assert not [one for one in here.images.gc(used, 0, replaced=True).removed if one.kind == "image"]
    swept = here.images.gc((), 0, replaced=True).removed
    assert [(one.name, one.display_name) for one in swept if one.kind == "image"] == [(old, "example.com/x")]


def test_a_dependency_that_was_found_is_held_as_well(here: Machine, tmp_path: Path) -> None:
    base, base_id = build(here, tmp_path, "example.com/base", b"base")
    app, app_id = build(here, tmp_path, dependencies=[{"imageName": "example.com/base"}])
    here.images.fetch(base)
    here.images.fetch(app)
    with here.images.keeping():
        assert here.images.resolve(app).id == app_id
        here.images.render(app_id)
        assert here.images.gc([], 0).removed == ()
        with pytest.raises(ImageError, match="a command is at work with it"):
            here.images.remove(base_id)
    assert {one.name for one in here.images.gc([], 0).removed if one.kind == "image"} == {base_id, app_id}


def test_a_damaged_image_is_removed_by_its_id(here: Machine, tmp_path: Path) -> None:
    path, ident = build(here, tmp_path)
    here.images.fetch(path)
    (here.state / "images" / "images" / ident / "image.json").write_bytes(b"{")
    assert here.images.list() == ()
    (damaged,) = here.images.scan()[1]
    assert damaged.data["image"] == ident
    here.images.remove(ident[:20])
    assert here.images.scan() == ((), ())
    assert here.images.fetch(path).id == ident
