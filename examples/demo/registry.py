"""Serves a registry with one image on the loopback: ``registry.py DIRECTORY`` prints its address and runs on.

It stands in for Docker Hub, so the demo needs no network. The image has the files of the directory, and runs the
web server of busybox.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: Content of the registry by the last part of a path: a digest or a tag.
FOUND: dict[str, tuple[str, bytes]] = {}
OCI = "application/vnd.oci.image"


def add(kind: str, content: bytes, tag: str = "") -> dict[str, str | int]:
    """Adds content to the registry; :returns: its descriptor."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    FOUND[tag or digest] = FOUND[digest] = kind, content
    return {"mediaType": kind, "digest": digest, "size": len(content)}


def add_image(directory: str, tag: str) -> None:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(directory, ".")
    digest = f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"
    machine = os.uname().machine
    config = {
        "os": "linux",
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        "config": {"Cmd": ["httpd", "-f", "-p", "80", "-h", "/srv/www"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": add(f"{OCI}.config.v1+json", json.dumps(config).encode()),
        "layers": [add(f"{OCI}.layer.v1.tar+gzip", gzip.compress(layer.getvalue()))],
    }
    add(f"{OCI}.manifest.v1+json", json.dumps(manifest).encode(), tag)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind, content = FOUND.get(self.path.rsplit("/", 1)[-1], ("application/json", b"{}"))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Says nothing of requests."""


if __name__ == "__main__":
    add_image(sys.argv[1], "1.0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
