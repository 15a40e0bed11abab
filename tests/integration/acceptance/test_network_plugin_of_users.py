"""The guide "Write a network plugin": the example is installed by pip, and pods join it by command."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.command import Kurma, one_line
from tests.kit.installed import unpack
from tests.kit.waiting import until

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


def orphaned(beside: Beside) -> str:
    """The UUID of a pod on the plugin's network whose owner was killed."""
    words = ("run", "--name", "one", "--net", "mine", beside.image, "--", "-c", "echo up; exec sleep 1000")
    owner = beside.popen("--host", "local", *words)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    owner.kill()
    owner.communicate()
    uuid: str = beside.pod("one")["uuid"]
    return uuid


def test_a_pod_whose_plugin_is_gone_is_given_up_by_force(beside: Beside, kurma: Kurma) -> None:
    """Until then, each command says what to do; afterwards none says anything of it (18.1)."""
    uuid = orphaned(beside)
    without = kurma.configured(beside.config, **json.loads(beside.config.read_text()))
    why = "teardown is not complete: network \"mine\": no network plugin 'cable' is installed"
    hint = f"install it again; or kurma rm --force {uuid} gives up"
    one_line(without("stop", "one"), why, hint=hint)
    one_line(without("rm", "one"), why, hint=hint)
    listed = without("list")
    assert listed.returncode == 0
    assert [line.count(why) + line.count(hint) for line in listed.stderr.splitlines()] == [2]
    collected = without("gc")
    assert (collected.returncode, collected.stderr) == (0, "")
    (line,) = (line for line in collected.stdout.splitlines() if uuid in line)
    assert f"left: {why}" in line
    assert hint in line

    gone = without("rm", "--force", "one")
    assert gone.returncode == 0, gone.stderr
    (said,) = gone.stderr.splitlines()
    assert "no network plugin 'cable' is installed: what it has made of the pod's interface eth0" in said
    assert f"{kurma.state}/plugins/kurma.networks/cable" in said
    assert [
        line for words in (["list"], ["gc"]) for line in without.out(*words).splitlines() if uuid in line
    ] == []
    assert without("gc").returncode == 0
    reserved = kurma.state / "plugins/kurma.networks/cable/mine"
    assert len(os.listdir(reserved)) == 1
    shutil.rmtree(reserved)


def test_the_record_of_a_removed_pod_is_given_up_by_force(beside: Beside, kurma: Kurma) -> None:
    uuid = orphaned(beside)
    without = kurma.configured(beside.config, **json.loads(beside.config.read_text()))
    without("stop", "one")
    shutil.rmtree(kurma.state / "pods" / uuid)
    assert f"kurma rm --force {uuid} gives up" in without("gc").stderr
    one_line(without("rm", uuid), f"no pod {uuid}")
    without.out("rm", "--force", uuid)
    done = without("gc")
    assert (done.returncode, uuid in done.stdout + done.stderr) == (0, False)
    shutil.rmtree(kurma.state / "plugins/kurma.networks/cable/mine")


#: Hangs in ``add`` while the file ``hang`` is there, and says so by making ``adding``. ``delete`` fails while
#: ``fail`` is there.
HANGS = """
import os, time
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_core.models.network import AddressResult, NetworkResult

class Network:
    def __init__(self, context): pass
    @hookimpl
    def setup(self, config): pass
    @hookimpl
    def add(self, context):
        open(context.attachment.config["place"] + "/adding", "w").close()
        while os.path.exists(context.attachment.config["place"] + "/hang"):
            time.sleep(0.01)
        return NetworkResult((AddressResult("10.1.0.2/16"),))
    @hookimpl
    def delete(self, context):
        if os.path.exists(context.attachment.config["place"] + "/fail"):
            raise RuntimeError("no")
    @hookimpl
    def check(self, context): pass
    @hookimpl
    def remove(self, config): pass

@hookimpl
def kurma_network():
    return Driver(Network)
"""


@pytest.fixture
def hanging(kurma: Kurma, tmp_path: Path) -> Iterator[Beside]:
    packages = tmp_path / "packages"
    unpack(packages, "kurma-hangs", "[kurma.networks]\nhangs = kurma_hangs", {"kurma_hangs": HANGS})
    (tmp_path / "hang").touch()
    networks = [{"name": "mine", "plugin": "hangs", "place": str(tmp_path)}]
    (tmp_path / "kurma.json").write_text(json.dumps({"container_networks": networks}))
    yield Beside(kurma, tmp_path / "kurma.json", packages)
    (tmp_path / "hang").unlink(missing_ok=True)


@pytest.fixture(params=["here", "kurmad"])
def way(request: pytest.FixtureRequest, hanging: Beside, tmp_path: Path) -> Iterator[Path]:
    """The log of kurmad, if there is one."""
    log = tmp_path / "kurmad.log"
    if request.param == "here":
        yield log
        return
    with log.open("wb") as stream:
        daemon = subprocess.Popen(
            [hanging.program, "daemon", "run"], env=hanging.environment, stdin=subprocess.DEVNULL, stderr=stream
        )
    try:
        until(lambda: "serves" in log.read_text(), log.read_text)
        yield log
    finally:
        daemon.terminate()
        assert daemon.wait(20) == 0


def test_a_pod_whose_network_hangs_is_stopped(hanging: Beside, way: Path, tmp_path: Path) -> None:
    """The start is given up, and everybody is told what hangs (18.1)."""
    run = hanging.popen("run", "--name", "one", "--net", "mine", hanging.image, "--", "-c", "true")
    until((tmp_path / "adding").exists, "the call")
    stopped = hanging("stop", "one")
    assert stopped.returncode == 0, stopped.stderr
    said = "network \"mine\": given up: network plugin 'hangs' of kurma-hangs 1.0: add has taken"
    assert f"it was stopped while it started: {said}" in stopped.stderr
    _, errors = run.communicate(timeout=20)
    assert run.returncode == 125
    assert "pod one was stopped while it started" in errors
    shown = hanging.pod("one")
    assert shown["state"] == "stopped"
    assert said in shown["reason"]
    hanging.out("rm", "one")


@pytest.mark.full
def test_a_network_that_hangs_is_named(hanging: Beside, way: Path, tmp_path: Path) -> None:
    """For the client that waits, and in the log of kurmad (18.1)."""
    run = hanging.popen("run", "--rm", "--net", "mine", hanging.image, "--", "-c", "exit 3")
    assert run.stderr is not None
    said = "network plugin 'hangs' of kurma-hangs 1.0: add has taken 1"
    line = run.stderr.readline()
    assert said in line
    if way.exists():
        until(lambda: said in way.read_text(), way.read_text)
    (tmp_path / "hang").rename(tmp_path / "over")
    run.communicate(timeout=20)
    assert run.returncode == 3


@pytest.mark.parametrize("words", [("--rm",), ("--name", "one")])
def test_a_failed_teardown_is_told_once(hanging: Beside, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "hang").unlink()
    (tmp_path / "fail").touch()
    done = hanging("--host", "local", "run", *words, "--net", "mine", hanging.image, "--", "-c", "true")
    why = "teardown is not complete: network \"mine\": network plugin 'hangs' of kurma-hangs 1.0 failed in delete"
    assert (done.returncode, done.stderr.count("teardown is not complete")) == (125, 1), done.stderr
    assert why in done.stderr
    (pod,) = hanging.json("list")
    one_line(hanging("rm", pod["uuid"]), why)
    one_line(hanging("rm", "--force", pod["uuid"]), why)
    (tmp_path / "fail").unlink()
    hanging.out("rm", pod["uuid"]) if "--rm" not in words else hanging.out("gc")
    assert hanging.json("list") == []


def test_a_wrong_option_of_a_network_plugin_is_told_once(hanging: Beside, tmp_path: Path) -> None:
    config = json.loads(hanging.config.read_text())
    config["plugins"] = {"networks": {"hangs": {"config": {"no_such": 1}}}}
    hanging.config.write_text(json.dumps(config))
    done = hanging("config", "check")
    assert done.returncode == 125
    assert done.stderr.count("plugins.networks.hangs.config.no_such") == 1, done.stderr
