"""The driver of stage1 images does what every stager's does, by a small stage1 that really runs apps."""

from pathlib import Path

import pytest
from kurma_testing.stagers import StagerContract, pod_setup

from kurma_core.linux.cgroups import CgroupTree
from tests.integration.stage1.driven import driven
from tests.kit.images import busybox_root

SMALL = Path(__file__).parent / "small/ex"


@pytest.fixture(scope="module")
def app_root(tmp_path_factory):
    return busybox_root(str(tmp_path_factory.mktemp("contract") / "app"))


@pytest.mark.root
class TestSmallStage1(StagerContract):
    @pytest.fixture
    def driver(self, tmp_path):
        scripts = {each.name: each.read_text() for each in SMALL.iterdir() if each.is_file()}
        with driven(tmp_path, scripts) as found:
            yield found.driver

    @pytest.fixture
    def make_pod(self, tmp_path, app_root):
        trees = []

        def make(exec):
            pod = pod_setup(tmp_path / "146d7cef-fbf6-41da-a2f8-eba218597f9c", app_root, exec)
            trees.append(CgroupTree(pod.cgroup))
            trees[-1].create()
            return pod

        yield make
        for tree in trees:
            tree.kill()
            tree.remove()
