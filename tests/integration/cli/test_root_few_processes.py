"""Commands and kurmad where the limit of processes is reached: one clear line, and nothing is left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from kurma_core.linux.cgroups import CgroupTree
from tests.kit.command import KURMA
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]


@pytest.fixture
def few() -> Iterator[CgroupTree]:
    """A cgroup for processes of a test."""
    tree = CgroupTree(f"kurma-few-{os.getpid()}")
    tree.create()
    yield tree
    tree.kill()
    tree.remove()


def test_a_command_that_may_start_no_process(kurma_command: Any, few: CgroupTree) -> None:
    """With each limit up to the one that is enough, in process."""
    kurma = kurma_command
    run = ("run", "--rm", "--net", "none", kurma.image)
    codes = []
    for most in range(1, 12):
        few.write("pids", "pids.max", str(most))
        done = kurma(*run, preexec_fn=lambda: few.add(os.getpid()))
        codes.append(done.returncode)
        if done.returncode == 3:
            break
        lines = done.stderr.splitlines()
        assert (done.returncode, "internal error" in lines[0]) == (125, False), lines
        assert len(lines) <= 2, lines
        assert kurma.out("list", "--no-legend") == ""
    assert codes[-1] == 3
    assert len(codes) > 3


def test_kurmad_that_may_start_no_process(kurmad_place: Any, few: CgroupTree, tmp_path: Any) -> None:
    """Its log has no trace, and it serves on."""
    kurma = kurmad_place
    log = tmp_path / "kurmad.log"
    with log.open("wb") as stream:
        daemon = subprocess.Popen(
            [*KURMA, "daemon", "run"],
            env=kurma.environment,
            stderr=stream,
            preexec_fn=lambda: few.add(os.getpid()),
        )
    try:
        until(lambda: "serves" in log.read_text(), "kurmad")
        run = ("run", "--rm", "--net", "none", kurma.image)
        assert kurma(*run).returncode == 3
        now = int(few.read("pids", "pids.current"))
        told = set()
        for more in range(12):
            few.write("pids", "pids.max", str(now + more))
            done = kurma(*run)
            lines = done.stderr.splitlines()
            told.add(done.returncode)
            assert done.returncode in (3, 125), lines
            assert not any("internal error" in line for line in lines), lines
        assert told == {3, 125}
        few.write("pids", "pids.max", "max")
        assert kurma(*run).returncode == 3
        assert kurma.out("list", "--no-legend") == ""
        assert "Traceback" not in log.read_text()
    finally:
        daemon.terminate()
        assert daemon.wait(20) == 0


def test_a_kurmad_that_may_not_start_its_threads(kurmad_place: Any, few: CgroupTree) -> None:
    """Says so in one line, whichever of its threads is refused."""
    ends = 0
    for most in range(1, 20):
        few.write("pids", "pids.max", str(most))
        with subprocess.Popen(
            [*KURMA, "daemon", "run"],
            env=kurmad_place.environment,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: few.add(os.getpid()),
        ) as daemon:
            assert daemon.stderr is not None
            said = []
            for line in daemon.stderr:
                said.append(line)
                if "serves" in line:
                    daemon.terminate()
        text = "".join(said)
        assert "internal error" not in text, text
        assert "Traceback" not in text, text
        if daemon.returncode == 0:
            break
        assert (daemon.returncode, sum(line.startswith("kurma: ") for line in said)) == (125, 1), text
        ends += 1
    assert daemon.returncode == 0
    assert ends > 2
