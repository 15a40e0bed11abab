"""State directories whose stager is built once, pods that run in the background, a registry."""

from __future__ import annotations

import re
import select
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.acceptance.command import Kurma
from tests.kit.images import archive, busybox_root
from tests.kit.registry import Registry, running_registry
from tests.kit.waiting import PATIENCE, until

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Kurma:
    """The state directory that tests share, with the busybox image and the default stager in it."""
    directory = tmp_path_factory.mktemp("acceptance")
    root = busybox_root(str(directory / "root"), {"srv/www/index.html": "hello from a pod\n"})
    app = {"exec": ["/bin/sh"], "user": "0", "group": "0"}
    image = archive(root, str(directory / "busybox.aci"), "example.com/busybox", app=app)
    (directory / "kurma.json").write_text("{}")
    kurma = Kurma(directory / "state", directory / "kurma.json", image)
    kurma.out("image", "fetch", image)
    # Whatever is made once per state directory is made here.
    assert kurma.run("exit 3").returncode == 3
    return kurma


@pytest.fixture
def kurma(house: Kurma) -> Iterator[Kurma]:
    """The same; pods that a test leaves are removed, and the default network with them."""
    yield house
    _empty(house)


@pytest.fixture
def fresh(house: Kurma, tmp_path: Path) -> Iterator[Kurma]:
    """A state directory of the test's own, empty."""
    (tmp_path / "fresh.json").write_text("{}")
    own = Kurma(tmp_path / "fresh", tmp_path / "fresh.json", house.image)
    yield own
    _empty(own)


def _empty(kurma: Kurma) -> None:
    if any((kurma.state / "pods").glob("????????-*")):
        for pod in kurma.json("list"):
            kurma("rm", "--force", pod["uuid"])
    if (kurma.state / "networks" / "default.json").exists():
        kurma.out("network", "rm", "default")


@pytest.fixture
def unchanged(kurma: Kurma) -> Iterator[None]:
    """The state directory is the same after the test."""
    before = kurma.traces()
    yield
    after = kurma.traces()
    assert after == before, f"left: {sorted(after - before)}; gone: {sorted(before - after)}"


@pytest.fixture
def background(kurma: Kurma) -> Iterator[Start]:
    """``background(NAME, SCRIPT, *OPTIONS)``: a pod in the foreground of a process of its own, once it is up.

    The pod has set its traps and printed ``up`` by then; further output is the process's.
    """
    started: list[subprocess.Popen[str]] = []

    def start(
        name: str,
        script: str = "exec sleep 1000",
        *options: str,
        net: str | None = "none",
        by: Kurma = kurma,
        **more: Any,
    ) -> subprocess.Popen[str]:
        nets = () if net is None else ("--net", net)
        traps = re.match(r"(trap '[^']*' \w+; )*", script)
        set_up = traps[0] if traps else ""
        text = f"{set_up}echo up; {script.removeprefix(set_up)}"
        command = ("run", "--name", name, *nets, *options, by.image, "--", "-c", text)
        process = by.popen(*command, **more)
        started.append(process)
        if process.stdout is not None:
            ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
            line = process.stdout.readline() if ready else "nothing"
            assert line == "up\n", line or (process.stderr and process.stderr.read())
        else:
            until(lambda: _up(by, name), f"pod {name} runs")
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _up(kurma: Kurma, name: str) -> bool:
    return kurma("logs", name).stdout.startswith("up\n")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry") / "registry") as found:
        yield found
