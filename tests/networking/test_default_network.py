"""The built-in network: its subnet, its bridge, its record (W8)."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.errors import FormatVersionError, HostError, NetworkError
from kurma_core.networking.default_network import (
    DefaultNetwork,
    candidates,
    free_subnet,
    free_subnet6,
    has_ipv6,
    host_networks,
    host_networks6,
    parse_fib_trie,
    parse_ipv6_route,
)

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
    return config["subnets"][0]


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


def test_halves_of_the_world_stand_for_a_default_route():
    """As VPNs have them; one that is asked for by name within them is still left alone."""
    halves = ["0.0.0.0/1", "128.0.0.0/1"]
    assert free_subnet(halves, 7) == free_subnet([], 7)
    assert not IPv4Network(free_subnet([*halves, "10.0.0.0/8"])).overlaps(IPv4Network("10.0.0.0/8"))
    digits = "0123456789abcdef"
    assert free_subnet6(["::/1", "8000::/1", "c000::/3"], digits) == free_subnet6([], digits)
    assert free_subnet6(["fc00::/7"], digits) is None


@pytest.mark.parametrize("other", ["10.88.0.0/16", "172.17.0.0/16"])
def test_what_other_programs_prefer_comes_after_all_of_its_kind(other):
    assert other not in {free_subnet([], first) for first in range(200)}


def test_no_subnet_is_a_clear_error():
    with pytest.raises(NetworkError, match="no private subnet is free"):
        free_subnet(["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"])


def test_it_is_chosen_once_and_recorded(tmp_path):
    first = DefaultNetwork(str(tmp_path), routes=["192.0.2.0/24"]).served()[1]
    taken = [subnet_of(first)]
    assert DefaultNetwork(str(tmp_path), routes=taken).served()[1] == first
    record = tmp_path / "networks" / "default.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert json.loads(record.read_text())["subnet"] == taken[0]


def test_it_is_chosen_anew_when_forgotten(tmp_path):
    network = DefaultNetwork(str(tmp_path), routes=[])
    first = subnet_of(network.served()[1])
    assert network.chosen()
    network.forget()
    network.forget()
    assert not network.chosen()
    assert subnet_of(DefaultNetwork(str(tmp_path), routes=[first]).served()[1]) != first


def test_two_state_directories_do_not_meet(tmp_path):
    """Where they begin to look is chance; that they end apart, when they come one after the other, is not."""
    one = DefaultNetwork(str(tmp_path / "a"), routes=[]).served()[1]
    others = [DefaultNetwork(str(tmp_path / name), routes=[subnet_of(one)]).served()[1] for name in "bcdefgh"]
    configs = [one, *others]
    bridges = [config["bridge"] for config in configs]
    assert len(set(bridges)) == len(bridges)
    assert all(bridge.startswith("kurma-") and len(bridge) <= 15 for bridge in bridges)
    assert not {subnet for config in others for subnet in config["subnets"]} & set(one["subnets"])
    assert len({subnet_of(config) for config in configs}) > 2


def test_the_usual_state_directory_has_the_usual_bridge():
    assert DefaultNetwork("/var/lib/kurma", routes=[])._bridge() == "kurma0"


def test_processes_at_once_choose_the_same(tmp_path):
    # Each has its own routes, so that each would choose another subnet.
    networks = [DefaultNetwork(str(tmp_path), routes=[f"10.{96 + n}.0.0/16"]) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        configs = [config for _, config in pool.map(DefaultNetwork.served, networks)]
    assert len({subnet_of(config) for config in configs}) == 1


def test_a_newer_record_is_refused(tmp_path):
    os.mkdir(tmp_path / "networks")
    (tmp_path / "networks" / "default.json").write_text('{"version": 3}')
    with pytest.raises(FormatVersionError):
        DefaultNetwork(str(tmp_path)).served()


def test_a_torn_record_is_named(tmp_path):
    os.mkdir(tmp_path / "networks")
    (tmp_path / "networks" / "default.json").write_text("{")
    with pytest.raises(HostError, match=r"default\.json"):
        DefaultNetwork(str(tmp_path)).served()


def test_a_record_that_lacks_something_is_named(tmp_path):
    os.mkdir(tmp_path / "networks")
    (tmp_path / "networks" / "default.json").write_text('{"version": 2, "bridge": "kurma0"}')
    with pytest.raises(HostError, match=r"default\.json: the record\.subnet is missing"):
        DefaultNetwork(str(tmp_path)).served()


# --- IPv6 ------------------------------------------------------------------------------------------------------

ROUTES6 = """\
fd001122334400000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 1 0 1 eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 1 0 1 eth0
"""  # noqa: E501


def test_ipv6_routes_are_read():
    assert parse_ipv6_route(ROUTES6.splitlines()) == ["fd00:1122:3344::/64", "::/0"]


def test_this_host_has_its_own_ipv6_loopback():
    assert not has_ipv6() or "::1/128" in host_networks6()


@given(st.text("0123456789abcdef", min_size=20, max_size=48), st.integers(8, 64))
def test_the_ipv6_subnet_is_the_sites_own_and_clashes_with_no_route(digits, length):
    first = free_subnet6([], digits)
    assert IPv6Network(first).subnet_of(IPv6Network("fd00::/8"))
    assert IPv6Network(first).prefixlen == 64
    wide = IPv6Network(first).supernet(new_prefix=length)
    second = free_subnet6(["::/0", str(wide)], digits)
    assert second is None or not IPv6Network(second).overlaps(wide)


def test_another_ipv6_subnet_is_found_where_the_first_is_taken():
    digits = "0123456789abcdef"
    assert free_subnet6([], digits) == "fd01:2345:6789::/64"
    assert free_subnet6(["fd01:2345:6789::/48"], digits) == "fd12:3456:789a::/64"


def test_where_no_ipv6_subnet_is_free_there_is_ipv4(tmp_path):
    config = DefaultNetwork(str(tmp_path), routes=[], routes6=["fc00::/7"], ipv6=True).served()[1]
    assert len(config["subnets"]) == 1


def test_ipv6_only_where_the_host_has_it(tmp_path):
    both = DefaultNetwork(str(tmp_path), routes=[], routes6=[], ipv6=True).served()[1]["subnets"]
    assert [":" in subnet for subnet in both] == [False, True]
    assert DefaultNetwork(str(tmp_path), routes=[], routes6=[], ipv6=False).served()[1]["subnets"] == both[:1]
