"""``run --verify``: what was tampered with since it came in does not start (S2)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.images import archive, busybox_root

pytestmark = pytest.mark.root


def _extracted(kurma: Any, image: str) -> None:
    """With the same size, and its time put back."""
    file = Path(kurma.state, "images", "layers", image, "rootfs", "etc", "passwd")
    _rewrite(file, file.read_bytes().replace(b"root", b"toor"))


def _rendered(kurma: Any, image: str) -> None:
    _rewrite(Path(kurma.out("image", "render", image).strip(), "etc", "passwd"), b"")


def _archive(kurma: Any, image: str) -> None:
    file = Path(kurma.state, "images", "archives", f"{image}.aci")
    _rewrite(file, file.read_bytes().replace(b"root:", b"toor:"))


def _manifest(kurma: Any, image: str) -> None:
    file = Path(kurma.state, "images", "images", image, "manifest")
    _rewrite(file, file.read_bytes().replace(b"exit 0", b"exit 1"))


def _rewrite(file: Path, content: bytes) -> None:
    status = file.stat()
    assert content != file.read_bytes()
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


TAMPERINGS: dict[str, tuple[Callable[[Any, str], None], str]] = {
    "a file of the layer": (_extracted, "'etc/passwd' has other content since it was extracted"),
    "a file of the rendered tree": (_rendered, "'etc/passwd' has changed since it was extracted"),
    "the archive": (_archive, "its archive has changed"),
    "the manifest": (_manifest, "the manifest has changed"),
}


@pytest.mark.full
@pytest.mark.parametrize("how", TAMPERINGS)
def test_tampering_is_found_before_the_start(kurma: Any, tmp_path: Path, how: str) -> None:
    tamper, said = TAMPERINGS[how]
    root = busybox_root(str(tmp_path / "root"))
    with open(f"{root}/etc/passwd", "a") as file:
        file.write(f"{how.replace(' ', '')}:x:7:7::/:/bin/sh\n")  # an image of its own
    app = {"exec": ["/bin/sh", "-c", "exit 0"], "user": "0", "group": "0"}
    image = kurma.out(
        "image", "fetch", archive(root, str(tmp_path / "a.aci"), "example.com/checked", app=app)
    ).strip()
    run = ("run", "--rm", "--net", "none", "--verify", image)
    try:
        done = kurma(*run)
        assert (done.returncode, done.stderr) == (0, "")
        tamper(kurma, image)
        done = kurma(*run)
        first, hint = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (125, "")
        assert first.startswith("kurma: ")
        assert f"the image store is damaged: {said}" in first
        assert hint.startswith("  hint: remove ")
    finally:
        kurma.out("image", "rm", image)
