"""What the configuration disables, or what it gives wrong options, is still taken down for pods that use it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command import Kurma
from tests.kit.waiting import until

pytestmark = pytest.mark.root

OFF = {"enabled": False}
DISABLED = {"networks": {"bridge": OFF}, "renderers": {"overlay": OFF, "copy": OFF}, "stagers": {"default": OFF}}
WRONG = {"config": {"no_such_option": 1}}
MISCONFIGURED = {kind: dict.fromkeys(plugins, WRONG) for kind, plugins in DISABLED.items()}
UNLISTED = {"enable": "listed", "isolators": {"linux": {}}}


@pytest.fixture
def configure(kurma: Kurma, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    file = tmp_path / "kurma.json"
    monkeypatch.setitem(kurma.environment, "KURMA_CONFIG", str(file))

    def write(**values: Any) -> None:
        file.write_text(json.dumps(values))

    write()
    return write


@pytest.fixture
def running(kurma: Kurma, configure: Callable[..., None]) -> Iterator[subprocess.Popen[str]]:
    """A pod on the default network, in the foreground of a process."""
    script = "echo up; exec sleep 1000"
    words = ("--name", "web", "--net", "default", "--exec", "/bin/sh", kurma.image, "--", "-c", script)
    process = kurma.popen("--host", "local", "run", *words)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()
    configure()
    kurma("rm", "--force", "web")
    kurma("network", "rm", "default")


def links() -> set[str]:
    return {link["ifname"] for link in json.loads(subprocess.check_output(["ip", "-j", "link"]))}


@pytest.mark.parametrize("plugins", [DISABLED, UNLISTED, MISCONFIGURED], ids=["disabled", "unlisted", "wrong"])
@pytest.mark.parametrize("end", ["stop", "killed"])
def test_a_pod_whose_plugins_are_disabled(
    kurma: Kurma, configure: Callable[..., None], running: subprocess.Popen[str], plugins: Any, end: str
) -> None:
    used = {link for link in links() if link.startswith("kv")}
    assert used
    configure(plugins=plugins)
    refused = kurma("run", "--net", "default", kurma.image)
    assert refused.returncode == 125
    if end == "killed":
        running.send_signal(signal.SIGKILL)
        running.communicate()
    kurma.out("--host", "local", "stop", "web")
    until(lambda: kurma.json("--host", "local", "show", "web")["state"] in ("stopped", "errored"), "its end")
    assert not used & links()
    checked = kurma("--host", "local", "network", "check")
    assert "web" not in checked.stdout
    kurma.out("--host", "local", "rm", "web")
    assert kurma("--host", "local", "network", "rm", "default").returncode == 0
    assert "kurma0" not in links()


def test_disable_names_the_pods_that_use_the_plugin(
    kurma: Kurma, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the configuration uses it, too."""
    etc = tmp_path / "etc"
    (etc / "kurma.d").mkdir(parents=True)
    (etc / "kurma.yml").write_text("renderer: copy")
    monkeypatch.setitem(kurma.environment, "KURMA_CONFIG", str(etc))
    kurma.out("prepare", "--net", "none", "--name", "old", kurma.image)
    try:
        done = kurma("plugins", "disable", "renderers", "copy")
        off = f"renderer plugin 'copy' is disabled in {etc}/kurma.d/50-plugins.yml"
        lines = [line for line in done.stderr.splitlines() if not line.startswith("  hint")]
        assert lines == [f"kurma: {etc}/kurma.yml: renderer: {off}", f"kurma: pod old: {off}"]
        done = kurma("plugins", "disable", "stagers", "default")
        assert (
            f"kurma: pod old: stager plugin 'default' is disabled in {etc}/kurma.d/50-plugins.yml" in done.stderr
        )
    finally:
        kurma.out("rm", "old")
