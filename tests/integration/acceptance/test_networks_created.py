"""``kurma network create`` and ``rm``: one file of ``kurma.d``, with kurmad and without (19.3)."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from kurma_core.client import Settings, connect
from tests.kit.command import Kurma, one_line
from tests.kit.waiting import until

pytestmark = pytest.mark.root
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def etc(kurma: Kurma, tmp_path: Path) -> Path:
    found = tmp_path / "etc"
    (found / "kurma.d").mkdir(parents=True)
    values = {**json.loads(kurma.config.read_text()), "daemon": {"prestarted_stagers": 0}}
    (found / "kurma.json").write_text(json.dumps(values))
    return found


@pytest.fixture
def site(kurma: Kurma, etc: Path) -> Kurma:
    """The shared state directory, with a configuration directory of the test's own."""
    return Kurma(kurma.state, etc, kurma.image, kurma.program)


@pytest.fixture
def kurmad(site: Kurma) -> Iterator[subprocess.Popen[str]]:
    process = site.popen("daemon", "run")
    until(lambda: site("daemon", "reload").returncode == 0, "kurmad answers")
    yield process
    process.terminate()
    process.communicate()


def entries(etc: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = yaml.safe_load((etc / "kurma.d/50-networks.yml").read_text())[
        "container_networks"
    ]
    return found


def test_created_used_and_removed(site: Kurma, etc: Path, background: Start) -> None:
    words = ("network", "create", "--subnet", "10.91.7.0/24", "-o", "mtu=1400", "-o", "isolated=true", "shop")
    assert site.out(*words) == "shop\n"
    file = etc / "kurma.d/50-networks.yml"
    assert entries(etc) == [
        {"name": "shop", "plugin": "bridge", "subnets": ["10.91.7.0/24"], "mtu": 1400, "isolated": True}
    ]
    assert file.stat().st_mode & 0o777 == 0o644
    (found,) = json.loads(site.out("network", "inspect", "shop"))
    assert found["driver"] == "bridge"
    again = site(*words)
    assert (again.returncode, again.stdout) == (0, "shop\n"), "as after a kill: the same again"
    assert again.stderr == "kurma: the network shop exists already, with this configuration\n"
    assert len(entries(etc)) == 1
    one_line(site("network", "create", "shop"), "cannot create network shop: the network exists", str(file))
    background("one", by=site, net="shop")
    (joined,) = [one for one in site.pod("one")["networks"] if one["network"] == "shop"]
    assert joined["addresses"][0].startswith("10.91.7.")
    site.out("prepare", "--name", "two", "--net", "shop", site.image)
    for pods in (("one", "two"), ("two",)):
        names = " ".join(sorted(pods))
        done = site("network", "rm", "shop")
        one_line(done, "cannot remove network shop: pods name it: ", *pods, hint="if you need them no longer: ")
        assert set(done.stderr.rpartition("kurma rm ")[2].split()) == set(pods), names
        assert len(entries(etc)) == 1
        site.out("rm", "--force", pods[0])
    site.out("network", "rm", "shop")
    assert entries(etc) == []
    assert site("network", "show", "shop").returncode == 125
    one_line(site("run", "--rm", "--net", "shop", site.image), 'no network "shop"')


def test_kurmad_reads_it(site: Kurma, kurmad: subprocess.Popen[str], etc: Path) -> None:
    assert site.out("network", "create", "shop") == "shop\n"
    site.out("run", "-d", "--name", "one", "--net", "shop", "--exec", "/bin/sleep", site.image, "--", "1000")
    assert "one" in site("network", "rm", "shop").stderr
    site.out("rm", "--force", "one")
    site.out("network", "rm", "shop")
    assert "shop" not in site.out("network", "list")
    # Killed before kurmad was told: the same command again completes it.
    site.out("--host", "local", "network", "create", "shop")
    assert site.out("network", "create", "shop") == "shop\n"
    assert "shop" in site.out("network", "list")
    # Killed when the host was cleaned, and the entry was still there.
    with connect(Settings(config_file=str(etc), state_dir=str(site.state))) as client:
        client.network_rm("shop")
    site.out("network", "rm", "shop")
    assert "shop" not in site.out("network", "list")
    assert entries(etc) == []


def test_no_pod_starts_on_a_network_that_is_removed(site: Kurma, kurmad: subprocess.Popen[str], etc: Path) -> None:
    """kurmad forgets the network before its bridge is removed: a pod would make the bridge again."""
    run = ("run", "-d", "--net", "shop", "--exec", "/bin/sleep", site.image, "--", "1000")
    site.out("network", "create", "shop")
    pod = site.out(*run).split()[0]
    site.out("rm", "--force", pod)
    lock = site.state / "plugins/kurma.networks/bridge/networks/shop/use.lock"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # as the driver does while a pod joins
        removal = site.popen("network", "rm", "shop")
        until(lambda: f"{removal.pid} " in waiting_for_locks(), "the removal waits for the driver")
        assert 'no network "shop"' in site(*run).stderr
    assert removal.communicate() == ("", "")
    assert removal.returncode == 0
    assert bridges(site) == []


def test_ctrl_c_after_kurmad_has_read_a_removal(site: Kurma, kurmad: subprocess.Popen[str], etc: Path) -> None:
    """The entry is put back, and kurmad reads it again."""
    site.out("network", "create", "shop")
    site.out("run", "--rm", "--net", "shop", site.image, "--", "-c", "exit")
    lock = site.state / "plugins/kurma.networks/bridge/networks/shop/use.lock"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        removal = site.popen("network", "rm", "shop")
        until(lambda: f"{removal.pid} " in waiting_for_locks(), "the removal waits for the driver")
        assert "shop" not in site.out("network", "list")
        removal.send_signal(signal.SIGINT)
        assert removal.communicate() == ("", "")
    assert removal.returncode == 130
    assert len(entries(etc)) == 1
    assert "shop" in site.out("network", "list"), "kurmad knows it"
    site.out("network", "rm", "shop")
    assert bridges(site) == []


@pytest.mark.parametrize("kurmad_runs", [True, False])
def test_gc_completes_a_removal_that_was_killed(
    site: Kurma, etc: Path, request: pytest.FixtureRequest, kurmad_runs: bool
) -> None:
    """As networking.md says: the entry is gone, the bridge is not."""
    if kurmad_runs:
        request.getfixturevalue("kurmad")
    site.out("network", "create", "shop")
    site.out("run", "--rm", "--net", "shop", site.image, "--", "-c", "exit")
    lock = site.state / "plugins/kurma.networks/bridge/networks/shop/use.lock"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        removal = site.popen("network", "rm", "shop")
        until(lambda: f"{removal.pid} " in waiting_for_locks(), "the removal waits for the driver")
        removal.kill()
        removal.communicate()
    assert entries(etc) == []
    assert bridges(site) != []
    one_line(site("network", "rm", "shop"), 'no network "shop"')
    site.out("gc")
    assert bridges(site) == []


def test_ctrl_c_after_kurmad_has_read_a_creation(site: Kurma, kurmad: subprocess.Popen[str], etc: Path) -> None:
    """The command is interrupted while it waits for kurmad's answer: kurmad forgets the network."""
    site.out("network", "create", "first")
    before = (etc / "kurma.d/50-networks.yml").read_text()
    directory = os.open(etc / "kurma.d", os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)  # as another command that writes there
        creation = site.popen("network", "create", "shop")
        until(lambda: f"{creation.pid} " in waiting_for_locks(), "the creation waits for the other command")
        kurmad.send_signal(signal.SIGSTOP)
    finally:
        os.close(directory)
    try:
        until(lambda: len(entries(etc)) == 2, "the entry is written")
        waits = Path(f"/proc/{creation.pid}/wchan")
        until(lambda: "unix_stream" in waits.read_text(), "the creation waits for kurmad")
        creation.send_signal(signal.SIGSTOP)
    finally:
        kurmad.send_signal(signal.SIGCONT)
    until(lambda: "shop" in site.out("network", "list"), "kurmad has read the entry")
    creation.send_signal(signal.SIGINT)
    creation.send_signal(signal.SIGCONT)
    assert creation.communicate() == ("", "")
    assert creation.returncode == 130
    assert (etc / "kurma.d/50-networks.yml").read_text() == before
    assert "shop" not in site.out("network", "list")


def waiting_for_locks() -> str:
    return "".join(f"{line.split()[5]} " for line in Path("/proc/locks").read_text().splitlines() if "->" in line)


def bridges(site: Kurma) -> list[str]:
    """Bridges of networks that are configured no more."""
    done = site("network", "check", "--format", "json")
    return [one["what"] for one in json.loads(done.stdout) if one["kind"] == "network"]


def test_a_network_that_cannot_be_removed_stays(site: Kurma, kurmad: subprocess.Popen[str], etc: Path) -> None:
    """The driver refuses: the entry is put back, and kurmad reads it again."""
    site.out("network", "create", "shop")
    site.out("run", "--rm", "--net", "shop", site.image, "--", "-c", "exit")
    record = site.state / "plugins/kurma.networks/bridge/networks/shop/network.json"
    bridge = json.loads(record.read_text())["bridge"]
    subprocess.run(["ip", "link", "add", "foreign", "type", "veth", "peer", "name", "other"], check=True)
    try:
        subprocess.run(["ip", "link", "set", "foreign", "master", bridge], check=True)
        one_line(site("network", "rm", "shop"), 'network "shop": its bridge', "is in use by foreign")
    finally:
        subprocess.run(["ip", "link", "del", "foreign"], check=True)
    assert len(entries(etc)) == 1
    assert json.loads(site.out("network", "inspect", "shop"))[0]["problem"] is None
    site.out("network", "rm", "shop")
    assert bridges(site) == []


def test_kurmad_refuses_what_is_written(site: Kurma, kurmad: subprocess.Popen[str], etc: Path) -> None:
    """The file is as before: a later start of kurmad would fail on it."""
    site.out("network", "create", "first")
    before = (etc / "kurma.d/50-networks.yml").read_text()
    wrong = etc / "kurma.d/90.yml"
    wrong.write_text("prefetch_images: ['nosuch:///x']\n")
    for verb, name in (("create", "shop"), ("rm", "first")):
        done = site("network", verb, name)
        assert done.returncode == 125
        said = f"cannot {verb.replace('rm', 'remove')} network {name}: kurmad refuses the configuration: {wrong}"
        assert said in done.stderr
        assert (etc / "kurma.d/50-networks.yml").read_text() == before
    (etc / "kurma.d/50-networks.yml").unlink()
    assert site("network", "create", "shop").returncode == 125
    assert not (etc / "kurma.d/50-networks.yml").exists()


def test_kurmad_reads_another_configuration(
    site: Kurma, kurmad: subprocess.Popen[str], etc: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(etc, other)
    elsewhere = Kurma(site.state, other, site.image, site.program)
    for verb in ("create", "rm"):
        done = elsewhere("network", verb, "shop")
        said = f"reads {etc}, not KURMA_CONFIG {other}"
        assert done.returncode == 125
        assert said in done.stderr
        assert f"add --config {etc}" in done.stderr
        elsewhere.out("--host", "local", "network", "create", "shop")
    assert len(entries(other)) == 1
    assert not (etc / "kurma.d/50-networks.yml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--subnet", "10.91.7.1/24", "shop"), "subnets[0]"),
        (("--opt", "subnet=10.91.7.0/24", "shop"), "subnet: unknown key"),
        (("--driver", "nosuch", "shop"), "no network plugin 'nosuch' is installed"),
        (("host",), "host"),
        (("a/b",), "a name without blanks"),
        (("default",), "the network exists"),
        (("none",), "none"),
        (("--opt", "mtu", "shop"), "not KEY=VALUE"),
        (("--opt", "name=x", "shop"), "given twice"),
    ],
)
def test_what_config_check_refuses(site: Kurma, etc: Path, words: tuple[str, ...], said: str) -> None:
    done = site("network", "create", *words)
    assert done.returncode in (2, 125)
    assert done.stderr.startswith(f"kurma: cannot create network {words[-1]}: ")
    assert said in done.stderr
    assert not (etc / "kurma.d/50-networks.yml").exists()


def test_a_subnet_that_is_taken_is_refused(site: Kurma, etc: Path) -> None:
    """19.3: at its creation, not when the first pod joins it. The subnet that the hint names is accepted."""
    free = "--subnet 10.91.9.0/24 is free; or leave --subnet out: the plugin chooses one"
    site.out("network", "create", "--subnet", "10.91.8.0/24", "shop")
    for words in (("--subnet", "10.91.8.0/24"), ("-o", 'subnets=["10.91.8.0/24"]')):
        done = site("network", "create", *words, "dup")
        said = "cannot create network dup: the subnet 10.91.8.0/24 overlaps 10.91.8.0/24 of network shop"
        one_line(done, said, hint=free)
    one_line(site("network", "create", "--subnet", "10.91.0.0/16", "dup"), "overlaps 10.91.8.0/24 of network shop")
    subprocess.run(["ip", "link", "add", "kt-held", "type", "bridge"], check=True)
    try:
        for address, subnet in (("10.93.4.7/8", "10.93.4.0/24"), ("fd00:93::7/64", "fd00:93::/64")):
            subprocess.run(["ip", "address", "add", address, "dev", "kt-held"], check=True)
            held = f"{address.partition('/')[0]}, an address of the host on kt-held"
            done = site("network", "create", "--subnet", subnet, "dup")
            one_line(done, f"cannot create network dup: the subnet {subnet} overlaps {held}", hint="is free")
    finally:
        subprocess.run(["ip", "link", "delete", "kt-held"], check=True)
    assert [entry["name"] for entry in entries(etc)] == ["shop"]
    site.out("network", "create", "--subnet", "10.91.9.0/24", "dup")


def test_a_subnet_that_the_plugin_has_chosen_is_taken(site: Kurma) -> None:
    site.out("run", "--rm", "--net", "default", "--exec", "/bin/true", site.image)
    (network,) = json.loads(site.out("network", "inspect", "default"))
    (subnet, *_) = network["config"]["subnets"]
    done = site("network", "create", "--subnet", subnet, "dup")
    one_line(done, f"the subnet {subnet} overlaps {subnet} of network default", hint="is free")
    site.out("network", "rm", "default")


def test_a_network_that_the_configuration_needs_stays(site: Kurma, etc: Path) -> None:
    site.out("network", "create", "--driver", "lo", "shop")
    (etc / "kurma.d/90.yml").write_text("base_networks: [lo, shop]\n")
    one_line(site("network", "rm", "shop"), "cannot remove network shop: ", "no entry 'shop'")
    assert len(entries(etc)) == 1


def test_a_single_file(kurma: Kurma) -> None:
    said = 'container_networks: [{"name": "shop", "plugin": "bridge"}]'
    one_line(kurma("network", "create", "shop"), "is the single file", code=2, hint=f"write there: {said}")
    for words, why in (
        (("host",), "the network exists"),
        (("a b",), ""),
        (("--subnet", "10.91.0.0", "shop"), "ADDRESS/LENGTH"),
    ):
        done = kurma("network", "create", *words)
        one_line(done, f"cannot create network {words[-1]}: ", why, code=done.returncode)
        assert "write there" not in done.stderr


def test_a_file_of_a_person_is_kept(site: Kurma, etc: Path) -> None:
    file = etc / "kurma.d/50-networks.yml"
    file.write_text("container_networks: [{name: mine, plugin: bridge}]\n")
    one_line(site("network", "create", "shop"), "was not written by this command", hint="rename it")
    assert "shop" not in file.read_text()
