"""The driver of stage1 images does what every stager's does, by a small stage1 that really runs apps."""

from pathlib import Path

import kurma_stager_rkt.plugin
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
@pytest.mark.kurma_driver(kurma_stager_rkt.plugin)
class TestSmallStage1(StagerContract):
    @pytest.fixture
    def stage1(self, tmp_path):
        scripts = {each.name: each.read_text() for each in SMALL.iterdir() if each.is_file()}
        with driven(tmp_path, scripts) as found:
            yield found

    @pytest.fixture
    def context_parts(self, stage1):
        return {"host_image": stage1.context.host_image, "start_program": stage1.context.start_program}

    @pytest.fixture
    def driver(self, make_driver, stage1):
        return make_driver().of_image("mine", stage1.root)

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
