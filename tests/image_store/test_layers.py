"""R2, A4: layers are extracted once, whiteouts are notes, the merged view is what a layered file system shows."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kurma_testing.graphs import examples

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import ArchiveError, StoreError
from kurma_core.image_store import ImageStore
from kurma_core.models.image import ImageRecord
from tests.kit.archives import (
    LOCAL,
    MANIFEST,
    Member,
    directory,
    file,
    hardlink,
    stage_and_commit,
    symlink,
    tar,
)

PARSED = ImageManifest.parse(MANIFEST)


def add(store: ImageStore, *members: Member) -> str:
    archive = tar(members)
    return store.add_layer(io.BytesIO(archive), f"sha256:{hashlib.sha256(archive).hexdigest()}")


def exported(store: ImageStore, image: ImageRecord) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    out = io.BytesIO()
    store.export(image.id, out)
    assert image.id == f"sha512-{hashlib.sha512(out.getvalue()).hexdigest()}"
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        members = archive.getmembers()
        names = [info.name for info in members]
        assert names[:2] == ["manifest", "rootfs"]
        assert len(set(names)) == len(names)
        return {
            info.name.removeprefix("rootfs/"): (
                info,
                reader.read() if (reader := archive.extractfile(info)) else b"",
            )
            for info in members[2:]
        }


def test_extracted_once_with_whiteouts_as_notes(store: ImageStore) -> None:
    members = [
        directory("./etc"),
        file("etc/.wh.passwd", b""),
        file("etc/.wh..wh..opq", b""),
        file("/etc/motd", b"hello"),
        file("usr/.wh.bin", b""),
        file(".wh..wh.plnk", b""),
        file("a/b/c", b"deep"),
    ]
    key = add(store, *members)
    layer = store.layer(key)
    assert (layer.removed, layer.opaque) == (("etc/passwd", "usr/bin"), ("etc",))
    assert sorted(os.listdir(layer.path)) == ["a", "etc"]
    assert os.listdir(f"{layer.path}/etc") == ["motd"]
    assert os.stat(f"{layer.path}/a/b").st_mode & 0o7777 == 0o755
    assert store.has_layer("sha256:" + key.removeprefix("sha256-"))
    inode = os.stat(layer.path).st_ino
    assert add(store, *members) == key
    assert os.stat(store.layer(key).path).st_ino == inode
    assert os.listdir(store.path("tmp")) == []


def test_compressed_layers_and_later_entries(store: ImageStore) -> None:
    import gzip

    archive = tar(
        [
            file("f", b"first"),
            directory("d", mode=0o700),
            file("d/inside"),
            file("f", b"second"),
            directory("d", mode=0o711),
            file("becomes"),
            directory("becomes"),
            file("becomes/x", b"x"),
            directory("goes"),
            directory("goes/sub"),
            file("goes/sub/x"),
            symlink("goes", "f"),
        ]
    )
    key = store.add_layer(io.BytesIO(gzip.compress(archive)), f"sha256:{hashlib.sha256(archive).hexdigest()}")
    path = store.layer(key).path
    with open(f"{path}/f") as found:
        assert found.read() == "second"
    assert os.stat(f"{path}/d").st_mode & 0o7777 == 0o711
    assert os.listdir(f"{path}/d") == ["inside"]
    assert os.listdir(f"{path}/becomes") == ["x"]
    assert os.readlink(f"{path}/goes") == "f"
    image = store.add_layered(PARSED, (key,), LOCAL)
    store.verify(image.id, deep=True)


def test_merged_view(store: ImageStore) -> None:
    base = add(
        store,
        directory("etc", mode=0o750),
        file("etc/passwd", b"base"),
        file("etc/group", b"base"),
        directory("var"),
        file("var/old"),
        directory("opt"),
        file("opt/a/b", b"1"),
        symlink("bin", "usr/bin"),
        directory("tmp", mode=0o1777),
        file("x/y", b"below"),
    )
    middle = add(
        store,
        file("etc/.wh.group", b""),
        file("var/.wh..wh..opq", b""),
        file(".wh.opt", b""),
        file("opt/a/c", b"recreated"),
        file("tmp/scratch", b"t"),
        directory("bin"),
        file("bin/tool"),
    )
    top = add(store, file("etc/group", b"top"), file("x", b"a file now"), file("no/.wh.such", b""))
    image = store.add_layered(PARSED, (base, middle, top), LOCAL)
    found = exported(store, image)
    assert sorted(found) == [
        "bin",
        "bin/tool",
        "etc",
        "etc/group",
        "etc/passwd",
        "opt",
        "opt/a",
        "opt/a/c",
        "tmp",
        "tmp/scratch",
        "var",
        "x",
    ]
    assert found["etc/group"][1] == b"top"
    assert found["x"][1] == b"a file now"
    # Entries of lower layers give the directories that upper ones only imply their owner, mode and time.
    assert (found["etc"][0].mode, found["tmp"][0].mode) == (0o750, 0o1777)
    assert found["tmp"][0].mtime == 1_600_000_000
    assert found["opt"][0].mode == 0o755
    assert image.layers == (base, middle, top)
    assert store.archive_path(image.id) is None
    assert [layer.key for layer in store.layers(image.id)] == [base, middle, top]


def test_what_is_exported_comes_in_again_under_the_same_id(store: ImageStore, tmp_path: object) -> None:
    key = add(store, file("a", os.urandom(100)), hardlink("b", "a"), symlink("c", "a"), directory("d", mode=0o700))
    image = store.add_layered(PARSED, (key,), LOCAL)
    out = io.BytesIO()
    store.export(image.id, out)
    other = ImageStore(f"{tmp_path}/other")
    again = stage_and_commit(other, out.getvalue())
    assert again.id == image.id
    (layer,) = other.layers(again.id)
    assert os.stat(f"{layer.path}/a").st_ino == os.stat(f"{layer.path}/b").st_ino


def test_another_manifest_is_found(store: ImageStore) -> None:
    """S2: no archive vouches for it, but the ID does."""
    image = store.add_layered(PARSED, (add(store, file("a")),), LOCAL)
    store.verify(image.id, deep=True)
    path = store.path("images", image.id, "manifest")
    with open(path, "rb") as manifest:
        content = manifest.read()
    with open(path, "wb") as manifest:
        manifest.write(content.replace(b"1.0.0", b"1.0.1"))
    with pytest.raises(StoreError, match="the manifest or the layers of the image have changed"):
        store.verify(image.id, deep=True)


def test_layers_that_no_image_has_stay_for_their_time(store: ImageStore) -> None:
    """S3: whoever fetches the rest of the image later finds them there."""
    key = add(store, file("a"))
    assert store.gc((), 3600).removed == ()
    os.utime(store.path("layers", key, "layer.json"), (1, 1))
    assert [(one.kind, one.name) for one in store.gc((), 3600).removed] == [("layer", key)]


def test_hard_links_of_others_change_no_id(store: ImageStore, tmp_path: object) -> None:
    """Rendered trees link files of layers: that must not show in what is exported, nor count as tampering."""
    key = add(store, file("a", b"one"), file("b", b"two"))
    image = store.add_layered(PARSED, (key,), LOCAL)
    os.link(f"{store.layer(key).path}/a", f"{tmp_path}/elsewhere")
    exported(store, image)
    store.verify(image.id)
    store.verify(image.id, deep=True)


def test_same_layers_same_id_everywhere(store: ImageStore, tmp_path: object) -> None:
    other = ImageStore(f"{tmp_path}/other")
    members = (file("implied/a", b"one"), file("b", b"two"))
    ids = {where.add_layered(PARSED, (add(where, *members),), LOCAL).id for where in (store, other)}
    assert len(ids) == 1


def test_a_missing_layer(store: ImageStore) -> None:
    with pytest.raises(StoreError, match="no layer sha256-00"):
        store.add_layered(PARSED, ("sha256-" + "0" * 64,), LOCAL)
    assert os.listdir(store.path("tmp")) == []


def test_layers_are_held_until_they_have_an_image(store: ImageStore) -> None:
    """A sweep by somebody else, without any grace, takes no layer of an image that is being fetched."""
    somebody = ImageStore(store.root)
    with store.holds.keeping(used=False):
        key = add(store, file("a"))
        assert somebody.gc((), -1).removed == ()
        image = store.add_layered(PARSED, (key,), LOCAL)
    assert somebody.gc({image.id}, -1).removed == ()
    assert {removal.kind for removal in somebody.gc((), -1).removed} == {"image", "layer"}


# --- the merged view against a model -----------------------------------------------------------------------------

PARTS = st.sampled_from(["a", "b"])
PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
STEPS = st.one_of(
    st.tuples(st.just("file"), PATHS),
    st.tuples(st.just("directory"), PATHS),
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("opaque"), PATHS),
)
LAYERS = st.lists(st.lists(STEPS, max_size=5), min_size=1, max_size=4)


def consistent(steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """One layer's entries without two for one path, and without anything beneath a file."""
    kept: dict[str, str] = {}
    notes: set[tuple[str, str]] = set()
    for what, path in steps:
        if what in ("file", "directory"):
            above = {path.rsplit("/", count)[0] for count in range(1, path.count("/") + 1)}
            beneath = any(other.startswith(path + "/") for other in kept)
            if (
                path not in kept
                and not any(kept.get(each) == "file" for each in above)
                and not (what == "file" and beneath)
            ):
                kept[path] = what
        else:
            notes.add((what, path))
    files = {path for path, what in kept.items() if what == "file"}
    for what, path in sorted(notes):
        inside = path if what == "opaque" else path.rpartition("/")[0]
        if not any((inside + "/").startswith(each + "/") for each in files):
            kept[f"{what} {path}"] = what
    return list({(what, path.rpartition(" ")[2]): None for path, what in kept.items()})


def apply(model: dict[str, str], layer: list[tuple[str, str]], number: int) -> None:
    """What a changeset does: first it takes away, then it puts in."""

    def below(path: str) -> list[str]:
        return [each for each in model if each.startswith(path + "/")]

    def imply(path: str) -> None:
        for count in range(1, path.count("/") + 1):
            above = "/".join(path.split("/")[:count])
            if model.get(above, "") != "directory":
                model[above] = "directory"

    for what, path in layer:
        if what == "remove":
            for each in [path, *below(path)]:
                model.pop(each, None)
        elif what == "opaque":
            for each in below(path):
                model.pop(each)
    for what, path in layer:
        if what == "opaque":
            imply(path + "/")
        elif what == "directory":
            imply(path)
            model[path] = "directory"
        elif what == "file":
            imply(path)
            for each in below(path):
                model.pop(each)
            model[path] = f"file {number}"


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LAYERS)
def test_merged_view_against_a_model(store: ImageStore, layers: list[list[tuple[str, str]]]) -> None:
    model: dict[str, str] = {}
    keys = []
    for number, steps in enumerate(layers):
        layer = consistent(steps)
        members = []
        for what, path in layer:
            parent, _, name = path.rpartition("/")
            prefix = parent + "/" if parent else ""
            if what == "file":
                members.append(file(path, b"%d" % number))
            elif what == "directory":
                members.append(directory(path))
            elif what == "remove":
                members.append(file(f"{prefix}.wh.{name}", b""))
            else:
                members.append(file(f"{path}/.wh..wh..opq", b""))
        keys.append(add(store, *members))
        apply(model, layer, number)
    image = store.add_layered(PARSED, tuple(keys), LOCAL)
    found = {
        path: "directory" if info.isdir() else f"file {content.decode()}"
        for path, (info, content) in exported(store, image).items()
    }
    assert found == model


CUTS = {
    "in a file's content": 512 + 700,
    "in a file's padding": 512 + 1000,
    "in an extended header": 2048 + 512 + 9,
}


@pytest.mark.parametrize("where", CUTS)
def test_a_layer_that_was_cut_before_it_was_published(where: str, store: ImageStore) -> None:
    """Its digest is right, and it may lack the end marker; what it has must be whole."""
    whole = tar([file("f", b"x" * 900), file("g", pax_headers={"SCHILY.xattr.user.x": "y"})])
    archive = whole[: CUTS[where]]
    with pytest.raises(ArchiveError, match="truncated"):
        store.add_layer(io.BytesIO(archive), f"sha256:{hashlib.sha256(archive).hexdigest()}")
    assert os.listdir(store.path("tmp")) == os.listdir(store.path("layers")) == []
