"""What registries and archives may say to hurt: one clear error each, whatever it is."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
from typing import Any

import pytest
from kurma_fetch_docker import decompressed
from kurma_fetch_docker.docker_archive import resolve_archive
from kurma_fetch_docker.oci_documents import choose, digest_of
from kurma_fetch_docker.oci_layout import from_index

from kurma_core.errors import FetchError
from kurma_core.hookspecs.fetcher import FetchRequest, RemoteLayers

REQUEST = FetchRequest("linux", "amd64", frozenset())
ZEROS = "sha256:" + "0" * 64


def entry(**changes: object) -> dict[str, Any]:
    return {"digest": ZEROS, "size": 1, **changes}


def packed(members: dict[str, bytes | tuple[bytes, str]]) -> bytes:
    """A tar; a member is its content, or its type and target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type, info.linkname = content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


LAYER = packed({"f": b"x"})
ENTRY: dict[str, Any] = {"Config": "c", "Layers": ["l"], "RepoTags": ["a/b:1"]}


def config(**section: object) -> bytes:
    rootfs = {"diff_ids": [digest_of(LAYER)]}
    return json.dumps({"os": "linux", "architecture": "amd64", "rootfs": rootfs, "config": section}).encode()


MANIFESTS = {
    "nested": b"[" * 100_000,
    "a key twice": b'{"manifests": [], "manifests": 5}',
    "no number": b'{"config": NaN}',
    "a huge number": b'{"size": ' + b"9" * 5000 + b"}",
    "no UTF-8": b'{"\xff": 1}',
    "no object": b"[]",
    "nothing": b"",
    "no list": b'{"manifests": null}',
    "no descriptors": b'{"manifests": [5]}',
    "a path for a digest": json.dumps({"manifests": [entry(digest="sha256:../../../../etc/passwd")]}).encode(),
    "a negative size": json.dumps({"manifests": [entry(size=-1)]}).encode(),
    "another kind": json.dumps({"mediaType": ["x"], "config": entry(), "layers": []}).encode(),
    "layers that are none": json.dumps({"config": entry(), "layers": {}}).encode(),
    "platforms that are none": json.dumps(
        {"manifests": [entry(platform={"os": {}, "architecture": ["amd64"], "variant": 5}), entry(platform="x")]}
    ).encode(),
}


@pytest.mark.parametrize("trick", MANIFESTS)
def test_manifests(trick: str) -> None:
    content = MANIFESTS[trick]
    with pytest.raises(FetchError) as caught:
        choose(content, digest_of(content), "https://r.example/x", REQUEST, lambda descriptor: content)
    assert "https://r.example/x" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_index_that_points_to_itself_ends() -> None:
    content = json.dumps({"manifests": [entry()]}).encode()
    asked = []
    with pytest.raises(FetchError, match="too deeply"):
        choose(content, ZEROS, "https://r.example/x", REQUEST, lambda found: asked.append(found) or content)
    assert len(asked) < 10


def resolved(path: str, content: bytes) -> RemoteLayers:
    with open(f"{path}/image.tar", "wb") as out:
        out.write(content)
    return resolve_archive(f"docker-archive:{path}/image.tar", f"{path}/image.tar", REQUEST, f"{path}/state")


def docker_archive(manifest: object, settings: bytes | None = None, **more: bytes | tuple[bytes, str]) -> bytes:
    document = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    return packed({"manifest.json": document, "c": settings or config(), "l": LAYER, **more})


ARCHIVES = {
    "nested": docker_archive(b"[" * 100_000),
    "tags that are none": docker_archive([{**ENTRY, "RepoTags": 5}]),
    "layer outside": docker_archive([{**ENTRY, "Layers": ["../../../../etc/passwd"]}]),
    "layer by absolute name": docker_archive([{**ENTRY, "Layers": ["/etc/passwd"]}]),
    "layer by a link to outside": docker_archive([{**ENTRY, "Layers": ["k"]}], k=(tarfile.SYMTYPE, "/etc/passwd")),
    "links in a circle": docker_archive(
        [{**ENTRY, "Config": "k"}], k=(tarfile.SYMTYPE, "m"), m=(tarfile.SYMTYPE, "k")
    ),
    "port of other digits": docker_archive([ENTRY], config(ExposedPorts={"\u00b2/tcp": {}})),
    "port of many digits": docker_archive([ENTRY], config(ExposedPorts={"1" * 5000 + "/tcp": {}})),
    "half a character": docker_archive([ENTRY], config(Env=["A=\ud800"])),
    "a NUL in the command": docker_archive([ENTRY], config(Cmd=["a\0b"])),
    "environment that is none": docker_archive([ENTRY], config(Env=5)),
    "no tar": b"hello" * 200,
    "empty": b"",
}


@pytest.mark.parametrize("trick", ARCHIVES)
def test_archives(trick: str, tmp_path: object) -> None:
    with pytest.raises(FetchError) as caught:
        resolved(str(tmp_path), ARCHIVES[trick])
    assert "\n" not in str(caught.value)


def test_environment_as_one_text(tmp_path: object) -> None:
    found = resolved(str(tmp_path), docker_archive([ENTRY], config(Env="A=b")))
    assert [(item.name, item.value) for item in found.manifest.app.environment] == [("A", "b")]  # type: ignore[union-attr]
    assert found.manifest.annotation("kurma.io/docker/env") is None


GOOD = docker_archive([ENTRY])


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


@pytest.mark.parametrize(
    "content",
    [
        flipped(gzip.compress(GOOD), 30),
        gzip.compress(GOOD)[:-20],
        flipped(lzma.compress(GOOD), 40),
        flipped(bz2.compress(GOOD), 20),
    ],
    ids=["gzip", "cut off", "xz", "bzip2"],
)
def test_broken_compression(content: bytes, tmp_path: object) -> None:
    with pytest.raises(FetchError, match="cannot be unpacked"):
        resolved(str(tmp_path), content)


def test_a_compressed_bomb_is_not_unpacked(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompressed, "_HONEST_SIZE", 1 << 20)
    monkeypatch.setattr(decompressed, "_MOST_RATIO", 100)
    with pytest.raises(FetchError, match="more than 100 times"):
        resolved(str(tmp_path), gzip.compress(bytes(8 << 20)))
    resolved(str(tmp_path), gzip.compress(GOOD))


def test_annotations_that_are_no_texts() -> None:
    settings = config()
    manifest = json.dumps(
        {
            "config": {"digest": digest_of(settings), "size": len(settings)},
            "layers": [{"digest": digest_of(LAYER), "size": len(LAYER)}],
        }
    ).encode()
    documents = {digest_of(manifest): manifest, digest_of(settings): settings}
    odd = {"org.opencontainers.image.ref.name": 5}

    def read(*entries: object, tag: str | None = None) -> RemoteLayers:
        return from_index(
            "oci:/x",
            "/x",
            tag,
            None,
            REQUEST,
            index=json.dumps({"manifests": entries}).encode(),
            load=lambda descriptor: documents[descriptor.digest],
            blob=lambda descriptor: descriptor,  # type: ignore[arg-type,return-value]
        )

    good = {"digest": digest_of(manifest), "size": len(manifest), "annotations": odd}
    assert read(good).manifest.version is None
    with pytest.raises(FetchError, match="several"):
        read(good, entry(annotations={"org.opencontainers.image.ref.name": ["x"]}))
