"""Debian's CNI plugins one by one and in chains, by what they do to a pod and to the host."""

import json
import os
import socket
import subprocess
import threading
import time
import uuid
from contextlib import ExitStack, suppress

import pytest
from kurma_net_cni.plugin import kurma_network
from kurma_testing.networks import context, interfaces_in, pod_namespace

from kurma_core.errors import NetworkError
from kurma_core.hookspecs.driver import DriverContext
from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.models.isolator import TrafficLimit
from kurma_core.models.network import PortMapping

pytestmark = pytest.mark.root
BIN_DIRS = ["/opt/cni/bin", "/usr/lib/cni"]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def traces():
    """Links and CNI's rules of the host."""
    links = [line.split(":")[1].strip().partition("@")[0] for line in output("ip", "-o", "link").splitlines()]
    rules = [line for family in ("iptables", "ip6tables") for line in output(f"{family}-save").splitlines()]
    return sorted(links), [line for line in rules if line[0] in ":-" and "CNI" in line]


@pytest.fixture
def make_driver(tmp_path):
    settings = {"bin_dirs": BIN_DIRS, "config_dirs": [], "timeout": 60.0}
    return lambda: kurma_network().create(DriverContext(config=settings, state_dir=str(tmp_path / "cni")))


@pytest.fixture
def driver(make_driver):
    return make_driver()


@pytest.fixture
def joined(driver):
    """Joins pods to a network, and has them leave it: nothing is left of them."""
    with ExitStack() as stack:
        before = traces()
        used = []

        def join(config, interface="eth0", **more):
            pod = str(uuid.uuid4())
            stack.enter_context(pod_namespace(pod))
            one = context(pod, config, interface, **more)
            driver.setup(config)
            driver.status(config)
            used.append(one)
            result = driver.add(one)
            driver.check(one)
            return one, result

        yield join
        for one in used:
            driver.delete(one)
            driver.delete(one)
        for one in used:
            driver.remove(one.attachment.config)
        assert traces() == before


def inside(one, *command):
    return output("ip", "netns", "exec", os.path.basename(one.namespace), *command)


def addresses(tmp_path, subnet):
    return {"type": "host-local", "ranges": [[{"subnet": subnet}]], "dataDir": str(tmp_path / "addresses")}


def bridge(tmp_path, *plugins, version="1.0.0", subnet="10.211.0.0/24"):
    first = {"type": "bridge", "bridge": "kt7", "isGateway": True, "ipam": addresses(tmp_path, subnet)}
    return {"name": "net", "cniVersion": version, "plugins": [first, *plugins]}


# --- one by one ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.2.0", "0.4.0", "1.0.0"])
def test_loopback(joined, version):
    """Before 0.3 its result has no shape for lo's two addresses in which CHECK could follow."""
    one, result = joined({"name": "lo", "cniVersion": version, "type": "loopback"}, "lo")
    assert "127.0.0.1/8" in [a.address for a in result.addresses]
    assert "LOOPBACK,UP" in inside(one, "ip", "link", "show", "lo")


def test_host_device(joined, driver):
    """A link of the host's moves into the pod under the pod's name for it, and comes back."""
    output("ip", "link", "add", "khd0", "type", "veth", "peer", "name", "khd1")
    try:
        ipam = {"type": "static", "addresses": [{"address": "10.212.0.2/24", "gateway": "10.212.0.1"}],
                "routes": [{"dst": "0.0.0.0/0"}]}  # fmt: skip
        config = {"name": "hd", "cniVersion": "1.0.0", "type": "host-device", "device": "khd0", "ipam": ipam}
        one, result = joined(config)
        assert "khd0" not in traces()[0]
        assert "10.212.0.2/24" in inside(one, "ip", "-o", "addr", "show", "dev", "eth0")
        assert result.routes == (("0.0.0.0/0", None),)
        driver.delete(one)
        assert "khd0" in traces()[0]
    finally:
        output("ip", "link", "del", "khd1")


def test_sbr(joined, tmp_path):
    """Source-based routing: what the pod sends from that address goes by a table of its own."""
    config = {**bridge(tmp_path, {"type": "sbr"}), "disableCheck": True}  # bridge misses the routes that sbr moved
    config["plugins"][0]["ipam"]["routes"] = [{"dst": "0.0.0.0/0"}]
    one, result = joined(config)
    address = result.addresses[0].address.partition("/")[0]
    assert f"from {address} lookup 100" in inside(one, "ip", "rule")
    assert "default via 10.211.0.1" in inside(one, "ip", "route", "show", "table", "100")


def test_tuning(joined, tmp_path):
    mac = "02:00:00:00:07:09"
    config = bridge(tmp_path, {"type": "tuning", "sysctl": {"net.core.somaxconn": "77"}, "mtu": 1400, "mac": mac})
    one, _ = joined(config)
    link = inside(one, "ip", "link", "show", "eth0")
    assert "mtu 1400" in link
    assert mac in link
    with open("/proc/sys/net/core/somaxconn", encoding="ascii") as file:
        assert file.read() != "77\n"
    assert inside(one, "cat", "/proc/sys/net/core/somaxconn") == "77\n"


def test_firewall(joined, driver, tmp_path):
    """Accepts what is forwarded for the pod, where the host drops it."""
    one, result = joined(bridge(tmp_path, {"type": "firewall", "backend": "iptables"}))
    address = result.addresses[0].address.partition("/")[0]
    assert f"-A CNI-FORWARD -s {address}/32 -j ACCEPT" in traces()[1]
    driver.delete(one)
    assert not [rule for rule in traces()[1] if address in rule]


@pytest.mark.parametrize("family", ["10.213.0.0/24", "fd00:213::/64"])
def test_ptp(joined, tmp_path, family):
    gateway = "10.213.0.1" if "." in family else "fd00:213::1"
    dns = {"nameservers": ["192.0.2.53"], "search": ["example.org"]}
    config = {"name": "p", "cniVersion": "0.3.1", "type": "ptp", "ipMasq": True, "dns": dns}
    one, result = joined({**config, "ipam": addresses(tmp_path, family)})
    assert (result.nameservers, result.search) == (("192.0.2.53",), ("example.org",))
    assert result.addresses[0].gateway == gateway
    assert inside(one, "busybox", "ping", "-c1", "-W5", gateway)


# --- what the machine here lacks: in the virtual machine -------------------------------------------------------


@pytest.fixture
def master():
    """A link of the host's that plugins build on, and what is at its other end: 10.214.0.1."""
    with pod_namespace(str(uuid.uuid4())) as path:
        there = os.path.basename(path)
        output("ip", "link", "add", "kmaster", "type", "veth", "peer", "name", "kpeer", "netns", there)
        output("ip", "link", "set", "kmaster", "up")
        output("ip", "-n", there, "link", "set", "kpeer", "up")
        yield there
        with suppress(subprocess.CalledProcessError):
            output("ip", "link", "del", "kmaster")


def on_master(kind, tmp_path, **more):
    ipam = addresses(tmp_path, "10.214.0.0/24")
    return {"name": kind, "cniVersion": "1.0.0", "type": kind, "master": "kmaster", "ipam": ipam, **more}


def has(kind):
    """Whether this kernel can make links of that kind; here it cannot, Debian's can."""
    done = subprocess.run(
        ["ip", "link", "add", "ktry0", "link", "kmaster", "type", *kind], capture_output=True, text=True
    )
    if done.returncode == 0:
        output("ip", "link", "del", "ktry0")
    return done.returncode == 0


def refused(joined, config, kernel_has):
    """On a kernel without such links joining fails with one line, and leaves nothing; True: so it was."""
    if kernel_has:
        return False
    assert "KURMA_TEST_VM" not in os.environ, "Debian's kernel has them"
    with pytest.raises(NetworkError, match=f'cannot join network "{config["name"]}"') as caught:
        joined(config)
    assert "\n" not in caught.value.message
    return True


@pytest.mark.vm
@pytest.mark.parametrize("mode", ["bridge", "private"])
def test_macvlan(joined, master, tmp_path, mode):
    output("ip", "-n", master, "addr", "add", "10.214.0.1/24", "dev", "kpeer")
    one, _ = joined(on_master("macvlan", tmp_path, mode=mode))
    assert f"macvlan mode {mode}" in inside(one, "ip", "-d", "link", "show", "eth0")
    assert inside(one, "busybox", "ping", "-c1", "-W5", "10.214.0.1")


@pytest.mark.parametrize("kind", ["macvlan", "host-device"])
def test_leaving_when_the_hosts_link_is_gone(driver, master, tmp_path, kind):
    """The plugins' DEL fails then, before it gives back the address: the pod can be left all the same."""
    config = on_master(kind, tmp_path)
    if kind == "host-device":
        config["device"] = config.pop("master")
    with pod_namespace(str(uuid.uuid4())) as path:
        one = context(path.partition("kurma-")[2], config)
        driver.add(one)
        assert len(taken(tmp_path, kind)) == 1
        output("ip", "-n", master, "link", "del", "kpeer")
        assert interfaces_in(one.namespace) == ["lo"]
        driver.delete(one)
        assert taken(tmp_path, kind) == []
        assert os.listdir(tmp_path / "cni" / "results") == []


@pytest.mark.vm
def test_ipvlan(joined, master, tmp_path):
    output("ip", "-n", master, "addr", "add", "10.214.0.1/24", "dev", "kpeer")
    config = on_master("ipvlan", tmp_path, mode="l2")
    if refused(joined, config, has(["ipvlan"])):
        return
    one, _ = joined(config)
    other, _ = joined(config)
    assert "ipvlan" in inside(one, "ip", "-d", "link", "show", "eth0")
    assert inside(one, "busybox", "ping", "-c1", "-W5", "10.214.0.1")
    assert inside(one, "busybox", "ping", "-c1", "-W5", other_address(other))


def other_address(one):
    (line,) = inside(one, "ip", "-o", "-4", "addr", "show", "dev", "eth0").splitlines()
    return line.split()[3].partition("/")[0]


@pytest.mark.vm
def test_vlan(joined, master, tmp_path):
    """Only what bears the same number reaches the pod."""
    config = on_master("vlan", tmp_path, vlanId=7)
    if refused(joined, config, has(["vlan", "id", "7"])):
        return
    output("ip", "-n", master, "link", "add", "link", "kpeer", "name", "kpeer.7", "type", "vlan", "id", "7")
    output("ip", "-n", master, "link", "set", "kpeer.7", "up")
    one, _ = joined(config)
    ping = ["ip", "netns", "exec", os.path.basename(one.namespace), "busybox", "ping", "-c1", "-W2", "10.214.0.1"]
    output("ip", "-n", master, "addr", "add", "10.214.0.1/24", "dev", "kpeer")
    assert subprocess.run(ping, capture_output=True).returncode != 0
    output("ip", "-n", master, "addr", "flush", "dev", "kpeer")
    output("ip", "-n", master, "addr", "add", "10.214.0.1/24", "dev", "kpeer.7")
    assert subprocess.run(ping, capture_output=True).returncode == 0


@pytest.mark.vm
def test_vrf(joined, master, tmp_path):
    # bridge's CHECK misses the routes that vrf moved
    config = {**bridge(tmp_path, {"type": "vrf", "vrfname": "red"}), "disableCheck": True}
    if refused(joined, config, has(["vrf", "table", "99"])):
        return
    one, _ = joined(config)
    assert "master red" in inside(one, "ip", "link", "show", "eth0")


# --- limits of traffic -----------------------------------------------------------------------------------------

#: Bytes per second: little enough for a busy machine.
RATE = 1_000_000


def speed(one, direction, address, *, both_inside=False):
    """Bytes per second that get through, as their reader counts them."""

    def within(function):
        return in_network_namespace(one.namespace, function)

    with ExitStack() as stack:
        server = stack.enter_context(within(lambda: socket.create_server((address, 0))))
        server.settimeout(5)

        def connect():
            return socket.create_connection(server.getsockname(), timeout=5)

        outer = stack.enter_context(within(connect) if both_inside else connect())
        inner = stack.enter_context(server.accept()[0])
        sender, reader = (inner, outer) if direction == "out" else (outer, inner)
        end = time.monotonic() + 0.8

        def send():
            sender.settimeout(0.2)
            while time.monotonic() < end:
                with suppress(TimeoutError):
                    sender.send(bytes(1 << 16))

        thread = threading.Thread(target=send)
        thread.start()
        reader.settimeout(0.2)
        count, begin = 0, time.monotonic()
        while time.monotonic() < end:
            with suppress(TimeoutError):
                count += len(reader.recv(1 << 20))
        elapsed = time.monotonic() - begin
        thread.join()
        return count / elapsed


@pytest.mark.full
@pytest.mark.vm
def test_bandwidth_bites_in_both_directions(joined, driver, tmp_path):
    """The limits of the attachment arrive in the kernel, and leaves loopback alone."""
    config = bridge(tmp_path, {"type": "bandwidth", "capabilities": {"bandwidth": True}})
    assert driver.limits(config)
    one, result = joined(config, limits=(TrafficLimit("in", RATE), TrafficLimit("out", 2 * RATE)))
    address = result.addresses[0].address.partition("/")[0]
    assert RATE / 4 < speed(one, "in", address) < RATE * 1.4
    assert 2 * RATE / 4 < speed(one, "out", address) < 2 * RATE * 1.4
    output("ip", "-n", os.path.basename(one.namespace), "link", "set", "lo", "up")
    assert speed(one, "out", "127.0.0.1", both_inside=True) > 20 * RATE
    free, result = joined(config)
    assert speed(free, "in", result.addresses[0].address.partition("/")[0]) > 20 * RATE


@pytest.mark.full
def test_bandwidth_of_one_direction(joined, driver, tmp_path):
    config = bridge(tmp_path, {"type": "bandwidth", "capabilities": {"bandwidth": True}})
    own = bridge(tmp_path, {"type": "bandwidth", "capabilities": {"bandwidth": True}, "egressRate": 1})
    assert not driver.limits(own)  # those win over the pod's: the pod's are the core's then
    one, result = joined(config, limits=(TrafficLimit("in", RATE),))
    address = result.addresses[0].address.partition("/")[0]
    assert RATE / 4 < speed(one, "in", address) < RATE * 1.4
    assert speed(one, "out", address) > 20 * RATE


@pytest.mark.full
@pytest.mark.parametrize("families", [1, 2])
def test_check_of_ports(joined, driver, chain, families):
    """portmap's own CHECK fails wherever there is ip6tables; what it made is seen, and seen to be missing."""
    if families == 2:
        chain["plugins"][0]["ipam"]["ranges"].append([{"subnet": "fd00:211::/64"}])
    ports = (PortMapping(20014, 80), PortMapping(20015, 53, "udp", "127.0.0.1"))
    one, _ = joined(chain, ports=ports)
    (rule,) = [
        line for line in output("iptables-save", "-t", "nat").splitlines() if "DNAT --to" in line and "udp" in line
    ]
    output("iptables", "-t", "nat", *rule.replace("-A ", "-D ", 1).split())
    with pytest.raises(NetworkError, match='cannot check network "net": CNI plugin portmap failed'):
        driver.check(one)


# --- what is left of pods --------------------------------------------------------------------------------------


@pytest.fixture
def chain(tmp_path):
    more = [{"type": "portmap", "capabilities": {"portMappings": True}}, {"type": "firewall"}]
    config = bridge(tmp_path, *more, version="0.4.0")
    config["plugins"][0]["ipMasq"] = True
    return config


def taken(tmp_path, network="net"):
    directory = tmp_path / "addresses" / network
    return sorted(path.name for path in directory.iterdir() if path.name[0].isdigit())


def test_pods_that_are_gone(driver, make_driver, chain, tmp_path):
    """Nobody has left for them: reservation, chains and cable are told, and freed; a living pod and a stranger
    keep theirs."""
    before = traces()
    with pod_namespace(str(uuid.uuid4())) as gone, pod_namespace(str(uuid.uuid4())) as living:
        pods = {path: context(path.partition("kurma-")[2], chain, ports=(PortMapping(port, 80),))
                for path, port in ((gone, 20011), (living, 20012))}  # fmt: skip
        for one in pods.values():
            driver.add(one)
        stranger = str(uuid.uuid4())
        (tmp_path / "addresses" / "net" / "10.211.0.200").write_text(f"{stranger}\r\neth0")
        for arguments in (["-N", "CNI-stranger"], ["-A", "POSTROUTING", "-s", "10.211.0.200", "-m", "comment",
                          "--comment", f'name: "net" id: "{stranger}"', "-j", "CNI-stranger"]):  # fmt: skip
            output("iptables", "-t", "nat", *arguments)
        alive = [pods[living].pod]
        other = make_driver()
        assert other.leaks([chain], [one.pod for one in pods.values()]) == []
        leaks = other.leaks([], alive)
        assert {leak.pod for leak in leaks} == {pods[gone].pod}
        kinds = sorted(leak.kind for leak in leaks)
        assert kinds == ["address", "chain", "chain", "interface", "record"], leaks
        assert list(other.repair([], alive)) == []
        assert len(taken(tmp_path)) == 2
        assert [rule for rule in traces()[1] if pods[gone].pod in rule or "20011" in rule] == []
        assert len([name for name in traces()[0] if name.startswith("veth")]) == 1
        driver.check(pods[living])
        assert [rule for rule in traces()[1] if stranger in rule]
        driver.delete(pods[living])
    output("iptables", "-t", "nat", "-D", "POSTROUTING", "-s", "10.211.0.200", "-m", "comment", "--comment",
           f'name: "net" id: "{stranger}"', "-j", "CNI-stranger")  # fmt: skip
    output("iptables", "-t", "nat", "-X", "CNI-stranger")
    assert taken(tmp_path) == ["10.211.0.200"]
    (tmp_path / "addresses" / "net" / "10.211.0.200").unlink()
    driver.remove(chain)
    assert traces() == before


def test_what_no_record_tells_of(driver, chain, tmp_path):
    """Its record is lost, and the pod is there: its address and chains are nobody's on that network."""
    before = traces()
    with pod_namespace(str(uuid.uuid4())) as path:
        one = context(path.partition("kurma-")[2], chain, ports=(PortMapping(20013, 80),))
        driver.add(one)
        (record,) = (tmp_path / "cni" / "results").iterdir()
        kept = record.read_bytes()
        record.unlink()
        assert driver.leaks([chain], ()) == []  # nothing says that it is ours
        leaks = driver.leaks([chain], [one.pod])
        assert sorted(leak.kind for leak in leaks) == ["address", "chain", "chain"]
        assert {leak.why for leak in leaks} == {"its pod is not joined to that network"}
        assert list(driver.repair([chain], [one.pod])) == []
        assert taken(tmp_path) == []
        assert [rule for rule in traces()[1] if one.pod in rule] == []
        record.write_bytes(kept)
        driver.delete(one)
    driver.remove(chain)
    assert traces() == before
    assert json.loads(kept)["attachment"]["network"] == "net"


# --- addresses by DHCP -----------------------------------------------------------------------------------------


def dhcp():
    return {"name": "d", "cniVersion": "1.0.0", "type": "bridge", "bridge": "kt8", "ipam": {"type": "dhcp"}}


def test_dhcp_needs_its_daemon_and_says_so(driver):
    with pod_namespace(str(uuid.uuid4())) as path:
        one = context(path.partition("kurma-")[2], dhcp())
        with pytest.raises(NetworkError, match=r"error dialing DHCP daemon.* no such file") as caught:
            driver.add(one)
        hint = "addresses by DHCP need CNI's own daemon on this host: `/usr/lib/cni/dhcp daemon`"
        assert caught.value.hint == hint
        driver.delete(one)
    driver.remove(dhcp())


@pytest.fixture
def dhcp_server(tmp_path):
    """CNI's daemon, and on the network's bridge a machine that gives addresses."""
    with pod_namespace(str(uuid.uuid4())) as path, ExitStack() as stack:
        there = os.path.basename(path)
        output("ip", "link", "add", "kt8", "type", "bridge")
        output("ip", "link", "set", "kt8", "up")
        stack.callback(output, "ip", "link", "del", "kt8")
        output("ip", "link", "add", "kserver", "type", "veth", "peer", "name", "ks", "netns", there)
        stack.callback(output, "ip", "link", "del", "kserver")
        output("ip", "link", "set", "kserver", "master", "kt8", "up")
        output("ip", "-n", there, "addr", "add", "10.215.0.1/24", "dev", "ks")
        output("ip", "-n", there, "link", "set", "ks", "up")
        (tmp_path / "leases").touch()
        (tmp_path / "udhcpd.conf").write_text(
            f"start 10.215.0.50\nend 10.215.0.60\ninterface ks\nlease_file {tmp_path}/leases\n"
            f"pidfile {tmp_path}/pid\noption subnet 255.255.255.0\noption router 10.215.0.1\n"
        )
        server = ["ip", "netns", "exec", there, "busybox", "udhcpd", "-f", str(tmp_path / "udhcpd.conf")]
        for command in (server, ["/usr/lib/cni/dhcp", "daemon"]):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        for _ in range(250):
            if os.path.exists("/run/cni/dhcp.sock"):
                break
            time.sleep(0.02)
        yield
    os.unlink("/run/cni/dhcp.sock")


@pytest.mark.full
def test_dhcp_with_its_daemon(driver, dhcp_server):
    with pod_namespace(str(uuid.uuid4())) as path:
        one = context(path.partition("kurma-")[2], dhcp())
        (address,) = driver.add(one).addresses
        assert address.address.startswith("10.215.0.")
        assert address.address.endswith("/24")
        assert address.gateway == "10.215.0.1"
        assert address.address in inside(one, "ip", "-o", "addr", "show", "dev", "eth0")
        driver.delete(one)
        assert interfaces_in(one.namespace) == ["lo"]
