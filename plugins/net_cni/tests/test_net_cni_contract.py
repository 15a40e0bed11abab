"""Debian's CNI plugins, against the contract of all networks, in real network namespaces."""

import os
import subprocess
import uuid

import kurma_net_cni.plugin
import pytest
from kurma_net_cni.records import Records
from kurma_testing.networks import NetworkContract, context, interfaces_in

from kurma_core.errors import NetworkError
from kurma_core.linux.namespaces import in_network_namespace, unpin
from kurma_core.models.network import NetworkRequest, PortMapping

pytestmark = [
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.kurma_driver(kurma_net_cni.plugin, {"config_dirs": []}),
]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def host_links():
    return [line.split(":")[1].strip().partition("@")[0] for line in output("ip", "-o", "link").splitlines()]


def rules():
    return [line for family in ("iptables", "ip6tables") for line in output(f"{family}-save").splitlines()
            if line[0] in ":-" and "CNI" in line]  # fmt: skip


def base_rules(lines):
    """Without what the plugins share among pods."""
    return [line for line in lines if "HOSTPORT" in line or "CNI-FORWARD" in line or "CNI-ADMIN" in line]


class CniContract(NetworkContract):
    @pytest.fixture(autouse=True)
    def clean_host(self, tmp_path):
        """``remove`` leaves nothing at all."""
        before = host_links(), rules()
        yield
        assert (host_links(), rules()) == before
        addresses = tmp_path / "addresses"
        assert not addresses.exists() or os.listdir(addresses) == []

    @pytest.fixture(autouse=True)
    def _remember(self, tmp_path, state_dir):
        self.tmp_path, self.state_dir = tmp_path, state_dir

    def assert_nothing_left(self, pod, config):
        reserved = self.tmp_path / "addresses" / config["name"]
        if reserved.exists():
            assert [name for name in os.listdir(reserved) if (reserved / name).read_text().startswith(pod)] == []
        assert [line for line in rules() if pod in line] == []
        assert not [name for name in os.listdir(self.state_dir / "results") if name.startswith(pod)]
        others = os.listdir(self.state_dir / "results")
        if not others:
            left = rules()
            assert left == base_rules(left)
            assert [line for line in left if "/32" in line] == []
            assert [name for name in host_links() if name.startswith("veth")] == []


class TestBridgeChain(CniContract):
    @pytest.fixture
    def config(self, tmp_path):
        return {
            "name": "chained",
            "cniVersion": "0.4.0",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "kt0",
                    "isGateway": True,
                    "ipMasq": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": "10.201.0.0/16"}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                        "dataDir": str(tmp_path / "addresses"),
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
                {"type": "firewall"},
            ],
        }

    def test_both_families(self, driver, config, make_pod):
        ipam = config["plugins"][0]["ipam"]
        ipam["ranges"].append([{"subnet": "fd00:201::/64"}])
        ipam["routes"].append({"dst": "::/0"})
        one = self.context(make_pod(), config)
        result = driver.add(one)
        assert [a.gateway for a in result.addresses] == ["10.201.0.1", "fd00:201::1"]
        assert result.routes == (("0.0.0.0/0", None), ("::/0", None))
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_ports(self, driver, config, make_pod):
        assert driver.publishes(config)
        one = context(make_pod(), config, ports=(PortMapping(20001, 80), PortMapping(20002, 53, "udp")))
        driver.add(one)
        text = "\n".join(rules())
        assert one.pod in text
        assert "-p tcp -m tcp --dport 20001" in text
        assert "-p udp -m udp --dport 20002" in text
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_ports_when_the_namespace_is_gone(self, driver, config, make_pod):
        one = context(make_pod(), config, ports=(PortMapping(20001, 80),))
        driver.add(one)
        unpin(one.namespace)
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_check_sees_a_missing_interface(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        driver.add(one)
        driver.check(one)
        output("ip", "-n", f"kurma-{one.pod}", "link", "del", "eth0")
        with pytest.raises(NetworkError, match="cannot check network"):
            driver.check(one)
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    @pytest.mark.parametrize("change", [("flush", "dev", "eth0"), ("add", "10.201.9.9/16", "dev", "eth0")])
    def test_addresses_that_a_pod_changed_itself(self, driver, config, make_pod, change):
        one = self.context(make_pod(), config)
        driver.add(one)
        output("ip", "-n", f"kurma-{one.pod}", "address", *change)
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_a_broken_off_delete_is_finished(self, driver, config, make_pod, state_dir):
        """As after a power cut in the middle: the interface is gone already, and the rules are not."""
        one = self.context(make_pod(), config)
        driver.add(one)
        records = Records(str(state_dir))
        first = records.read(one)
        # On disk when the first DEL begins.
        records.write(type(first)(config["name"], one.pod, "eth0", first.result, True))
        output("ip", "-n", f"kurma-{one.pod}", "link", "del", "eth0")
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_a_torn_record_keeps_nothing_from_being_deleted(self, driver, config, make_pod, state_dir):
        one = self.context(make_pod(), config)
        driver.add(one)
        (record,) = (state_dir / "results").iterdir()
        assert record.stat().st_mode & 0o777 == 0o600
        record.write_text("{")
        driver.delete(one)
        assert interfaces_in(one.namespace) == ["lo"]
        assert [line for line in rules() if one.pod in line] == []
        output("iptables", "-F", "CNI-FORWARD")  # by address alone, which was in the record
        output("iptables", "-A", "CNI-FORWARD", "-j", "CNI-ADMIN")

    def test_a_repeated_delete_spares_the_next_owner_of_the_address(self, driver, config, make_pod):
        """The plugin firewall deletes by address; by then it may be another pod's."""
        config["plugins"][0]["ipam"]["ranges"] = [[{"subnet": "10.201.0.0/29", "rangeStart": "10.201.0.2",
                                                    "rangeEnd": "10.201.0.2"}]]  # fmt: skip
        first, second = self.context(make_pod(), config), self.context(make_pod(), config)
        result = driver.add(first)
        driver.delete(first)
        assert driver.add(second).addresses == result.addresses
        driver.delete(first)
        driver.check(second)
        driver.delete(second)

    def test_remove_refuses_while_a_pod_is_joined(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        driver.add(one)
        with pytest.raises(NetworkError, match=f'network "chained" is in use by {one.pod}'):
            driver.remove(config)
        assert "kt0" in host_links()
        driver.delete(one)
        assert "kt0" in host_links()
        driver.remove(config)
        assert "kt0" not in host_links()

    def test_remove_spares_what_is_foreign(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        driver.add(one)
        driver.delete(one)
        output("ip", "link", "add", "foreign0", "type", "veth", "peer", "name", "foreign1")
        output("ip", "link", "set", "foreign0", "master", "kt0")
        with pytest.raises(NetworkError, match="its bridge kt0 is in use by foreign0"):
            driver.remove(config)
        output("ip", "link", "del", "foreign0")
        output("iptables", "-A", "CNI-ADMIN", "-s", "192.0.2.1/32", "-j", "DROP")
        driver.remove(config)
        assert "-A CNI-ADMIN -s 192.0.2.1/32 -j DROP" in rules()
        output("iptables", "-F", "CNI-ADMIN")
        driver.remove(config)

    def test_a_failing_plugin_of_the_chain(self, driver, config, make_pod):
        """An add that fails half-way, and its delete."""
        config["plugins"].append({"type": "tuning", "sysctl": {"net.no.such.thing": "1"}})
        one = self.context(make_pod(), config)
        with pytest.raises(NetworkError, match='cannot join network "chained": CNI plugin tuning failed: '):
            driver.add(one)
        assert "eth0" in interfaces_in(one.namespace)
        driver.delete(one)
        assert interfaces_in(one.namespace) == ["lo"]
        self.assert_nothing_left(one.pod, config)


class TestBridgeOfTheDocument(CniContract):
    """The configuration of the Kurma Network Specification: no version (0.1.0), one plugin."""

    @pytest.fixture
    def config(self, tmp_path):
        return {
            "name": "mynet",
            "type": "bridge",
            "bridge": "mynet0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": {
                "type": "host-local",
                "subnet": "10.10.0.0/16",
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": str(tmp_path / "addresses"),
            },
        }

    def test_the_result_has_the_documents_shape(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        result = driver.add(one)
        assert result.raw["ip4"]["gateway"] == "10.10.0.1"
        assert result.addresses[0].address.endswith("/16")
        driver.delete(one)

    @pytest.mark.parametrize("by", ["capability", "arguments"])
    def test_address_and_mac_as_asked_for(self, driver, config, make_pod, by):
        if by == "capability":
            config |= {"cniVersion": "1.0.0", "capabilities": {"ips": True, "mac": True}}
        pod = make_pod()
        one = context(
            pod, config, request=NetworkRequest("mynet", ips=("10.10.7.7",), mac="02:00:00:00:07:07"))  # fmt: skip
        assert [a.address for a in driver.add(one).addresses] == ["10.10.7.7/16"]
        assert "02:00:00:00:07:07" in output("ip", "-n", f"kurma-{pod}", "link", "show", "eth0")
        driver.delete(one)

    def test_ports_need_the_capability(self, driver, config, make_pod):
        assert driver.publishes(config) == "no plugin of it has the capability portMappings"
        with pytest.raises(NetworkError, match="cannot publish ports"):
            driver.add(context(make_pod(), config, ports=(PortMapping(1, 2),)))


class TestPtp(CniContract):
    @pytest.fixture
    def config(self, tmp_path):
        return {
            "name": "pairs",
            "cniVersion": "1.0.0",
            "type": "ptp",
            "ipMasq": True,
            "ipam": {"type": "host-local", "subnet": "10.202.0.0/16", "dataDir": str(tmp_path / "addresses"),
                     "routes": [{"dst": "0.0.0.0/0"}]},
        }  # fmt: skip


class TestMacvlan(CniContract):
    @pytest.fixture(autouse=True)
    def clean_host(self):
        output("ip", "link", "add", "kmaster", "type", "veth", "peer", "name", "kpeer")
        output("ip", "link", "set", "kmaster", "up")
        yield
        output("ip", "link", "del", "kmaster")

    @pytest.fixture
    def config(self, tmp_path):
        return {
            "name": "lan",
            "cniVersion": "0.3.1",
            "type": "macvlan",
            "master": "kmaster",
            "ipam": {"type": "host-local", "subnet": "10.203.0.0/24", "dataDir": str(tmp_path / "addresses")},
        }


class TestStaticAddress(CniContract):
    """The ipam plugin static; two pods cannot share its address on one bridge, so pods come one at a time."""

    @pytest.fixture
    def config(self):
        return {
            "name": "fixed",
            "cniVersion": "0.4.0",
            "type": "bridge",
            "bridge": "kt1",
            "capabilities": {"ips": True},
            "ipam": {"type": "static"},
        }

    def context(self, pod, config):
        address = f"10.204.{int(pod[:2], 16)}.{int(pod[2:4], 16) % 250 + 2}/16"
        return context(pod, config, request=NetworkRequest("fixed", ips=(address,)))


def test_namespaces_are_entered_by_a_thread_alone(tmp_path):
    from kurma_testing.networks import pod_namespace

    own = os.stat("/proc/self/ns/net").st_ino
    pod = str(uuid.uuid4())
    with pod_namespace(pod) as path:
        inside = in_network_namespace(path, lambda: os.stat("/proc/thread-self/ns/net").st_ino)
        assert inside == os.stat(path).st_ino != own
        with pytest.raises(ZeroDivisionError):
            in_network_namespace(path, lambda: 1 // 0)
    assert os.stat("/proc/self/ns/net").st_ino == os.stat("/proc/thread-self/ns/net").st_ino == own
