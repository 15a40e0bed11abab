"""Images in files: what is asked of them, what is remembered of compressed ones, what may be wrong (R1, R3)."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kurma_fetch_docker.tar_members
import pytest
import zstandard
from kurma_fetch_docker.docker_archive import resolve_archive
from kurma_fetch_docker.oci_layout import resolve_layout, split_reference

from kurma_core.errors import FetchDigestError, FetchError, FetchNotFoundError
from kurma_core.hookspecs.fetcher import FetchRequest, RemoteLayers
from plugins.fetch_docker.tests.docker_parts import CONFIG, LAYER, MANIFEST, PACKED, sha256, write_layout

REQUEST = FetchRequest("linux", "amd64")


def docker_archive(*images: list[str], **more: bytes) -> bytes:
    """One image per list of names, all of the same layer."""
    entries = [{"Config": "c.json", "Layers": ["l/layer.tar"], "RepoTags": names} for names in images]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        files = {"manifest.json": json.dumps(entries).encode(), "c.json": CONFIG, "l/layer.tar": LAYER, **more}
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def resolve(tmp_path: Path, locator: str) -> RemoteLayers:
    scheme, _, rest = locator.partition(":")
    if scheme == "oci":
        return resolve_layout(locator, rest, REQUEST)
    return resolve_archive(locator, rest, REQUEST, f"{tmp_path}/plugin")


def layer_of(found: RemoteLayers) -> bytes:
    with found.layers[0].blob.open(0) as stream:
        return b"".join(iter(lambda: stream.read(10_000), b""))


@pytest.fixture
def unpackings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The archives that were unpacked."""
    done: list[str] = []
    real: Callable[..., int] = kurma_fetch_docker.tar_members.unpacked

    def spy(file: object, path: str, state_dir: str) -> int:
        done.append(path)
        return real(file, path, state_dir)

    monkeypatch.setattr(kurma_fetch_docker.tar_members, "unpacked", spy)
    return done


# --- compressed archives ---


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"])
def test_a_compressed_archive_is_unpacked_for_its_layers_alone(
    tmp_path: Path, unpackings: list[str], pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "a.tar").write_bytes(pack(docker_archive(["app:v1"])))
    first = resolve(tmp_path, f"docker-archive:{tmp_path}/a.tar")
    assert layer_of(first) == LAYER
    assert len(unpackings) == 1, "the layer is read from what the look into it unpacked"
    second = resolve(tmp_path, f"docker-archive:{tmp_path}/a.tar")
    assert (second.digest, second.manifest) == (first.digest, first.manifest)
    assert len(unpackings) == 1
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: layer_of(second), range(8))) == {LAYER}
    assert len(unpackings) == 2, "once for all threads"


def test_one_that_changed_is_looked_into_anew(tmp_path: Path, unpackings: list[str]) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(gzip.compress(docker_archive(["app:v1"])))
    old = resolve(tmp_path, f"docker-archive:{path}")
    found = os.stat(path)
    path.write_bytes(gzip.compress(docker_archive(["app:v2"])))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert resolve(tmp_path, f"docker-archive:{path}").manifest.version == "v2"
    assert len(unpackings) == 2
    assert layer_of(old) == LAYER, "what is open stays what it was"
    again = resolve(tmp_path, f"docker-archive:{path}")
    path.unlink()
    path.write_bytes(gzip.compress(docker_archive(["app:v3"])))
    with pytest.raises(FetchError, match="changed while it was read"):
        layer_of(again)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"version": 1', b"\xff"])
def test_what_was_remembered_may_be_lost(tmp_path: Path, unpackings: list[str], damage: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(gzip.compress(docker_archive(["app:v1"])))
    resolve(tmp_path, f"docker-archive:{tmp_path}/a.tar")
    (kept,) = (tmp_path / "plugin/archives").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    kept.write_bytes(damage)
    assert resolve(tmp_path, f"docker-archive:{tmp_path}/a.tar").manifest.version == "v1"
    assert len(unpackings) == 2


def test_no_more_is_remembered_than_is_useful(tmp_path: Path) -> None:
    for number in range(70):
        (tmp_path / f"{number}.tar").write_bytes(gzip.compress(docker_archive([f"app:v{number}"]), 1))
        resolve(tmp_path, f"docker-archive:{tmp_path}/{number}.tar")
    assert len(list((tmp_path / "plugin/archives").iterdir())) == 64


# --- which image ---


def test_several_images_with_several_names(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(docker_archive(["app:v1", "quay.io/team/app:v2"], ["other:v1"]))
    archive = f"docker-archive:{tmp_path}/a.tar"
    assert resolve(tmp_path, f"{archive}:app:v1").manifest.name == "registry-1.docker.io/library/app"
    found = resolve(tmp_path, f"{archive}:quay.io/team/app:v2").manifest
    assert (found.name, found.version) == ("quay.io/team/app", "v2")
    with pytest.raises(FetchError, match="holds 2 images; name one") as caught:
        resolve(tmp_path, archive)
    assert caught.value.hint == "it holds app:v1, quay.io/team/app:v2, other:v1"
    with pytest.raises(FetchNotFoundError, match="does not hold app:v9") as missing:
        resolve(tmp_path, f"{archive}:app:v9")
    assert missing.value.hint == caught.value.hint


def test_the_other_kind_of_archive(tmp_path: Path) -> None:
    (tmp_path / "d.tar").write_bytes(docker_archive(["app:v1"]))
    with pytest.raises(FetchNotFoundError, match=r"it has no index\.json") as caught:
        resolve(tmp_path, f"oci-archive:{tmp_path}/d.tar")
    assert caught.value.hint == "what docker save writes is docker-archive:FILE"
    with tarfile.open(tmp_path / "o.tar", "w") as tar:
        write_layout(tmp_path / "layout")
        tar.add(tmp_path / "layout", ".")
    assert resolve(tmp_path, f"oci-archive:{tmp_path}/o.tar:v1").digest == sha256(MANIFEST)
    with pytest.raises(FetchNotFoundError, match=r"it has no manifest\.json") as other:
        resolve(tmp_path, f"docker-archive:{tmp_path}/o.tar")
    assert other.value.hint == "an OCI layout in one file is oci-archive:FILE"
    with pytest.raises(FetchNotFoundError, match="not a directory") as file:
        resolve(tmp_path, f"oci:{tmp_path}/o.tar")
    assert "oci-archive:FILE" in (file.value.hint or "")
    with pytest.raises(FetchError, match="layout: a directory") as directory:
        resolve(tmp_path, f"oci-archive:{tmp_path}/layout")
    assert directory.value.hint == "a layout in a directory is oci:DIR"


def test_paths_and_references(tmp_path: Path) -> None:
    (tmp_path / "a:b").write_bytes(b"")
    for rest, found in {
        f"{tmp_path}/a:b": (f"{tmp_path}/a:b", None),
        f"{tmp_path}/a:b:v1": (f"{tmp_path}/a:b", "v1"),
        f"{tmp_path}/a:b:quay.io:5000/x:v1": (f"{tmp_path}/a:b", "quay.io:5000/x:v1"),
        f"//{tmp_path}/a:b": (f"{tmp_path}/a:b", None),
        "/no/such/file.tar:v1": ("/no/such/file.tar", "v1"),
        "/no/such/file.tar": ("/no/such/file.tar", None),
    }.items():
        assert split_reference(rest) == found


# --- layouts ---


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    write_layout(tmp_path / "layout")
    return tmp_path / "layout"


def blob(layout: Path, content: bytes) -> Path:
    return layout / "blobs/sha256" / sha256(content)[7:]


@pytest.mark.parametrize("content", [CONFIG, MANIFEST, PACKED], ids=["configuration", "manifest", "layer"])
def test_a_blob_that_is_missing(tmp_path: Path, layout: Path, content: bytes) -> None:
    blob(layout, content).unlink()
    with pytest.raises(FetchNotFoundError) as caught:
        resolve(tmp_path, f"oci:{layout}:v1")
    assert caught.value.message == f"{layout}: the layout lacks the blob {sha256(content)}"


@pytest.mark.parametrize("content", [CONFIG, MANIFEST], ids=["configuration", "manifest"])
def test_a_document_that_was_changed(tmp_path: Path, layout: Path, content: bytes) -> None:
    blob(layout, content).write_bytes(content + b" ")
    with pytest.raises(FetchDigestError, match="its digest is"):
        resolve(tmp_path, f"oci:{layout}:v1")


def test_links_to_outside_count_for_what_they_hold(tmp_path: Path, layout: Path) -> None:
    """Some tools lay layouts out as links. What is behind one must have the digest that it stands for, so nothing
    else is ever taken; and it must be a file: a device is not opened, a fifo not waited for."""
    for content in (CONFIG, MANIFEST, PACKED):
        outside = tmp_path / sha256(content)[7:20]
        outside.write_bytes(content)
        blob(layout, content).unlink()
        blob(layout, content).symlink_to(outside)
    found = resolve(tmp_path, f"oci:{layout}:v1")
    assert layer_of(found) == PACKED
    assert found.layers[0].blob.digest == sha256(PACKED)
    for target, text in {"/etc/passwd": "its digest is", "/dev/zero": "not a regular file"}.items():
        blob(layout, CONFIG).unlink()
        blob(layout, CONFIG).symlink_to(target)
        with pytest.raises(FetchError, match=text) as caught:
            resolve(tmp_path, f"oci:{layout}:v1")
        assert "root:" not in caught.value.message
    blob(layout, CONFIG).unlink()
    os.mkfifo(blob(layout, CONFIG))
    with pytest.raises(FetchError, match="not a regular file"):
        resolve(tmp_path, f"oci:{layout}:v1")


def test_what_is_no_layout(tmp_path: Path) -> None:
    with pytest.raises(FetchNotFoundError, match=f"{tmp_path}: not an OCI image layout: it has no index.json"):
        resolve(tmp_path, f"oci:{tmp_path}")
    with pytest.raises(FetchNotFoundError, match="none: no such directory"):
        resolve(tmp_path, f"oci:{tmp_path}/none:v1")


def test_whole_names_in_a_layout(tmp_path: Path, layout: Path) -> None:
    """What `docker save` enters: the name is the registry's and the repository's, as it is for a registry."""
    index = json.loads((layout / "index.json").read_bytes())
    index["manifests"][0]["annotations"]["io.containerd.image.name"] = "docker.io/library/app:v1"
    (layout / "index.json").write_text(json.dumps(index))
    for tag in ("v1", "docker.io/library/app:v1"):
        found = resolve(tmp_path, f"oci:{layout}:{tag}").manifest
        assert (found.name, found.version) == ("registry-1.docker.io/library/app", "v1")
    index["manifests"][0]["annotations"] = {"org.opencontainers.image.ref.name": "feature/x"}
    (layout / "index.json").write_text(json.dumps(index))
    found = resolve(tmp_path, f"oci:{layout}").manifest
    assert (found.name, found.version) == ("layout", "x")
