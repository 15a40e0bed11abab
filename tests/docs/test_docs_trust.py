"""The walk-through of ``docs/howto/trust.md`` works as it is written, with a real GnuPG home."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kurma_core.trust.machine_key import _end_agent
from tests.docs.pages import find_page

DOCUMENT = find_page("trust.md")


def walk() -> list[str]:
    """The lines of the section, in order."""
    section = DOCUMENT.read_text(encoding="utf-8").split("a walk-through\n")[1].split("\n## ")[0]
    return "".join(re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)).splitlines()


@pytest.mark.root
def test_the_walk_through(tmp_path: Path) -> None:
    (tmp_path / "kurma.json").write_text(json.dumps({"trustedkeys": [str(tmp_path / "keys")]}))
    (tmp_path / "here").mkdir()
    (tmp_path / "state").mkdir()
    with tempfile.TemporaryDirectory(prefix="kt-", dir="/tmp", ignore_cleanup_errors=True) as home:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GNUPGHOME": home,
            "KURMA_CONFIG": str(tmp_path / "kurma.json"),
            "KURMA_DIR": str(tmp_path / "state"),
        }
        lines = walk()
        # A command that must fail is one that fails: ``!`` alone does not end a shell.
        script = "\n".join(
            f"if {line[2:]}; then echo 'did not fail: {line[2:]}' >&2; exit 1; fi"
            if line.startswith("! ")
            else line
            for line in lines
        )
        try:
            done = subprocess.run(
                ["sh", "-eux", "-c", script],
                cwd=tmp_path / "here",
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=120,
            )
        finally:
            _end_agent(home)
    assert done.returncode == 0, done.stderr
    assert len(lines) > 10
    assert "Publisher <images@example.com>" in done.stdout
    refusals = [line for line in done.stderr.splitlines() if line.startswith("kurma: ")]
    assert "not trusted for it" in refusals[-2]
    assert "signed by a key that is not trusted for it" in refusals[-1]
