"""``docs/volumes.md``: what is typed there prints what stands there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.kit.command import PROGRAM, Kurma

pytestmark = [pytest.mark.root, pytest.mark.full]
TEXT = (Path(__file__).parents[3] / "docs" / "volumes.md").read_text()
NAME = "example.com/busybox"
BLOCKS = re.findall(r"^```(console|yaml)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def steps(block: str) -> list[tuple[str, str]]:
    """Each command of a session, and what it prints."""
    parts = re.split(r"^# ", block, flags=re.MULTILINE)[1:]
    return [(line, shown) for line, _, shown in (part.partition("\n") for part in parts)]


def test_the_sessions(kurma: Kurma, tmp_path: Path) -> None:
    environment = {**kurma.environment, "PATH": f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}"}
    count = 0
    for kind, block in BLOCKS:
        if kind == "yaml":
            (tmp_path / "pod.yml").write_text(block.replace(NAME, kurma.image))
            continue
        for line, shown in steps(block):
            # They need no network, which takes its time, and the image is nobody's but the test's.
            command = line.replace("kurma run ", "kurma run --net none ").replace(NAME, kurma.image)
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=60,
            )
            expected = ".*".join(re.escape(part) for part in shown.split("…"))
            assert re.fullmatch(expected, done.stdout), f"{line}\n{done.stdout}"
            count += 1
    assert count == 17
