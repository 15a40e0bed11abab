"""Every command of ``docs/howto/images.md``, run in order as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import find_page

DOCUMENT = find_page("images.md")


@pytest.mark.root
def test_docs_images_walk_through(tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    script = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert len(script.splitlines()) > 15
    (tmp_path / "kurma.yml").write_text("")
    (tmp_path / "here").mkdir()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KURMA_CONFIG": str(tmp_path / "kurma.yml"),
        "KURMA_DIR": str(tmp_path / "state"),
    }
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=tmp_path / "here",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "hello.aci: example.com/hello: a valid image" in lines
    (ident,) = {line for line in lines[:1] if line.startswith("sha512-")}
    assert lines.count(ident) >= 3  # built, fetched, extracted: one image
    assert (tmp_path / "here/copy.aci").read_bytes() == (tmp_path / "here/hello.aci").read_bytes()
    assert (tmp_path / "here/unpacked/bin/sh").read_bytes() == (tmp_path / "here/rootfs/bin/sh").read_bytes()
    # OpenPGP: a packet of a symmetric key first.
    assert (tmp_path / "here/secret.aci").read_bytes()[:1] in (b"\x8c", b"\xc3")
