"""Every change of the files of pods is counted, whichever process makes it, and how."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kurma_core.daemon.pods.changes import Changes

UUID = "11111111-1111-4111-8111-111111111111"
FILES = ["pod.json", "state.json", "pod/status.json"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory of pods with one pod."""
    found = tmp_path / "pods"
    (found / UUID / "pod").mkdir(parents=True)
    for name in FILES:
        (found / UUID / name).write_text("{}")
    return found


@pytest.fixture
def changes(root: Path) -> Iterator[Changes]:
    """They have seen the pod."""
    made = Changes(lambda: str(root))
    assert made.look() is not None
    assert made.of(UUID) is not None
    yield made
    made.close()


def seen(changes: Changes, uuid: str = UUID) -> tuple[int | None, int | None]:
    """The counts of all changes, and of the pod's."""
    return changes.look(), changes.of(uuid)


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


def _elsewhere(path: str) -> None:
    subprocess.run([sys.executable, "-c", f"open({path!r}, 'a').write(' ')"], check=True)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", [_in_place, _replaced, _linked, _elsewhere, os.unlink])
def test_no_change_goes_unseen(root: Path, changes: Changes, name: str, change: Callable[[str], None]) -> None:
    count, of_pod = seen(changes)
    assert seen(changes) == (count, of_pod)
    change(str(root / UUID / name))
    now, now_of_pod = seen(changes)
    assert now != count
    assert now_of_pod != of_pod
    assert seen(changes) == (now, now_of_pod)


def test_other_files_of_a_pod_are_no_changes(root: Path, changes: Changes) -> None:
    before = seen(changes)
    (root / UUID / "op.lock").write_text("")
    (root / UUID / "pod" / "logs").mkdir()
    (root / UUID / "pod" / "logs" / "app").write_text("line\n")
    (root / ".half-made").mkdir()
    assert seen(changes) == before


def test_a_directory_that_the_stager_had_not_made_yet(root: Path, changes: Changes) -> None:
    for step in (
        lambda: os.rename(root / UUID / "pod", root / UUID / "old"),
        lambda: os.mkdir(root / UUID / "pod"),
        lambda: (root / UUID / "pod" / "status.json").write_text("{}"),
        lambda: (root / UUID / "pod" / "status.json").write_text("{ }"),
    ):
        before = seen(changes)
        step()
        assert seen(changes)[1] != before[1]


def test_another_pod_in_its_place(root: Path, changes: Changes, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "pod").mkdir(parents=True)
    for name in FILES:
        (other / name).write_text("{}")
    before = seen(changes)
    os.rename(root / UUID, tmp_path / "old")
    os.rename(other, root / UUID)
    now = seen(changes)
    assert now[0] != before[0]
    assert now[1] != before[1]
    (root / UUID / "state.json").write_text("[]")
    assert seen(changes)[1] != now[1]


def test_pods_that_come_and_go(root: Path, changes: Changes) -> None:
    before = seen(changes)
    (root / ".half-made").mkdir()
    os.rename(root / ".half-made", root / "new")
    now = seen(changes)
    assert now[0] != before[0]
    assert now[1] == before[1]
    assert changes.of("new") is not None
    os.rmdir(root / "new")
    assert changes.look() != now[0]
    assert changes.of("new") is None


def test_another_directory_of_pods(root: Path, changes: Changes) -> None:
    before = seen(changes)
    os.rename(root, f"{root}.old")
    subprocess.run(["rm", "-r", f"{root}.old"], check=True)
    assert changes.look() is None
    (root / UUID).mkdir(parents=True)
    now = seen(changes)
    assert now[0] not in (None, before[0])
    assert now[1] not in (None, before[1])


def test_lost_events_are_changes_of_all_pods(root: Path, changes: Changes) -> None:
    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        most = int(file.read())
    before = seen(changes)
    file = root / UUID / "other"
    for _ in range(most // 2 + 10):  # two kinds of events each, so that none is merged with the one before
        file.write_text("")
        os.unlink(file)
    now = seen(changes)
    assert now[0] not in (None, before[0])
    assert now[1] not in (None, before[1])
