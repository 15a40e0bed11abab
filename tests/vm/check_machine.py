"""Machines that do not come up, hang or fall are told from those that ran; ``./dev test-vm`` runs this, too.

Not found by pytest itself: it needs qemu and the kernel, which nothing else does.
"""

import os
import shutil
import subprocess

import pytest

from tests.vm import packages, run
from tests.vm.failing import Failing
from tests.vm.machine import Machine

_CACHE = f"{run.PROJECT}/.dev/vm"


@pytest.fixture
def machine(tmp_path):
    """``machine("script")``: one with a disk of busybox and this ``/sbin/init``."""

    def make(script, patience):
        tree = tmp_path / "tree"
        for name in ("bin", "dev", "sbin", "results"):
            (tree / name).mkdir(parents=True)
        shutil.copy("/bin/busybox", tree / "bin")
        if script is not None:
            (tree / "sbin" / "init").write_text(f"#!/bin/busybox sh\n{script}\n")
            (tree / "sbin" / "init").chmod(0o755)
        made = Machine(packages.kernel(_CACHE), str(tmp_path))
        made.make_disk(str(tree), "64M")
        return made.run(patience)

    return make


@pytest.mark.parametrize(
    ("script", "patience", "told", "tail"),
    [
        (None, 120, "the machine fell", "first: the disk is none of ours"),
        ("echo how far it came; exit 3", 120, "the machine fell", "how far it came"),
        # As long as the machine may take to come so far, where much else runs beside it.
        ("echo asleep; exec /bin/busybox sleep 1000", 60, "not done within 60 s", "asleep"),
    ],
    ids=["no-init", "fallen", "hanging"],
)
def test_told_with_the_consoles_tail(machine, tmp_path, script, patience, told, tail):
    with pytest.raises(Failing, match=told) as caught:
        machine(script, patience)
    assert tail in caught.value.tail
    assert str(tmp_path) not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def test_results_come_back(machine):
    results = machine(
        "echo 3 >/results/exit; /bin/busybox tar -C /results -cf /dev/vdb .; exec /bin/busybox poweroff -f", 120
    )
    assert os.listdir(results) == ["exit"]
