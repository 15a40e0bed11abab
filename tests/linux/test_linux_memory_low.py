"""Memory that is kept for a cgroup is kept by what is above it, too; on files that stand for cgroups."""

import pytest

from kurma_core.linux.cgroups import CgroupTree, Hierarchy, Layout
from kurma_core.pods.run import pod_limits


@pytest.fixture
def tree(tmp_path):
    """Two pods, and what they share."""
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    for name in ("kurma", "kurma/one", "kurma/two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.low").write_text("0\n")
    (tmp_path / "kurma/cgroup.procs").write_text("")
    layout = Layout([Hierarchy(2, (), str(tmp_path), ".")])
    return lambda name: CgroupTree(f"kurma/{name}", layout)


def kept(tmp_path, name=""):
    return int((tmp_path / "kurma" / name / "memory.low").read_text())


def test_what_is_shared_keeps_the_sum(tree, tmp_path):
    pod_limits.keep_low(tree("one"), 20)
    pod_limits.keep_low(tree("two"), 30)
    assert (kept(tmp_path, "one"), kept(tmp_path, "two"), kept(tmp_path)) == (20, 30, 50)
    pod_limits.keep_low(tree("one"), 10)
    assert kept(tmp_path) == 40
    (tmp_path / "kurma/two/memory.low").unlink()
    (tmp_path / "kurma/two").rmdir()
    pod_limits.keep_low(tree("two"), 30)
    assert kept(tmp_path) == 10


def test_all_that_there_is_can_be_kept_only_once(tree, tmp_path):
    most = (1 << 63) - 1
    for name in ("one", "two"):
        pod_limits.keep_low(tree(name), most)
    assert kept(tmp_path) == most
    (tmp_path / "kurma/two/memory.low").write_text("max\n")
    pod_limits.keep_low(tree("one"), 1)
    assert kept(tmp_path) == most


def test_without_the_controller_nothing_is_done(tree, tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    pod_limits.keep_low(tree("one"), 20)
    assert kept(tmp_path, "one") == 0
