"""``docs/howto/stage1.md``: the stage1 image that stands there is built and run, by what is typed there."""

import os
import re
import subprocess

import pytest

from tests.docs.pages import find_page
from tests.kit.command import PROGRAM
from tests.kit.waiting import until

pytestmark = pytest.mark.root
TEXT = find_page("stage1.md").read_text()
FILES = re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
SESSIONS = re.findall(r"^```console\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def steps(block):
    """Each command of a session, and what it prints."""
    parts = re.split(r"^# ", block, flags=re.MULTILINE)[1:]
    return [(line, shown) for line, _, shown in (part.partition("\n") for part in parts)]


def test_the_guide(stage1s, tmp_path):
    for name, text in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert [name for name, _ in FILES] == ["stage1/ex/run", "stage1/ex/enter", "stage1/ex/gc", "stage1.json"]
    environment = {**stage1s.environment, "PATH": f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}"}
    lines = [step for block in SESSIONS for step in steps(block)]
    assert len(lines) == 9
    built = tmp_path / "stage1.aci"
    for line, shown in lines:
        command = line.replace("/srv/", f"{tmp_path}/").replace("example.com/busybox", stage1s.image)
        command = command.replace("-- -c", "--exec /bin/busybox -- sh -c")
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
        assert re.fullmatch(expected, done.stdout, re.DOTALL), f"{line}\n{done.stdout}"
        if "image build" in line:
            stage1s.configure(stagers={"mine": {"driver": "rkt", "image": str(built)}})
            stage1s.pin(str(built))
    until(lambda: stage1s.out("list", "--quiet") == "", "the removal of the second")
