"""The networks that are there without configuration: what pods reach, what is left."""

import json
import os
import socket
import subprocess
import tempfile
import uuid
from contextlib import ExitStack
from ipaddress import ip_interface, ip_network

import pytest
from kurma_testing.networks import interfaces_in, pod_namespace

from kurma_core import config as configuration
from kurma_core.api.network_options import parse_net, parse_ports
from kurma_core.errors import NetworkError
from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.models.network import NetworkRequest
from kurma_core.networking.manager import Networking
from kurma_core.networking.network_records import pin_path
from kurma_core.plugins.registry import PluginRegistry

pytestmark = pytest.mark.root


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def links():
    return {line.split(":")[1].strip().partition("@")[0] for line in output("ip", "-o", "link").splitlines()}


def rules():
    """What networks have made, with whichever tool: tables of nftables, and rules among those of iptables."""
    found = []
    for table in output("nft", "list", "tables").splitlines():
        if " kurma" in table:
            found += output("nft", "list", *table.split()).splitlines()
    for family in ("iptables", "ip6tables"):
        lines = output(f"{family}-save").splitlines()
        found += [line for line in lines if line[0] in ":-" and ("kurma" in line.lower() or "CNI" in line)]
    return found


def addresses_of(state_dir, network="default"):
    """Owners by address, as they are on record."""
    directory = state_dir / "networks" / network / "addresses"
    found = [path for path in directory.iterdir() if path.name[0].isdigit() or ":" in path.name]
    return {path.name: os.readlink(path) for path in found}


def plugin_state(tmp_path):
    """Where the plugin of the network default keeps its state."""
    return tmp_path / "state" / "plugins" / "kurma.networks" / "bridge"


class Pod:
    """A pod as its network sees it."""

    def __init__(self, networking, stack):
        self.uuid = str(uuid.uuid4())
        self.namespace = stack.enter_context(pod_namespace(self.uuid))
        assert self.namespace == pin_path("net", self.uuid)
        self._networking = networking
        self.attachments = ()
        stack.callback(self.leave)

    def join(self, nets=None, ports=()):
        requests = [parse_net(net) for net in nets] if nets else None
        mappings = [mapping for text in ports for mapping in parse_ports(text)]
        self.attachments = self._networking.plan(requests, mappings, self.uuid)
        self.attachments = self._networking.add_all(self.attachments, **self.where)
        return self

    def leave(self):
        if self._networking is not None:
            self._networking.delete_all(self.attachments, **self.where)

    @property
    def where(self):
        return {"pod": self.uuid, "pod_name": "p", "namespace": self.namespace}

    @property
    def address(self):
        return str(ip_interface(self.attachments[-1].result.addresses[0].address).ip)

    def inside(self, function):
        return in_network_namespace(self.namespace, function)


def serve(port=80, family=socket.AF_INET):
    return socket.create_server(("", port), family=family, reuse_port=True)


def reaches(server, address, port=80):
    """The address from which a TCP connection of the calling thread arrives at ``server``."""
    server.settimeout(3)
    with socket.create_connection((address, port), timeout=3) as client:
        peer, where = server.accept()
        with peer:
            client.sendall(b"hello")
            assert peer.recv(5) == b"hello"
            return where[0]


@pytest.fixture
def stack(make):
    """Pods leave at the end, before their networks go."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def make(tmp_path):
    """Networking over the installed plugins; one per state directory. Their default networks go at the end."""
    made = []

    def make(name="state", value=None):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(value or {}))
        config = configuration.load(str(file), str(tmp_path / name))
        registry = PluginRegistry(config)
        group = "kurma.networks"
        networking = Networking(
            config,
            lambda name: registry.driver(group, name),
            lambda alias: registry.resolve_alias(group, alias),
            lambda text: None,
            lambda: registry.names(group),
        )
        made.append(networking)
        return networking

    yield make
    for networking in reversed(made):
        networking.remove("default")


@pytest.fixture
def networking(make):
    networking = make()
    yield networking
    networking.remove("default")
    assert rules() == []


@pytest.fixture
def outside(stack):
    """A machine that the host is connected to, and that knows nothing of pods: 198.51.100.2, the host is .1."""
    other = Pod(None, stack)
    output("ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1")
    output("ip", "link", "set", "up1", "netns", os.path.basename(other.namespace))
    output("ip", "address", "add", "198.51.100.1/24", "dev", "up0")
    output("ip", "link", "set", "up0", "up")
    inside = ("ip", "-n", os.path.basename(other.namespace))
    output(*inside, "address", "add", "198.51.100.2/24", "dev", "up1")
    output(*inside, "link", "set", "up1", "up")
    yield other
    output("ip", "link", "del", "up0")


@pytest.mark.vm
def test_pods_reach_each_other_and_the_host(networking, stack, outside):
    one, two = (Pod(networking, stack).join() for _ in range(2))
    assert one.address != two.address
    assert [a.interface for a in one.attachments] == ["lo", "eth0"]
    assert interfaces_in(one.namespace) == ["eth0", "lo"]
    with one.inside(serve) as server, serve(8000) as host, outside.inside(lambda: serve(8001)) as far:
        assert two.inside(lambda: reaches(server, one.address)) == two.address
        assert reaches(server, one.address) == one.attachments[-1].result.addresses[0].gateway
        assert one.inside(lambda: reaches(server, "127.0.0.1")) == "127.0.0.1"
        gateway = two.attachments[-1].result.addresses[0].gateway
        assert two.inside(lambda: reaches(host, gateway, 8000)) == two.address
        assert two.inside(lambda: reaches(host, "198.51.100.1", 8000)) == two.address
        # The machine outside has no way back to the pod: it answers the host.
        assert two.inside(lambda: reaches(far, "198.51.100.2", 8001)) == "198.51.100.1"
    one.leave()
    two.leave()


def test_traffic_passes_where_the_host_drops_what_it_forwards(networking, stack, outside):
    output("iptables", "-P", "FORWARD", "DROP")
    try:
        pod = Pod(networking, stack).join()
        with outside.inside(lambda: serve(8001)) as far:
            assert pod.inside(lambda: reaches(far, "198.51.100.2", 8001)) == "198.51.100.1"
        pod.leave()
    finally:
        output("iptables", "-P", "FORWARD", "ACCEPT")


@pytest.mark.vm
def test_published_ports(networking, stack, outside):
    """W9: from outside, from the host by loopback and by its address, from the pod itself and from others."""
    pod = Pod(networking, stack).join(ports=["8080:80", "127.0.0.1:8081:80"])
    other = Pod(networking, stack).join()
    with pod.inside(serve) as server:
        assert outside.inside(lambda: reaches(server, "198.51.100.1", 8080)) == "198.51.100.2"
        reaches(server, "127.0.0.1", 8080)
        reaches(server, "198.51.100.1", 8080)
        other.inside(lambda: reaches(server, "198.51.100.1", 8080))
        pod.inside(lambda: reaches(server, "198.51.100.1", 8080))
        reaches(server, "127.0.0.1", 8081)
        with pytest.raises(OSError):
            outside.inside(lambda: reaches(server, "198.51.100.1", 8081))
    pod.leave()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", 8080), timeout=3)
    other.leave()


@pytest.mark.vm
def test_nothing_of_a_pod_is_left(networking, stack, tmp_path):
    staying = Pod(networking, stack).join(ports=["8079:80"])
    bridge = staying.attachments[-1].config["bridge"]
    before = links(), rules()
    pod = Pod(networking, stack).join(ports=["8080:80", "8081:81/udp"])
    assert len(links()) == len(before[0]) + 1
    assert len(rules()) > len(before[1])
    pod.leave()
    assert (links(), rules()) == before
    pod.leave()  # repeatable
    assert (links(), rules()) == before
    addresses = addresses_of(plugin_state(tmp_path))
    assert set(addresses.values()) == {f"{staying.uuid}:eth0"}
    assert staying.address in addresses
    with pytest.raises(NetworkError, match=f"in use by {staying.uuid}"):
        networking.remove("default")
    staying.leave()
    assert bridge in links()
    networking.remove("default")
    assert bridge not in links()
    assert os.listdir(plugin_state(tmp_path) / "networks") == []
    networking.remove("default")


@pytest.mark.vm
def test_none_is_loopback_alone(networking, stack):
    pod = Pod(networking, stack).join(["none"])
    assert interfaces_in(pod.namespace) == ["lo"]
    with pod.inside(serve) as server:
        assert pod.inside(lambda: reaches(server, "127.0.0.1")) == "127.0.0.1"
    pod.leave()


def test_an_address_asked_for(networking, stack):
    first = Pod(networking, stack).join()
    subnet = ip_interface(first.attachments[-1].result.addresses[0].address).network
    wanted = str(subnet[777])
    pod = Pod(networking, stack).join([f"default:web0,ip={wanted},mac=02:00:00:00:03:09"])
    assert pod.address == wanted
    assert "02:00:00:00:03:09" in output("ip", "-n", os.path.basename(pod.namespace), "link", "show", "web0")
    third = Pod(networking, stack)
    with pytest.raises(NetworkError, match=f"{wanted}.*"):
        third.join([f"default,ip={wanted}"])
    assert interfaces_in(third.namespace) == ["lo"]
    pod.leave()
    first.leave()


def test_a_failing_second_network_undoes_the_first(make, stack, tmp_path):
    """W4, W3: a bridge without addresses gives none, and that fails the pod."""
    networking = make(value={"container_networks": [
        {"name": "bare", "plugin": "cni", "cniVersion": "0.4.0", "type": "bridge", "bridge": "kbare0"},
    ]})  # fmt: skip
    pod = Pod(networking, stack)
    with pytest.raises(NetworkError, match='network "bare" gave the pod no address'):
        pod.join(["default", "bare"])
    assert interfaces_in(pod.namespace) == ["lo"]
    assert addresses_of(plugin_state(tmp_path)) == {}
    assert [line for line in rules() if pod.uuid in line] == []
    pod.join(["default"])  # the pod may still be joined
    pod.leave()
    for name in ("default", "bare"):
        networking.remove(name)
    assert rules() == []
    assert not [name for name in links() if name.startswith(("kbare", "veth", "kurma"))]


def test_two_networks_at_once(make, stack, tmp_path):
    entry = {
        "name": "second", "plugin": "cni", "cniVersion": "1.0.0", "containerInterface": "up{{num}}", "type": "ptp",
        "ipam": {"type": "host-local", "subnet": "10.233.0.0/24", "dataDir": str(tmp_path / "addresses")},
    }  # fmt: skip
    networking = make(value={"container_networks": [entry]})
    pod = Pod(networking, stack).join(["second", "default"])
    assert interfaces_in(pod.namespace) == ["eth0", "lo", "up0"]
    assert pod.attachments[1].result.addresses[0].address.startswith("10.233.0.")
    pod.leave()
    assert interfaces_in(pod.namespace) == ["lo"]
    networking.remove("default")
    networking.remove("second")


def test_two_state_directories_do_not_meet(make, stack):
    first, second = make("first"), make("second")
    one, two = Pod(first, stack).join(), Pod(second, stack).join()
    subnets = [ip_interface(pod.attachments[-1].result.addresses[0].address).network for pod in (one, two)]
    assert not subnets[0].overlaps(subnets[1])
    bridges = {pod.attachments[-1].config["bridge"] for pod in (one, two)}
    assert len(bridges) == 2
    assert bridges <= links()
    one.leave()
    first.remove("default")
    with two.inside(serve) as server:
        reaches(server, two.address)
    two.leave()
    second.remove("default")
    second.remove("default")
    assert rules() == []


def test_the_subnet_avoids_the_hosts_routes(make, stack, outside):
    output("ip", "route", "add", "10.0.0.0/8", "via", "198.51.100.2")
    networking = make()
    pod = Pod(networking, stack).join()
    subnet = ip_interface(pod.attachments[-1].result.addresses[0].address).network
    assert subnet.is_private
    assert not subnet.overlaps(ip_network("10.0.0.0/8"))
    pod.leave()
    networking.remove("default")


def test_pods_at_once_on_the_default_network(networking, stack):
    from concurrent.futures import ThreadPoolExecutor

    pods = [Pod(networking, stack) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(Pod.join, pods))
    assert len({pod.address for pod in pods}) == 6
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(Pod.leave, pods))
    assert [line for line in rules() if any(pod.uuid in line for pod in pods)] == []
    assert not [name for name in links() if name.startswith(("veth", "kv"))]


def test_an_attachment_read_from_its_record_can_be_left(networking, make, stack):
    from kurma_core.models.network import Attachment

    pod = Pod(networking, stack).join(ports=["8080:80"])
    record = json.loads(json.dumps([one.to_json() for one in pod.attachments]))
    make().delete_all([Attachment.from_json(one) for one in record], **pod.where)
    assert interfaces_in(pod.namespace) == ["lo"]
    assert [line for line in rules() if pod.uuid in line] == []


def test_a_missing_driver_program_is_one_clear_line(make, stack, tmp_path):
    networking = make(value={"container_networks": [{"name": "odd", "plugin": "cni", "type": "no-such-plugin"}]})
    with pytest.raises(NetworkError, match='network "odd" needs the CNI plugin "no-such-plugin"'):
        Pod(networking, stack).join(["odd"])


def test_the_specifications_own_example(make, stack):
    """Kurma Network Specification, Kurma Configuration, but for where addresses are recorded."""
    networking = make(value={"container_networks": [
        {"name": "lo", "aci": "apcera.com/kurma/lo-netplugin"},
        {
            "name": "mynet", "aci": "apcera.com/kurma/cni-netplugin", "containerInterface": "eth0",
            "type": "bridge", "bridge": "mynet0", "isGateway": True, "ipMasq": True,
            "ipam": {"type": "host-local", "subnet": "10.10.0.0/16", "routes": [{"dst": "0.0.0.0/0"}],
                     "dataDir": str(stack.enter_context(tempfile.TemporaryDirectory()))},
        },
    ]})  # fmt: skip
    pod = Pod(networking, stack).join(["mynet"])
    assert [one.driver for one in pod.attachments] == ["lo", "cni"]
    assert pod.attachments[1].result.addresses[0].gateway == "10.10.0.1"
    assert pod.attachments[1].result.raw["ip4"]["ip"].startswith("10.10.")
    pod.leave()
    networking.remove("mynet")
    assert "mynet0" not in links()


def test_networks_of_cnis_own_directory(make, stack, tmp_path):
    directory = tmp_path / "net.d"
    directory.mkdir()
    value = {"cniVersion": "0.4.0", "name": "theirs", "plugins": [{"type": "ptp", "ipam": {
        "type": "host-local", "subnet": "10.234.0.0/24", "dataDir": str(tmp_path / "addresses")}}]}  # fmt: skip
    (directory / "10-theirs.conflist").write_text(json.dumps(value))
    networking = make(value={"plugins": {"networks": {"cni": {"config": {"config_dirs": [str(directory)]}}}}})
    assert ("theirs", "found") in [(info.name, info.source) for info in networking.catalog.all()]
    pod = Pod(networking, stack).join(["theirs"])
    assert pod.address.startswith("10.234.0.")
    pod.leave()


def test_the_first_network_of_cnis_own_directory(make, stack, tmp_path):
    """As on a node of Kubernetes: a directory that comes later, eth0 and lo, ports with an address of the host,
    127.0.0.1 included, and a configuration that is changed before the pod leaves (C6b)."""
    directory = tmp_path / "net.d"
    networking = make(value={
        "plugins": {"networks": {"cni": {"config": {"config_dirs": [str(directory)]}}}},
        "container_networks": [{"name": "node", "plugin": "cni", "conf_dir": str(directory)}],
    })  # fmt: skip
    assert "cni" not in [info.name for info in networking.catalog.all()]
    assert "no usable CNI configuration" in networking.show("node").problem
    with pytest.raises(NetworkError, match=f"no usable CNI configuration in {directory}"):
        Pod(networking, stack).join(["node"])
    directory.mkdir()
    (directory / "05-broken.conf").write_text("{")
    ipam = {"type": "host-local", "dataDir": str(tmp_path / "addresses"), "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": "fd00:235::/64"}], [{"subnet": "10.235.0.0/24"}]]}  # fmt: skip
    bridge = {"type": "bridge", "bridge": "knode0", "isGateway": True, "ipMasq": True, "ipam": ipam}
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    file = directory / "10-node.conflist"
    text = json.dumps({"cniVersion": "1.0.0", "name": "k8s-pod-network", "plugins": [bridge, portmap]})
    file.write_text(text)
    assert (networking.show("node").problem, networking.driver_checks().unusable(["node", "cni"])) == (None, [])
    one = Pod(networking, stack).join(["cni,arg=K8S_POD_NAME=web-0"], ports=["127.0.0.1:8081:80"])
    two = Pod(networking, stack).join(["node"], ports=["8082:80"])
    inside = {link["ifname"]: link for link in json.loads(output("ip", "-n", f"kurma-{one.uuid}", "-j", "link"))}
    assert set(inside) == {"lo", "eth0"}
    assert "UP" in inside["lo"]["flags"]
    addresses = [ip_interface(one.address) for one in one.attachments[-1].result.addresses]
    assert sorted(address.version for address in addresses) == [4, 6]
    for pod, port in ((one, 8081), (two, 8082)):
        server = pod.inside(serve)
        with server:
            reaches(server, "127.0.0.1", port)
    # What joined leaves, whatever the file says by then.
    file.write_text(json.dumps({"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "ptp", "ipam": {
        "type": "host-local", "subnet": "10.236.0.0/24", "dataDir": str(tmp_path / "others")}}]}))  # fmt: skip
    three = Pod(networking, stack).join(["node"])
    assert three.address.startswith("10.236.0.")
    assert networking.driver_checks().leaks({one.uuid, two.uuid, three.uuid}) == []
    file.unlink()
    for pod in (one, two, three):
        pod.leave()
    assert [path.name for path in (tmp_path / "addresses" / "k8s-pod-network").glob("10.*")] == []
    assert networking.driver_checks().leaks(()) == []
    file.write_text(text)
    networking.remove("node")
    assert "knode0" not in links()
    assert rules() == []


def test_host_shares(networking):
    assert networking.plan([NetworkRequest("host")], (), str(uuid.uuid4())) == ()
