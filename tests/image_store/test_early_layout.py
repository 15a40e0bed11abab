"""E1, E10, A2: images of the early draft (0.1.0): read, converted, and kept as they were."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os

import pytest

from kurma_core.appc import early_image as early_documents
from kurma_core.appc.early_image import convert_image
from kurma_core.errors import ArchiveError, HostileArchiveError, ImageNotFoundError, ManifestError, StoreError
from kurma_core.image_store import ImageStore, Limits
from kurma_core.value import replace
from tests.kit.archives import (
    LOCAL,
    Member,
    directory,
    file,
    manifest_member,
    nothing_left_behind,
    stage_and_commit,
    symlink,
    tar,
    validate,
)

APP = b"""{
    "acVersion": "0.1.0", "acKind": "AppManifest", "name": "example.com/reduce-worker-1.0.0",
    "os": "linux", "arch": "amd64",
    "exec": ["/usr/bin/reduce-worker"], "user": "100", "group": "300",
    "environment": {"DEBUG": "true"}
}
"""
FILESET = b"""{"acVersion": "0.1.0", "acKind": "FilesetManifest", "name": "example.com/reduce-worker-1.0.0",
  "os": "linux", "arch": "amd64", "dependencies": [], "files": ["/bin/tool"]}"""
ROOTFS = [directory("rootfs"), file("rootfs/tool", b"#!")]
DOCUMENTS = {"app": APP, "fileset": FILESET}


def early(*names: str, last: bool = False) -> bytes:
    documents = [file(name, DOCUMENTS[name]) for name in names]
    return tar([*ROOTFS, *documents] if last else [*documents, *ROOTFS])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("names", [("app",), ("fileset",), ("app", "fileset"), ("fileset", "app")])
def test_early_images_come_in_converted_and_are_kept_as_they_were(
    names: tuple[str, ...], last: bool, store: ImageStore
) -> None:
    archive = early(*names, last=last)
    stored = stage_and_commit(store, gzip.compress(archive))
    assert stored.id == f"sha512-{hashlib.sha512(archive).hexdigest()}"
    assert store.find(f"sha256-{hashlib.sha256(archive).hexdigest()}") == stored
    assert (stored.name, stored.version) == ("example.com/reduce-worker", "1.0.0")
    expected = convert_image(
        DOCUMENTS["app"] if "app" in names else None, DOCUMENTS["fileset"] if "fileset" in names else None
    )
    assert store.manifest(stored.id) == expected
    assert json.loads(store.manifest_bytes(stored.id)) == expected.to_json()
    assert (expected.app is None) == ("app" not in names)
    originals = store.originals(stored.id)
    assert list(originals) == sorted(names)
    assert originals == {name: DOCUMENTS[name] for name in names}
    out = io.BytesIO()
    store.export(stored.id, out)
    assert out.getvalue() == archive
    assert sorted(os.listdir(store.layers(stored.id)[0].path)) == ["tool"]
    store.verify(stored.id, deep=True)
    assert validate(io.BytesIO(archive), Limits()) == expected


def test_early_images_are_found_by_the_names_that_their_documents_have(store: ImageStore) -> None:
    """E3: ``x-1.0.0``, which became ``x`` of version 1.0.0; not where an image is called so, or another version
    is asked for."""
    stored = stage_and_commit(store, early("app"))
    for found in (
        "example.com/reduce-worker",
        "example.com/reduce-worker-1.0.0",
        "example.com/reduce-worker:1.0.0",
    ):
        assert store.find(found) == stored
    assert store.find("example.com/reduce-worker-1.0.0,os=linux") == stored
    for other in ("-1.0.1", "-", "-1.0.0:1.0.0", "-1.0.0,os=freebsd"):
        with pytest.raises(ImageNotFoundError):
            store.find(f"example.com/reduce-worker{other}")
    late = stage_and_commit(store, tar([manifest_member(name="example.com/reduce-worker-1.0.0"), *ROOTFS]))
    assert store.find("example.com/reduce-worker-1.0.0") == late
    bare = stage_and_commit(store, tar([manifest_member(name="example.com/bare"), *ROOTFS]))
    assert store.find("example.com/bare") == bare
    with pytest.raises(ImageNotFoundError):
        store.find("example.com/bare-")


def test_a_late_image_has_no_originals(store: ImageStore) -> None:
    stored = stage_and_commit(store, tar([manifest_member(), *ROOTFS]))
    assert store.originals(stored.id) == {}


def test_removing_and_collecting_take_the_originals_too(store: ImageStore) -> None:
    for remove in (store.remove, lambda image_id: store.gc((), -1)):
        stored = stage_and_commit(store, early("app", "fileset"))
        remove(stored.id)
        assert os.listdir(store.path("images")) == os.listdir(store.path("archives")) == []
        assert os.listdir(store.path("tmp")) == []


@pytest.mark.parametrize("name", ["original-app", "original-fileset", "manifest"])
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_tampering_with_the_documents_is_found(name: str, how: str, store: ImageStore) -> None:
    stored = stage_and_commit(store, early("app", "fileset"))
    path = store.path("images", stored.id, name)
    if how == "gone":
        os.unlink(path)
    else:
        with open(path, "ab") as document:
            document.write(b" ")
    with pytest.raises(StoreError if name != "manifest" or how == "changed" else ImageNotFoundError):
        store.verify(stored.id, deep=True)


def test_another_converter_is_no_tampering(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later Kurma makes something else of the same documents: the image is as it came in. What was changed since
    then is found all the same, also after the image came in again."""
    archive = early("app", "fileset")
    stored = stage_and_commit(store, archive)
    convert = early_documents.convert_image
    later = {"path_whitelist": ("/later",)}
    monkeypatch.setattr(
        early_documents, "convert_image", lambda *words, **more: replace(convert(*words, **more), **later)
    )
    manifest = store.manifest_bytes(stored.id)
    with store.stage_archive(io.BytesIO(archive)) as staged:
        assert staged.manifest_bytes != manifest
        store.verify(stored.id, deep=True)
        staged.commit(replace(LOCAL, locator="file:///again.aci"))
    assert store.manifest_bytes(stored.id) == manifest
    store.verify(stored.id, deep=True)
    with open(store.path("images", stored.id, "manifest"), "ab") as document:
        document.write(b" ")
    with pytest.raises(StoreError, match="damaged: the manifest has changed"):
        store.verify(stored.id, deep=True)


REFUSED: dict[str, tuple[list[Member], type[Exception], str]] = {
    "with a manifest": ([manifest_member(), file("app", APP), *ROOTFS], ArchiveError, "`manifest`, and `app` of"),
    "manifest last": (
        [file("app", APP), file("fileset", FILESET), *ROOTFS, manifest_member()],
        ArchiveError,
        "`app` and `fileset` of an early image",
    ),
    "app twice": ([file("app", APP), *ROOTFS, file("app", APP)], HostileArchiveError, "two entries"),
    "fileset twice": ([file("fileset", FILESET), file("fileset", FILESET)], HostileArchiveError, "two entries"),
    "a directory": ([directory("app"), *ROOTFS], HostileArchiveError, "`app` must be a regular file"),
    "below it": ([file("app/manifest", APP), *ROOTFS], HostileArchiveError, "and nothing else"),
    "a link": ([symlink("fileset", "/etc/passwd"), *ROOTFS], HostileArchiveError, "`fileset` must be a regular"),
    "no rootfs": ([file("app", APP)], ArchiveError, "no directory `rootfs`"),
    "another file": ([file("app", APP), *ROOTFS, file("sig")], HostileArchiveError, "entry 'sig'"),
    "no JSON": ([file("app", b"{"), *ROOTFS], ManifestError, "invalid manifest"),
    "the other in its place": ([file("fileset", APP), *ROOTFS], ManifestError, "acKind"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_and_nothing_left(case: str, store: ImageStore, tmp_path_factory: pytest.TempPathFactory) -> None:
    members, error, words = REFUSED[case]
    archive = tar(members)
    with nothing_left_behind(store, str(tmp_path_factory.mktemp("outside"))):
        with pytest.raises(error, match=words):
            stage_and_commit(store, archive)
    with pytest.raises(error, match=words):
        validate(io.BytesIO(archive), Limits())


def test_a_document_is_as_small_as_a_manifest_must_be(store: ImageStore) -> None:
    store.limits = Limits(manifest_size=100)
    with pytest.raises(HostileArchiveError, match="larger than 100 bytes"):
        stage_and_commit(store, early("fileset"))


def test_gnu_tar_as_the_draft_has_it(store: ImageStore, tmp_path: object) -> None:
    """``tar cvvf reduce-worker.tar app rootfs`` (App Container Image, Image Archives)."""
    import subprocess

    os.mkdir(f"{tmp_path}/rootfs")
    with open(f"{tmp_path}/app", "wb") as document:
        document.write(APP)
    made = subprocess.run(
        ["tar", "-C", str(tmp_path), "-cf", "-", "app", "rootfs"], check=True, stdout=subprocess.PIPE
    ).stdout
    stored = stage_and_commit(store, made)
    assert store.originals(stored.id) == {"app": APP}
