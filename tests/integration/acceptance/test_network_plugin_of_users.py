"""The guide "Write a network plugin": the example is installed by pip, and pods join it by command."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.command import Kurma, one_line

pytestmark = pytest.mark.root
EXAMPLE = Path(__file__).parents[3] / "examples/plugins/network"


class Beside(Kurma):
    """Kurma with a directory of packages beside its own."""

    def __init__(self, kurma: Kurma, config: Path, packages: Path) -> None:
        super().__init__(kurma.state, config, kurma.image)
        self.environment["PYTHONPATH"] = str(packages)


@pytest.fixture
def beside(kurma: Kurma, tmp_path: Path) -> Beside:
    """Without a network: what the example needs is there."""
    words = [
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
    ]
    where = ["--target", str(tmp_path / "packages"), str(EXAMPLE)]
    # Building leaves nothing in the checkout.
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, *where], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    networks = [{"name": "mine", "aci": "example.com/kurma/cable", "subnet": "10.91.0.0/24"}]
    (tmp_path / "kurma.json").write_text(json.dumps({"container_networks": networks}))
    return Beside(kurma, tmp_path / "kurma.json", tmp_path / "packages")


def cables() -> list[str]:
    return [name for _, name in socket.if_nameindex() if name.startswith("cable-")]


def test_the_example_is_joined(beside: Beside, kurma: Kurma) -> None:
    listed = {one["name"]: one for one in beside.json("network", "list")}
    assert (listed["mine"]["driver"], listed["mine"]["problem"]) == ("cable", None)
    with closing(socket.create_server(("", 0), reuse_port=True)) as host:
        host.settimeout(20)
        port = host.getsockname()[1]
        words = ("run", "--name", "one", "--net", "mine", beside.image, "--", "-c")
        script = f"ip -o -4 addr show eth0; nc 10.91.0.0 {port} </dev/null; sleep 1000"
        process = beside.popen(*words, script)
        try:
            peer, (address, _) = host.accept()
            peer.close()
            assert address == "10.91.0.1"
            shown = beside.pod("one")["networks"][-1]
            assert (shown["network"], shown["driver"], shown["addresses"]) == ("mine", "cable", ["10.91.0.1/31"])
            assert "10.91.0.1/31" in beside.out("show", "one")
            assert len(cables()) == 1
        finally:
            beside.out("rm", "--force", "one")
            process.communicate()
    assert cables() == []
    assert os.listdir(kurma.state / "plugins/kurma.networks/cable/mine") == []
    one_line(beside.run("true", "-p", "8080:80", net="mine"), "cannot publish ports: network mine")
    # Uninstalled, it is gone; the network says what it lacks.
    without = kurma.configured(beside.config, **json.loads(beside.config.read_text()))
    one_line(without.run("true", net="mine"), "example.com/kurma/cable")
