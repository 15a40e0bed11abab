"""What was told of a pod is believed only as long as its files are as they were, whoever changes them, and how."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kurma_core.pods import daemon_interface
from kurma_core.pods.daemon_interface import Proof
from kurma_core.pods.record.pod_directory import PodDirectory
from kurma_core.pods.record.state import PodState

TICK = 0.05


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PodDirectory:
    """One that has been as it is for long enough."""
    monkeypatch.setattr(daemon_interface, "_TICK", TICK)
    found = PodDirectory(str(tmp_path / "pod"))
    os.makedirs(found.file("pod"))
    found.write_pod({"name": "a"})
    found.write_state(PodState("running"))
    Path(found.file("pod/status.json")).write_text("{}")
    time.sleep(2 * TICK)
    return found


def test_files_that_have_just_changed_prove_nothing(pod: PodDirectory) -> None:
    assert Proof.take(pod) is not None
    pod.write_state(PodState("stopped"))
    assert Proof.take(pod) is None
    time.sleep(2 * TICK)
    found = Proof.take(pod)
    assert found is not None
    assert found.holds(pod)


def _in_place(path: str) -> None:
    times = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"[")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _replaced(path: str) -> None:
    times = os.stat(path)
    Path(path + ".new").write_bytes(Path(path).read_bytes())
    os.utime(path + ".new", ns=(times.st_atime_ns, times.st_mtime_ns))
    os.rename(path + ".new", path)


def _linked(path: str) -> None:
    os.rename(path, path + ".old")
    os.symlink(path + ".old", path)


@pytest.mark.parametrize("name", ["pod.json", "state.json", "pod/status.json"])
@pytest.mark.parametrize("change", [_in_place, _replaced, _linked, os.unlink])
def test_no_change_goes_unseen(pod: PodDirectory, name: str, change: Callable[[str], None]) -> None:
    found = Proof.take(pod)
    assert found is not None
    assert found.holds(pod)
    change(pod.file(name))
    assert not found.holds(pod)


def test_a_file_that_the_stager_had_not_written_yet(pod: PodDirectory) -> None:
    os.unlink(pod.file("pod/status.json"))
    found = Proof.take(pod)
    assert found is not None
    assert found.holds(pod)
    Path(pod.file("pod/status.json")).write_text("{}")
    assert not found.holds(pod)


def test_another_pod_in_its_place(pod: PodDirectory, tmp_path: Path) -> None:
    found = Proof.take(pod)
    assert found is not None
    other = PodDirectory(str(tmp_path / "other"))
    os.makedirs(other.file("pod"))
    for name in ("pod.json", "state.json", "pod/status.json"):
        Path(other.file(name)).write_bytes(Path(pod.file(name)).read_bytes())
    os.rename(pod.path, pod.path + ".old")
    os.rename(other.path, pod.path)
    assert not found.holds(pod)
    os.rename(pod.path, other.path)
    os.rename(pod.path + ".old", pod.path)
    assert found.holds(pod)  # no file of it was touched


def test_a_pod_without_records_is_never_proved(pod: PodDirectory) -> None:
    os.unlink(pod.file("state.json"))
    assert Proof.take(pod) is None
