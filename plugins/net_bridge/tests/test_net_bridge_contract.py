"""Pods on a bridge of ours, against the contract of all networks, in real network namespaces."""

import json
import os
import socket
import subprocess
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import kurma_net_bridge.plugin
import pytest
from kurma_net_bridge import links
from kurma_net_bridge.links import host_end
from kurma_net_bridge.records import NetworkRecords
from kurma_testing import load_driver
from kurma_testing.networks import NetworkContract, context, interfaces_in

from kurma_core.errors import NetworkError
from kurma_core.linux.namespaces import in_network_namespace, unpin
from kurma_core.linux.netlink import Netlink
from kurma_core.models.network import NetworkRequest, PortMapping
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.kurma_driver(kurma_net_bridge.plugin)]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def host_links():
    with Netlink() as netlink:
        return sorted(link.name for link in netlink.links())


def rules():
    """Without counters, which others' rules may have."""
    return output("nft", "--stateless", "list", "ruleset")


def flush():
    """As an administrator does who flushes the packet filter: our tables are gone."""
    for table in output("nft", "list", "tables").splitlines():
        if " kurma-" in table:
            output("nft", "delete", *table.split())


def listening(namespace, address, port=80):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = in_network_namespace(namespace, lambda: socket.socket(family))
    sock.bind((address, port))
    sock.listen()
    return sock


def reaches(address, port=80, namespace=None, *, expected=True):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    make = lambda: socket.socket(family)  # noqa: E731
    with make() if namespace is None else in_network_namespace(namespace, make) as sock:
        sock.settimeout(5 if expected else 0.5)
        try:
            sock.connect((address, port))
        except OSError:
            return False
        return True


def plain(result):
    return [one.address.partition("/")[0] for one in result.addresses]


class BridgeContract(NetworkContract):
    @pytest.fixture(autouse=True)
    def clean_host(self, state_dir):
        """``remove`` leaves nothing at all: no interface, no rule, no file."""
        self.state_dir = state_dir
        before = host_links(), rules()
        yield
        assert (host_links(), rules()) == before
        assert not os.path.exists(f"{state_dir}/networks") or os.listdir(f"{state_dir}/networks") == []

    def files(self, config):
        found = []
        for directory, _, names in os.walk(f"{self.state_dir}/networks/{config['name']}"):
            found += [f"{directory}/{name}" for name in names]
        return found

    def assert_nothing_left(self, pod, config):
        assert host_end(pod, self.interface) not in host_links()
        assert pod not in rules()
        for path in self.files(config):
            assert pod not in os.path.basename(path)
            assert not os.path.islink(path) or pod not in os.readlink(path)


class TestBridge(BridgeContract):
    open_config = MappingProxyType({"name": "open", "mtu": 1400})

    @pytest.fixture
    def config(self):
        return {"name": "mine", "bridge": "kt0", "subnets": ["10.201.0.0/24", "fd00:201::/64"]}

    # -- what a pod gets --

    def test_both_families_at_once(self, driver, config, make_pod):
        """The first pod waits for nothing: no question whether an IPv6 address is somebody's is open."""
        one = self.context(make_pod(), config)
        result = driver.add(one)
        assert [a.gateway for a in result.addresses] == ["10.201.0.1", "fd00:201::1"]
        assert [a.address for a in result.addresses] == ["10.201.0.2/24", "fd00:201::2/64"]
        assert result.routes == (("0.0.0.0/0", "10.201.0.1"), ("::/0", "fd00:201::1"))
        for address, gateway in zip(plain(result), ("10.201.0.1", "fd00:201::1"), strict=True):
            with listening(one.namespace, address):
                assert reaches(address)
            with socket.create_server(
                (gateway, 8080), family=socket.AF_INET6 if ":" in address else socket.AF_INET
            ):
                assert reaches(gateway, 8080, one.namespace)
        for key in ("accept_dad", "accept_ra"):
            with open(f"/proc/sys/net/ipv6/conf/kt0/{key}") as file:
                assert file.read() == "0\n", key
        driver.delete(one)

    def test_pods_reach_each_other(self, driver, config, make_pod):
        one, two = (self.context(make_pod(), config) for _ in range(2))
        driver.add(one)
        for address in plain(driver.add(two)):
            with listening(two.namespace, address):
                assert reaches(address, namespace=one.namespace)
        driver.delete(one)
        driver.delete(two)

    def test_isolated_pods_do_not(self, driver, config, make_pod):
        config = {**config, "isolated": True}
        one, two = (self.context(make_pod(), config) for _ in range(2))
        driver.add(one)
        for address in plain(driver.add(two)):
            with listening(two.namespace, address):
                assert reaches(address)  # the host does
                assert not reaches(address, namespace=one.namespace, expected=False)
        # Whether bridges hand their frames to the packet filter or not.
        with Netlink() as netlink:
            assert netlink.link(host_end(one.pod, "eth0")).isolated
            assert netlink.link(host_end(two.pod, "eth0")).isolated
        driver.delete(one)
        driver.delete(two)

    def test_a_mac_and_an_mtu(self, driver, config, make_pod):
        config = {**config, "mtu": 1400}
        request = NetworkRequest("mine", mac="02:00:00:00:00:07")
        one = context(make_pod(), config, request=request)
        driver.add(one)
        with in_network_namespace(one.namespace, Netlink) as netlink:
            link = netlink.link("eth0")
        assert (link.mac.hex(":"), link.mtu, link.up) == ("02:00:00:00:00:07", 1400, True)
        driver.delete(one)

    @pytest.mark.parametrize(
        ("mac", "why"),
        [
            ("00:00:00:00:00:00", "all of it is zero"),
            ("01:00:5e:00:00:01", "it is a multicast address"),
            ("ff:ff:ff:ff:ff:ff", "it is a multicast address"),
            ("02:00:00:00:07", "it is no MAC address"),
            ("02:00:00:00:00:0g", "it is no MAC address"),
        ],
    )
    def test_a_mac_that_no_interface_can_have(self, driver, config, make_pod, state_dir, mac, why):
        """Told before anything is made."""
        before = host_links()
        one = context(make_pod(), config, request=NetworkRequest("mine", mac=mac))
        with pytest.raises(NetworkError) as caught:
            driver.add(one)
        assert caught.value.message == f'network "mine" cannot give a pod the MAC address {mac}: {why}'
        assert host_links() == before
        assert not os.path.exists(f"{state_dir}/networks")
        driver.delete(one)

    def test_the_mtu_of_a_bridge_that_is_there(self, driver, config, make_pod):
        one, two = (self.context(make_pod(), {**config, "mtu": 1400}) for _ in range(2))
        driver.add(one)
        output("ip", "link", "set", "kt0", "mtu", "1300")
        driver.add(two)
        with Netlink() as netlink:
            assert netlink.link("kt0").mtu == 1400
        driver.delete(two)
        driver.delete(one)

    def test_a_record_of_ports_that_was_half_written(self, driver, config, make_pod, state_dir):
        """By a process that was killed: it is told as its pod's, and goes with it."""
        one = self.context(make_pod(), config)
        driver.add(one)
        torn = f"{state_dir}/networks/mine/ports/{one.pod}:eth0.tmp"
        os.makedirs(os.path.dirname(torn))
        with open(torn, "w") as file:
            file.write("{")
        records = NetworkRecords(state_dir, "mine")
        assert records.has_published(f"{one.pod}:eth0")
        assert records.publishers() == (f"{one.pod}:eth0",)
        found = driver.leaks([config], [])
        assert f"published ports of {one.pod}:eth0" in [leak.what for leak in found]
        driver.delete(one)
        assert not os.path.exists(torn)

    def test_routes_of_the_configuration(self, driver, config, make_pod):
        routes = [{"dst": "198.51.100.0/24"}, {"dst": "2001:db8::/32", "gw": "fd00:201::9"}]
        one = self.context(make_pod(), {**config, "routes": routes})
        result = driver.add(one)
        assert result.routes == (("198.51.100.0/24", "10.201.0.1"), ("2001:db8::/32", "fd00:201::9"))
        assert "default" not in output("ip", "-n", f"kurma-{one.pod}", "route")
        assert "198.51.100.0/24 via 10.201.0.1 dev eth0" in output("ip", "-n", f"kurma-{one.pod}", "route")
        assert "2001:db8::/32 via fd00:201::9 dev eth0" in output("ip", "-6", "-n", f"kurma-{one.pod}", "route")
        driver.delete(one)

    def test_nobody_else_becomes_the_pods_router(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        driver.add(one)
        where = "/proc/sys/net/ipv6/conf/eth0/accept_ra"
        with in_network_namespace(one.namespace, lambda: open(where)) as file:
            assert file.read() == "0\n"
        driver.delete(one)

    def test_two_networks_of_one_pod(self, driver, make_driver, config, make_pod):
        other = {"name": "other", "bridge": "kt1", "subnets": ["10.202.0.0/24"]}
        pod = make_pod()
        one, two = context(pod, config, "eth0"), context(pod, other, "eth1")
        driver.add(one)
        driver.add(two)
        # The first leads to the outside.
        assert "default via 10.201.0.1 dev eth0" in output("ip", "-n", f"kurma-{pod}", "route")
        driver.check(one)
        driver.check(two)
        driver.delete(two)
        driver.delete(one)
        driver.remove(other)

    # -- the bridge --

    def test_its_mac_does_not_change(self, driver, config, make_pod):
        contexts = [self.context(make_pod(), config) for _ in range(3)]
        macs = set()
        for one in contexts:
            driver.add(one)
            with Netlink() as netlink:
                macs.add(netlink.link("kt0").mac)
        for one in contexts:
            driver.delete(one)
            with Netlink() as netlink:
                macs.add(netlink.link("kt0").mac)
        assert len(macs) == 1

    @pytest.mark.parametrize(
        "damage",
        [
            ["link", "del", "kt0"],
            ["link", "set", "kt0", "down"],
            ["addr", "flush", "dev", "kt0"],
            ["link", "set", "kt0", "address", "02:00:00:00:00:01"],
        ],
        ids=" ".join,
    )
    def test_it_is_repaired_by_the_next_pod(self, driver, config, make_pod, damage):
        """And who was on it already is on it again."""
        one, two = (self.context(make_pod(), config) for _ in range(2))
        earlier = plain(driver.add(one))
        driver.check(one)
        output("ip", *damage)
        with pytest.raises(NetworkError, match="bridge kt0 is"):
            driver.check(one)
        later = plain(driver.add(two))
        for asks, asked, addresses in ((one, two, later), (two, one, earlier)):
            driver.check(asked)
            for address in addresses:
                with listening(asked.namespace, address):
                    assert reaches(address)
                    assert reaches(address, namespace=asks.namespace)
        driver.delete(two)
        driver.delete(one)

    def test_a_pod_that_leaves_while_the_bridge_is_made_again(self, driver, config, make_pod, monkeypatch):
        """It keeps nobody from joining."""
        one, two, three = (self.context(make_pod(), config) for _ in range(3))
        driver.add(one)
        driver.add(two)
        output("ip", "link", "del", "kt0")
        real = links.restore_port

        def leaves_first(netlink, settings, owner, bridge):
            if owner.pod == one.pod:
                netlink.delete_link(host_end(one.pod, "eth0"))
            real(netlink, settings, owner, bridge)

        monkeypatch.setattr(links, "restore_port", leaves_first)
        driver.add(three)
        for here in (two, three):
            driver.check(here)
            driver.delete(here)
        driver.delete(one)

    def test_a_bridge_whose_maker_was_killed_gets_the_pods_back(self, driver, config, make_pod, monkeypatch):
        """It had made the bridge, and not put back yet who was on the one before: the next to join does."""
        one, two, three = (self.context(make_pod(), config) for _ in range(3))
        address = plain(driver.add(one))[0]
        output("ip", "link", "del", "kt0")

        def end(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(links, "restore_port", end)
            with pytest.raises(KeyboardInterrupt):
                driver.add(two)
        driver.add(three)
        driver.check(one)
        with listening(one.namespace, address):
            assert reaches(address, namespace=three.namespace)
        for each in (one, two, three):
            driver.delete(each)

    @pytest.mark.parametrize("why", ["an interface kt0 already", "it is not in"])
    def test_a_join_that_fails_leaves_no_record(self, driver, config, make_pod, state_dir, why):
        """Where nothing of the network was made: later it would be told as one that is configured no more."""
        if "already" in why:
            output("ip", "link", "add", "kt0", "type", "bridge")
        request = NetworkRequest("mine", ips=("10.9.9.9",) if "not in" in why else ())
        one = context(make_pod(), config, request=request)
        with pytest.raises(NetworkError, match=why):
            driver.add(one)
        driver.delete(one)
        assert driver.leaks([], []) == []
        assert not os.path.exists(f"{state_dir}/networks/mine")
        if "already" in why:
            output("ip", "link", "del", "kt0")

    def test_a_network_without_its_bridge_is_on_record_as_long_as_anything_is_there(
        self, driver, config, make_pod, state_dir
    ):
        """Its rules, or another pod."""
        one, two = (self.context(make_pod(), config) for _ in range(2))
        driver.add(one)
        driver.add(two)
        output("ip", "link", "del", "kt0")
        for each in (one, two):
            driver.delete(each)
            assert os.path.exists(f"{state_dir}/networks/mine/network.json")
        flush()
        driver.delete(one)
        assert not os.path.exists(f"{state_dir}/networks/mine")

    def test_a_host_without_ipv6(self, driver, config, monkeypatch):
        driver.status(config)
        monkeypatch.setattr(os.path, "exists", lambda path: path != "/proc/net/if_inet6")
        with pytest.raises(NetworkError, match=r"this host has no IPv6, which fd00:201::/64 needs"):
            driver.status(config)
        driver.status({**config, "subnets": ["10.201.0.0/24"]})

    @pytest.mark.parametrize(
        "kind", [["type", "bridge"], ["type", "veth", "peer", "kt1"]], ids=lambda kind: kind[1]
    )
    def test_a_strangers_is_left_alone(self, driver, config, make_pod, kind):
        output("ip", "link", "add", "kt0", *kind)
        before = output("ip", "-d", "link", "show", "kt0")
        one = self.context(make_pod(), config)
        with pytest.raises(NetworkError, match="an interface kt0 already"):
            driver.add(one)
        with pytest.raises(NetworkError, match="an interface kt0 already"):
            driver.status(config)
        driver.delete(one)
        driver.remove(config)
        assert output("ip", "-d", "link", "show", "kt0") == before
        output("ip", "link", "del", "kt0")

    @pytest.mark.parametrize("address", ["10.201.0.1/16", "fd00:201::1/128"])
    def test_its_address_is_on_no_other_interface(self, driver, config, make_pod, address):
        """Else neither the pods nor who is reached by that interface could be spoken to."""
        output("ip", "link", "add", "kt-other", "type", "bridge")
        try:
            output("ip", "address", "add", address, "dev", "kt-other")
            one = self.context(make_pod(), config)
            with pytest.raises(
                NetworkError, match=r"the gateway of .*, is an address of .* already, on kt-other"
            ) as caught:
                driver.add(one)
            name = config["name"]
            first, _, second = caught.value.hint.partition("; ")
            assert first == f"kurma network rm {name}, then kurma network create --subnet ADDRESS/LENGTH {name}"
            assert second == "for an entry of a file of your own: change its subnets there"
            assert "kt0" not in host_links()
            driver.delete(one)
        finally:
            output("ip", "link", "delete", "kt-other")
        driver.add(one)
        driver.delete(one)
        driver.remove(config)

    def test_it_is_not_removed_with_somebody_on_it(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        driver.add(one)
        with pytest.raises(NetworkError, match=f"in use by {one.pod}"):
            driver.remove(config)
        driver.delete(one)
        output("ip", "link", "add", "kt1", "type", "veth", "peer", "kt2")
        output("ip", "link", "set", "kt1", "master", "kt0")
        with pytest.raises(NetworkError, match="in use by kt1"):
            driver.remove(config)
        output("ip", "link", "del", "kt1")
        driver.remove(config)

    # -- addresses --

    def test_an_address_that_is_asked_for(self, driver, config, make_pod):
        one = context(make_pod(), config, request=NetworkRequest("mine", ips=("10.201.0.9", "fd00:201::9/64")))
        result = driver.add(one)
        assert [a.address for a in result.addresses] == ["10.201.0.9/24", "fd00:201::9/64"]
        two = context(make_pod(), config, request=NetworkRequest("mine", ips=("10.201.0.9",)))
        with pytest.raises(NetworkError, match=rf"10\.201\.0\.9 is in use by pod {one.pod}"):
            driver.add(two)
        driver.delete(two)
        driver.check(one)
        driver.delete(one)

    def test_ten_at_a_time(self, driver, make_driver, config, make_pod):
        contexts = [self.context(make_pod(), config) for _ in range(20)]
        with ThreadPoolExecutor(10) as pool:
            results = list(pool.map(lambda one: make_driver().add(one), contexts))
        addresses = [address for result in results for address in plain(result)]
        assert len(set(addresses)) == 40
        for one in contexts:
            driver.check(one)
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(driver.delete, contexts))

    # -- leaving --

    def test_with_an_empty_state_directory(self, driver, config, make_pod, state_dir):
        """Interface and rules are found by what the pod is."""
        one = context(make_pod(), config, ports=(PortMapping(20001, 80),))
        driver.add(one)
        assert one.pod in rules()
        output("rm", "-rf", state_dir)
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_after_a_reboot(self, driver, config, make_pod):
        """State is on disk, and the kernel is empty."""
        one = context(make_pod(), config, ports=(PortMapping(20001, 80),))
        driver.add(one)
        unpin(one.namespace)
        with Netlink() as netlink:
            netlink.delete_link(host_end(one.pod, "eth0"))  # if the kernel was not quicker
        output("ip", "link", "del", "kt0")
        flush()
        # Who comes first makes the rules anew, and leads no port to a pod that is no more.
        two = self.context(make_pod(), config)
        driver.add(two)
        assert one.pod not in rules()
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)
        driver.delete(two)

    def test_ports_that_nobody_tells_of(self, driver, config, make_pod):
        """What is on record is withdrawn."""
        one = context(make_pod(), config, ports=(PortMapping(20001, 80),))
        driver.add(one)
        assert one.pod in rules()
        driver.delete(context(one.pod, config))
        self.assert_nothing_left(one.pod, config)

    def test_no_descriptor_is_left(self, driver, config, make_pod):
        pod = make_pod()
        contexts = [context(pod, config, ports=ports) for ports in ((), (PortMapping(20001, 80),))]

        def use():
            for one in contexts:
                driver.add(one)
                driver.add(one)  # as after one that was broken off
                driver.delete(one)
            return len(os.listdir("/proc/self/fd"))

        use()
        before = use()
        for _ in range(3):
            use()
        # The thread that removes a pair of interfaces has its socket for some milliseconds more.
        until(lambda: len(os.listdir("/proc/self/fd")) <= before)

    def test_the_first_packet_arrives(self, driver, config, make_pod, monkeypatch):
        """The bridge lets pass what the pod sends when it has joined, however late the kernel is."""
        one = self.context(make_pod(), config)
        real = links.furnish

        def late(*arguments):
            mac = real(*arguments)
            with Netlink() as netlink:
                netlink.set_link("eth0", up=False)
            raising.start()
            return mac

        def raise_it():
            time.sleep(0.2)
            with Netlink() as netlink:
                netlink.set_link("eth0", up=True)

        raising = threading.Thread(target=lambda: in_network_namespace(one.namespace, raise_it))
        monkeypatch.setattr(links, "furnish", late)
        driver.add(one)
        with Netlink() as netlink:
            assert netlink.link(host_end(one.pod, "eth0")).forwarding
        raising.join()
        driver.delete(one)

    @pytest.mark.parametrize("wanted", [True, False])
    def test_what_the_rules_are_told(self, driver, config, make_pod, wanted):
        config = {**config, "masquerade": wanted, "isolated": not wanted}
        one = self.context(make_pod(), config)
        driver.add(one)
        ruleset = rules()
        assert ('oifname != "kt0" ip saddr 10.201.0.0/24' in ruleset) == wanted
        assert ('iifname "kt0" accept' in ruleset) == wanted
        driver.delete(one)

    def test_an_app_that_administers_the_network_renames_its_interface(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        driver.add(one)
        output("ip", "-n", f"kurma-{one.pod}", "link", "set", "eth0", "down")
        output("ip", "-n", f"kurma-{one.pod}", "link", "set", "eth0", "name", "wan")
        with pytest.raises(NetworkError, match="interface eth0 is missing"):
            driver.check(one)
        driver.delete(one)
        assert interfaces_in(one.namespace) == ["lo"]

    def test_a_join_that_was_broken_off_is_begun_anew(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        driver.add(one)
        driver.add(one)
        driver.check(one)
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_ports(self, driver, config, make_pod):
        assert driver.publishes(config)
        one = context(make_pod(), config, ports=(PortMapping(20001, 80), PortMapping(20002, 53, "udp")))
        result = driver.add(one)
        driver.check(one)
        with listening(one.namespace, plain(result)[0]):
            assert reaches("127.0.0.1", 20001)
        flush()
        with pytest.raises(NetworkError, match="rules are missing"):
            driver.check(one)
        # The next pod's join puts back what was flushed.
        two = self.context(make_pod(), config)
        driver.add(two)
        with listening(one.namespace, plain(result)[0]):
            assert reaches("127.0.0.1", 20001)
        driver.check(one)
        driver.delete(two)
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_the_state_directory_moves(self, driver, config, make_pod, state_dir, tmp_path):
        one = context(make_pod(), config, ports=(PortMapping(20001, 80),))
        driver.add(one)
        moved = load_driver(kurma_net_bridge.plugin, tmp_path / "moved")
        os.rename(state_dir.parent, tmp_path / "moved")
        moved.check(one)
        moved.delete(one)
        self.assert_nothing_left(one.pod, config)
        moved.remove(config)

    def test_a_newer_record_is_refused(self, driver, config, make_pod, state_dir):
        os.makedirs(f"{state_dir}/networks/mine")
        path = f"{state_dir}/networks/mine/network.json"
        with open(path, "w") as file:
            json.dump({"version": 2}, file)
        one = self.context(make_pod(), config)
        with pytest.raises(Exception, match=r"network\.json has version 2, this plugin knows 1"):
            driver.add(one)
        os.unlink(path)

    def test_a_damaged_record_keeps_no_pod(self, driver, config, make_pod, state_dir):
        one = context(make_pod(), config, ports=(PortMapping(20001, 80),))
        driver.add(one)
        for path in (f"{state_dir}/networks/mine/network.json", f"{state_dir}/networks/mine/ports/{one.pod}:eth0"):
            with open(path, "w") as file:
                file.write("{")
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)


class TestOneFamily(BridgeContract):
    """IPv6 alone, in a small subnet."""

    @pytest.fixture
    def config(self):
        return {
            "name": "six",
            "bridge": "kt6",
            "subnets": ["fd00:206::/120"],
            "masquerade": False,
            "hairpin": False,
        }

    def test_it_has_no_other(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        assert plain(driver.add(one)) == ["fd00:206::2"]
        driver.check(one)
        driver.delete(one)


class TestSmall(BridgeContract):
    """As many pods as there is room for."""

    @pytest.fixture
    def config(self):
        return {"name": "small net", "bridge": "kts", "subnets": ["10.203.0.0/29"]}

    def test_a_full_subnet(self, driver, config, make_pod):
        contexts = [self.context(make_pod(), config) for _ in range(5)]
        for one in contexts:
            driver.status(config)
            driver.add(one)
        with pytest.raises(NetworkError, match=r"no address of 10\.203\.0\.0/29 is free"):
            driver.status(config)
        late = self.context(str(uuid.uuid4()), config)
        with pytest.raises(NetworkError, match=r"no address of 10\.203\.0\.0/29 is free"):
            driver.add(late)
        driver.delete(late)
        for one in contexts:
            driver.delete(one)
        driver.status(config)
