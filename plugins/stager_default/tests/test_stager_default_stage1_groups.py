"""Where the pod of a stage1 has its cgroup: below its caller's, or beside that."""

import pytest
from kurma_stager_default.stage1 import groups

from kurma_core.linux.cgroups import Hierarchy, Layout


def chosen(hierarchy, path):
    """:param path: of this process, as ``/proc/self/cgroup`` has it."""
    names = ",".join(hierarchy.controllers)
    return groups._at(hierarchy, [["7", "other", "/nowhere"], ["3", names, path]]).directory


@pytest.fixture
def tree(tmp_path):
    """A hierarchy with ``slice``, which gives controllers to its children, and in it ``service``."""
    (tmp_path / "slice/service/own").mkdir(parents=True)
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    (tmp_path / "slice/cgroup.subtree_control").write_text("memory pids\n")
    (tmp_path / "slice/service/cgroup.subtree_control").write_text("\n")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/slice/service", "slice"),
        ("/slice", ""),
        ("/slice/service/own", "slice/service/own"),
        ("/", ""),
        ("/not/mounted/here", ""),
    ],
)
def test_version_2(tree, path, expected):
    assert chosen(Hierarchy(2, (), str(tree), "."), path) == str(tree / expected)


@pytest.mark.parametrize(("path", "expected"), [("/slice/service", "/slice/service"), ("/", "")])
def test_version_1(tree, path, expected):
    hierarchy = Hierarchy(1, ("cpu", "cpuacct"), str(tree), "cpu,cpuacct")
    assert chosen(hierarchy, path) == f"{tree}{expected}"
    assert chosen(Hierarchy(1, ("name=systemd",), str(tree), "systemd"), path) == f"{tree}{expected}"


def test_within(tmp_path):
    """Isolators ask what the pod's own cgroup has."""
    (tmp_path / "pod").mkdir()
    (tmp_path / "cgroup.controllers").write_text("memory cpu\n")
    (tmp_path / "pod/cgroup.controllers").write_text("cpu\n")
    layout = Layout([Hierarchy(2, (), str(tmp_path), ".")])
    found = groups.within(groups.CgroupTree("pod", layout))
    assert found.of("cpu") is not None
    assert found.of("memory") is None
