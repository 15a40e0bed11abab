"""Docker images made by hand: one layer, any configuration; pushed to a registry of our own."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import socket
import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence

from measuring import BenchError
from runtimes import output, program

_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_REGISTRY = """version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {directory}}}, maintenance: {{uploadpurging: {{enabled: false}}}}}}
http: {{addr: "{address}", secret: none}}
"""


def layer(root: str) -> bytes:
    """The directory as a tar, with its owners and modes."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(os.listdir(root)):
            tar.add(f"{root}/{name}", name)
    return data.getvalue()


def write_layout(directory: str, tar: bytes, config: Mapping[str, object]) -> None:
    """An OCI layout with one image, tagged ``1``.

    :param config: the configuration's section ``config``: Entrypoint, Cmd, User, Env, …
    """
    os.makedirs(f"{directory}/blobs/sha256")
    known = _put(directory, _LAYER, gzip.compress(tar, 1, mtime=0))
    _finish(directory, config, [(_digest(tar), known)])


def write_layout_of(directory: str, layers: Sequence[tuple[str, str]], config: Mapping[str, object]) -> None:
    """An OCI layout with one image, tagged ``1``, of layers that are in files; those are moved.

    :param layers: digest of the uncompressed tar, and path of the compressed one, lowest first.
    """
    os.makedirs(f"{directory}/blobs/sha256")
    found = []
    for diff_id, path in layers:
        with open(path, "rb") as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        known: dict[str, object] = {"mediaType": _LAYER, "digest": digest, "size": os.path.getsize(path)}
        os.rename(path, f"{directory}/blobs/sha256/{digest.partition(':')[2]}")
        found.append((diff_id, known))
    _finish(directory, config, found)


def _finish(directory: str, config: Mapping[str, object], layers: Sequence[tuple[str, dict[str, object]]]) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    document = {
        "architecture": machine,
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [diff_id for diff_id, _ in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _put(directory, "application/vnd.oci.image.config.v1+json", json.dumps(document).encode()),
        "layers": [known for _, known in layers],
    }
    found = _put(directory, str(manifest["mediaType"]), json.dumps(manifest).encode())
    found["annotations"] = {"org.opencontainers.image.ref.name": "1"}
    _write(f"{directory}/index.json", {"schemaVersion": 2, "manifests": [found]})
    _write(f"{directory}/oci-layout", {"imageLayoutVersion": "1.0.0"})


def _put(directory: str, kind: str, data: bytes) -> dict[str, object]:
    digest = _digest(data)
    with open(f"{directory}/blobs/sha256/{digest.partition(':')[2]}", "wb") as file:
        file.write(data)
    return {"mediaType": kind, "digest": digest, "size": len(data)}


def _write(path: str, document: object) -> None:
    with open(path, "w") as file:
        json.dump(document, file)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Registry:
    """Debian's docker-registry on a free port of the loopback, plain HTTP, without authentication."""

    def __init__(self, work: str) -> None:
        self._work = work
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Registry:
        config = f"{self._work}/registry.yml"
        with open(config, "w") as file:
            file.write(_REGISTRY.format(directory=f"{self._work}/registry", address=self.address))
        with open(f"{self._work}/registry.log", "wb") as log:
            self._process = subprocess.Popen([program("docker-registry"), "serve", config], stdout=log, stderr=log)
        host, _, port = self.address.partition(":")
        for _ in range(100):
            try:
                socket.create_connection((host, int(port)), 1).close()
                return self
            except OSError:
                time.sleep(0.1)
        self.__exit__()
        raise BenchError(f"docker-registry does not answer at {self.address}")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)

    def push(self, layout: str, name: str) -> str:
        """:returns: the image's reference, without a scheme."""
        reference = f"{self.address}/compared/{name}:1"
        words = [program("skopeo"), "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]
        output([*words, f"oci:{layout}:1", f"docker://{reference}"], os.environ)
        return reference
