"""S1, S2, S4: the store as its users see it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys

import pytest

from kurma_core.errors import (
    AmbiguousReferenceError,
    FormatVersionError,
    ImageNotFoundError,
    ManifestError,
    StoreError,
)
from kurma_core.image_store import ImageStore
from kurma_core.models.image import Provenance
from kurma_core.value import replace
from tests.kit.archives import LOCAL, directory, file, image, stage_and_commit

UNKNOWN = "sha512-" + "0" * 128


def labelled(version: str, content: bytes = b"") -> bytes:
    return image(file("rootfs/f", content), labels=[{"name": "version", "value": version}])


def test_an_empty_store_answers(store: ImageStore) -> None:
    assert store.list() == ()
    assert not store.has_layer("sha256:" + "0" * 64)
    for call in (store.get, store.find, store.manifest, store.layers, store.touch, store.remove, store.verify):
        with pytest.raises(ImageNotFoundError):
            call(UNKNOWN)
    assert store.gc((), 0).removed == ()


def test_stage_then_commit(store: ImageStore) -> None:
    archive = image(directory("rootfs/etc"), file("rootfs/etc/motd", b"hello"))
    with store.stage_archive(io.BytesIO(archive)) as staged:
        assert store.list() == ()
        assert staged.manifest.name == "example.com/thing"
        with open(staged.archive_path, "rb") as kept:
            assert kept.read() == archive
        image_record = staged.commit(LOCAL)
        assert image_record.id == staged.id
    assert store.list() == (image_record,)
    assert (image_record.name, image_record.version) == ("example.com/thing", "1.0.0")
    assert image_record.provenance == (LOCAL,)
    assert image_record.trust == "local"
    assert image_record.size > 0
    assert image_record.archive_size > len(archive)
    (layer,) = store.layers(image_record.id)
    assert layer.key == image_record.id
    assert (layer.removed, layer.opaque) == ((), ())
    with open(f"{layer.path}/etc/motd", "rb") as extracted:
        assert extracted.read() == b"hello"
    path = store.archive_path(image_record.id)
    assert path is not None
    with open(path, "rb") as kept:
        assert kept.read() == archive
    assert os.listdir(store.path("tmp")) == []
    assert os.stat(store.root).st_mode & 0o777 == 0o700


def test_uncommitted_leaves_nothing(store: ImageStore) -> None:
    with store.stage_archive(io.BytesIO(image())):
        assert len(os.listdir(store.path("tmp"))) == 1
    with pytest.raises(ZeroDivisionError), store.stage_archive(io.BytesIO(image())):
        raise ZeroDivisionError
    assert [os.listdir(store.path(name)) for name in ("tmp", "archives", "layers", "images")] == [[], [], [], []]


def test_a_bad_manifest_is_refused(store: ImageStore) -> None:
    with pytest.raises(ManifestError, match=r"\$\.name"), store.stage_archive(io.BytesIO(image(name="No Name"))):
        pytest.fail("staged")
    assert os.listdir(store.path("tmp")) == []


def test_manifest_is_kept_as_it_was(store: ImageStore) -> None:
    archive = image()
    image_id = stage_and_commit(store, archive).id
    assert store.manifest_bytes(image_id) in archive
    assert store.manifest(image_id).name == "example.com/thing"


def test_every_way_in_is_remembered(store: ImageStore) -> None:
    archive = image()
    stage_and_commit(store, archive)
    signed = Provenance("example.com/thing", "2026-02-02T00:00:00Z", "signed", fingerprint="F")
    record = stage_and_commit(store, archive, signed)
    assert record.provenance == (LOCAL, signed)
    assert record.trust == "signed"
    later = replace(LOCAL, fetched_at="2026-03-03T00:00:00Z")
    record = stage_and_commit(store, archive, later)
    assert record.provenance == (signed, later)
    assert store.list() == (record,)
    assert os.listdir(store.path("tmp")) == []


def test_unverified_is_never_taken_for_verified(store: ImageStore) -> None:
    relaxed = Provenance("https://h/x.aci", "2026-01-01T00:00:00Z", "unverified", insecure=("image",))
    record = stage_and_commit(store, image(), relaxed)
    assert (record.trust, record.provenance[0].insecure) == ("unverified", ("image",))


def test_the_signed_bytes_are_the_ones_kept(store: ImageStore) -> None:
    """One ID, two archives as shipped: a signature can be checked again only against what was signed."""
    import gzip

    archive = image()
    packed = gzip.compress(archive)
    image_id = stage_and_commit(store, archive).id
    path = store.archive_path(image_id)
    assert path is not None
    assert stage_and_commit(store, packed, replace(LOCAL, locator="file:///other")).id == image_id
    with open(path, "rb") as kept:
        assert kept.read() == archive
    stage_and_commit(store, packed, replace(LOCAL, trust="built", fingerprint="F"))
    with open(path, "rb") as kept:
        assert kept.read() == packed


def test_last_used(store: ImageStore) -> None:
    image_id = stage_and_commit(store, image()).id
    assert store.get(image_id).last_used is None
    store.touch(image_id)
    used = store.get(image_id).last_used
    assert used is not None
    assert used.startswith("20")
    assert used.endswith("Z")


def test_the_newest_of_a_name_within_one_second(store: ImageStore) -> None:
    """Also beside records of an earlier Kurma, which are known to the second alone."""
    moments = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:00.999999Z")
    records = [
        stage_and_commit(store, labelled("1", at.encode()), replace(LOCAL, fetched_at=at))
        for at in (*moments, "2026-01-01T00:00:01Z")
    ]
    assert store.list() == tuple(records)
    assert store.find("example.com/thing") == records[-1]
    store.remove(records[-1].id)
    assert store.find("example.com/thing") == records[-2]


def test_find(store: ImageStore) -> None:
    old = stage_and_commit(store, labelled("1", b"old"), replace(LOCAL, fetched_at="2026-01-01T00:00:00Z"))
    new = stage_and_commit(store, labelled("1", b"new"), replace(LOCAL, fetched_at="2026-01-03T00:00:00Z"))
    other = stage_and_commit(store, labelled("2"), replace(LOCAL, fetched_at="2026-01-02T00:00:00Z"))
    assert store.find(old.id) == old
    assert store.find(old.id[:20]) == old
    assert store.find(old.id[7:17]) == old
    assert store.find("example.com/thing") == new
    assert store.find("example.com/thing:1") == new
    assert store.find("example.com/thing:2") == other
    assert store.find("example.com/thing,version=2") == other
    for unknown in (
        "example.com/thing:3",
        "example.com/other",
        old.id[7:12],
        "sha512-",
        "",
        "../..",
        UNKNOWN,
        "f" * 9,
    ):
        with pytest.raises(ImageNotFoundError):
            store.find(unknown)


def test_find_several(store: ImageStore) -> None:
    store.prepare()
    for digit in "12":
        os.mkdir(store.path("images", "sha512-abcdef" + digit * 122))
    with pytest.raises(AmbiguousReferenceError) as caught:
        store.find("abcdef")
    assert caught.value.data["matches"] == tuple("sha512-abcdef" + digit * 122 for digit in "12")


def test_find_by_either_algorithm(store: ImageStore) -> None:
    """T4, E6: the SHA-256 of the uncompressed tar, whole or the start of it, means the same image."""
    archive = labelled("1")
    early = hashlib.sha256(archive).hexdigest()
    stored = stage_and_commit(store, gzip.compress(archive))
    stage_and_commit(store, labelled("2"))
    assert stored.early_id == f"sha256-{early}"
    assert stored.to_json()["earlyId"] == f"sha256-{early}"
    for reference in (f"sha256-{early}", f"sha256-{early[:40]}", early[:6], f"sha256-{early[:6]}"):
        assert store.find(reference) == stored
        assert store.find_by_id(reference) == stored
    for unknown in (
        f"sha512-{early[:40]}",
        f"sha256-{stored.id[7:47]}",
        f"sha256-{early[:5]}",
        f"sha256-{early}0",
    ):
        assert store.find_by_id(unknown) is None
        with pytest.raises(ImageNotFoundError):
            store.find(unknown)
    assert store.find_by_id("example.com/thing") is None


def test_find_several_by_either_algorithm(store: ImageStore) -> None:
    """What is the start of one image's ID and of another's early one means neither."""
    one = stage_and_commit(store, labelled("1"))
    other = stage_and_commit(store, labelled("2"))
    assert one.early_id is not None
    _set_early_id(store, other.id, f"sha256-{one.id[7:27]}{'0' * 44}")
    with pytest.raises(AmbiguousReferenceError, match="2 images") as caught:
        store.find(one.id[7:15])
    assert caught.value.data["matches"] == tuple(sorted([one.id, other.id]))
    assert store.find(one.id[:15]) == one
    assert store.find(f"sha256-{one.id[7:15]}").id == other.id
    _set_early_id(store, other.id, one.early_id[:20] + "f" * 51)
    with pytest.raises(AmbiguousReferenceError):
        store.find(one.early_id[:20])


def _set_early_id(store: ImageStore, image_id: str, early: str | None) -> None:
    path = store.path("images", image_id, "image.json")
    with open(path) as document:
        value = json.load(document)
    if early is None:
        del value["earlyId"]
    else:
        value["earlyId"] = early
    with open(path, "w") as document:
        json.dump(value, document)


def test_a_record_without_an_early_id_is_read_and_gets_one(store: ImageStore) -> None:
    """As an image of a registry, whose record has none, and which then comes as the archive that export wrote."""
    archive = labelled("1")
    stored = stage_and_commit(store, archive)
    _set_early_id(store, stored.id, None)
    assert store.get(stored.id) == replace(stored, early_id=None)
    assert store.find_by_id(str(stored.early_id)) is None
    assert stage_and_commit(store, archive).early_id == stored.early_id
    assert store.find(str(stored.early_id)).id == stored.id


def test_a_newer_document_is_refused(store: ImageStore) -> None:
    image_id = stage_and_commit(store, image()).id
    path = store.path("images", image_id, "image.json")
    with open(path) as document:
        changed = document.read().replace('"version": 1', '"version": 99', 1)
    with open(path, "w") as document:
        document.write(changed)
    with pytest.raises(FormatVersionError, match="newer"):
        store.get(image_id)


DAMAGED = ("{", "[]", '{"version": "1"}', '{"version": 1}', '{"version": 1, "labels": []}', "[" * 100_000)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_document_says_so(text: str, store: ImageStore) -> None:
    image_id = stage_and_commit(store, image()).id
    for path in (store.path("images", image_id, "image.json"), store.path("layers", image_id, "layer.json")):
        with open(path, "w") as document:
            document.write(text)
    with pytest.raises(StoreError, match=r"damaged.*image\.json"):
        store.get(image_id)
    with pytest.raises(StoreError, match=r"damaged.*layer\.json"):
        store.layer(image_id)
    assert store.list() == ()


def test_a_damaged_manifest_says_whose_it_is(store: ImageStore) -> None:
    path = store.path("images", stage_and_commit(store, image()).id, "manifest")
    os.chmod(path, 0o600)
    with open(path, "w") as document:
        document.write("{")
    with pytest.raises(StoreError, match=r"the image store is damaged: .*/manifest: invalid manifest") as caught:
        store.manifest(store.ids()[0])
    assert caught.value.hint == "remove the image and fetch it anew"
    assert caught.value.data["path"] == path


def test_a_damaged_image_takes_no_other_with_it(store: ImageStore) -> None:
    bad = stage_and_commit(store, image(file("rootfs/a")))
    good = stage_and_commit(store, image(file("rootfs/b")))
    with open(store.path("images", bad.id, "image.json"), "w") as document:
        document.write("{")
    assert store.list() == (good,)
    assert store.ids() == tuple(sorted([bad.id, good.id]))
    assert store.find("example.com/thing") == good
    assert store.gc({good.id}, 3600).removed == ()
    store.verify(good.id, deep=True)
    store.remove(bad.id)
    assert store.ids() == (good.id,)
    assert os.listdir(store.path("layers")) == [good.id]
    store.verify(good.id, deep=True)


def test_two_processes_at_once(store: ImageStore, tmp_path: object) -> None:
    """Many at once with the same image: all succeed, and there is one image, with each one's provenance."""
    with open(f"{tmp_path}/image.aci", "wb") as out:
        out.write(image(*[file(f"rootfs/f{number}", os.urandom(500)) for number in range(200)]))
    program = (
        "import sys\n"
        "from kurma_core.image_store import ImageStore\n"
        "from kurma_core.models.image import Provenance\n"
        "store = ImageStore(sys.argv[1])\n"
        "with open(sys.argv[2], 'rb') as file, store.stage_archive(file) as staged:\n"
        "    print('staged', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    staged.commit(Provenance(sys.argv[3], '2026-01-01T00:00:00Z', 'local'))\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, store.root, f"{tmp_path}/image.aci", str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "staged\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=60)
        assert child.returncode == 0
    (record,) = store.list()
    assert sorted(provenance.locator for provenance in record.provenance) == ["0", "1", "2", "3"]
    assert os.listdir(store.path("tmp")) == []
    store.verify(record.id, deep=True)


def test_looking_up_loads_nothing_that_reads_archives(store: ImageStore) -> None:
    """Every start of a pod looks images up; what only fetching needs must not cost it anything."""
    image_id = stage_and_commit(store, image()).id
    program = (
        "import sys\n"
        "from kurma_core.image_store import ImageStore\n"
        f"store = ImageStore({store.root!r})\n"
        f"store.find({image_id!r}); store.layers({image_id!r}); store.touch({image_id!r})\n"
        f"store.archive_path({image_id!r})\n"
        "heavy = ('zlib', 'lzma', 'bz2', 'hashlib', 'threading', 'queue', 'tarfile', 'zstandard', 'subprocess')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    assert result.stdout == "[]\n"
