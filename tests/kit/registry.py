"""OCI images made here, and Debian's docker-registry on a free port of the loopback, filled by skopeo."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import socket
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.waiting import until

BUSYBOX = Path("/bin/busybox")


#: An entry of a layer: content, a directory (None), or a link's target in a tuple.
Content = bytes | None | tuple[str]


def layer_tar(entries: Mapping[str, Content]) -> bytes:
    """An uncompressed layer; programs are the entries under bin/."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.mode = 0o755
            if content is None:
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            elif isinstance(content, tuple):
                entry.type, entry.linkname = tarfile.SYMTYPE, content[0]
                tar.addfile(entry)
            else:
                entry.mode = 0o755 if name.startswith("bin/") else 0o644
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class OciDir:
    """An OCI image layout, written here."""

    path: Path
    manifests: list[dict[str, Any]] = field(default_factory=list)

    def blob(self, content: bytes) -> dict[str, Any]:
        digest = sha256(content)
        place = self.path / "blobs" / "sha256"
        place.mkdir(parents=True, exist_ok=True)
        (place / digest.removeprefix("sha256:")).write_bytes(content)
        return {"digest": digest, "size": len(content)}

    def image(
        self, tag: str | None, layers: list[bytes], config: dict[str, Any], platform: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """One image; with a tag it is entered in the index."""
        system = platform or {"os": "linux", "architecture": "amd64"}
        document = {
            **system,
            "created": "2024-01-02T03:04:05Z",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [sha256(layer) for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                **self.blob(json.dumps(document).encode()),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                    **self.blob(gzip.compress(layer, 1, mtime=0)),
                }
                for layer in layers
            ],
        }
        entry = {"mediaType": manifest["mediaType"], **self.blob(json.dumps(manifest).encode())}
        if platform is not None:
            entry["platform"] = platform
        if tag is not None:
            self.enter(entry, tag)
        return entry

    def layers_of(self, entry: Mapping[str, Any]) -> list[str]:
        """Digests of an image's layers as shipped, lowest first. :param entry: as :meth:`image` gives it."""
        manifest = json.loads((self.path / "blobs/sha256" / entry["digest"][7:]).read_bytes())
        return [layer["digest"] for layer in manifest["layers"]]

    def index(self, tag: str, entries: list[dict[str, Any]]) -> None:
        kind = "application/vnd.oci.image.index.v1+json"
        document = {"schemaVersion": 2, "mediaType": kind, "manifests": entries}
        self.enter({"mediaType": kind, **self.blob(json.dumps(document).encode())}, tag)

    def enter(self, entry: dict[str, Any], tag: str) -> None:
        self.manifests.append({**entry, "annotations": {"org.opencontainers.image.ref.name": tag}})
        (self.path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (self.path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": self.manifests}))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Registry:
    """A running docker-registry.

    :param storage: where it keeps its blobs. :param inside: words before a command that is to reach it.
    """

    host: str
    storage: Path
    inside: Sequence[str] = ()

    def push(self, source: str, name: str, *options: str) -> None:
        """Copies an image with skopeo, every platform of it."""
        target = f"docker://{self.host}/{name}"
        command = ["skopeo", "--insecure-policy", "copy", "--quiet", "--all", "--dest-tls-verify=false", *options]
        done = subprocess.run(
            [*self.inside, *command, source, target], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def blob_file(self, digest: str) -> Path:
        digits = digest.removeprefix("sha256:")
        return self.storage / "docker/registry/v2/blobs/sha256" / digits[:2] / digits / "data"


@contextmanager
def running_registry(directory: Path, inside: Sequence[str] = (), **http: Any) -> Iterator[Registry]:
    """``docker-registry serve`` with a configuration of its own; the one shipped asks for authentication.

    :param inside: words that run a command in the network of the registry, in place of themselves; none: this one.
    :param http: further keys of its configuration: ``auth``, ``tls``.
    """
    directory.mkdir()
    port = free_port()
    tls = http.pop("tls", None)
    config = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(directory / "storage")}},
        "http": {"addr": f"127.0.0.1:{port}", **({"tls": tls} if tls else {})},
        **http,
    }
    (directory / "config.yml").write_text(json.dumps(config))
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            [*inside, "docker-registry", "serve", str(directory / "config.yml")], stdout=log, stderr=log
        )
    try:
        _wait_for(process, port, directory / "log")
        yield Registry(f"127.0.0.1:{port}", directory / "storage", inside)
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        # Of the process's own network.
        sockets = Path(f"/proc/{process.pid}/net/tcp").read_text()
        return f" 0100007F:{port:04X} 00000000:0000 0A " in sockets

    until(listens, lambda: f"docker-registry listens: {log.read_text()}")
