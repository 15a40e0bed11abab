"""The programs by which `./dev bench` looks into a start: they know the rooms from inside; nobody else runs them.

Its other cases run commands, which their own tests hold; all of them together take minutes.
"""

import json
import os
import select
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.root, pytest.mark.full]

_BENCH = os.path.join(os.path.dirname(__file__), "..", "..", "..", "bench")


def program(house, name, *words, **options):
    environment = {**os.environ, "KURMA_CONFIG": house.config_file, "KURMA_DIR": house.state}
    argv = [sys.executable, os.path.join(_BENCH, name), house.image, *words]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize("how", [[], ["waiting"]])
def test_launching(house, tmp_path, how):
    """The app writes once it runs, after it was asked for and launched; nothing of its pod is left."""
    os.mkfifo(tmp_path / "first")
    fifo = os.open(tmp_path / "first", os.O_RDWR | os.O_NONBLOCK)
    with program(house, "launching.py", str(tmp_path), *how, stdin=subprocess.PIPE) as process:
        for _ in range(2):
            print("go", file=process.stdin, flush=True)
            assert select.select([fifo], [], [], 30)[0], "the app has not come up"
            os.read(fifo, 64)
            asked, begun = map(float, process.stdout.readline().split())
            assert asked < begun
        process.stdin.close()
        assert process.wait(30) == 0
    os.close(fifo)
    assert house.kept() == ["names"]


def test_pods_that_stay(house):
    with program(house, "launching.py", "-", "2") as process:
        assert process.wait(60) == 0
    assert [record.state for record in house.client.pods()] == ["stopped", "stopped"]


@pytest.mark.parametrize("state", ["warm", "cold"])
def test_starting(house, state):
    with program(house, "starting.py", "1", state) as process:
        taken = json.loads(process.communicate(timeout=60)[0])
    assert [len(values) for values in taken.values()] == [1, 1]
    assert all(value > 0 for values in taken.values() for value in values)
