"""docs/reference/stager_protocol.md names every line of the contract suite, as the suite tells it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kurma_core.stager_check.report import LINES
from tests.docs.pages import find_page

#: What the stager in shell says that it does not do.
NOT_IN_SHELL = {
    "logs.streams",
    "logs.since",
    "logs.stream",
    "run.supplementary-gids",
    "run.terminal",
    "app.supplementary-gids",
    "userns.apps",
    "userns.run",
    "waits.pod",
    "forks.pod",
    "plan.umask",
    "plan.limits",
    "plan.scheduling",
    "plan.io-priority",
    "plan.memory-policy",
    "plan.cgroup",
    "plan.run",
    "plan.refused",
    "plan.version",
    "changing.add",
    "changing.stop",
    "changing.start",
    "changing.rm",
}
ROOT = Path(__file__).parents[2]
PAGE = find_page("stager_protocol.md").read_text()


def test_docs_stager_check_names_every_line() -> None:
    section = PAGE.split("## The contract suite\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.-]+)` \| (.+) \|$", section, re.MULTILINE)
    assert [(name, about.replace("\\|", "|")) for name, about in rows] == list(LINES.items())


def test_docs_stager_check_quotes_it_rightly() -> None:
    for name, rest in re.findall(r"^(?:ok|FAIL|--) +([\w.-]+) +(.+)$", PAGE, re.MULTILINE):
        assert rest.startswith(LINES[name])


def guide() -> str:
    """The commands of the guide, as one takes them over."""
    section = PAGE.split("## A first stager\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return str(block)


@pytest.mark.root
@pytest.mark.full
def test_docs_stager_guide_leads_to_a_checked_stager(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = guide().replace("stager check mine", "stager check mine --format json")
    environment = {
        **os.environ,
        "KURMA_DIR": str(tmp_path / "state"),
        "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
    }
    command = ["sh", "-euc", commands]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = json.loads(done.stdout[done.stdout.index("[") :])
    assert {line["name"] for line in lines if line["outcome"] == "fail"} == set()
    skipped = {line["name"]: line["detail"] for line in lines if line["outcome"] == "skipped"}
    assert skipped.keys() == NOT_IN_SHELL
    assert all(skipped.values())
