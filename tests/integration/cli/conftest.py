"""The command as people run it: a process of its own, on a state directory whose stager is built once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.pods.conftest import way  # noqa: F401 (a fixture)
from tests.kit.images import archive, busybox_root

KURMA = (sys.executable, "-m", "kurma_core.cli.main")


class Command:
    """``kurma`` with its state directory and an empty configuration.

    :param image: path of an image archive of busybox, whose app prints ``hello`` and ends with 3.
    """

    program = KURMA

    def __init__(self, directory: Path, image: str) -> None:
        (directory / "kurma.json").write_text("{}")
        self.environment = {
            **os.environ,
            "KURMA_DIR": str(directory / "state"),
            "KURMA_CONFIG": str(directory / "kurma.json"),
        }
        self.directory = directory
        self.image = image

    def __call__(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        more.setdefault("stdin", None if "input" in more else subprocess.DEVNULL)
        if "input" in more:
            more.pop("stdin")
        return subprocess.run(
            [*KURMA, *words], capture_output=True, text=True, check=False, env=self.environment, timeout=60, **more
        )

    def out(self, *words: str, **more: Any) -> str:
        """Standard output of a command that must succeed."""
        done = self(*words, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def popen(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*KURMA, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )


@pytest.fixture(scope="session")
def kurma_command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    directory = tmp_path_factory.mktemp("kurma-cli")
    root = busybox_root(str(directory / "root"))
    app = {"exec": ["/bin/sh", "-c", "echo hello; echo sorry >&2; exit 3"], "user": "0", "group": "0"}
    command = Command(directory, archive(root, str(directory / "busybox.aci"), "example.com/busybox", app=app))
    assert command.out("stager", "build", "default").startswith("sha512-")
    return command


@pytest.fixture(scope="session")
def kurmad_place(kurma_command: Command, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The same, on a state directory of its own, for a kurmad to serve."""
    directory = tmp_path_factory.mktemp("kurmad-cli")
    command = Command(directory, kurma_command.image)
    # No pods to come: they would outlast the test that has them made.
    (directory / "kurma.json").write_text('{"daemon": {"waiting_stagers": 0}}')
    command.out("stager", "build", "default")
    return command


@pytest.fixture(scope="module")
def kurmad_command(kurmad_place: Command) -> Iterator[Command]:
    """Commands by way of a kurmad. It is a child of this process, and other modules' tests count those."""
    directory = kurmad_place.directory
    with open(f"{directory}/kurmad.log", "ab") as log:
        daemon = subprocess.Popen([*KURMA, "daemon"], env=kurmad_place.environment, stderr=log)
    deadline = time.monotonic() + 20
    while not os.path.exists(f"{directory}/state/run/kurmad.sock"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield kurmad_place
    daemon.terminate()
    assert daemon.wait(20) == 0


@pytest.fixture(scope="module")
def commands(request: pytest.FixtureRequest, kurma_command: Command, way: str) -> Command:  # noqa: F811
    """Those of a test's way. A kurmad is started where a test goes by way of one, and before that test: what it
    leaves is told by what there was before it."""
    return request.getfixturevalue("kurmad_command") if way == "kurmad" else kurma_command


@pytest.fixture
def kurma(commands: Command) -> Iterator[Command]:
    """A command; whatever pods a test leaves are removed."""
    yield commands
    pods = commands.out("list", "--no-legend").split("\n")
    for line in filter(None, pods):
        commands("rm", "--force", line.split()[0])


@pytest.fixture
def sleeping(kurma: Command) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``sleeping(NAME, *OPTIONS)``: a pod that runs in the foreground of a process, once it has said so."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *options: str, script: str = "echo up; exec sleep 1000") -> subprocess.Popen[str]:
        words = ("--name", name, "--net", "none", *options, "--exec", "/bin/sh", kurma.image, "--", "-c", script)
        process = kurma.popen("run", *words)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "up\n", line or (process.stderr and process.stderr.read())
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
