"""Long lives: a thousand restarts in one sandbox, and a log of a million lines with ten rotations (C10, C16)."""

import os
import pathlib

import pytest
from kurma_cri.proto import runtime_pb2 as cri

from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]
RESTARTS = int(os.environ.get("KURMA_TEST_RESTARTS", 1000))


def resident(pid):
    """Kilobytes."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def files(directory):
    """The number of all files and directories below one."""
    return sum(len(names) + len(directories) for _, directories, names in os.walk(directory))


def test_memory_and_disk_stay_flat_through_a_thousand_restarts(node, tmp_path):
    """Kubelet keeps one ended container of each name, and removes the one before."""
    sandbox = node.run(log_directory=str(tmp_path))
    before = None
    measured = []
    for attempt in range(RESTARTS):
        config = node.container_config("true", log_path=f"{attempt}.log")
        config.metadata.attempt = attempt
        container = node.create(sandbox, config)
        node.start(container)
        node.wait_exited(container)
        (tmp_path / f"{attempt}.log").unlink()
        if before is not None:
            node.runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=before))
        before = container
        if attempt % (RESTARTS // 4) == RESTARTS // 8:
            (pod,) = node.house.client.pods()
            measured.append((resident(node.daemon.process.pid), resident(pod.stager_pid), files(node.house.state)))
    kurmad, stager, kept = zip(*measured, strict=True)
    assert kurmad[-1] - kurmad[1] < 8192, measured
    assert stager[-1] - stager[1] < 1024, measured
    assert abs(kept[-1] - kept[0]) < 20, measured


def test_a_million_lines_and_ten_rotations(node, tmp_path):
    """Kubelet renames the log and asks for a new one: no line is lost, doubled, or divided over two files."""
    lines = 1_000_000
    sandbox = node.run(log_directory=str(tmp_path))
    batch = "seq $((i * 5000 + 1)) $((i * 5000 + 5000)); i=$((i + 1)); usleep 20000"
    script = f"i=0; while [ $i -lt {lines // 5000} ]; do {batch}; done; echo done"
    container = node.started(sandbox, "sh", "-c", script, log_path="0.log")
    log, old = tmp_path / "0.log", []
    for number in range(10):
        until(lambda: log.stat().st_size > 100_000, "enough output")
        old.append(tmp_path / f"0.log.{number}")
        log.rename(old[-1])
        node.runtime.ReopenContainerLog(cri.ReopenContainerLogRequest(container_id=container))
    assert node.wait_exited(container).exit_code == 0
    text, last = [], ""
    for file in (*old, log):
        for line in file.read_text().splitlines():
            _, stream, tag, part = line.split(" ", 3)
            assert (stream, tag in "PF") == ("stdout", True)
            last += part
            if tag == "F":
                text.append(last)
                last = ""
        assert last == "", f"{file} ends within a line"
    assert text == [*map(str, range(1, lines + 1)), "done"]
