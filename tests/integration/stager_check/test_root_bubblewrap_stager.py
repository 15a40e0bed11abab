"""The stager of ``examples/stager_bubblewrap``: it holds, and its apps are apart as its design says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kurma_core.stager_check.pods import Lab, app
from tests.integration.stager_check.conftest import Checked

pytestmark = [pytest.mark.root, pytest.mark.full]


@pytest.fixture
def pods(example: Callable[..., str], lab: Callable[[str], Lab]) -> Lab:
    return lab(example("stager_bubblewrap"))


def namespaces(pid: int) -> dict[str, str]:
    return {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in ("pid", "user", "ipc", "uts", "mnt", "net")}


def of_status(pid: int, key: str) -> str:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{key}:")]
    return line.split()[1]


def test_it_holds(example: Callable[..., str], checked: Callable[..., Checked]) -> None:
    found = checked(example("stager_bubblewrap"))
    assert found.failed == {}
    assert found.of("skipped") == {
        "run.user",
        "run.supplementary-gids",
        "run.terminal",
        "app.supplementary-gids",
        "userns.apps",
        "userns.run",
        "waits.pod",
        "forks.pod",
        "plan.umask",
        "plan.limits",
        "plan.scheduling",
        "plan.io-priority",
        "plan.memory-policy",
        "plan.cgroup",
        "plan.run",
        "plan.refused",
        "plan.version",
        "changing.add",
        "changing.stop",
        "changing.start",
        "changing.rm",
    }


def test_apps_are_apart(pods: Lab) -> None:
    with pods.pod({"main": app("main", "serve"), "other": app("other", "serve", user="7", group="8")}) as pod:
        main, other = pod.probe("main"), pod.probe("other")
        mine, its, host = namespaces(main.pid), namespaces(other.pid), namespaces(os.getpid())
        assert mine.pop("net") == its.pop("net") != host.pop("net")
        for name in mine:
            assert len({mine[name], its[name], host[name]}) == 3, name
        # From inside: the sandbox's first process, and itself.
        for probe in (main, other):
            assert [name for name in probe.must("list", "/proc") if name.isdigit()] == [
                "1",
                str(probe.facts["pid"]),
            ]
        other.must("make", "/tmp/of-other", "secret")
        assert main.ask("file", "/tmp/of-other") == {"error": "No such file or directory"}


def test_nobody_has_power(pods: Lab) -> None:
    """Not the app of user 0, nor a command that is run in it."""
    with pods.pod({"main": app("main", "serve"), "other": app("other", "serve", user="7", group="8")}) as pod:
        main, other = pod.probe("main"), pod.probe("other")
        call = pod.run("command", "serve")
        command = pod.probe("command")
        for probe in (main, other, command):
            for kind in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"):
                assert int(of_status(probe.pid, kind), 16) == 0, (probe.name, kind)
            assert of_status(probe.pid, "NoNewPrivs") == "1"
        assert namespaces(command.pid) == namespaces(main.pid)
        assert Path(f"/proc/{main.pid}/uid_map").read_text().split() == ["0", "0", "1"]
        assert Path(f"/proc/{other.pid}/uid_map").read_text().split() == ["7", "0", "1"]
        command.tell("exit", 0)
        assert call.code() == 0


def test_sigterm_ends_what_does_not_ask_for_it(pods: Lab) -> None:
    """The app is not the first process of its namespace, for which the kernel would drop the signal."""
    with pods.pod({"main": app("main", "serve")}) as pod:
        pod.probe("main")
        pod.stop()
        record = pod.ends(1.5)
        assert (record.state, record.exit_code, record.apps[0].reason) == ("stopped", 143, "killed")
