"""``kurma system df`` and ``prune`` (19.3)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.cli.person import Person
from tests.kit.command import Kurma, one_line
from tests.kit.images import archive
from tests.kit.waiting import until

pytestmark = pytest.mark.root
Start = Callable[..., subprocess.Popen[str]]


def names(kurma: Kurma) -> list[str]:
    return sorted(pod["name"] for pod in kurma.json("list"))


def images(kurma: Kurma) -> set[str]:
    return {image["id"] for image in kurma.json("image", "list")}


def use(kurma: Kurma) -> dict[str, dict[str, int]]:
    return {row["kind"]: row for row in kurma.json("system", "df")}


@pytest.fixture
def replaced(fresh: Kurma, tmp_path: Path) -> tuple[str, str]:
    """IDs of an image that a newer one has replaced, and of that one."""
    file = str(tmp_path / "x.aci")
    found = []
    for text in ("old", "new"):
        root = tmp_path / text
        root.mkdir()
        (root / "file").write_text(text * 10_000)
        shutil.move(archive(str(root), f"{file}.new", "example.com/x"), file)
        found.append(fresh.out("image", "fetch", file).strip())
    assert len(images(fresh)) == 2
    return found[0], found[1]


def ended(kurma: Kurma, name: str, *options: str) -> None:
    words = ("run", "--name", name, "--net", "none", *options, kurma.image, "--", "-c", "exit 3")
    assert kurma(*words).returncode == 3


def test_pruned(fresh: Kurma, replaced: tuple[str, str], background: Start) -> None:
    old, new = replaced
    ended(fresh, "over")
    background("live", by=fresh)
    busybox = images(fresh) - {old, new}
    before = use(fresh)
    assert set(before) == {"pod", "volume", "image", "layer", "archive", "tree", "download", "leftover"}
    assert (before["pod"]["count"], before["pod"]["active"]) == (2, 1)
    assert 0 < before["pod"]["reclaimable"] < before["pod"]["size"]
    assert 40_000 < before["layer"]["reclaimable"] < before["layer"]["size"]
    assert "RECLAIMABLE" in fresh.out("system", "df")

    one_line(fresh("system", "prune"), "cannot prune: there is no terminal", code=2, hint="--force")
    plan = fresh.out("system", "prune", "--dry-run")
    (pod,) = (pod for pod in fresh.json("list") if pod["name"] == "over")
    assert f"pod over ({pod['uuid'][:8]}): would be removed" in plan
    assert f"image example.com/x ({old[:20]}): would be removed" in plan
    assert new[:20] not in plan
    assert plan.endswith(" would be freed\n")
    assert f"image example.com/x ({new[:20]}): would be removed" in fresh.out(
        "system", "prune", "--all", "--dry-run"
    )
    assert names(fresh) == ["live", "over"]
    assert images(fresh) == {old, new, *busybox}

    done = fresh.out("system", "prune", "--force")
    assert done == plan.replace("would be ", "")
    assert names(fresh) == ["live"]
    assert images(fresh) == {new, *busybox}
    assert f"image example.com/x ({new[:20]}): removed" in fresh.out("system", "prune", "-a", "-f")
    assert images(fresh) == busybox
    after = use(fresh)
    assert sum(row["reclaimable"] for row in after.values()) == 0
    assert after["pod"]["count"] == 1
    assert fresh.out("system", "prune", "-f").endswith("0 B freed\n")
    fresh.out("rm", "--force", "live")


def test_a_tree_deeper_than_a_path_stops_no_collection(fresh: Kurma) -> None:
    long = "/".join(["d" * 200] * 15)
    dig = f"mkdir -p a/{long} b/{long}; dd if=/dev/zero of=b/{long}/file bs=1000 count=1000; mv b a/{long}/b"
    volume = ("--volume", "name=v,kind=empty", "--mount", "volume=v,target=/v")
    fresh.out("run", "--name", "deep", "--net", "none", *volume, fresh.image, "--", "-c", f"cd /v; {dig}")
    ended(fresh, "over")
    (pods,) = (row for row in fresh.json("system", "df") if row["kind"] == "pod")
    assert (pods["count"], pods["active"]) == (2, 0)
    assert pods["reclaimable"] > 1_000_000
    assert len(fresh.out("gc", "--dry-run", "--grace-period", "0").splitlines()) == 2
    fresh.out("gc", "--grace-period", "0")
    assert names(fresh) == []


def test_a_pod_that_kurmad_starts_again_stays(fresh: Kurma) -> None:
    """A pod in the pause before its restart, and a pod after a reboot, have ended in their records."""
    ended(fresh, "again", "--annotation", "kurma.io/pod/restart=always")
    assert {"count": 1, "active": 1, "reclaimable": 0}.items() <= use(fresh)["pod"].items()
    (image,) = (one["id"] for one in fresh.json("image", "list") if one["provenance"][0]["transport"] == "file")
    plan = fresh.out("system", "prune", "--all", "--dry-run")
    assert "pod again " in plan
    assert "left: kurmad starts it again" in plan
    assert image[:20] not in plan
    fresh.out("system", "prune", "--all", "--force")
    fresh.out("gc", "--grace-period", "0")
    assert names(fresh) == ["again"]
    assert image in images(fresh)
    person = Person((fresh.program, "system", "prune"), fresh.environment)
    try:
        assert person.wait() == 0, "what is left needs no answer"
        assert "there is nothing to remove" in person.screen.decode()
    finally:
        person.close()
    ended(fresh, "over")
    person = Person((fresh.program, "system", "prune"), fresh.environment)
    try:
        person.expect("[y/N]")
        person.type("y\n")
        assert person.wait() == 0
        assert person.screen.decode().count("left: kurmad starts it again") == 1
    finally:
        person.close()
    assert names(fresh) == ["again"]
    fresh.out("rm", "again")


@pytest.fixture(params=["in process", "by kurmad"])
def site(fresh: Kurma, request: pytest.FixtureRequest) -> Iterator[Kurma]:
    """The command on a state directory that kurmad serves, or does not serve."""
    if request.param == "in process":
        yield fresh
        return
    process = fresh.popen("daemon", "run")
    try:
        until(lambda: fresh("daemon", "reload").returncode == 0, "kurmad answers")
        yield fresh
    finally:
        process.terminate()
        process.communicate()


def test_only_what_was_shown_is_removed(site: Kurma, replaced: tuple[str, str], tmp_path: Path) -> None:
    """While the person reads, a pod ends, and a newer image replaces another."""
    fresh = site
    old, new = replaced
    ended(fresh, "over")
    person = Person((fresh.program, "system", "prune"), fresh.environment)
    try:
        person.expect("[y/N]")
        screen = person.screen.decode()
        assert "pod over (" in screen
        assert f"image example.com/x ({old[:20]})" in screen
        ended(fresh, "later")
        root = tmp_path / "newest"
        root.mkdir()
        shutil.move(archive(str(root), str(tmp_path / "newest.aci"), "example.com/x"), tmp_path / "x.aci")
        fresh.out("image", "fetch", str(tmp_path / "x.aci"))
        person.type("y\n")
        assert person.wait() == 0
    finally:
        person.close()
    assert names(fresh) == ["later"]
    assert old not in images(fresh)
    assert new in images(fresh)
    assert f"({new[:20]})" in fresh.out("system", "prune", "--dry-run")


def test_images_of_ended_pods_are_in_the_plan(fresh: Kurma) -> None:
    ended(fresh, "over")
    (image,) = (one["id"] for one in fresh.json("image", "list") if one["provenance"][0]["transport"] == "file")
    plan = fresh.out("system", "prune", "-a", "--dry-run")
    assert f"({image[:20]}): would be removed" in plan
    fresh.out("system", "prune", "-a", "-f")
    assert names(fresh) == []
    assert image not in images(fresh)


@pytest.mark.parametrize("answer", ["n", "", "y"])
def test_a_person_is_asked(fresh: Kurma, answer: str) -> None:
    ended(fresh, "over")
    person = Person((fresh.program, "system", "prune"), fresh.environment)
    try:
        person.expect("would be removed")
        person.expect("[y/N]")
        person.type(f"{answer}\n")
        assert person.wait() == 0
        assert names(fresh) == ([] if answer == "y" else ["over"])
        assert ("nothing was removed" in person.screen.decode()) == (answer != "y")
    finally:
        person.close()


def test_nothing_to_prune_needs_no_answer(fresh: Kurma) -> None:
    fresh.out("image", "fetch", fresh.image)
    person = Person((fresh.program, "system", "prune"), fresh.environment)
    try:
        assert person.wait() == 0
        assert "there is nothing to remove" in person.screen.decode()
    finally:
        person.close()
