"""That what tests leave behind is noticed, and what other runs on this machine have is not called that."""

import subprocess
import uuid

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


def made(path):
    path.mkdir(parents=True)
    return str(path)


def test_what_no_process_tells_of_is_ours(pod, tmp_path):
    assert pod[1] in leftovers.cgroups(str(tmp_path))
    assert leftovers.fewer({pod[1]}, {pod[1], "cgroup later"}) == {pod[1]}
    assert leftovers.fewer(set(), {"child process 3"}) == {"child process 3"}


def test_a_pod_of_ours_with_processes(pod, in_pod, tmp_path):
    in_pod(made(tmp_path / "ours" / "test" / "state" / "pods" / pod[0] / "pod"))
    assert pod[1] in leftovers.cgroups(str(tmp_path / "ours"))


def test_a_pod_whose_directory_is_gone(pod, in_pod, tmp_path):
    directory = tmp_path / "ours" / "test" / "pods" / pod[0] / "pod"
    in_pod(made(directory))
    directory.rmdir()
    directory.parent.rmdir()
    assert pod[1] in leftovers.cgroups(str(tmp_path / "ours"))


def test_a_pod_of_another_run(pod, in_pod, tmp_path):
    in_pod(made(tmp_path / "theirs" / "test" / "pods" / pod[0] / "pod"))
    assert pod[1] not in leftovers.cgroups(str(tmp_path / "ours"))
