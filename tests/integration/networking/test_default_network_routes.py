"""The default network beside whatever the host has: its routes, and other state directories (W8)."""

import contextlib
from ipaddress import ip_interface, ip_network

import pytest

from tests.integration.networking.netpods import NetPod, networking_of, on_host
from tests.integration.networking.world import HOST, NEIGHBOUR, SERVER

pytestmark = pytest.mark.root
FAMILIES = (0, 1)


@pytest.fixture
def state(tmp_path, world):
    """``state(NAME)``: networking of a state directory of that name. Nothing is left of their default networks."""
    found = []
    before = on_host()

    def make(name="state"):
        found.append(networking_of(tmp_path, {}, name))
        return found[-1]

    yield make
    for networking in found:
        networking.remove("default")
    assert on_host() == before


@pytest.fixture
def pod(state):
    """``pod(NETWORKING)``: a pod that has joined the default network, and leaves it at the end."""
    with contextlib.ExitStack() as stack:

        def make(networking):
            found = NetPod(networking, stack)
            stack.callback(found.leave)
            return found.join()

        yield make


def subnets(pod):
    return [ip_interface(one.address).network for one in pod.attachments[-1].result.addresses]


@pytest.mark.full
def test_two_state_directories_do_not_meet(state, pod, world):
    """Pods of both reach the outside, and not each other; taking one network away leaves the other as it is."""
    first, second = state("first"), state("second")
    one, two, more = pod(first), pod(second), pod(second)
    for mine in subnets(one):
        assert not any(mine.version == other.version and mine.overlaps(other) for other in subnets(two))
    for family in FAMILIES:
        with world.server.listen(8000) as far, two.listen(80) as server:
            assert one.reaches(far, SERVER[family], 8000) == HOST[family]
            assert two.reaches(far, SERVER[family], 8000) == HOST[family]
            assert one.is_cut_off(server, two.addresses[family], 80)
            assert more.reaches(server, two.addresses[family], 80) == more.addresses[family]
    one.leave()
    first.remove("default")
    for family in FAMILIES:
        with two.listen(80) as server, world.server.listen(8000) as far:
            assert more.reaches(server, two.addresses[family], 80) == more.addresses[family]
            assert two.reaches(far, SERVER[family], 8000) == HOST[family]


@pytest.mark.parametrize(
    ("taken", "table"),
    [
        (["10.0.0.0/8"], "main"),
        (["10.0.0.0/8", "172.16.0.0/12"], "100"),  # of a rule's own, as VPNs have
        (["0.0.0.0/1", "128.0.0.0/1", "10.64.0.0/10"], "main"),  # in place of a default route, as VPNs do it
    ],
)
def test_the_hosts_routes_are_left_alone(state, pod, world, taken, table):
    """In whatever table. What was reached before is reached after."""
    for route in taken:
        world.host.ip("route", "add", route, "via", NEIGHBOUR[0], "table", table)
    world.neighbour.ip("address", "add", "10.77.0.1/32", "dev", "lo")
    world.host.ip("rule", "add", "to", "10.77.0.0/16", "lookup", table)
    try:
        one = pod(state())
        narrow = [ip_network(route) for route in taken if not route.endswith("/1")]
        assert not any(subnets(one)[0].overlaps(route) for route in narrow)
        with world.neighbour.listen(8000) as near:
            assert world.host.reaches(near, "10.77.0.1", 8000) == HOST[0]
            assert one.reaches(near, "10.77.0.1", 8000) == HOST[0]
    finally:
        world.host.ip("rule", "del", "to", "10.77.0.0/16", "lookup", table)
        for route in taken:
            world.host.ip("route", "del", route, "table", table)


def test_routes_that_come_later(state, pod, world):
    """Pods keep what they have, and those that come find the same network: its own route is the narrower one."""
    networking = state()
    one = pod(networking)
    for route in ("10.0.0.0/8", "0.0.0.0/1", "128.0.0.0/1"):
        world.host.ip("route", "add", route, "via", NEIGHBOUR[0])
    two = pod(networking)
    assert subnets(two) == subnets(one)
    with one.listen(80) as server, world.neighbour.listen(8000) as near:
        assert two.reaches(server, one.addresses[0], 80) == two.addresses[0]
        assert world.host.reaches(server, one.addresses[0], 80)
        assert two.reaches(near, NEIGHBOUR[0], 8000) == HOST[0]
