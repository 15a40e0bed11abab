"""The node's network: CNI's directory, real plugins, and NetworkReady (C3, C5, C6b, C7a)."""

import json
import socket
import subprocess
import sys

import grpc
import pytest
from kurma_cri.network import network_request
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import RpcError

from plugins.cri.tests.conftest import refused
from tests.kit.waiting import until

#: A plugin at the end of a chain: keeps the variables of each verb in a file.
RECORDER = f"""#!{sys.executable}
import json, os, sys, time
document = json.load(sys.stdin)
verb = os.environ["CNI_COMMAND"]
if verb == "VERSION":
    print('{{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}}')
    sys.exit()
with open(__file__ + "." + verb, "w") as file:
    json.dump({{"args": os.environ["CNI_ARGS"], "interface": os.environ["CNI_IFNAME"], **document}}, file)
while verb == "ADD" and os.path.exists(__file__ + ".hang"):
    time.sleep(0.02)
if verb == "ADD":
    print(json.dumps(document["prevResult"]))
"""


class Cni:
    """CNI's directory, and its programs beside a recorder."""

    def __init__(self, directory):
        self.net_d, self.bin, self.addresses = directory / "net.d", directory / "bin", directory / "addresses"
        self.bin.mkdir()
        (self.bin / "recorder").write_text(RECORDER)
        (self.bin / "recorder").chmod(0o755)

    def write(self, name="10-node.conflist", number=0, **more):
        self.net_d.mkdir(exist_ok=True)
        subnets = (f"fd00:24{number}::/64", f"10.24{number}.0.0/24")
        ipam = {"type": "host-local", "dataDir": str(self.addresses), "routes": [{"dst": "0.0.0.0/0"}],
                "ranges": [[{"subnet": subnet}] for subnet in subnets]}  # fmt: skip
        plugins = [
            {"type": "bridge", "bridge": f"kcri{number}", "isGateway": True, "ipMasq": True, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": True}},
            {"type": "recorder"},
        ]
        value = {"cniVersion": "1.0.0", "name": f"node{number}", "plugins": plugins, **more}
        (self.net_d / name).write_text(json.dumps(value))

    def told(self, verb):
        return json.loads((self.bin / f"recorder.{verb}").read_text())

    def reserved(self):
        return sorted(path.name for path in self.addresses.rglob("10.*"))


@pytest.fixture
def cni(tmp_path):
    found = Cni(tmp_path)
    yield found
    for line in subprocess.run(
        ["ip", "-o", "link"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        name = line.split(": ")[1].partition("@")[0]
        if name.startswith("kcri"):
            subprocess.run(["ip", "link", "del", name], check=True)
    # What CNI's plugins keep for all networks of the host.
    for tool in ("iptables", "ip6tables"):
        saved = subprocess.run([f"{tool}-save"], capture_output=True, text=True, check=True).stdout
        kept = "\n".join(line for line in saved.splitlines() if "CNI-" not in line)
        subprocess.run([f"{tool}-restore"], input=f"{kept}\n", text=True, check=True)


@pytest.fixture
def cni_node(make_node, make_house, cni, tmp_path):
    def make(timeout=2.0, **options):
        section = {"socket": f"{tmp_path}/cri.sock", **options}
        driver = {"bin_dirs": [str(cni.bin), "/usr/lib/cni"], "config_dirs": [str(cni.net_d)], "timeout": timeout}
        plugins = {"services": {"cri": {"config": section}}, "networks": {"cni": {"config": driver}}}
        return make_node(make_house({"stop_timeout": 3, "plugins": plugins}))

    return make


def network_ready(node):
    conditions = node.runtime.Status(cri.StatusRequest()).status.conditions
    assert [one.type for one in conditions] == ["RuntimeReady", "NetworkReady"]
    return conditions[1]


def serves(node, sandbox, port, address="127.0.0.1"):
    """Whether a port of an address of the host's reaches a server in the sandbox."""
    (pod,) = [pod for pod in node.house.client.pods() if pod.name.endswith(sandbox)]
    command = [
        "nsenter",
        f"--net={pod.network_namespace}",
        "busybox",
        "nc",
        "-l",
        "-p",
        "80",
        "-e",
        "echo",
        "here",
    ]
    with subprocess.Popen(command) as server:
        try:
            until(lambda: _answer(port, address) == b"here\n", f"port {port} of {address} answers")
        finally:
            server.kill()


def _answer(port, address="127.0.0.1"):
    try:
        with socket.create_connection((address, port), timeout=3) as client:
            return client.recv(100)
    except OSError:
        return b""


@pytest.mark.root
def test_a_sandbox_in_the_nodes_network(cni_node, cni):
    """A call without a usable network fails with a code, and works once there is one (C21)."""
    node = cni_node()
    condition = network_ready(node)
    assert (condition.status, condition.reason) == (False, "NetworkPluginNotReady")
    assert "no configuration" in condition.message
    node.run()  # with the host's network
    with refused(grpc.StatusCode.INTERNAL, 'no network "cni"'):
        node.run(node.sandbox_config(host_network=False))
    cni.net_d.mkdir()
    (cni.net_d / "05-broken.conf").write_text("{")
    assert "05-broken.conf is not a usable CNI configuration" in network_ready(node).message
    cni.write()
    assert network_ready(node).status

    ports = [
        cri.PortMapping(container_port=80, host_port=8085),
        cri.PortMapping(container_port=81),
        cri.PortMapping(container_port=80, host_port=8086, host_ip="127.0.0.5"),
        cri.PortMapping(container_port=82, host_port=8087, protocol=cri.SCTP),
    ]
    sandbox = node.run(node.sandbox_config("web", host_network=False, port_mappings=ports))
    told = cni.told("ADD")
    uid = node.sandbox_status(sandbox).metadata.uid
    assert told["args"] == (
        f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={sandbox};"
        f"K8S_POD_UID={uid}"
    )
    assert told["interface"] == "eth0"
    network = node.sandbox_status(sandbox).network
    assert network.ip.startswith("10.240.0.")
    assert [one.ip.partition("::")[0] for one in network.additional_ips] == ["fd00:240"]
    serves(node, sandbox, 8085)
    # A port with an address of the host's is of that address alone.
    serves(node, sandbox, 8086, "127.0.0.5")
    assert _answer(8086) == b""
    rules = subprocess.run(["iptables", "-t", "nat", "-S"], capture_output=True, text=True, check=True).stdout
    (rule,) = [line for line in rules.splitlines() if "--dport 8087 -j DNAT" in line]
    assert "-p sctp" in rule
    assert f"{network.ip}:82" in rule
    look = node.started(sandbox, "sh", "-c", "ip -o addr show lo; ip -o addr show eth0")
    assert node.wait_exited(look).exit_code == 0
    text = "\n".join(node.output(look))
    assert "127.0.0.1/8" in text, "lo is up"
    assert f"inet {network.ip}/" in text
    # In the host's network, ports are not published: they may be another sandbox's.
    config = node.sandbox_config(port_mappings=ports)
    assert node.sandbox_status(node.run(config)).network.ip == ""

    # Another network comes first now. The sandbox leaves the one that it joined.
    cni.write("01-other.conflist", 1)
    (cni.net_d / "10-node.conflist").unlink()
    other = node.run(node.sandbox_config(host_network=False))
    assert node.sandbox_status(other).network.ip.startswith("10.241.0.")
    node.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    assert cni.told("DEL")["name"] == "node0"
    assert [name for name in cni.reserved() if name.startswith("10.240.")] == []
    assert node.sandbox_status(sandbox).network.ip == ""


@pytest.mark.root
@pytest.mark.full
def test_a_plugin_that_hangs_fails_one_call(cni_node, cni):
    """C21: the call fails in its time, the next one works, and nothing of the first is left."""
    cni.write()
    node = cni_node()
    hang = cni.bin / "recorder.hang"
    hang.touch()
    config = node.sandbox_config(host_network=False)
    with refused(grpc.StatusCode.INTERNAL, "recorder was killed"):
        node.run(config)
    assert cni.reserved() == []
    hang.unlink()
    sandbox = node.run(config)
    assert [item.id for item in node.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items] == [sandbox]
    (cni.bin / "recorder").rename(cni.bin / "away")
    assert 'needs the CNI plugin "recorder"' in network_ready(node).message
    (cni.bin / "away").rename(cni.bin / "recorder")
    assert network_ready(node).status


def test_metadata_that_cni_cannot_pass_on():
    with pytest.raises(RpcError, match="K8S_POD_NAME: expected printable text without ; and ="):
        network_request("cni", "0" * 64, cri.PodSandboxMetadata(name="a;IP=10.0.0.1", namespace="b", uid="c"))
