"""The example stager, against the contract of all drivers: it really runs pods, as root."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from kurma_example_solo import plugin
from kurma_testing.stagers import PATIENCE, StagerContract, pod_setup

from kurma_core.errors import StagerError
from kurma_core.hookspecs.pod_setup import VolumeSetup
from kurma_core.value import replace


@pytest.mark.kurma_root
@pytest.mark.kurma_driver(plugin)
class TestSolo(StagerContract):
    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch):
        """By the supervisor, a process of its own, where the example is not installed."""
        path = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(":")]
        monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, path)))

    @pytest.fixture
    def make_pod(self, tmp_path):
        rootfs = tmp_path / "layer"
        (rootfs / "bin").mkdir(parents=True)
        shutil.copy("/bin/busybox", rootfs / "bin/busybox")
        for name in ("sh", "sleep", "true"):
            (rootfs / "bin" / name).symlink_to("busybox")
        return lambda command: pod_setup(tmp_path / "pod", rootfs, command)

    def test_the_app_sees_its_copy_and_nothing_else(self, driver, start, tmp_path):
        _, running = start(f"test -n $KURMA_TEST && test ! -e {sys.executable} && test $$ = 1 && echo x > /new")
        assert running.wait(PATIENCE) == 0
        assert not (tmp_path / "layer/new").exists()

    def test_a_command_that_is_not_there(self, driver, make_pod, stdio):
        pod = make_pod(("/none",))
        driver.prepare(pod)
        running = driver.start(pod, stdio)
        assert running.wait(PATIENCE) == 127
        running.close()
        driver.cleanup(pod.directory, pod.cgroup)

    def test_a_pod_that_is_not_for_it(self, driver, make_pod):
        pod = replace(make_pod(("/bin/true",)), volumes=(VolumeSetup("v", "/srv", True),))
        with pytest.raises(StagerError, match="one app without volumes"):
            driver.prepare(pod)
