"""When a pod under a stage1 has come up, for who finds it (Z5, G10)."""

import os

from kurma_stager_rkt.running import RunningStage1

from kurma_core.linux.process import ProcessIdentity, pidfd_open


def test_a_mutable_pod_whose_apps_are_still_to_come(tmp_path):
    """Is not whole, though stage1 runs."""
    coming = tmp_path / "coming"
    coming.touch()
    pid = os.getpid()
    running = RunningStage1(ProcessIdentity.current(), pidfd_open(pid), str(tmp_path), 2, "id", str(coming))
    try:
        assert not running.has_come_up()
        (tmp_path / "pid").write_text(f"{pid}\n")
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
