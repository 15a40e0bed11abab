"""Rules of ours beside an administrator's: what is theirs stays as it is, what they do to ours is noticed."""

from __future__ import annotations

import threading

import pytest
from kurma_net_bridge.packet_filter import nftables

from kurma_core.errors import NetworkError
from kurma_core.models.network import PortMapping

from .conftest import iptables, only

pytestmark = pytest.mark.root

PORT = 8080
PORTS = (PortMapping(PORT, 80), PortMapping(PORT, 80, "udp"), PortMapping(PORT, 80, "sctp", "192.0.2.1"))

#: Names that look like ours, and rules in the places where ours are put.
STRANGE_TABLES = """
table ip kurma-1f2e3d4c {
    map any4 { type inet_proto . inet_service : ipv4_addr . inet_service; }
}
table inet kurma-1f2e3d4c-mine {
    chain forward {
        type filter hook forward priority 0; policy accept;
        oifname "kbr1" accept comment "one"
    }
}
table inet kurma {
    chain to_pods {
        accept
    }
}
table inet kurma-1F2E3D4C {
    chain publish {
        accept
    }
}
"""
STRANGE_CHAINS = """*raw
-A PREROUTING -i kbr9 -j ACCEPT
COMMIT
*nat
-N KURMA-1f2e3d4c-PORTS-MINE
-A KURMA-1f2e3d4c-PORTS-MINE -p tcp -j RETURN
-A PREROUTING -m comment --comment "kurma,1f2e3d4c,one,00000000" -j KURMA-1f2e3d4c-PORTS-MINE
-A POSTROUTING -o kbr1 -m mark --mark 0x9 -j MASQUERADE
-A OUTPUT -o kbr1 -m mark --mark 0x9 -j ACCEPT
COMMIT
*filter
-N KURMA-1f2e3d4c-TOO
-N KURMA-FORWARDING
-A FORWARD -o kbr1 -m mark --mark 0x9 -j KURMA-1f2e3d4c-TOO
-A FORWARD -m comment --comment "kurma,1f2e3d4c,one,00000000" -j KURMA-FORWARDING
COMMIT
"""


def addresses(place):
    return (place.four, place.six)


def ruleset(host):
    """Everything that any program sees, without what counts packets and tells the time."""
    texts = [host.run("nft", "-s", "list", "ruleset")]
    texts += [host.run(f"{program}-legacy-save") for program in ("iptables", "ip6tables")]
    lines = [line for text in texts for line in text.splitlines() if not line.startswith("#")]
    return [line.rpartition(" [")[0] if line.startswith(":") else line for line in lines]


@pytest.fixture
def strange(make_world, monkeypatch, tmp_path):
    world = make_world()
    only(monkeypatch, tmp_path, "nft", *iptables("nft"))
    world.host.run("nft", "-f", "-", stdin=STRANGE_TABLES)
    for program in ("iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"):
        world.host.run(f"{program}-restore", "--noflush", stdin=STRANGE_CHAINS)
    return world


def test_what_is_somebody_elses_stays_as_it_is(strange):
    before = ruleset(strange.host)
    for network in (strange.one, strange.two):
        strange.do("ensure", network)
    strange.do("publish", strange.one, "pod-a", addresses(strange.a), PORTS)
    strange.do("publish", strange.two, "pod-c", addresses(strange.c), (PortMapping(81, 80),))
    now = ruleset(strange.host)
    assert [line for line in before if line not in now] == []
    found = strange.do("found")
    assert {one[:2] for one in found} == {
        ("1f2e3d4c", ""),
        ("2f2e3d4c", ""),
        ("1f2e3d4c", "pod-a"),
        ("2f2e3d4c", "pod-c"),
    }
    assert strange.outside.ask("192.0.2.1", PORT)[0] == strange.a.name
    strange.do("withdraw", strange.one, "pod-a")
    strange.do("remove", strange.one)
    assert strange.outside.ask("192.0.2.1", 81)[0] == strange.c.name
    assert {one[0] for one in strange.do("found")} == {"2f2e3d4c"}
    strange.do("remove", strange.two)
    strange.do("remove", strange.two)
    assert ruleset(strange.host) == before
    assert strange.do("found") == []


def test_what_somebody_has_taken_away_is_made_again(world):
    published = (world.one, "pod-a", addresses(world.a), PORTS)
    assert world.do("ensure", world.one)
    world.do("publish", *published)
    assert not world.do("ensure", world.one)
    for spoil in _spoilings(world):
        spoil()
        assert world.do("ensure", world.one), spoil
        assert not world.do("ensure", world.one), spoil
        world.do("publish", *published)
        for address in ("192.0.2.1", "2001:db8::1"):
            assert world.outside.ask(address, PORT)[0] == world.a.name, spoil
            assert world.c.ask(address, PORT)[0] == world.a.name, spoil


def _spoilings(world):
    host = world.host
    return [
        lambda: host.run("nft", "flush", "ruleset"),
        lambda: host.run("nft", "flush", "chain", "inet", "kurma-1f2e3d4c", "publish"),
        lambda: host.run("nft", "flush", "table", "inet", "kurma-1f2e3d4c"),
    ]


def test_an_administrators_rules_beside_ours_stay_and_count(world):
    world.do("ensure", world.one)
    rule = ("inet", "kurma-1f2e3d4c", "to_pods", "tcp", "dport", "80", "reject")
    world.host.run("nft", "insert", "rule", *rule)
    assert not world.do("ensure", world.one)
    world.do("publish", world.one, "pod-a", addresses(world.a), PORTS)
    assert world.outside.ask("192.0.2.1", PORT, timeout=0.3) is None
    assert world.outside.ask("192.0.2.1", PORT, "udp")[0] == world.a.name


def test_nothing_is_started_when_nothing_has_changed(world, monkeypatch):
    world.do("ensure", world.one)
    world.do("publish", world.one, "pod-a", addresses(world.a), PORTS)
    started = []
    real = nftables.run
    monkeypatch.setattr(
        nftables, "run", lambda arguments, **more: started.append(arguments) or real(arguments, **more)
    )
    world.do("ensure", world.one)
    world.do("publish", world.one, "pod-b", addresses(world.b), ())
    world.do("withdraw", world.one, "pod-b")
    assert started == []


def test_a_pod_that_takes_over_and_one_that_changes_its_ports(world):
    world.do("ensure", world.one)
    world.do("publish", world.one, "pod-a", addresses(world.a), PORTS)
    world.do("publish", world.one, "pod-a", addresses(world.a), (PortMapping(PORT + 1, 80),))
    assert world.outside.ask("192.0.2.1", PORT, timeout=0.3) is None
    assert world.outside.ask("192.0.2.1", PORT + 1)[0] == world.a.name
    world.do("publish", world.one, "pod-b", addresses(world.b), (PortMapping(PORT + 1, 80),))
    assert world.outside.ask("192.0.2.1", PORT + 1)[0] == world.b.name
    world.do("withdraw", world.one, "pod-a")
    assert world.outside.ask("192.0.2.1", PORT + 1)[0] == world.b.name
    assert {one[1] for one in world.do("found")} == {"", "pod-b"}


def test_many_at_once(world):
    """Pods of two networks that begin and end at the same time, as threads of one process."""
    errors = []
    together = threading.Barrier(8)

    def pod(number):
        network, place = ((world.one, world.a), (world.two, world.c))[number % 2]
        try:
            world.do("ensure", network)
            world.do("publish", network, f"pod-{number}", addresses(place), (PortMapping(9000 + number, 80),))
            # Connections to an address are forgotten with the pod that had it, and here many have one.
            together.wait(20)
            assert world.host.ask("192.0.2.1", 9000 + number, timeout=5)[0] == place.name
            together.wait(20)
            world.do("withdraw", network, f"pod-{number}")
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=pod, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [one for one in world.do("found") if one[1]] == []


def test_a_host_without_nft(make_world, monkeypatch, tmp_path):
    world = make_world()
    only(monkeypatch, tmp_path, *iptables("nft"))
    for call in ("ensure", "check"):
        with pytest.raises(
            NetworkError, match=r'^cannot filter the packets of network "one": there is no program nft$'
        ) as caught:
            world.do(call, world.one)
        assert caught.value.hint == "install it: apt install nftables, or dnf install nftables"
    # Nothing is there to be taken away.
    world.do("withdraw", world.one, "pod-a")
    world.do("remove", world.one)
    assert world.do("found") == []


def test_what_nft_refuses_is_told_in_one_line(make_world, monkeypatch, tmp_path):
    world = make_world()
    only(monkeypatch, tmp_path, "nft")
    # A stranger's chain of our name, of another kind.
    world.host.run("nft", "add", "table", "inet", "kurma-1f2e3d4c")
    world.host.run("nft", "add map inet kurma-1f2e3d4c any4 { type inet_service : ipv4_addr; }")
    with pytest.raises(NetworkError, match=r'^cannot make the rules of network "one": nft: [^\n]+$'):
        world.do("ensure", world.one)
