"""CNI by command: what users say arrives at plugins, limits bite once, and leaving needs no configuration (W7)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plugins.net_cni.tests.stub import Stub, calls
from tests.kit.command import Kurma, one_line

pytestmark = pytest.mark.root
Start = Callable[..., "subprocess.Popen[str]"]
LIMIT = 'resource/network-bandwidth={"default": true, "limit": "1M"}'


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Setting:
    """A configuration with a network of stubs, and one of Debian's plugins that holds pods to rates."""

    def __init__(self, kurma: Kurma, directory: Path) -> None:
        self.bin_dir = directory / "bin"
        self.bin_dir.mkdir()
        self.stub: Any = Stub(self.bin_dir, "one")
        self._house, self._directory = kurma, directory
        capabilities = {"capabilities": {"dns": True, "bandwidth": True, "mac": True}}
        stubs = {"cniVersion": "1.1.0", "plugins": [{"type": "one", **capabilities}]}
        ipam = {"type": "host-local", "subnet": "10.221.0.0/24", "dataDir": str(directory / "addresses")}
        first = {"type": "bridge", "bridge": "held0", "isGateway": True, "ipam": ipam}
        hold = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
        self.networks = [
            {"name": "stubs", "plugin": "cni", **stubs},
            {"name": "held", "plugin": "cni", "cniVersion": "1.0.0", "plugins": [first, hold]},
            {"name": "free", "plugin": "cni", "cniVersion": "1.0.0", "type": "bridge", "bridge": "free0",
             "ipam": {**ipam, "subnet": "10.222.0.0/24"}},
        ]  # fmt: skip
        (directory / "net.d").mkdir()
        for number, name in enumerate(("held", "own", "own")):
            found = {"name": name, "cniVersion": "0.4.0", "type": "one", "number": number}
            (directory / "net.d" / f"{number}.conf").write_text(json.dumps(found))
        self.kurma = self.configured(self.networks)

    def configured(self, networks: list[dict[str, Any]]) -> Kurma:
        options = {
            "bin_dirs": [str(self.bin_dir), "/usr/lib/cni"],
            "config_dirs": [str(self._directory / "net.d")],
        }
        file = self._directory / f"{len(networks)}.json"
        return self._house.configured(
            file, container_networks=networks, plugins={"networks": {"cni": {"config": options}}}
        )

    def reserved(self, network: str) -> list[str]:
        return [path.name for path in (self._directory / "addresses" / network).glob("10.*")]


@pytest.fixture
def setting(kurma: Kurma, tmp_path: Path) -> Iterator[Setting]:
    found = Setting(kurma, tmp_path)
    yield found
    for pod in found.kurma.json("list"):
        found.kurma.out("rm", "--force", pod["uuid"])
    for network in ("stubs", "held", "free", "own"):
        found.kurma.out("network", "rm", network)


def test_what_the_user_says_arrives(setting: Setting) -> None:
    words = ("--dns", "192.0.2.53", "--dns-search", "example.org", "--dns-opt", "ndots:3", "--isolator", LIMIT)
    done = setting.kurma.run("exit 3", *words, net="stubs,mac=02:00:00:00:00:09")
    assert done.returncode == 3, done.stderr
    for verb in ("ADD", "DEL"):
        runtime = setting.stub.read(verb)["runtimeConfig"]
        assert runtime["dns"] == {"servers": ["192.0.2.53"], "searches": ["example.org"], "options": ["ndots:3"]}
        assert (runtime["bandwidth"]["ingressRate"], runtime["bandwidth"]["egressRate"]) == (8_000_000, 8_000_000)
        assert runtime["mac"] == "02:00:00:00:00:09"
    assert calls(setting.bin_dir) == ["STATUS one", "ADD one", "DEL one"]
    assert setting.kurma.run("exit 4", net="stubs").returncode == 4
    assert "runtimeConfig" not in setting.stub.read("ADD")


def test_limits_are_applied_once(setting: Setting, background: Start) -> None:
    """By the plugin where there is one, by the core elsewhere, and never by both."""
    words = ("--net", "free", "--isolator", LIMIT)
    background("limited", "exec sleep 1000", *words, net="held", by=setting.kurma)
    pod = f"kurma-{setting.kurma.pod('limited')['uuid']}"
    names = {a["network"]: a["interface"] for a in setting.kurma.pod("limited")["networks"]}
    own, other = names["held"], names["free"]
    inside = {
        name: output("ip", "netns", "exec", pod, "tc", "qdisc", "show", "dev", name) for name in (own, other)
    }
    assert "tbf" not in inside[own]
    assert "ingress" not in inside[own]
    assert "tbf" in inside[other]
    assert "ingress" in inside[other]
    outside = [line for line in output("tc", "qdisc", "show").splitlines() if " tbf " in line]
    assert len(outside) == 2  # in and out
    assert all("rate 8Mbit" in line for line in outside)
    setting.kurma.out("rm", "--force", "limited")
    assert " tbf " not in output("tc", "qdisc", "show")


def test_leaving_needs_no_configuration(setting: Setting, background: Start) -> None:
    background("lonely", "exec sleep 1000", net="held", by=setting.kurma)
    assert len(setting.reserved("held")) == 1
    bare = setting.configured([])
    assert bare.json("network", "show", "held")["source"] == "found"
    bare.out("rm", "--force", "lonely")
    assert setting.reserved("held") == []
    assert "veth" not in output("ip", "-o", "link")


@pytest.mark.full
def test_networks_are_checked_and_cleaned_up(setting: Setting, background: Start) -> None:
    """STATUS tells whether pods could join, GC is told which are there."""
    background("kept", "exec sleep 1000", net="stubs", by=setting.kurma)
    kept = setting.kurma.pod("kept")["uuid"]
    setting.kurma.out("network", "check", "stubs", "--repair")
    assert setting.stub.read("GC")["cni.dev/valid-attachments"] == [{"containerID": kept, "ifname": "eth0"}]
    setting.stub.fails("STATUS", code=50, msg="the agent is away")
    done = setting.kurma("network", "check", "stubs")
    assert done.returncode != 0
    assert "the agent is away" in done.stdout + done.stderr
    setting.stub.succeeds("STATUS")


@pytest.mark.full
def test_which_of_several_of_one_name(setting: Setting) -> None:
    """Kurma's configuration first, then CNI's own files in order."""
    assert setting.kurma.json("network", "show", "held")["source"] == "configured"
    shown = setting.kurma.json("network", "show", "own")
    assert (shown["source"], shown["config"]["number"]) == ("found", 1)
    assert setting.kurma.run("exit 5", net="own").returncode == 5
    assert setting.stub.read("ADD")["number"] == 1


@pytest.mark.full
def test_a_plugin_that_is_not_ready_starts_no_pod(setting: Setting) -> None:
    setting.stub.fails("STATUS", code=50, msg="the agent is away")
    done = setting.kurma.run("true", net="stubs")
    one_line(done, 'cannot join network "stubs": CNI plugin one failed: the agent is away', hint="not available")
    assert "ADD one" not in calls(setting.bin_dir)
    assert setting.kurma.json("list") == []
    assert json.loads((setting.bin_dir / "one.STATUS").read_text())["name"] == "stubs"
