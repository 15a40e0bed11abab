"""E6, T4: dependencies by the IDs of early documents, SHA-256 and cut short; and how far such an ID counts."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import pytest

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import RenderError
from kurma_core.image_store import ImageStore
from kurma_core.images.dependencies import Graph
from kurma_core.images.trust_policy import TrustPolicy
from kurma_core.models.image import ImageRecord, Provenance
from tests.kit.archives import LOCAL, directory, file, image, stage_and_commit, tar

BASE = image(file("rootfs/base"), name="example.com/base")
EARLY = hashlib.sha256(BASE).hexdigest()
POLICY = TrustPolicy({"named": "signed", "https": "signed", "http": "signed", "registry": "digest", "file": "any"})
SIGNED = Provenance("example.com/app", "2026-01-02T03:04:05Z", "signed", fingerprint="A" * 40)


def dependent(store: ImageStore, ident: str, name: str = "example.com/base") -> ImageRecord:
    """A signed image of the draft that depends on that."""
    fileset = {
        "acVersion": "0.1.0",
        "acKind": "FilesetManifest",
        "name": "example.com/app",
        "os": "linux",
        "arch": "amd64",
        "dependencies": [{"name": name, "hash": ident, "root": "/"}],
        "files": [],
    }
    return stage_and_commit(
        store, tar([file("fileset", json.dumps(fileset).encode()), directory("rootfs")]), SIGNED
    )


def depends_on(store: ImageStore, record: ImageRecord, policy: TrustPolicy = POLICY) -> list[str]:
    return [node.id for node in Graph(store, policy).node(record.id).dependencies]


@pytest.mark.parametrize("ident", [f"sha256-{EARLY}", f"sha256-{EARLY[:40]}"])
def test_whole_or_as_the_draft_cuts_them(ident: str, store: ImageStore) -> None:
    base = stage_and_commit(store, BASE, LOCAL)
    assert depends_on(store, dependent(store, ident)) == [base.id]


def test_few_digits_are_trusted_no_more_than_a_name(store: ImageStore) -> None:
    """For some image can be made to have them."""
    base = stage_and_commit(store, BASE, LOCAL)
    record = dependent(store, f"sha256-{EARLY[:8]}")
    with pytest.raises(RenderError, match="is unverified"):
        depends_on(store, record)
    relaxed = TrustPolicy(POLICY.sources, frozenset({"image"}))
    assert depends_on(store, record, relaxed) == [base.id]
    stage_and_commit(store, BASE, Provenance("example.com/base", "2026-01-03T03:04:05Z", "signed"))
    assert depends_on(store, record) == [base.id]


def test_another_image_and_none(store: ImageStore) -> None:
    with pytest.raises(RenderError, match="which is not in the store"):
        depends_on(store, dependent(store, f"sha256-{EARLY[:40]}"))
    stage_and_commit(store, BASE, LOCAL)
    with pytest.raises(RenderError, match=r"depends on example\.com/other, and the image with the ID"):
        depends_on(store, dependent(store, f"sha256-{EARLY[:40]}", name="example.com/other"))


def test_several(store: ImageStore, tmp_path: Path) -> None:
    stage_and_commit(store, BASE, SIGNED)
    other = stage_and_commit(store, image(file("rootfs/other"), name="example.com/base"), SIGNED)
    record = dependent(store, f"sha256-{EARLY[:40]}")
    path = Path(store.path("images", other.id, "image.json"))
    path.write_text(path.read_text().replace(str(other.early_id), f"sha256-{EARLY[:60]}0000"))
    with pytest.raises(RenderError, match=r"example\.com/app depends on .*: 2 images have an ID"):
        depends_on(store, record)


def test_an_image_of_layers_has_no_early_id(store: ImageStore) -> None:
    layer = tar([directory("d")])
    key = store.add_layer(io.BytesIO(layer), f"sha256:{hashlib.sha256(layer).hexdigest()}")
    manifest = ImageManifest.parse({"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/base"})
    record = store.add_layered(manifest, (key,), LOCAL)
    assert record.early_id is None
    assert store.find(record.id[:20]).early_id is None
