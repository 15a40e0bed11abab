"""When a pod under a stage1 has come up, for who finds it (Z5, G10)."""

import os

import pytest
from kurma_stager_rkt.running import RunningStage1

from kurma_core.errors import StagerError
from kurma_core.linux.process import ProcessIdentity, pidfd_open


def test_a_mutable_pod_whose_apps_are_still_to_come(tmp_path):
    """Is not whole, though stage1 runs."""
    coming = tmp_path / "coming"
    coming.touch()
    pid = os.getpid()
    running = RunningStage1(ProcessIdentity.current(), pidfd_open(pid), str(tmp_path), True, "id", str(coming))
    (tmp_path / "stage1/rootfs/rkt").mkdir(parents=True)
    try:
        assert not running.has_come_up()
        (tmp_path / "pid").write_text(f"{pid}\n")
        assert not running.has_come_up()
        with pytest.raises(StagerError, match="no rkt/supervisor-status that is a link to ready"):
            running.wait_running(0)
        (tmp_path / "stage1/rootfs/rkt/supervisor-status").symlink_to("ready")
        assert not running.has_come_up()
        added = []
        running.add_coming = added.append
        assert running.wait_running(20)
        assert len(added) == 1
        assert running.has_come_up()
        assert not coming.exists()
        assert running.wait_running(20)
        assert len(added) == 1
    finally:
        running.close()
