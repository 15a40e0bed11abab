"""The owner of ``example.com``: an HTTPS server with a real certificate, pages that say where images are, a key.

The names resolve by ``/etc/hosts`` and the server listens on port 443, for a name of the specification has no
port. Both are the tests' own: the network namespace is private (``tests/host``), and so is the mount namespace, in
which a file of ours is bound over ``/etc/hosts`` for as long as a test needs it.
"""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
from kurma_testing.webserver import Page, WebServer, web_server

from kurma_core.image_store.builder import build_archive
from tests.kit.keys import Signers

DOMAINS = ("example.com", "other.example")
_TEMPLATE = "https://example.com/images/{name}-{version}.{ext}"


@dataclass
class Publisher:
    """:param ca_file: of the authority that vouches for the server."""

    server: WebServer
    signers: Signers
    directory: Path
    ca_file: str

    def page(self, path: str = "", template: str = _TEMPLATE, prefix: str = "") -> None:
        """What anyone who publishes images puts up; docs/howto/publish_images.md shows the same."""
        prefix = prefix or f"example.com{path}"
        text = (
            "<!DOCTYPE html>\n<html><head>\n"
            f'<meta name="ac-discovery" content="{prefix} {template}">\n'
            f'<meta name="ac-discovery-pubkeys" content="{prefix} https://example.com/pubkeys.asc">\n'
            "</head><body>Images live here.</body></html>\n"
        )
        self.server.pages[path or "/"] = Page(text.encode(), etag="")

    def archive(self, name: str, version: str = "", **more: Any) -> tuple[Path, str]:
        """An image archive on disk, and its ID. :param more: of its manifest; ``content``: of the file in it."""
        content = more.pop("content", name)
        labels = [{"name": key, "value": value} for key, value in more.pop("labels", {}).items()]
        if version:
            labels.append({"name": "version", "value": version})
        manifest = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": name, "labels": labels, **more}
        root = self.directory / "root"
        root.mkdir(exist_ok=True)
        (root / "who").write_text(content)
        path = self.directory / f"{name.replace('/', '_')}-{version}.aci"
        with open(path, "wb") as out:
            return path, build_archive(str(root), manifest, out)

    def publish(self, name: str, version: str = "latest", signer: str = "alice", **more: Any) -> str:
        """Puts an image where the page's template says; "" for a signer: unsigned. Returns its ID."""
        labelled = more.pop("labelled", version)
        path, ident = self.archive(name, "" if labelled == "latest" else labelled, **more)
        self.put(f"/images/{name}-{version}.aci", path, signer)
        return ident

    def put(self, place: str, archive: Path, signer: str = "alice", **more: Any) -> None:
        content = archive.read_bytes()
        self.server.pages[place] = Page(content, etag=f'"{hash(content)}"', **more)
        self.server.pages.pop(f"{place}.asc", None)
        if signer:
            self.server.pages[f"{place}.asc"] = Page(self.signers.sign(archive, signer))

    def asked(self, path: str) -> int:
        return len(self.server.requests(path))


@contextmanager
def publisher(directory: Path, signers: Signers) -> Iterator[Publisher]:
    """Serves until the end of the block."""
    directory.mkdir()
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*DOMAINS).configure_cert(context)
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    hosts = directory / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {' '.join(DOMAINS)}\n")
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    try:
        with web_server(context, port=443) as server:
            yield Publisher(server, signers, directory, str(directory / "ca.pem"))
    finally:
        subprocess.run(["umount", "/etc/hosts"], check=True)
