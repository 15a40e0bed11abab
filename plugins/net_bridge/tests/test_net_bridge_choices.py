"""What a bridge network chooses where its configuration leaves it open, and the record of it (W8)."""

import json
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kurma_net_bridge.choices import (
    USUAL,
    Choices,
    candidates,
    free_subnet,
    free_subnet6,
    has_ipv6,
    host_networks,
    host_networks6,
    parse_fib_trie,
    parse_ipv6_route,
)
from kurma_net_bridge.plugin import kurma_network
from kurma_net_bridge.records import NetworkRecords
from kurma_net_bridge.settings import parse_settings

from kurma_core.errors import FormatVersionError, HostError, NetworkError
from kurma_core.hookspecs.driver import DriverContext

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


def test_no_subnet_is_a_clear_error(tmp_path):
    everything = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]
    assert free_subnet(everything) is None
    with pytest.raises(NetworkError, match=r'^network "n": no private subnet is free'):
        chosen(tmp_path, routes=everything)


def chosen(directory, network="n", routes=(), config=None, **more):
    """The completed configuration of a network, in a process of its own as it were."""
    choices = Choices(str(directory), routes, **({"routes6": ()} | more))
    return choices.complete({"name": network, **(config or {})}, choose=True)


def test_it_is_chosen_once_and_recorded(tmp_path):
    asked = Choices(str(tmp_path), routes=[])
    assert asked.complete({"name": "n"}, choose=False) is None
    assert not list(tmp_path.iterdir()), "to ask chooses nothing"
    first = chosen(tmp_path, routes=["192.0.2.0/24"])
    taken = [subnet_of(first)]
    assert chosen(tmp_path, routes=taken) == first == asked.complete({"name": "n"}, choose=False)
    record = tmp_path / "choices" / "n.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert json.loads(record.read_text())["subnet"] == taken[0]


def test_the_choice_survives_a_kill_before_the_pod_joins(tmp_path):
    """It is on disk before complete() returns: a kill between choice and add changes nothing for the next process,
    although the host's routes are others now."""
    script = """if True:
        import json, os, signal, sys
        from kurma_core.hookspecs.driver import DriverContext
        from kurma_net_bridge.plugin import kurma_network
        driver = kurma_network().create(DriverContext(config={}, state_dir=sys.argv[1]))
        print(json.dumps(driver.complete({"name": "n"}, True)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    run = subprocess.run([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True, check=False)
    assert run.returncode == -signal.SIGKILL
    first = json.loads(run.stdout)
    assert chosen(tmp_path, routes=[first["subnets"][0]], ipv6=has_ipv6()) == first


@pytest.mark.parametrize("left", ["", "{", '{"version": 1'])
def test_a_kill_while_the_choice_is_written(tmp_path, left):
    """The record is renamed into place: what a killed writer leaves is not read."""
    first = chosen(tmp_path)
    (record,) = (tmp_path / "choices").glob("*.json")
    record.unlink()
    (tmp_path / "choices" / "n.json.tmp").write_text(left)
    assert chosen(tmp_path) == first, "chosen anew, from the same host"
    assert [path.name for path in record.parent.iterdir() if path.name != "lock"] == ["n.json"]


def test_an_entry_may_leave_a_part_open(tmp_path):
    whole = chosen(tmp_path)
    assert set(whole) == {"name", "bridge", "subnets"}
    own = {"bridge": "mine0", "mtu": 1400}
    assert chosen(tmp_path, config=own) == {"name": "n", "subnets": whole["subnets"], **own}
    own = {"subnets": ["10.9.0.0/24"]}
    assert chosen(tmp_path, config=own) == {"name": "n", "bridge": whole["bridge"], **own}
    own = {"bridge": "mine0", "subnets": ["10.9.0.0/24"]}
    assert chosen(tmp_path / "none", config=own) == {"name": "n", **own}
    assert not (tmp_path / "none").exists()


def test_what_is_left_open_is_not_checked_and_the_rest_is(tmp_path):
    driver = kurma_network().create(DriverContext(config={}, state_dir=str(tmp_path)))
    driver.check_config({"name": "n", "mtu": 1400})
    for wrong in ({"subnet": "10.9.0.0/24"}, {"mtu": 1}, {"bridge": "a/b"}):
        for call in (driver.check_config, lambda config: driver.complete(config, choose=True)):
            with pytest.raises(NetworkError, match='network "n" has a wrong configuration'):
                call({"name": "n", **wrong})
    assert not list(tmp_path.iterdir()), "nothing is chosen for it"


def test_it_is_chosen_anew_when_forgotten(tmp_path):
    choices = Choices(str(tmp_path), routes=[])
    first = subnet_of(chosen(tmp_path))
    choices.forget("n")
    choices.forget("n")
    assert choices.complete({"name": "n"}, choose=False) is None
    assert subnet_of(chosen(tmp_path, routes=[first])) != first


def test_two_networks_of_a_state_directory_do_not_meet(tmp_path):
    """Nor with a network whose bridge is not in the kernel now."""
    used = {"name": "used", "bridge": "b0", "subnets": [subnet_of(chosen(tmp_path / "other", "one"))]}
    NetworkRecords(str(tmp_path), "used").keep(parse_settings(used))
    configs = [chosen(tmp_path, name) for name in ("one", "two", "thr/ee", "four")] + [used]
    assert len({config["bridge"] for config in configs}) == 5
    subnets = [IPv4Network(subnet_of(config)) for config in configs]
    assert not any(a.overlaps(b) for a in subnets for b in subnets if a is not b)
    assert len({config["subnets"][-1] for config in configs}) == 5


def test_two_state_directories_do_not_meet(tmp_path):
    """Where they begin to look is chance; that they end apart, when they come one after the other, is not."""
    one = chosen(tmp_path / "a")
    others = [chosen(tmp_path / name, routes=[subnet_of(one)]) for name in "bcdefgh"]
    configs = [one, *others]
    bridges = [config["bridge"] for config in configs]
    assert len(set(bridges)) == len(bridges)
    assert all(bridge.startswith("kurma-") and len(bridge) <= 15 for bridge in bridges)
    assert not {subnet for config in others for subnet in config["subnets"]} & set(one["subnets"])
    assert len({subnet_of(config) for config in configs}) > 2


def test_the_usual_state_directory_has_the_usual_bridges():
    choices = Choices(USUAL, routes=[])
    assert choices._bridge("default", set()) == "kurma0"
    assert choices._bridge("more", {"kurma0", "other"}) == "kurma1"
    assert choices._subnet("default", ()) == str(next(candidates()))


def test_processes_at_once_choose_the_same(tmp_path):
    # Each has its own routes, so that each would choose another subnet.
    routes = [[f"10.{96 + n}.0.0/16"] for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        configs = list(pool.map(lambda taken: chosen(tmp_path, routes=taken), routes))
    assert len({subnet_of(config) for config in configs}) == 1


@pytest.mark.parametrize(
    ("record", "error", "words"),
    [
        ('{"version": 2}', FormatVersionError, "this plugin knows 1"),
        ("{", HostError, r"cannot read .*/n\.json"),
        ('{"version": 1, "bridge": "kurma0"}', HostError, r"n\.json: the record\.subnet is missing"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(tmp_path, record, error, words):
    """Also by remove(); the choices of other networks go on."""
    os.mkdir(tmp_path / "choices")
    (tmp_path / "choices" / "n.json").write_text(record)
    driver = kurma_network().create(DriverContext(config={}, state_dir=str(tmp_path)))
    for call in (lambda: chosen(tmp_path), lambda: driver.remove({"name": "n"})):
        with pytest.raises(error, match=words):
            call()
    assert chosen(tmp_path, "other")


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
    assert len(chosen(tmp_path, routes6=["fc00::/7"], ipv6=True)["subnets"]) == 1


def test_ipv6_only_where_the_host_has_it(tmp_path):
    both = chosen(tmp_path, ipv6=True)["subnets"]
    assert [":" in subnet for subnet in both] == [False, True]
    assert chosen(tmp_path, ipv6=False)["subnets"] == both[:1]
