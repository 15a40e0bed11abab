"""A small image, as a registry's pages and as a layout's files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

from kurma_testing.webserver import Page, WebServer


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def layer_of(content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo("file")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


#: Incompressible enough to be cut in the middle.
LAYER = layer_of(b"".join(hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(8000)))
PACKED = gzip.compress(LAYER, mtime=0)
CONFIG = json.dumps(
    {
        "os": "linux",
        "architecture": "amd64",
        "config": {"Cmd": ["/file"]},
        "rootfs": {"type": "layers", "diff_ids": [sha256(LAYER)]},
    }
).encode()
MANIFEST = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {"digest": sha256(CONFIG), "size": len(CONFIG)},
        "layers": [{"mediaType": "x.tar.gzip", "digest": sha256(PACKED), "size": len(PACKED)}],
    }
).encode()
BLOB = f"/v2/app/blobs/{sha256(PACKED)}"


def serve(server: WebServer) -> str:
    """Puts the image on the server; returns its locator."""
    server.pages["/v2/"] = Page(b"{}")
    server.pages["/v2/app/manifests/v1"] = Page(MANIFEST)
    server.pages[f"/v2/app/blobs/{sha256(CONFIG)}"] = Page(CONFIG)
    server.pages[BLOB] = Page(PACKED)
    return f"docker://{server.host}/app:v1"


def write_layout(path: Path) -> None:
    """Writes the image as an OCI layout, under the tag v1."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for content in (CONFIG, MANIFEST, PACKED):
        (blobs / sha256(content)[7:]).write_bytes(content)
    entry = {
        "digest": sha256(MANIFEST),
        "size": len(MANIFEST),
        "annotations": {"org.opencontainers.image.ref.name": "v1"},
    }
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
