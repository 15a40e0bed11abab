"""S3: a sweep frees what nothing needs, after a grace period, and says what and how much."""

from __future__ import annotations

import io
import os
import threading
import time

import pytest

from kurma_core.appc.layering import Application, tree_key
from kurma_core.errors import ImageError, ImageNotFoundError
from kurma_core.formats.timestamps import timestamp
from kurma_core.image_store import ImageStore, removal
from kurma_core.image_store.durable import try_lock
from kurma_core.value import replace
from tests.kit.archives import LOCAL, file, image, stage_and_commit

NOW = replace(LOCAL, fetched_at=timestamp(time.time()))


def usage(store: ImageStore) -> int:
    from kurma_core.image_store.durable import Usage

    return Usage().add(store.root)


def test_used_images_stay(store: ImageStore) -> None:
    kept = stage_and_commit(store, image(file("rootfs/a", b"a" * 100_000)))
    gone = stage_and_commit(store, image(file("rootfs/b", b"b" * 100_000)))
    before = usage(store)
    report = store.gc({kept.id}, 0, dry_run=True)
    assert [image.id for image in store.list()] == sorted([kept.id, gone.id])
    assert usage(store) == before
    done = store.gc({kept.id}, 0)
    assert (done.removed, done.freed) == (report.removed, report.freed)
    assert report.dry_run
    assert {(removal.kind, removal.name) for removal in done.removed} == {
        ("image", gone.id),
        ("archive", f"{gone.id}.aci"),
        ("layer", gone.id),
    }
    assert done.freed > 200_000
    assert before - usage(store) == done.freed
    assert [image.id for image in store.list()] == [kept.id]
    store.verify(kept.id, deep=True)


def test_grace(store: ImageStore) -> None:
    fresh = stage_and_commit(store, image(file("rootfs/a")), NOW)
    used = stage_and_commit(store, image(file("rootfs/b")))
    store.touch(used.id)
    old = stage_and_commit(store, image(file("rootfs/c")))
    report = store.gc((), 3600)
    assert [removal.name for removal in report.removed if removal.kind == "image"] == [old.id]
    assert {image.id for image in store.list()} == {fresh.id, used.id}


def test_trees_and_leftovers(store: ImageStore) -> None:
    tree = store.cache.tree("key", lambda path: os.mkdir(f"{path}/d"))
    assert os.listdir(tree.path) == ["d"]
    assert store.cache.tree("key", lambda path: pytest.fail("built twice")) == tree
    os.mkdir(store.path("tmp", "999999999-dead"))
    with open(store.path("partial", "download"), "wb") as partial:
        partial.write(b"half")
    assert store.gc({tree.id}, 3600).removed[0].kind == "leftover"
    assert store.gc((), 3600).removed == (), "what is young has its time of grace"
    assert os.path.isdir(tree.path)
    os.utime(store.path("trees", tree.id, "tree.json"), (1, 1))
    os.utime(store.path("partial", "download"), (1, 1))
    assert store.gc({tree.id}, 3600).removed[0].kind == "download"
    assert [removal.name for removal in store.gc((), 3600).removed] == [tree.id]
    assert os.listdir(store.path("trees")) == []


def test_a_tree_that_is_used_is_young_again(store: ImageStore) -> None:
    tree = store.cache.tree("key", lambda path: None)
    os.utime(store.path("trees", tree.id, "tree.json"), (1, 1))
    assert store.cache.tree("key", lambda path: None) == tree
    assert ImageStore(store.root).gc((), 3600).removed == ()
    assert [removal.name for removal in ImageStore(store.root).gc((), -1).removed] == [tree.id]


def test_a_tree_whose_building_fails_is_not_kept(store: ImageStore) -> None:
    with pytest.raises(ZeroDivisionError):
        store.cache.tree("key", lambda path: 1 // 0)  # type: ignore[arg-type, return-value]
    assert os.listdir(store.path("trees")) == []
    assert os.listdir(store.path("tmp")) == []
    assert store.cache.tree("key", lambda path: None).id.startswith("sha512-")


def test_remove(store: ImageStore) -> None:
    one = stage_and_commit(store, image(file("rootfs/a")))
    other = stage_and_commit(store, image(file("rootfs/b")))
    store.remove(one.id)
    assert [image.id for image in store.list()] == [other.id]
    assert os.listdir(store.path("archives")) == [f"{other.id}.aci"]
    assert os.listdir(store.path("layers")) == [other.id]
    assert os.listdir(store.path("tmp")) == []


def test_a_tree_goes_with_its_layers(store: ImageStore) -> None:
    """A damaged one does not outlive its image; those of other images stay."""
    gone = stage_and_commit(store, image(file("rootfs/a")))
    kept = stage_and_commit(store, image(file("rootfs/b")))

    def tree(*layers: str) -> str:
        what = [Application("", tuple(store.layer(key) for key in layers), "at")]
        return store.cache.tree(tree_key("copy", what), lambda _: None).id

    trees = {tree(gone.id), tree(kept.id, gone.id)}
    stays = {tree(kept.id)}
    report = store.remove(gone.id, dry_run=True)
    assert {removal.name for removal in report.removed if removal.kind == "tree"} == trees
    assert set(os.listdir(store.path("trees"))) == trees | stays
    assert store.remove(gone.id).removed == report.removed
    assert set(os.listdir(store.path("trees"))) == stays
    store.remove(kept.id)
    assert os.listdir(store.path("trees")) == []


def test_remove_says_before_what_it_then_does(store: ImageStore) -> None:
    one = stage_and_commit(store, image(file("rootfs/a", b"a" * 50_000)))
    said = store.remove(one.id, dry_run=True)
    before = usage(store)
    assert store.get(one.id) == one
    done = store.remove(one.id)
    assert (said.removed, said.dry_run, done.dry_run) == (done.removed, True, False)
    assert [removal.kind for removal in done.removed] == ["image", "archive", "layer"]
    assert before - usage(store) == done.freed
    with pytest.raises(ImageNotFoundError):
        store.remove(one.id, dry_run=True)


def test_hard_links_free_their_content_with_the_last_of_them(store: ImageStore) -> None:
    one = stage_and_commit(store, image(file("rootfs/big", b"a" * 500_000)))
    path = store.layers(one.id)[0].path
    tree = store.cache.tree("key", lambda made: os.link(f"{path}/big", f"{made}/big"))
    other = store.cache.tree("other", lambda made: os.link(f"{path}/big", f"{made}/big"))
    for kept in ({one.id, other.id}, {other.id}, set[str]()):
        before = usage(store)
        said = store.gc(kept, -1, dry_run=True)
        done = store.gc(kept, -1)
        assert said.removed == done.removed
        assert before - usage(store) == done.freed
        if kept:
            assert {removal.name: removal.size < 500_000 for removal in done.removed}.get(tree.id, True)
    assert done.freed > 500_000


def test_what_somebody_holds_stays(store: ImageStore) -> None:
    held = stage_and_commit(store, image(file("rootfs/a")))
    holds = store.holds
    other = ImageStore(store.root)
    with holds.keeping():
        assert holds.hold(held.id)
        assert not holds.hold("sha512-" + "0" * 128)
        assert other.gc((), -1).removed == ()
        with pytest.raises(ImageError, match="a command is at work with it"):
            other.remove(held.id)
        # It may come in again meanwhile.
        stage_and_commit(other, image(file("rootfs/a")), NOW)
        before = time.time()
        other.verify(held.id, deep=True)
        other.export(held.id, io.BytesIO())
    # The pod that now names it may have come too late for a sweep that has begun.
    assert other.gc((), 0, now=before).removed == ()
    assert len(other.gc((), 0).removed) == 3
    assert not holds.hold(held.id)


def test_what_is_released_during_a_sweep_stays(store: ImageStore) -> None:
    """The pod that names it may have come too late for the sweep. The release falls on another moment of the sweep
    each time."""
    one = stage_and_commit(store, image(file("rootfs/a")), NOW)
    other = ImageStore(store.root)
    for turn in range(400):
        held, sweeps = threading.Event(), threading.Event()

        def release(held: threading.Event = held, sweeps: threading.Event = sweeps, turn: int = turn) -> None:
            with other.holds.keeping():
                assert other.holds.hold(one.id)
                held.set()
                sweeps.wait(30)
                until = time.perf_counter() + turn * 2e-6
                while time.perf_counter() < until:
                    pass

        holding = threading.Thread(target=release, daemon=True)
        holding.start()
        assert held.wait(30)
        now = time.time()
        sweeps.set()
        assert store.gc((), 0, now=now).removed == ()
        holding.join(30)


def test_nothing_can_be_held_while_it_is_asked_whether_a_pod_uses_it(store: ImageStore) -> None:
    one = stage_and_commit(store, image(file("rootfs/a")))

    def unused() -> None:
        assert try_lock(store.path("images", one.id)) is None
        raise ImageError("a pod uses it")

    with pytest.raises(ImageError, match="a pod uses it"):
        store.remove(one.id, unused=unused)
    assert store.get(one.id) == one


def test_who_removes_an_image_and_who_brings_it_in_do_not_wait_for_each_other(store: ImageStore) -> None:
    """The one has the image and wants the store, the other has the store and wants the image."""
    one = stage_and_commit(store, image(file("rootfs/a")))
    placed, told = threading.Event(), threading.Event()

    def step(name: str) -> None:
        if name == "image placed":
            placed.set()
            told.wait(30)

    other = ImageStore(store.root, step=step)

    def bring() -> None:
        with other.holds.keeping():
            stage_and_commit(other, image(file("rootfs/a")), NOW)

    bringing = threading.Thread(target=bring, daemon=True)
    removing = threading.Thread(target=lambda: store.remove(one.id, unused=unused), daemon=True)

    def unused() -> None:
        bringing.start()
        placed.wait(30)
        told.set()

    removing.start()
    removing.join(10)
    bringing.join(10)
    assert not removing.is_alive()
    assert not bringing.is_alive()
    assert store.ids() == ()


def test_no_lock_is_held_while_sizes_are_looked_at(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from kurma_core.image_store.durable import Usage

    free: list[bool] = []

    class Watched(Usage):
        def add(self, path: str) -> int:
            lock = try_lock(store.path("lock"))
            free.append(lock is not None)
            if lock is not None:
                os.close(lock)
            return super().add(path)

    monkeypatch.setattr(removal, "Usage", Watched)
    stage_and_commit(store, image(file("rootfs/a")))
    store.gc((), 0, dry_run=True)
    store.gc((), 0)
    assert free == [True] * 6


def test_a_damaged_image_is_told_of_and_can_go(store: ImageStore) -> None:
    good = stage_and_commit(store, image(file("rootfs/a")), NOW)
    bad = stage_and_commit(store, image(file("rootfs/b")), NOW)
    empty = stage_and_commit(store, image(file("rootfs/c")), NOW)
    with open(store.path("images", bad.id, "image.json"), "r+b") as record:
        record.truncate(20)
    os.unlink(store.path("images", empty.id, "image.json"))
    listed, damaged = store.scan()
    assert listed == (good,)
    assert {error.data["image"] for error in damaged} == {bad.id, empty.id}
    for error in damaged:
        assert "damaged" in error.message
        assert "fetch it anew" in (error.hint or "")
    assert store.gc((), 3600).removed == (), "a fresh one has its time of grace"
    store.remove(bad.id)
    assert {removal.kind for removal in store.gc((), 0).removed} == {"image", "archive", "layer"}
    assert store.scan() == ((), ())
    assert os.listdir(store.path("archives")) == os.listdir(store.path("layers")) == []


def test_what_is_removed_meanwhile_is_not_called_damaged(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kurma_core.image_store import verification

    one = stage_and_commit(store, image(file("rootfs/a"), file("rootfs/b")))
    walk = verification.walk

    def removed(root: int) -> object:
        ImageStore(store.root).remove(one.id)
        return walk(root)

    for deep in (False, True):
        stage_and_commit(store, image(file("rootfs/a"), file("rootfs/b")))
        with monkeypatch.context() as patch:
            patch.setattr(verification, "walk", removed)
            with pytest.raises(ImageNotFoundError, match="holds no image"):
                store.verify(one.id, deep=deep)
