"""Images by name, from their owner's server into the store: trust, what was asked for, pulling, dependencies
(D1–D4, K3, S5, S6, I4). The server is :mod:`.publisher`'s."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kurma_core.errors import (
    FetchDigestError,
    FetchError,
    FetchNotFoundError,
    ImageNotFoundError,
    RenderError,
    TrustError,
)
from tests.integration.fetching.parts import Machine, MakeMachine
from tests.integration.fetching.publisher import Publisher, publisher
from tests.kit.keys import Signers
from tests.kit.waiting import until

pytestmark = pytest.mark.root


@pytest.fixture
def owner(tmp_path: Path, signers: Signers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with publisher(tmp_path / "owner", signers) as made:
        monkeypatch.setenv("SSL_CERT_FILE", made.ca_file)
        made.page()
        yield made


@pytest.fixture
def here(machine: MakeMachine, tmp_path: Path, signers: Signers) -> Machine:
    """A machine that trusts alice for ``example.com``."""
    signers.put("alice", tmp_path / "keys", "prefix.d/example.com")
    return machine(trustedkeys=[str(tmp_path / "keys")])


def needs(*dependencies: dict[str, Any]) -> dict[str, Any]:
    return {"dependencies": list(dependencies)}


def version(text: str) -> list[dict[str, str]]:
    return [{"name": "version", "value": text}]


def names(here: Machine) -> set[str]:
    return {record.name for record in here.images.list()}


def nothing_left(here: Machine) -> bool:
    return here.images.list() == () and not list((here.state / "images" / "tmp").iterdir()) and not here.partials()


# --- one image ---


def test_an_image_built_here_does_not_hide_the_publishers(
    machine: MakeMachine, tmp_path: Path, owner: Publisher, signers: Signers
) -> None:
    """Once its key is trusted for the name, the publisher's image is fetched (19.3)."""
    here = machine(trustedkeys=[str(tmp_path / "keys")])
    root = tmp_path / "tree"
    root.mkdir()
    manifest = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/app", "labels": []}
    built = here.images.build(str(root), manifest)
    theirs = owner.publish("example.com/app")
    assert here.images.resolve("example.com/app").id == built.id
    assert owner.asked("/") == 0
    signers.put("alice", tmp_path / "keys", "prefix.d/example.com")
    assert here.images.resolve("example.com/app").id == theirs
    assert here.images.resolve("example.com/app", pull="never").id == theirs


def test_a_signed_image_by_its_name(here: Machine, owner: Publisher, signers: Signers) -> None:
    ident = owner.publish("example.com/app", "1.0")
    record = here.images.resolve("example.com/app:1.0")
    assert (record.id, record.trust) == (ident, "signed")
    (came,) = record.provenance
    assert (came.locator, came.url) == (
        "example.com/app:1.0",
        "https://example.com/images/example.com/app-1.0.aci",
    )
    assert came.fingerprint == signers.fingerprints["alice"]
    before = len(owner.server.seen)
    assert here.images.resolve("example.com/app:1.0").id == ident
    assert here.images.resolve("example.com/app").id == ident, "the store is asked first"
    assert len(owner.server.seen) == before


def test_an_early_image_by_its_name(here: Machine, owner: Publisher) -> None:
    """Simple discovery, with a signature over the tar."""
    path, ident = owner.archive("example.com/worker", "1.0.0")
    owner.put("/worker-1.0.0.aci", path, signer="")
    with pytest.raises(TrustError, match="is not signed"):
        here.images.resolve("example.com/worker-1.0.0")
    owner.put("/worker-1.0.0.sig", path, signer="")
    owner.server.pages["/worker-1.0.0.sig"].content = owner.signers.sign(path, "alice", armor=False)
    assert here.images.resolve("example.com/worker-1.0.0").id == ident
    before = len(owner.server.seen)
    assert here.images.resolve("example.com/worker-1.0.0").id == ident
    assert len(owner.server.seen) == before


@pytest.mark.parametrize(("signer", "says"), [("", "is not signed"), ("mallory", "not trusted")])
def test_names_want_signatures(here: Machine, owner: Publisher, signer: str, says: str) -> None:
    ident = owner.publish("example.com/app", "1.0", signer=signer)
    with pytest.raises(TrustError, match=says):
        here.images.resolve("example.com/app:1.0")
    assert nothing_left(here)
    record = here.images.resolve("example.com/app:1.0", insecure={"image"})
    assert (record.id, record.trust) == (ident, "unverified")
    with pytest.raises(TrustError):
        here.images.resolve("example.com/app:1.0")


@pytest.mark.parametrize(
    ("asked", "found", "says"),
    [
        (
            "example.com/app:1.0",
            {"name": "example.com/other", "version": "1.0"},
            "another one: example.com/other:1.0",
        ),
        ("example.com/app:1.0", {"name": "example.com/app", "version": "1.1"}, "another one: example.com/app:1.1"),
        ("example.com/app:1.0", {"name": "example.com/app"}, "another one: example.com/app"),
        ("example.com/app:1.0,channel=beta", {"name": "example.com/app", "version": "1.0"}, "another one"),
        (
            "example.com/app:1.0",
            {"name": "example.com/app", "version": "1.0", "labels": {"os": "linux", "arch": "ppc64"}},
            "is for arch ppc64, not ",
        ),
        (
            "example.com/app:1.0",
            {"name": "example.com/app", "version": "1.0", "labels": {"os": "freebsd", "arch": "amd64"}},
            "is for os freebsd, not linux",
        ),
    ],
)
def test_what_comes_is_what_was_asked_for(
    here: Machine, owner: Publisher, asked: str, found: dict[str, Any], says: str
) -> None:
    """Signed rightly, and still refused before it is in the store."""
    path, _ = owner.archive(**found)
    owner.put("/images/example.com/app-1.0.aci", path)
    with pytest.raises(TrustError, match=says) as caught:
        here.images.resolve(asked)
    assert "\n" not in caught.value.message
    assert nothing_left(here)
    with pytest.raises(TrustError, match=says):
        here.images.resolve(asked, insecure={"image"})


def test_another_platform_when_it_is_asked_for(here: Machine, owner: Publisher) -> None:
    owner.publish("example.com/app", "1.0", labels={"os": "linux", "arch": "s390x"})
    record = here.images.fetch("example.com/app:1.0,os=linux,arch=s390x")
    assert record.labels["arch"] == "s390x"


@pytest.mark.parametrize("asked", ["example.com/app", "example.com/app:latest"])
def test_latest_may_be_any_version(here: Machine, owner: Publisher, asked: str) -> None:
    first = owner.publish("example.com/app", labelled="7")
    assert here.images.resolve(asked).id == first
    before = len(owner.server.seen)
    assert here.images.resolve(asked).id == first
    assert here.images.resolve(asked, pull="never").id == first
    assert len(owner.server.seen) == before
    second = owner.publish("example.com/app", labelled="8")
    assert here.images.resolve(asked).id == first, "new: what is in the store will do"
    assert here.images.resolve(asked, pull="always").id == second
    reads = owner.asked("/images/example.com/app-latest.aci.asc")
    assert here.images.resolve(asked, pull="always").id == second
    assert owner.asked("/images/example.com/app-latest.aci.asc") == reads, "unchanged, and read again"


def test_max_age_is_honoured(here: Machine, owner: Publisher) -> None:
    path, ident = owner.archive("example.com/app", "1.0")
    owner.put("/images/example.com/app-1.0.aci", path, headers={"Cache-Control": "max-age=300"})
    assert here.images.fetch("example.com/app:1.0").id == ident
    before = len(owner.server.seen)
    assert here.images.fetch("example.com/app:1.0", pull="always").id == ident
    assert len(owner.server.seen) == before


def test_pull_never_asks_nobody(here: Machine, owner: Publisher) -> None:
    owner.publish("example.com/app", "1.0")
    with pytest.raises(ImageNotFoundError, match="--pull never forbids fetching"):
        here.images.resolve("example.com/app:1.0", pull="never")
    assert not owner.server.seen


def test_the_same_name_twice_at_once_is_read_once(here: Machine, owner: Publisher) -> None:
    ident = owner.publish("example.com/app", "1.0", content="x" * 3_000_000)
    page = owner.server.pages["/images/example.com/app-1.0.aci.asc"]
    page.gate = threading.Event()
    found: list[str] = []
    both = [
        threading.Thread(target=lambda: found.append(here.images.fetch("example.com/app:1.0").id))
        for _ in range(2)
    ]
    for one in both:
        one.start()
    # While one waits for the signature, the other comes.
    until(lambda: any("waiting for another fetch of the same" in note for note in here.notes), "the other")
    page.gate.set()
    for one in both:
        one.join()
    assert found == [ident, ident]
    assert owner.asked("/images/example.com/app-1.0.aci.asc") == 1
    assert len(here.images.get(ident).provenance) == 1


def test_a_cut_download_goes_on(here: Machine, owner: Publisher) -> None:
    ident = owner.publish("example.com/app", "1.0", content="x" * 3_000_000)
    owner.server.pages["/images/example.com/app-1.0.aci"].cuts = [1_500_000]
    assert here.images.fetch("example.com/app:1.0").id == ident
    assert "Range" in owner.server.requests("/images/example.com/app-1.0.aci")[-1].headers


# --- dependencies ---


def test_missing_dependencies_are_brought_depth_first(here: Machine, owner: Publisher) -> None:
    base = owner.publish("example.com/base", "1", content="base")
    lib_needs = needs({"imageName": "example.com/base", "imageID": base, "labels": version("1")})
    lib = owner.publish("example.com/lib", "2", content="lib", **lib_needs)
    top_needs = needs(
        {"imageName": "example.com/lib", "labels": version("2")},
        {"imageName": "example.com/base", "labels": version("latest")},
    )
    owner.publish("example.com/base", content="base", labelled="1")
    app = owner.publish("example.com/app", "3", content="app", **top_needs)
    record = here.images.resolve("example.com/app:3")
    assert record.id == app
    assert [record.trust for record in here.images.list()] == ["signed"] * 3
    paths = [seen.path.partition("?")[0] for seen in owner.server.seen if seen.path.endswith(".aci")]
    assert paths == [f"/images/example.com/{name}.aci" for name in ("app-3", "lib-2", "base-1")]
    rendered = here.images.render(app)
    assert set(rendered.manifests) == {app, lib, base}
    before = len(owner.server.seen)
    assert here.images.resolve("example.com/app:3").id == app
    assert here.images.resolve(app).id == app
    assert len(owner.server.seen) == before


def test_a_file_of_this_machine_may_need_what_is_elsewhere(here: Machine, owner: Publisher) -> None:
    owner.publish("example.com/base", "1")
    path, ident = owner.archive(
        "example.com/app", **needs({"imageName": "example.com/base", "labels": version("1")})
    )
    assert here.images.fetch(str(path)).id == ident
    assert names(here) == {"example.com/app", "example.com/base"}
    here.images.remove("example.com/base")
    here.images.resolve(ident)
    assert names(here) == {"example.com/app", "example.com/base"}, "also for an image of the store"


def test_pull_never_says_what_is_missing(here: Machine, owner: Publisher) -> None:
    owner.publish("example.com/base", "1")
    path, ident = owner.archive(
        "example.com/app", **needs({"imageName": "example.com/base", "labels": version("1")})
    )
    here.images.fetch(str(path))
    here.images.remove("example.com/base")
    before = len(owner.server.seen)
    with pytest.raises(
        RenderError, match=r"example.com/app depends on example.com/base:1, which is not"
    ) as caught:
        here.images.resolve(ident, pull="never")
    assert "kurma image fetch example.com/base:1" in (caught.value.hint or "")
    assert len(owner.server.seen) == before


def test_a_dependency_that_cannot_be_had_is_told_with_who_needs_it(here: Machine, owner: Publisher) -> None:
    owner.publish("example.com/app", "1", **needs({"imageName": "example.com/base", "labels": version("9")}))
    with pytest.raises(FetchNotFoundError, match=r"^example.com/app depends on example.com/base:9: .*not found"):
        here.images.resolve("example.com/app:1")
    assert names(here) == {"example.com/app"}


def test_files_may_come_in_any_order(here: Machine, owner: Publisher) -> None:
    """One whose dependency is nowhere yet comes in, and that is told; it cannot be run."""
    base, _ = owner.archive("example.com/base", "1")
    app, ident = owner.archive(
        "example.com/app", **needs({"imageName": "example.com/base", "labels": version("1")})
    )
    assert here.images.fetch(str(app)).id == ident
    (note,) = here.notes
    assert "cannot be used yet: example.com/app depends on example.com/base:1: " in note
    with pytest.raises(FetchNotFoundError):
        here.images.resolve(str(app))
    here.images.fetch(str(base))
    assert here.images.resolve(str(app)).id == ident


def test_dependencies_want_signatures_too(here: Machine, owner: Publisher) -> None:
    owner.publish("example.com/base", "1", signer="mallory")
    owner.publish("example.com/app", "1", **needs({"imageName": "example.com/base", "labels": version("1")}))
    with pytest.raises(TrustError, match=r"^example.com/app depends on example.com/base:1: "):
        here.images.resolve("example.com/app:1")
    assert names(here) == {"example.com/app"}
    here.images.resolve("example.com/app:1", insecure={"image"})
    assert names(here) == {"example.com/app", "example.com/base"}


@pytest.mark.parametrize("wrong", ["id", "size", "early", "cut"])
def test_a_dependency_that_is_another_than_it_should_be(here: Machine, owner: Publisher, wrong: str) -> None:
    base = owner.publish("example.com/base", "1")
    expected: dict[str, Any] = {
        "id": {"imageID": f"sha512-{'0' * 128}"},
        "size": {"imageID": base, "size": 1},
        "early": {"imageID": f"sha256-{'0' * 64}"},
        "cut": {"imageID": f"sha256-{'0' * 40}"},
    }[wrong]
    dependency = {"imageName": "example.com/base", "labels": version("1"), **expected}
    path, _ = owner.archive("example.com/app", **needs(dependency))
    with pytest.raises(FetchDigestError, match=r"^example.com/app depends on example.com/base:1"):
        here.images.fetch(str(path))
    assert names(here) == {"example.com/app"}
    assert not list((here.state / "images" / "tmp").iterdir())
    assert here.partials() == []


def test_a_dependency_whose_id_moved_on_at_its_name(here: Machine, owner: Publisher) -> None:
    """The image that the name gave before is there, and is not the one that the ID means."""
    owner.publish("example.com/base", "1", content="old")
    here.images.fetch("example.com/base:1")
    new = owner.publish("example.com/base", "1", content="new")
    dependency = {"imageName": "example.com/base", "labels": version("1"), "imageID": new}
    path, _ = owner.archive("example.com/app", **needs(dependency))
    here.images.fetch(str(path))
    assert here.images.get(new).id == new


def test_an_unverified_one_in_the_store_gives_way_to_a_signed_one(here: Machine, owner: Publisher) -> None:
    owner.publish("example.com/base", "1", signer="", content="anybody's")
    here.images.fetch("example.com/base:1", insecure={"image"})
    signed = owner.publish("example.com/base", "1", content="the owner's")
    app = owner.publish("example.com/app", "1", **needs({"imageName": "example.com/base", "labels": version("1")}))
    here.images.resolve("example.com/app:1")
    assert set(here.images.render(app).manifests) == {app, signed}


def test_pull_always_asks_for_dependencies_that_came_by_name(here: Machine, owner: Publisher) -> None:
    owner.publish("example.com/base", labelled="1", content="one")
    app = owner.publish("example.com/app", "1", **needs({"imageName": "example.com/base"}))
    here.images.resolve("example.com/app:1")
    two = owner.publish("example.com/base", labelled="2", content="two")
    here.images.resolve("example.com/app:1")
    assert two not in {record.id for record in here.images.list()}
    here.images.resolve("example.com/app:1", pull="always")
    assert set(here.images.render(app).manifests) == {app, two}


def test_images_that_need_each_other(here: Machine, owner: Publisher) -> None:
    owner.publish("example.com/a", "1", **needs({"imageName": "example.com/b", "labels": version("1")}))
    owner.publish("example.com/b", "1", **needs({"imageName": "example.com/a", "labels": version("1")}))
    with pytest.raises(
        RenderError, match=r"circular dependencies: example\.com/a → example\.com/b → example\.com/a"
    ) as caught:
        here.images.resolve("example.com/a:1")
    assert caught.value.hint


def test_a_chain_without_end(here: Machine, owner: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each image needs the next; the limit is low here, for the test's sake."""
    monkeypatch.setattr("kurma_core.images.dependencies._DEPTH", 4)
    for number in range(8):
        below = {"imageName": "example.com/c", "labels": version(str(number + 1))}
        owner.publish("example.com/c", str(number), **needs(below))
    with pytest.raises(
        RenderError, match=r"example\.com/c: dependencies are nested more than 4 levels deep"
    ) as caught:
        here.images.resolve("example.com/c:0")
    assert caught.value.hint


def test_more_images_than_anyone_needs(here: Machine, owner: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kurma_core.images.dependencies._IMAGES", 3)
    for number in range(4):
        owner.publish("example.com/c", str(number))
    below = ({"imageName": "example.com/c", "labels": version(str(number))} for number in range(4))
    owner.publish("example.com/app", "1", **needs(*below))
    with pytest.raises(RenderError, match=r"example\.com/app: needs more than 3 images") as caught:
        here.images.resolve("example.com/app:1")
    assert caught.value.hint
    assert owner.asked("/images/example.com/c-3.aci") == 0


# --- as people have it ---


def test_the_command(here: Machine, owner: Publisher, tmp_path: Path) -> None:
    """``kurma image fetch`` in a process of its own, and what it says when it fails."""
    ident = owner.publish("example.com/app", "1.0")
    program = os.path.join(os.path.dirname(sys.executable), "kurma")
    environment = {**os.environ, "KURMA_DIR": str(here.state), "KURMA_CONFIG": str(tmp_path / "state.json")}

    def kurma(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *words], capture_output=True, text=True, env=environment, check=False)

    assert kurma("image", "fetch", "example.com/app:1.0").stdout == f"{ident}\n"
    failed = kurma("image", "fetch", "example.com/app:2.0")
    assert failed.returncode == 125
    assert failed.stderr.splitlines()[0].endswith(
        "example.com/app:2.0: not found: asked https://example.com/images/example.com/app-2.0.aci, "
        "https://example.com/images/app-2.0.aci"
    )
    unknown = kurma("image", "fetch", "nowhere.example/app:1")
    assert unknown.returncode == 125
    assert "nowhere.example/app:1: https://nowhere.example/app: the host's name does not resolve" in unknown.stderr


def test_a_host_that_breaks_off(here: Machine, owner: Publisher) -> None:
    owner.publish("example.com/app", "1.0")
    owner.server.pages["/app"] = owner.server.pages.pop("/")
    owner.server.pages["/app"].cuts = [10] * 9
    with pytest.raises(FetchError, match=r"example.com/app:1.0: https://example.com/app: the connection broke"):
        here.images.resolve("example.com/app:1.0")
