"""That what tests leave behind is noticed, and what other runs on this machine have is not called that."""

import subprocess
import uuid
from pathlib import Path

import pytest

from kurma_core.linux.cgroups import CgroupTree
from tests.integration import leftovers

pytestmark = pytest.mark.root


@pytest.fixture
def pod(tmp_path):
    """A cgroup that looks like a pod's, and ``(UUID, how it is told of)``."""
    tree = CgroupTree(f"kurma/{uuid.uuid4()}")
    tree.create()
    yield tree.name.removeprefix("kurma/"), f"cgroup {tree.directories()[0]}"
    tree.kill()
    tree.remove()


@pytest.fixture
def in_pod(pod):
    """``in_pod(directory)``: a process of it that has that directory mounted, as a stager has."""
    started = []

    def start(directory):
        command = 'mount --bind "$0" /mnt && echo mounted && exec sleep 1000'
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", command, directory], stdout=subprocess.PIPE, start_new_session=True
        )
        started.append(process)
        assert process.stdout.readline() == b"mounted\n"
        CgroupTree(f"kurma/{pod[0]}").add(process.pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_directories_of_the_machine_are_covered():
    """``/etc/kurma`` too if the machine lacks it."""
    for directory in ("/etc/kurma", "/etc", "/run", "/var/lib"):
        assert Path(directory).is_mount()


def test_a_network_is_noticed():
    """The bridge of a default network stays when its pods have gone."""
    subprocess.run(["ip", "link", "add", "kurma-0badcafe", "type", "bridge"], check=True)
    try:
        assert "link kurma-0badcafe" in leftovers.state()
    finally:
        subprocess.run(["ip", "link", "delete", "kurma-0badcafe"], check=True)
    assert "link kurma-0badcafe" not in leftovers.state()


def made(path):
    path.mkdir(parents=True)
    return str(path)


def left(pod, ours):
    """What is said of it after a test, and at the end of the run."""
    suspects = leftovers.Suspects(str(ours))
    before = leftovers.cgroups()
    assert suspects.left_since(before, "a test") == set(), "it was there before"
    del before[pod[0]]
    return pod[1] in suspects.left_since(
        before, "a test"
    ), f"cgroup kurma/{pod[0]}, since a test" in suspects.left()


def test_a_pod_of_ours(pod, in_pod, tmp_path):
    """With processes and without: told at once."""
    directory = made(tmp_path / "ours" / "test" / "state" / "pods" / pod[0] / "pod")
    assert left(pod, tmp_path / "ours") == (True, False)
    in_pod(directory)
    assert left(pod, tmp_path / "ours") == (True, False)


def test_a_pod_of_a_test_that_is_over(pod, in_pod, tmp_path):
    """Its directory is not looked for; who has it mounted tells, or it is told at the end."""
    directory = made(tmp_path / "ours" / "test_of_before0" / "state" / "pods" / pod[0] / "pod")
    suspects = leftovers.Suspects(str(tmp_path / "ours"))
    suspects.test_is_over()
    assert not any(pod[0] in one for one in suspects.left_since({}, "a test"))
    assert f"cgroup kurma/{pod[0]}, since a test" in suspects.left()
    in_pod(directory)
    assert any(pod[0] in one for one in suspects.left_since({}, "a test"))


def test_what_nobody_knows_must_have_gone_by_the_end(pod, in_pod, tmp_path):
    """As a pod's whose directory is gone; its process may live."""
    assert left(pod, tmp_path / "ours") == (False, True)
    directory = tmp_path / "ours" / "test" / "pods" / pod[0] / "pod"
    in_pod(made(directory))
    directory.rmdir()
    directory.parent.rmdir()
    assert left(pod, tmp_path / "ours") == (False, True)


def test_a_pod_of_another_run(pod, in_pod, tmp_path):
    """Also where it has shown only later that it is one."""
    suspects = leftovers.Suspects(str(tmp_path / "ours"))
    suspects.left_since({}, "a test")
    assert any(pod[0] in one for one in suspects.left())
    in_pod(made(tmp_path / "theirs" / "test" / "pods" / pod[0] / "pod"))
    assert not any(pod[0] in one for one in suspects.left())
    assert left(pod, tmp_path / "ours") == (False, False)


def test_a_pod_in_the_host_of_another_run(pod, tmp_path):
    """It has no mounts of its own, nor anything of its run in its environment, and its parent is gone."""
    host = Path(__file__).parents[1] / "host"
    command = 'sh "$0" env -i sh -c "echo there; exec sleep 1000" & wait'
    other = subprocess.Popen(["sh", "-c", command, host], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert other.stdout.readline() == b"there\n"
        with open(f"/proc/{other.pid}/task/{other.pid}/children") as file:
            pid = int(file.read())
        CgroupTree(f"kurma/{pod[0]}").add(pid)
        other.kill()
        other.wait()
        assert left(pod, tmp_path / "ours") == (False, False)
    finally:
        other.stdout.close()
        other.kill()
        other.wait()


def test_a_suspect_that_goes_is_forgotten(pod, tmp_path):
    suspects = leftovers.Suspects(str(tmp_path / "ours"))
    suspects.left_since({}, "a test")
    CgroupTree(f"kurma/{pod[0]}").remove()
    assert not any(pod[0] in one for one in suspects.left())
