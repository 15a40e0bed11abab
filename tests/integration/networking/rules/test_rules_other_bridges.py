"""What hangs on bridges of others: pods reach it by published ports, unless the bridge leads to the outside, or
the network's configuration lets them (W8)."""

from __future__ import annotations

import contextlib

import pytest

from kurma_core.models.network import PortMapping
from kurma_core.value import replace

from .conftest import Place

pytestmark = pytest.mark.root

PORT = 8080
KINDS = ("tcp", "udp")


@contextlib.contextmanager
def bridge_of_others(world, name="lab0", number=9):
    """A bridge that nobody of Kurma's has made, with one machine on it, which answers everybody."""
    machine = Place(f"{world.host.name}-{number}", f"10.201.{number}.2", f"fd00:201:{number}::2")
    cable = f"theirs{number}"
    try:
        world.host.ip(f"link add {name} type bridge")
        world.host.ip(f"addr add 10.201.{number}.1/24 dev {name}")
        world.host.ip(f"addr add fd00:201:{number}::1/64 dev {name} nodad")
        world._cable(machine, cable)
        world.host.ip(f"link set {cable} master {name}")
        world.host.ip(f"link set {name} up")
        machine.ip(f"route add default via 10.201.{number}.1")
        machine.ip(f"-6 route add default via fd00:201:{number}::1")
        machine.serve()
        machine.wait_for(f"10.201.{number}.1")
        machine.wait_for(f"fd00:201:{number}::1")
        yield machine
    finally:
        machine.close()
        world.host.ip(f"link del {name}")


@pytest.fixture(scope="module")
def machine(shared_world):
    """On ``lab0``."""
    with bridge_of_others(shared_world) as machine:
        yield machine


def refused(asks, asked):
    return [
        asks.ask(address, 80, kind, timeout=0.3) is None for address in (asked.four, asked.six) for kind in KINDS
    ]


def reached(asks, asked):
    return [asks.ask(address, 80, kind) is not None for address in (asked.four, asked.six) for kind in KINDS]


def test_they_are_apart(world, machine):
    world.do("ensure", world.one)
    world.do("ensure", world.two)
    for pod in (world.a, world.c):
        assert all(refused(pod, machine))
        assert all(refused(machine, pod))
        assert all(reached(world.host, pod))
        assert all(reached(pod, world.outside))
    assert all(reached(world.host, machine))
    assert all(reached(world.b, world.a))
    # By ports that are published everybody is reached: a pod of ours, and whoever's on that bridge.
    world.do("publish", world.one, "pod-a", (world.a.four, world.a.six), (PortMapping(PORT, 80),))
    world.host.run("nft", "-f", "-", stdin=THEIR_PORT)
    for address in ("192.0.2.1", "2001:db8::1"):
        assert machine.ask(address, PORT)[0] == world.a.name
        assert world.a.ask(address, 9090)[0] == machine.name
    world.host.run("nft", "delete", "table", "inet", "theirs")


THEIR_PORT = """table inet theirs {
    chain publish {
        type nat hook prerouting priority -90;
        tcp dport 9090 dnat ip to 10.201.9.2:80
        tcp dport 9090 dnat ip6 to [fd00:201:9::2]:80
    }
}
"""


def test_one_that_is_made_later(world):
    """Rules ask for the kind of the interface, so that a later bridge is refused as well."""
    world.do("ensure", world.one)
    with bridge_of_others(world, "lab1", 8) as late:
        assert all(refused(world.a, late))
        assert not world.do("ensure", world.one)
        assert all(refused(world.a, late))


def test_one_that_the_configuration_names(world, machine):
    world.do("ensure", world.one)
    world.do("ensure", replace(world.two, reaches=("lab0", "lab1")))
    assert all(refused(world.a, machine))
    assert all(reached(world.c, machine))
    assert all(refused(machine, world.c))
    assert not world.do("ensure", replace(world.two, reaches=("lab0", "lab1")))


#: As on hosts whose network card is a port of a bridge, which has the host's address: what makes it so, and not.
OUTSIDES = {
    "a port": ("link add card0 master lab0 type ifb", "link del card0"),
    "a gateway": ("route add 203.0.113.0/24 via 10.201.9.2", "route del 203.0.113.0/24"),
    "a gateway of IPv6": ("-6 route add 2001:db8:9::/64 via fd00:201:9::2", "-6 route del 2001:db8:9::/64"),
}


@pytest.mark.parametrize("way", OUTSIDES)
def test_one_that_leads_to_the_outside(world, machine, way):
    made, unmade = OUTSIDES[way]
    world.do("ensure", world.one)
    assert all(refused(world.a, machine))
    world.host.ip(made)
    try:
        assert world.do("ensure", world.one)
        assert all(reached(world.a, machine))
    finally:
        world.host.ip(unmade)
    assert world.do("ensure", world.one)
    assert all(refused(world.a, machine))


def test_a_name_that_no_rule_can_have(world):
    """It is left out, and keeps nobody from joining."""
    world.host.ip("link add lab+*! type bridge")
    try:
        world.do("ensure", world.one)
        assert all(reached(world.a, world.outside))
    finally:
        world.host.ip("link del lab+*!")
