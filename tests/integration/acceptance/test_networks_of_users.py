"""Networks by command: reaching, publishing, configuring, and nothing left of a pod (W1, W7, W8, W9, W12)."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

import pytest

from tests.kit.command import Kurma, one_line
from tests.kit.registry import free_port

pytestmark = pytest.mark.root
Start = Callable[..., subprocess.Popen[str]]

SERVE = "cd /srv/www && exec httpd -f -p 80"
PAGE = "hello from a pod\n"


def address_of(kurma: Kurma, pod: str, network: str = "default") -> str:
    (found,) = [one for one in kurma.pod(pod)["networks"] if one["network"] == network]
    return str(ip_interface(found["addresses"][0]).ip)


def fetch(kurma: Kurma, url: str, *options: str, net: str = "default") -> str:
    """What a pod of its own reads there."""
    done = kurma.run(f"wget -q -O - {url}", *options, net=net)
    assert done.returncode == 0, done.stderr
    return done.stdout


def get(address: str, port: int = 80) -> str:
    """What the host reads there."""
    with closing(socket.create_connection((address, port), timeout=5)) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with connection.makefile("rb") as answer:
            return answer.read().decode().partition("\r\n\r\n")[2]


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def of_pods() -> set[str]:
    """Cables, rules and chains of pods, on this host."""
    links = {
        f"link {line.split()[1]}"
        for line in output("ip", "-o", "link").splitlines()
        if "veth" in line or line.split()[1].startswith("kv")
    }
    rules = set()
    for table in output("nft", "list", "tables").splitlines():
        if " kurma-" in table:
            # Rules are the network's; what the maps hold are pods' ports.
            text = output("nft", "list", *table.split())
            rules |= {f"{table} {uuid}" for uuid in re.findall(UUID, text)}
    for family in ("iptables", "ip6tables"):
        for line in output(f"{family}-save").splitlines():
            if line.startswith(("-A CNI-", ":CNI-")) or "comment" in line or "dport" in line:
                rules.add(f"{family} {line.split(' [')[0]}")
    return links | rules


UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: What CNI's plugins share among all pods, and keep (FORWARD's jump is theirs as well).
BASE = ("CNI-FORWARD", "CNI-ADMIN", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ")


@pytest.fixture
def nothing_of_pods(kurma: Kurma) -> Iterator[None]:
    yield
    for pod in kurma.json("list"):
        kurma.out("rm", "--force", pod["uuid"])
    left = {one for one in of_pods() if not any(base in one for base in BASE)}
    assert left == set()
    assert "10.89" not in "".join(of_pods())
    addresses = kurma.state / "plugins" / "kurma.networks" / "bridge" / "networks" / "default" / "addresses"
    assert not [file.name for file in addresses.glob("*") if _is_address(file.name)]


def _is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


@pytest.mark.usefixtures("nothing_of_pods")
class TestDefault:
    def test_pods_reach_each_other_and_the_host(self, kurma: Kurma, background: Start) -> None:
        background("server", SERVE, net=None)
        address = address_of(kurma, "server")
        assert fetch(kurma, f"http://{address}/") == PAGE
        assert get(address) == PAGE
        gateway = kurma.pod("server")["networks"][-1]["result"]["addresses"][0]["gateway"]
        with closing(socket.create_server((gateway, 0))) as host:
            seen: list[str] = []

            def answer() -> None:
                connection, peer = host.accept()
                seen.append(peer[0])
                request = b""
                while b"\r\n\r\n" not in request:  # closing over unread bytes would reset the connection
                    request += connection.recv(4096)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nfrom the host\n")
                connection.close()

            thread = threading.Thread(target=answer)
            thread.start()
            said = fetch(kurma, f"http://{gateway}:{host.getsockname()[1]}/")
            thread.join(5)
        assert said == "from the host\n"
        assert ip_address(seen[0]) in ip_network(kurma.json("network", "show", "default")["config"]["subnets"][0])

    def test_a_published_port(self, kurma: Kurma, background: Start) -> None:
        port = free_port()
        background("web", SERVE, "-p", f"{port}:80", net="default")
        gateway = kurma.pod("web")["networks"][-1]["result"]["addresses"][0]["gateway"]
        assert get("127.0.0.1", port) == PAGE
        assert get(gateway, port) == PAGE
        assert fetch(kurma, f"http://{gateway}:{port}/") == PAGE
        kurma.out("stop", "web")
        with pytest.raises(OSError, match="refused"):
            get("127.0.0.1", port)

    @pytest.mark.full
    def test_a_port_that_is_taken(self, kurma: Kurma, background: Start) -> None:
        """W9: the second is refused before anything is made, and told who has it."""
        port = free_port()
        background("first", SERVE, "-p", f"{port}:80", net="default")
        before, rules = kurma.traces(), of_pods()
        for option in (f"{port}:80", f"127.0.0.1:{port}:8080", f"{port - 1}-{port}:1-2"):
            one_line(kurma.run("true", "-p", option, net="default"), f"{port}/tcp", "pod first", hint="kurma stop")
        assert (kurma.traces(), of_pods()) == (before, rules)
        assert kurma.run("exit 3", "-p", f"{port}:80/udp", net="default").returncode == 3
        one_line(kurma.run("true", "-p", "81:80", "-p", "81:82", net="default"), "81/tcp", "twice")
        assert get("127.0.0.1", port) == PAGE
        later = ("--name", "later", "-p", f"{port}:80", kurma.image, "--", "-c", "exit 4")
        one_line(kurma("prepare", *later), "first")
        kurma.out("stop", "first")
        kurma.out("prepare", *later)
        second = background("second", SERVE, "-p", f"{port}:80", net="default")
        one_line(kurma("run-prepared", "later"), "pod second")
        one_line(kurma("start", "first"), "pod second")
        assert kurma.pod("later")["state"] == "prepared"
        kurma.out("stop", "second")
        second.communicate()
        assert kurma("run-prepared", "later").returncode == 4

    def test_a_port_that_no_network_can_publish(self, kurma: Kurma) -> None:
        refused = kurma.run("true", "-p", "8080:80", net="none")
        one_line(refused, "cannot publish ports: the pod joins no network", hint="default")

    def test_networks_and_ports_of_a_pods_file(self, kurma: Kurma, tmp_path: Path) -> None:
        """P4, W8, W9: ports by name, with their count, or by number; the command's come before them, or beside."""
        file = tmp_path / "pod.json"
        script = "cd /srv/www && httpd -p 80 && httpd -p 81 && echo ready; exec sleep 1000"
        app = {"exec": ["/bin/sh", "-c", script], "user": "0", "group": "0"}
        many = {"name": "www", "protocol": "tcp", "port": 80, "count": 2}
        inside = {"name": "here", "protocol": "tcp", "port": 81}
        pod = {
            "apps": [{"name": "web", "image": kurma.image, "app": {**app, "ports": [many]}}],
            "networks": ["default:web0"],
            "ports": [
                {"name": "www", "hostPort": 18090},
                {"name": "here", "hostPort": 18095, "podPort": inside, "hostIP": "127.0.0.1"},
            ],
        }
        file.write_text(json.dumps(pod))
        run = kurma.popen("run", "--name", "whole", "--pod", str(file), "-p", "18097:80")
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        (network,) = [one for one in kurma.pod("whole")["networks"] if one["network"] != "lo"]
        assert (network["network"], network["interface"]) == ("default", "web0")
        gateway = network["result"]["addresses"][0]["gateway"]
        for host in ("127.0.0.1", gateway):
            assert [get(host, port) for port in (18090, 18091, 18097)] == [PAGE] * 3
        assert get("127.0.0.1", 18095) == PAGE
        with pytest.raises(OSError, match="refused"):
            get(gateway, 18095)
        with pytest.raises(OSError, match="refused"):
            get("127.0.0.1", 18092)
        one_line(kurma.run("true", "-p", "18091:1", net="default"), "18091/tcp", "pod whole")
        one_line(kurma("run", "--pod", str(file), "--net", "none"), "cannot publish ports")
        kurma.out("stop", "whole")
        run.communicate(timeout=20)
        file.write_text(json.dumps({**pod, "ports": []}))
        done = kurma("prepare", "--name", "bare", "--pod", str(file), "--net", "none")
        assert done.returncode == 0, done.stderr
        assert [one["network"] for one in kurma.pod("bare")["networks"]] == ["lo"]

    def test_an_address_that_was_asked_for(self, kurma: Kurma, background: Start) -> None:
        background("fixed", net="default")
        subnet = ip_network(ip_interface(kurma.pod("fixed")["networks"][-1]["addresses"][0]).network)
        wanted = str(subnet[200])
        done = kurma.run(
            "ip -o -4 addr show eth7; cat /sys/class/net/eth7/address",
            net=f"default:eth7,ip={wanted},mac=02:00:00:00:00:07",
        )
        assert wanted in done.stdout, done.stderr
        assert "02:00:00:00:00:07" in done.stdout
        taken = address_of(kurma, "fixed")
        one_line(kurma.run("true", net=f"default,ip={taken}"), taken)


class TestWithoutABridge:
    def test_none_has_loopback_alone(self, kurma: Kurma) -> None:
        done = kurma.run("ls /sys/class/net; ip -o addr; ping -c1 -w2 127.0.0.1 >/dev/null && echo up", net="none")
        lines = done.stdout.splitlines()
        assert lines[0] == "lo", done.stderr
        assert any("127.0.0.1/8" in line for line in lines)
        assert any("::1/128" in line for line in lines)
        assert lines[-1] == "up"
        # Its own two, and where the metadata service is (M1).
        assert len([line for line in lines if " lo " in line]) == 3
        assert any("169.254.169.255/32" in line for line in lines)

    def test_host_has_all_that_the_host_has(self, kurma: Kurma) -> None:
        subprocess.run(["ip", "link", "add", "kurmatest0", "type", "bridge"], check=True)
        try:
            done = kurma.run("ip -o link show kurmatest0", net="host")
        finally:
            subprocess.run(["ip", "link", "del", "kurmatest0"], check=True)
        assert "kurmatest0" in done.stdout, done.stderr
        assert done.returncode == 0


EXAMPLE = {
    "container_networks": [
        {"name": "lo", "aci": "apcera.com/kurma/lo-netplugin"},
        {
            "name": "mynet",
            "aci": "apcera.com/kurma/cni-netplugin",
            "containerInterface": "eth0",
            "type": "bridge",
            "bridge": "mynet0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": {"type": "host-local", "subnet": "10.10.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]},
        },
    ]
}


class TestConfigured:
    """Kurma Network Specification, Kurma Configuration: its example, as it stands there."""

    @pytest.fixture
    def mine(self, kurma: Kurma, tmp_path: Path) -> Iterator[Kurma]:
        chain = {
            "cniVersion": "1.0.0",
            "name": "chained",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "chained0",
                    "isGateway": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": "10.77.0.0/24"}]],
                        "dataDir": str(tmp_path / "addresses"),
                    },
                },
                {"type": "tuning", "sysctl": {"net.ipv4.ip_default_ttl": "77"}},
            ],
        }
        (tmp_path / "net.d").mkdir()
        (tmp_path / "net.d" / "10-chained.conflist").write_text(json.dumps(chain))
        cni = {"networks": {"cni": {"config": {"config_dirs": [str(tmp_path / "net.d")]}}}}
        found = kurma.configured(tmp_path / "mine.json", **EXAMPLE, plugins=cni)
        yield found
        for pod in found.json("list"):
            found.out("rm", "--force", pod["uuid"])
        for name in ("mynet", "chained"):
            found.out("network", "rm", name)
        links = output("ip", "-o", "link")
        assert "mynet0" not in links
        assert "chained0" not in links

    def test_the_documents_example(self, mine: Kurma, background: Start) -> None:
        background("one", SERVE, net="mynet", by=mine)
        address = address_of(mine, "one", "mynet")
        assert ip_address(address) in ip_network("10.10.0.0/16")
        assert fetch(mine, f"http://{address}/", net="mynet") == PAGE
        assert get(address) == PAGE
        one_line(mine("network", "rm", "mynet"), "mynet", "one")
        mine.out("rm", "--force", "one")
        assert not list(Path("/var/lib/cni/networks/mynet").glob("10.10.*"))

    def test_a_chain_of_the_hosts_own_configuration(self, mine: Kurma) -> None:
        done = mine.run("ip -o -4 addr show eth0; cat /proc/sys/net/ipv4/ip_default_ttl", net="chained")
        assert "10.77.0." in done.stdout, done.stderr
        assert done.stdout.splitlines()[-1] == "77"

    def test_two_networks_at_once(self, mine: Kurma) -> None:
        words = ("--net", "chained", "--net", "mynet:first")
        done = mine("run", "--rm", *words, mine.image, "--", "-c", "ip -o -4 addr | awk '{print $2, $4}'")
        names = dict(line.split() for line in done.stdout.splitlines())
        assert set(names) == {"lo", "eth0", "first"}, done.stderr
        assert names["eth0"].startswith("10.77.0.")
        assert names["first"].startswith("10.10.")

    def test_list_and_show(self, mine: Kurma) -> None:
        rows = {row.split()[0]: row.split()[1:] for row in mine.out("network", "list", "--no-legend").splitlines()}
        assert rows["mynet"][:2] == ["cni", "eth0"]
        assert rows["chained"][0] == "cni"
        assert {"lo", "default", "host", "none"} <= set(rows)
        shown = mine.json("network", "show", "mynet")
        assert (shown["source"], shown["default"]) == ("configured", False)
        assert shown["config"]["ipam"]["subnet"] == "10.10.0.0/16"
        assert mine.json("network", "show", "chained")["source"] == "found"
        one_line(mine("network", "show", "nowhere"), "nowhere", hint="mynet")
        one_line(mine("network", "rm", "host"), "host")
