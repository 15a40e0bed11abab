"""State directories whose stager is built once, pods that run in the background, a registry."""

from __future__ import annotations

import re
import select
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command import Kurma
from tests.kit.images import busybox_archive
from tests.kit.registry import Registry, running_registry
from tests.kit.waiting import PATIENCE, until

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="session")
def shared(session_state: str, tmp_path_factory: pytest.TempPathFactory) -> Kurma:
    """The command on the shared state directory. Its image has the app ``/bin/sh``: ``-- -c SCRIPT`` runs one."""
    directory = tmp_path_factory.mktemp("acceptance")
    app = {"exec": ["/bin/sh"], "user": "0", "group": "0"}
    image = busybox_archive(str(directory), app, {"srv/www/index.html": "hello from a pod\n"})
    kurma = Kurma(Path(session_state), Path(session_state).with_name("kurma.json"), image)
    kurma.out("image", "fetch", image)
    # Whatever is made once per state directory is made here.
    assert kurma.run("exit 3").returncode == 3
    return kurma


@pytest.fixture
def kurma(shared: Kurma) -> Iterator[Kurma]:
    """The same; pods that a test leaves are removed, and the default network with them."""
    yield shared
    _empty(shared)


@pytest.fixture
def fresh(shared: Kurma, tmp_path: Path) -> Iterator[Kurma]:
    """A state directory of the test's own, empty."""
    (tmp_path / "fresh.json").write_text("{}")
    own = Kurma(tmp_path / "fresh", tmp_path / "fresh.json", shared.image)
    yield own
    _empty(own)


def _empty(kurma: Kurma) -> None:
    if any((kurma.state / "pods").glob("????????-*")):
        for pod in kurma.json("list"):
            kurma("rm", "--force", pod["uuid"])
    if (kurma.state / "plugins/kurma.networks/bridge/choices/default.json").exists():
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
