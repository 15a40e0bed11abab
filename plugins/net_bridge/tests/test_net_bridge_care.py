"""What pods have left is found, told and freed, and nothing of anybody else's (W12), wherever one is killed."""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid

import pytest
from kurma_net_bridge.links import host_end
from kurma_net_bridge.plugin import kurma_network
from kurma_testing.networks import context, interfaces_in, pod_namespace

from kurma_core.errors import NetworkError
from kurma_core.hookspecs.driver import DriverContext
from kurma_core.linux.namespaces import in_network_namespace, unpin
from kurma_core.linux.netlink import Netlink
from kurma_core.models.network import PortMapping
from tests.kit.waiting import until

pytestmark = pytest.mark.root
CONFIG = {"name": "mine", "bridge": "kt0", "subnets": ["10.201.0.0/24", "fd00:201::/64"]}
PORTS = (PortMapping(20001, 80), PortMapping(20002, 53, "udp"))


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def host():
    with Netlink() as netlink:
        links = sorted(link.name for link in netlink.links())
    return links, output("nft", "--stateless", "list", "ruleset")


def flush():
    """As an administrator does who flushes the packet filter: our tables are gone."""
    for table in output("nft", "list", "tables").splitlines():
        if " kurma-" in table:
            output("nft", "delete", *table.split())


def flush_maps():
    """The rules of networks stay, and lead no port to anybody."""
    for table in output("nft", "list", "tables").splitlines():
        if " kurma-" in table:
            for name in ("any4", "any6"):
                output("nft", "flush", "map", *table.split()[1:], name)


def make_driver(state_dir):
    return kurma_network().create(DriverContext(config={}, state_dir=str(state_dir)))


@pytest.fixture
def driver(tmp_path):
    before = host()
    driver = make_driver(tmp_path / "bridge")
    yield driver
    driver.remove(CONFIG)
    assert host() == before


@pytest.fixture
def pod():
    one = str(uuid.uuid4())
    with pod_namespace(one):
        yield one


def kinds(leaks):
    return sorted({leak.kind for leak in leaks})


def files_of(pod, tmp_path):
    found = []
    for directory, _, names in os.walk(tmp_path / "bridge"):
        for name in names:
            path = os.path.join(directory, name)
            if pod in name or (os.path.islink(path) and pod in os.readlink(path)):
                found.append(path)
    return found


def nothing_is_left(pod, tmp_path):
    links, rules = host()
    return host_end(pod, "eth0") not in links and pod not in rules and not files_of(pod, tmp_path)


# --- leaks -----------------------------------------------------------------------------------------------------


def test_of_a_pod_that_is_there_nothing_is_told(driver, pod):
    one = context(pod, CONFIG, ports=PORTS)
    driver.add(one)
    before = host()
    assert driver.leaks([CONFIG], [pod]) == []
    assert driver.repair([CONFIG], [pod]) == []
    assert host() == before
    driver.check(one)
    driver.delete(one)
    assert driver.leaks([CONFIG], []) == []


def test_all_of_a_pod_that_is_gone(driver, pod, tmp_path):
    """Also where its network is configured no more."""
    other = str(uuid.uuid4())
    with pod_namespace(other):
        one, two = context(pod, CONFIG, ports=PORTS), context(other, CONFIG, ports=(PortMapping(20003, 80),))
        driver.add(one)
        driver.add(two)
        unpin(one.namespace)
        found = driver.leaks([], [other])
        assert set(kinds(found)) >= {"address", "record", "rule"}
        assert {(leak.network, leak.pod) for leak in found} == {("mine", pod)}
        assert all(leak.why == f"its pod {pod} is gone" for leak in found)
        assert driver.repair([], [other]) == []
        assert nothing_is_left(pod, tmp_path)
        driver.check(two)
        driver.delete(two)


def test_a_torn_record_of_the_network_keeps_no_rules(driver, pod, tmp_path):
    """Nor where the network is configured no more."""
    driver.add(context(pod, CONFIG, ports=PORTS))
    (record,) = (tmp_path / "bridge").glob("networks/*/network.json")
    record.write_text("{")
    assert "rule" in kinds(driver.leaks([], []))
    assert driver.repair([], []) == []
    assert nothing_is_left(pod, tmp_path)


def test_an_interface_whose_record_is_gone(driver, pod, tmp_path):
    driver.add(context(pod, CONFIG))
    for path in files_of(pod, tmp_path):
        os.unlink(path)
    assert [leak.what for leak in driver.leaks([CONFIG], [])] == [f"interface {host_end(pod, 'eth0')}"]
    assert driver.repair([CONFIG], []) == []
    assert nothing_is_left(pod, tmp_path)


def test_an_interface_whose_maker_was_killed_before_it_said_whose_it_is(driver, pod):
    driver.add(context(pod, CONFIG))
    name = host_end(pod, "eth0")
    output("ip", "link", "set", name, "alias", "")
    found = [leak for leak in driver.leaks([CONFIG], []) if leak.kind == "interface"]
    assert [(leak.what, leak.pod) for leak in found] == [(f"interface {name}", pod)]
    assert driver.leaks([CONFIG], [pod]) == []
    assert driver.repair([CONFIG], []) == []
    assert name not in host()[0]


def test_what_is_a_strangers_is_neither_told_nor_touched(driver, pod, tmp_path):
    other = make_driver(tmp_path / "other")
    foreign = {"name": "mine", "bridge": "kt7", "subnets": ["10.207.0.0/24"]}
    theirs = context(pod, foreign, ports=PORTS)
    other.add(theirs)
    for command in (
        "ip link add kvstranger type veth peer kvstranger2",
        "ip link add kt9 type bridge",
        "nft add table inet kurma-like",
        "nft add chain inet kurma-like guard",
    ):
        output(*command.split())
    addresses = tmp_path / "bridge" / "networks" / "mine" / "addresses"
    addresses.mkdir(parents=True)
    (addresses / "10.201.0.7").write_text("a printer")
    before = host()
    assert driver.leaks([CONFIG], []) == []
    assert driver.repair([CONFIG], []) == []
    assert host() == before
    assert (addresses / "10.201.0.7").read_text() == "a printer"
    with pytest.raises(NetworkError, match="in use by something that is not Kurma's"):
        driver.remove(CONFIG)
    (addresses / "10.201.0.7").unlink()
    other.check(theirs)
    other.delete(theirs)
    other.remove(foreign)
    for command in ("ip link del kvstranger", "ip link del kt9", "nft delete table inet kurma-like"):
        output(*command.split())


@pytest.mark.full
@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("ip link set kt0 down", "bridge"),
        ("ip addr del 10.201.0.1/24 dev kt0", "bridge"),
        ("ip link del kt0", "bridge"),
        ("ip link set {port} nomaster", "interface"),
        ("ip link set {port} down", "interface"),
        ("ip link set {port} type bridge_slave hairpin off", "interface"),
        ("ip link set {port} type bridge_slave isolated on", "interface"),
        ("flush", "rule"),
        ("flush maps", "rule"),
    ],
)
def test_what_is_damaged_is_repaired(driver, pod, damage, kind):
    one = context(pod, CONFIG, ports=PORTS)
    driver.add(one)
    if damage == "flush":
        flush()
    elif damage == "flush maps":
        flush_maps()
    else:
        output(*damage.format(port=host_end(pod, "eth0")).split())
    with pytest.raises(NetworkError):
        driver.check(one)
    found = driver.leaks([CONFIG], [pod])
    assert kind in kinds(found)
    assert driver.repair([CONFIG], [pod]) == []
    driver.check(one)
    driver.delete(one)


def test_rules_of_a_network_without_ports_are_made_again(driver, pod):
    driver.add(context(pod, CONFIG))
    before = host()
    flush()
    assert [leak.what for leak in driver.leaks([CONFIG], [pod])] == ["rules of network mine"]
    assert driver.repair([CONFIG], [pod]) == []
    assert host() == before
    driver.delete(context(pod, CONFIG))


def test_after_a_reboot_nothing_is_to_be_repaired(driver, pod, tmp_path):
    one = context(pod, CONFIG, ports=PORTS)
    driver.add(one)
    unpin(one.namespace)
    with Netlink() as netlink:
        netlink.delete_link(host_end(pod, "eth0"))  # if the kernel was not quicker
    output("ip", "link", "del", "kt0")
    flush()
    assert driver.leaks([CONFIG], [pod]) == []  # core takes such a pod down
    assert driver.repair([CONFIG], []) == []
    assert nothing_is_left(pod, tmp_path)


def test_a_network_that_is_configured_no_more(driver, pod):
    one = context(pod, CONFIG)
    driver.add(one)
    assert driver.leaks([], [pod]) == []
    driver.delete(one)
    (leak,) = driver.leaks([], [])
    assert (leak.kind, leak.network, leak.why) == ("network", "mine", "the network is configured no more")
    assert driver.repair([], []) == []
    assert "kt0" not in host()[0]


# --- other subnets -----------------------------------------------------------------------------------------------

CHANGED = {**CONFIG, "subnets": ["10.202.0.0/24", "fd00:202::/64"]}
BEFORE = {"10.201.0.1/24", "fd00:201::1/64"}
AFTER = {"10.202.0.1/24", "fd00:202::1/64"}
AGO = "of the network any more"


def bridge_addresses():
    words = output("ip", "-o", "address", "show", "dev", "kt0", "scope", "global").split()
    return {word for before, word in itertools.pairwise(words) if before in ("inet", "inet6")}


def listens(one, address):
    """As far as the host is asked."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with in_network_namespace(one.namespace, lambda: socket.create_server((address, 80), family=family)):
        socket.create_connection((address, 80), timeout=3).close()


def test_other_subnets_and_no_pod(driver, pod):
    """The next pod has the bridge put right; a stranger's address on it stays."""
    one = context(pod, CONFIG)
    driver.add(one)
    driver.delete(one)
    assert bridge_addresses() == BEFORE
    output("ip", "address", "add", "192.0.2.9/24", "dev", "kt0")
    result = driver.add(context(pod, CHANGED))
    assert bridge_addresses() == AFTER | {"192.0.2.9/24"}
    for address in result.addresses:
        listens(one, address.address.partition("/")[0])
    assert driver.leaks([CHANGED], [pod]) == []
    driver.delete(one)
    # And back.
    driver.add(one)
    assert bridge_addresses() == BEFORE | {"192.0.2.9/24"}
    driver.delete(one)


def test_other_subnets_are_told_and_repaired_before_a_pod_comes(driver, pod):
    one = context(pod, CONFIG)
    driver.add(one)
    driver.delete(one)
    assert driver.leaks([CONFIG], []) == []
    found = driver.leaks([CHANGED], [])
    assert [(leak.kind, leak.what, leak.why, leak.network, leak.pod) for leak in found] == [
        (
            "bridge",
            f"address {gateway} of bridge kt0",
            f"{subnet} is not a subnet of the network any more",
            "mine",
            "",
        )
        for gateway, subnet in (("10.201.0.1", "10.201.0.0/24"), ("fd00:201::1", "fd00:201::/64"))
    ]
    assert driver.repair([CHANGED], []) == []
    assert bridge_addresses() == set()
    driver.remove(CHANGED)
    assert driver.leaks([CHANGED], []) == []


def test_other_subnets_and_a_strangers_bridge_in_place_of_ours(driver, pod):
    """Its addresses are its own, also one that ours had."""
    one = context(pod, CONFIG)
    driver.add(one)
    driver.delete(one)
    output("ip", "link", "del", "kt0")
    output("ip", "link", "add", "kt0", "type", "bridge")
    output("ip", "address", "add", "10.201.0.1/24", "dev", "kt0")
    with pytest.raises(NetworkError, match="there is an interface kt0 already"):
        driver.add(context(pod, CHANGED))
    assert [leak.what for leak in driver.leaks([CHANGED], [pod]) if leak.kind == "bridge"] == []
    driver.repair([CHANGED], [pod])
    assert bridge_addresses() == {"10.201.0.1/24"}
    driver.delete(one)
    output("ip", "link", "del", "kt0")


def test_other_subnets_while_a_pod_is_joined(driver, pod):
    """It keeps its address, its gateway and the way to the outside, and it is told that it should start again."""
    other = str(uuid.uuid4())
    with pod_namespace(other):
        one, two = context(pod, CONFIG, ports=PORTS), context(other, CHANGED)
        first = driver.add(one)
        told = [
            ("address", "10.201.0.2", "10.201.0.0/24"),
            ("address", "fd00:201::2", "fd00:201::/64"),
        ]
        for _ in range(2):
            found = [leak for leak in driver.leaks([CHANGED], [pod, other]) if leak.kind == "address"]
            assert [(leak.kind, leak.what, leak.why.partition(" ")[0]) for leak in found] == told
            assert {leak.pod for leak in found} == {pod}
            assert all(f"`kurma restart {pod}`" in leak.why for leak in found)
            driver.add(two)
            assert driver.repair([CHANGED], [pod, other]) == found
            assert bridge_addresses() == BEFORE | AFTER
            driver.check(one)
            driver.check(two)
        for address in first.addresses:
            listens(one, address.address.partition("/")[0])
        ruleset = output("nft", "list", "ruleset")
        for subnet in (*CONFIG["subnets"], *CHANGED["subnets"]):
            assert f"saddr {subnet} " in ruleset, "what leaves it has the host's address"
        driver.delete(one)
        found = driver.leaks([CHANGED], [other])
        assert {(leak.kind, leak.pod) for leak in found} == {("bridge", "")}
        assert driver.repair([CHANGED], [other]) == []
        assert bridge_addresses() == AFTER
        assert "10.201.0.0" not in output("nft", "list", "ruleset")
        driver.check(two)
        driver.delete(two)


def test_a_longer_prefix_with_the_same_gateway(driver, pod):
    """Pods that have an address of it need no other."""
    other = str(uuid.uuid4())
    wider = {**CONFIG, "subnets": ["10.201.0.0/16", "fd00:201::/60"]}
    with pod_namespace(other):
        one, two = context(pod, CONFIG), context(other, wider)
        first = driver.add(one)
        second = driver.add(two)
        assert bridge_addresses() == {"10.201.0.1/16", "fd00:201::1/60"}
        assert driver.leaks([wider], [pod, other]) == []
        for one_of, result in ((one, first), (two, second)):
            for address in result.addresses:
                listens(one_of, address.address.partition("/")[0])
        driver.delete(two)
        driver.delete(one)


@pytest.mark.full
def test_killed_while_old_addresses_are_taken_off(driver, pod, tmp_path):
    one = context(pod, CHANGED)
    struck, steps = True, 0
    while struck:
        driver.add(context(pod, CONFIG))
        driver.delete(one)
        assert bridge_addresses() == BEFORE
        steps += 1
        fresh = make_driver(tmp_path / "bridge")
        struck = strike(lambda driver=fresh: driver.add(one), steps)
        driver.delete(one)
        assert driver.repair([CHANGED], []) == []
        assert not bridge_addresses() & BEFORE, f"killed before step {steps}"
    assert steps > 10


# --- killed between any two steps ------------------------------------------------------------------------------

#: What changes the world, or may: a process is killed before each of these calls in turn.
STEPS = {"send", "sendto", "sendmsg", "symlink", "rename", "unlink", "remove", "rmdir", "mkdir", "fork_exec"}


def strike(function, number):
    """Runs it in a process that is killed before its step of that number. False: it has fewer, and got through."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            done = 0

            def profile(frame, event, called):
                nonlocal done
                if event == "c_call" and called.__name__ in STEPS:
                    done += 1
                    if done == number:
                        os.kill(os.getpid(), signal.SIGKILL)

            threading.setprofile(profile)
            sys.setprofile(profile)
            function()
            sys.setprofile(None)
            status = 0
        except BaseException:  # noqa: BLE001 - the parent sees the status
            traceback.print_exc()
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, status
    return status != 0


@pytest.mark.full
@pytest.mark.parametrize("clear", ["delete", "repair"])
@pytest.mark.parametrize("verb", ["add", "delete"])
def test_killed_at_each_step(driver, pod, tmp_path, verb, clear):
    staying = str(uuid.uuid4())
    with pod_namespace(staying):
        one, two = context(pod, CONFIG, ports=PORTS), context(staying, CONFIG)
        if verb == "delete" or clear == "repair":
            driver.add(two)  # the network is there; else its making is part of what is broken off
        struck = True
        steps = 0
        while struck:
            if verb == "delete":
                driver.add(one)
            steps += 1
            fresh = make_driver(tmp_path / "bridge")
            struck = strike(lambda driver=fresh: getattr(driver, verb)(one), steps)
            if clear == "delete":
                make_driver(tmp_path / "bridge").delete(one)
            else:
                assert driver.repair([CONFIG], [staying]) == []
            assert nothing_is_left(pod, tmp_path), f"killed before step {steps} of {verb}"
            assert interfaces_in(one.namespace) == ["lo"]
        assert steps > (10 if verb == "add" else 5)
        if verb == "delete" or clear == "repair":
            driver.check(two)
            driver.delete(two)
        # And the network is as good as new.
        driver.add(one)
        driver.check(one)
        driver.delete(one)


@pytest.mark.full
@pytest.mark.parametrize("clear", ["delete", "repair"])
def test_killed_while_a_program_publishes(driver, pod, tmp_path, monkeypatch, clear):
    """The program goes on: what is withdrawn meanwhile must not be published after all."""
    staying = str(uuid.uuid4())
    with pod_namespace(staying):
        driver.add(context(staying, CONFIG))
        slow = tmp_path / "slow" / "nft"
        slow.parent.mkdir()
        slow.write_text(f'#!/bin/sh\ntouch {tmp_path}/begun\nsleep 0.5\nexec {shutil.which("nft")} "$@"\n')
        slow.chmod(0o755)
        monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
        one = context(pod, CONFIG, ports=PORTS)
        child = os.fork()
        if child == 0:
            make_driver(tmp_path / "bridge").add(one)
            os._exit(0)
        until((tmp_path / "begun").exists)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if clear == "delete":
            driver.delete(one)
        else:
            assert driver.repair([CONFIG], [staying]) == []
        time.sleep(0.7)
        assert nothing_is_left(pod, tmp_path)
        driver.delete(context(staying, CONFIG))
