"""The built-in network: its subnet, its bridge, its record (W8)."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.errors import FormatVersionError, HostError, NetworkError
from kurma_core.networking.builtin import DefaultNetwork, candidates, free_subnet, host_networks, parse_fib_trie

TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 192.0.2.0/24 2 0 2
        |-- 192.0.2.0
           /24 link UNICAST
           /25 link UNICAST
        |-- 192.0.2.2
           /32 host LOCAL
Id 200:
  |-- 10.0.0.0
     /8 universe UNICAST
"""


def subnet_of(config):
    return config["plugins"][0]["ipam"]["ranges"][0][0]["subnet"]


def test_routes_are_read_from_every_table():
    assert parse_fib_trie(TRIE.splitlines()) == [
        "0.0.0.0/0", "192.0.2.0/24", "192.0.2.0/25", "192.0.2.2/32", "10.0.0.0/8"
    ]  # fmt: skip


def test_this_host_has_its_own_loopback():
    assert "127.0.0.0/8" in host_networks()


@given(st.lists(st.sampled_from([str(n) for n in candidates()]), max_size=100), st.integers(0, 2**32))
def test_the_subnet_clashes_with_no_route(taken, first):
    subnet = IPv4Network(free_subnet(["0.0.0.0/0", *taken], first))
    assert subnet.is_private
    assert not any(subnet.overlaps(IPv4Network(one)) for one in taken)


def test_a_wide_route_excludes_all_within_it():
    assert IPv4Network(free_subnet(["10.0.0.0/8"])).overlaps(IPv4Network("172.16.0.0/12"))
    assert IPv4Network(free_subnet(["10.0.0.0/8", "172.16.0.0/12"])).overlaps(IPv4Network("192.168.0.0/16"))


def test_no_subnet_is_a_clear_error():
    with pytest.raises(NetworkError, match="no private subnet is free"):
        free_subnet(["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"])


def test_it_is_chosen_once_and_recorded(tmp_path):
    first = DefaultNetwork(str(tmp_path), routes=["192.0.2.0/24"]).config()
    taken = [subnet_of(first)]
    assert DefaultNetwork(str(tmp_path), routes=taken).config() == first
    record = tmp_path / "networks" / "default.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert json.loads(record.read_text())["subnet"] == taken[0]


def test_it_is_chosen_anew_when_forgotten(tmp_path):
    network = DefaultNetwork(str(tmp_path), routes=[])
    first = subnet_of(network.config())
    assert network.chosen()
    network.forget()
    network.forget()
    assert not network.chosen()
    assert subnet_of(DefaultNetwork(str(tmp_path), routes=[first]).config()) != first


def test_two_state_directories_do_not_meet(tmp_path):
    configs = [DefaultNetwork(str(tmp_path / name), routes=[]).config() for name in ("a", "b")]
    bridges = [config["plugins"][0]["bridge"] for config in configs]
    assert len(set(bridges)) == 2
    assert all(bridge.startswith("kurma-") and len(bridge) <= 15 for bridge in bridges)
    assert len({config["plugins"][0]["ipam"]["dataDir"] for config in configs}) == 2


def test_the_usual_state_directory_has_the_usual_bridge():
    assert DefaultNetwork("/var/lib/kurma", routes=[])._bridge() == "kurma0"


def test_processes_at_once_choose_the_same(tmp_path):
    # Each has its own routes, so that each would choose another subnet.
    networks = [DefaultNetwork(str(tmp_path), routes=[f"10.{96 + n}.0.0/16"]) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        configs = list(pool.map(DefaultNetwork.config, networks))
    assert len({subnet_of(config) for config in configs}) == 1


def test_a_newer_record_is_refused(tmp_path):
    os.mkdir(tmp_path / "networks")
    (tmp_path / "networks" / "default.json").write_text('{"version": 2}')
    with pytest.raises(FormatVersionError):
        DefaultNetwork(str(tmp_path)).config()


def test_a_torn_record_is_named(tmp_path):
    os.mkdir(tmp_path / "networks")
    (tmp_path / "networks" / "default.json").write_text("{")
    with pytest.raises(HostError, match=r"default\.json"):
        DefaultNetwork(str(tmp_path)).config()


def test_a_pod_without_ports_is_spared_the_port_plugin(tmp_path):
    network = DefaultNetwork(str(tmp_path), routes=[])
    types = [[plugin["type"] for plugin in network.config(ports=ports)["plugins"]] for ports in (True, False)]
    assert types == [["bridge", "portmap", "firewall"], ["bridge", "firewall"]]
