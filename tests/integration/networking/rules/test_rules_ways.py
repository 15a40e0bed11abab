"""Every way to a published port, and every way that there must not be (W9): real packets, both families."""

from __future__ import annotations

import errno
import socket
import sys

import pytest
from kurma_net_bridge.packet_filter.netfilter import Netfilter
from kurma_net_bridge.packet_filter.rules import host_checks

from kurma_core.errors import NetworkError
from kurma_core.linux.netlink import parse_attributes
from kurma_core.models.network import PortMapping

from .conftest import only

pytestmark = pytest.mark.root

PORT = 8080


def addresses(place):
    return (f"{place.four}/24", f"{place.six}/64")


@pytest.fixture
def published(world):
    """``a`` publishes a port by TCP and UDP."""
    world.do("ensure", world.one)
    world.do("ensure", world.two)
    ports = (PortMapping(PORT, 80, "tcp"), PortMapping(PORT, 80, "udp"))
    world.do("publish", world.one, "pod-a", addresses(world.a), ports)
    return world


#: Who asks, and which address of the host.
WAYS = [
    ("outside", "192.0.2.1"),
    ("outside", "2001:db8::1"),
    ("host", "127.0.0.1"),
    ("host", "127.8.9.1"),
    ("host", "::1"),
    ("host", "192.0.2.1"),
    ("host", "2001:db8::1"),
    ("host", "10.201.1.1"),
    ("host", "10.201.2.1"),
    ("b", "192.0.2.1"),
    ("b", "2001:db8::1"),
    ("b", "10.201.1.1"),
    ("c", "192.0.2.1"),
    ("c", "2001:db8::1"),
    ("c", "fd00:201:1::1"),
    ("a", "192.0.2.1"),
    ("a", "2001:db8::1"),
    ("a", "10.201.1.1"),
]


def test_every_way_to_a_published_port(published):
    wrong = []
    for kind in ("tcp", "udp"):
        for who, address in WAYS:
            answer = getattr(published, who).ask(address, PORT, kind)
            if answer is None or answer[0] != published.a.name or answer[2] != 10:
                wrong.append((who, address, kind, answer))
    assert not wrong
    # Who asks from outside is seen as who it is.
    assert published.outside.ask("192.0.2.1", PORT)[1] == published.outside.four
    assert published.outside.ask("2001:db8::1", PORT)[1] == published.outside.six


def test_much_goes_through(published):
    for who, address in (("outside", "192.0.2.1"), ("host", "127.0.0.1"), ("host", "::1"), ("a", "192.0.2.1")):
        answer = getattr(published, who).ask(address, PORT, size=3_000_000, timeout=10)
        assert answer is not None, (who, address)
        assert answer[2] == 3_000_000, (who, address)


def test_what_was_withdrawn_is_reached_by_nobody(published):
    published.do("withdraw", published.one, "pod-a")
    for who, address in WAYS:
        assert getattr(published, who).ask(address, PORT, timeout=0.3) is None, (who, address)
    published.do("withdraw", published.one, "pod-a")
    published.do("withdraw", published.two, "never")
    assert [one for one in published.do("found") if one[1]] == []


def test_pods_reach_the_outside_with_the_hosts_address(published):
    for pod in (published.a, published.c):
        for kind in ("tcp", "udp"):
            assert pod.ask("192.0.2.2", 80, kind) == (published.outside.name, "192.0.2.1", 10)
            assert pod.ask("2001:db8::2", 80, kind) == (published.outside.name, "2001:db8::1", 10)


def test_what_is_sent_to_a_group_keeps_its_sender(world):
    """Who is told of by multicast is asked at the address that the packet came from."""
    world.do("ensure", world.one)
    world.outside.ip("route replace 10.201.1.0/24 via 192.0.2.1")
    world.outside.ip("-6 route replace fd00:201:1::/64 via 2001:db8::1")
    for family, group, sender in (
        (socket.AF_INET, "239.1.2.3", "10.201.1.1"),
        (socket.AF_INET6, "ff05::1234", "fd00:201:1::1"),
    ):
        card = world.outside.within(lambda: socket.if_nametoindex("eth0"))
        away = world.host.within(lambda: socket.if_nametoindex("up0"))
        with (
            world.outside.socket(family, socket.SOCK_DGRAM) as hears,
            world.host.socket(family, socket.SOCK_DGRAM) as says,
        ):
            packed = socket.inet_pton(family, group)
            if family == socket.AF_INET:
                member = packed + bytes(4) + card.to_bytes(4, sys.byteorder)
                hears.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
                says.setsockopt(
                    socket.IPPROTO_IP, socket.IP_MULTICAST_IF, bytes(8) + away.to_bytes(4, sys.byteorder)
                )
            else:
                member = packed + card.to_bytes(4, sys.byteorder)
                hears.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
                says.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, away)
            hears.bind((group, 99))
            hears.settimeout(5)
            says.bind((sender, 0))
            says.sendto(b"x", (group, 99))
            assert hears.recvfrom(8)[1][0] == sender


def test_networks_do_not_reach_each_other_and_pods_of_one_do(published):
    one = published
    assert one.b.ask(one.a.four, 80) == (one.a.name, one.b.four, 10)
    assert one.b.ask(one.a.six, 80) == (one.a.name, one.b.six, 10)
    for asks, asked in ((one.c, one.a), (one.a, one.c)):
        for address in (asked.four, asked.six):
            for kind in ("tcp", "udp"):
                assert asks.ask(address, 80, kind, timeout=0.3) is None
    # Nor does who has a route to the pods reach them.
    one.outside.ip("route replace 10.201.0.0/16 via 192.0.2.1")
    one.outside.ip("-6 route replace fd00:201::/32 via 2001:db8::1")
    assert one.outside.ask(one.a.four, 80, timeout=0.3) is None
    assert one.outside.ask(one.a.six, 80, timeout=0.3) is None
    # The host does.
    assert one.host.ask(one.a.four, 80) == (one.a.name, "10.201.1.1", 10)


def test_a_loopback_address_of_the_host_is_for_the_host_alone(nft_alone, make_world):
    """A neighbour that sends to the host's 127.0.0.1 gets nowhere by its own routes, and so does a pod."""
    world = make_world()
    world.do("ensure", world.one)
    world.do("publish", world.one, "pod-a", addresses(world.a), (PortMapping(PORT, 80, host_ip="127.0.0.1"),))
    world.host.serve(81)
    assert world.host.ask("127.0.0.1", PORT)[0] == world.a.name
    assert world.host.ask("192.0.2.1", PORT) is None
    assert world.host.ask("127.0.0.1", 81)[0] == world.host.name
    for place, gateway in ((world.outside, "192.0.2.1"), (world.b, "10.201.1.1")):
        place.ip("addr del 127.0.0.1/8 dev lo")
        place.ip(f"route add 127.0.0.1/32 via {gateway} src {place.four}")
        place.within(_let_loopback_out)
        for port in (PORT, 81):
            for kind in ("tcp", "udp"):
                assert place.ask("127.0.0.1", port, kind, timeout=0.3) is None, (place.name, port, kind)


def _let_loopback_out():
    for name in ("all", "eth0"):
        with open(f"/proc/sys/net/ipv4/conf/{name}/route_localnet", "w") as file:
            file.write("1")


def test_a_host_address_that_is_named_is_the_only_one(world):
    world.do("ensure", world.one)
    ports = (
        PortMapping(PORT, 80, host_ip="192.0.2.1"),
        PortMapping(PORT + 1, 80, host_ip="2001:db8::1"),
        PortMapping(PORT + 2, 80, host_ip="0.0.0.0"),
        PortMapping(PORT + 3, 80, host_ip="::"),
        PortMapping(PORT + 4, 80, host_ip="::1"),
    )
    world.do("publish", world.one, "pod-a", addresses(world.a), ports)
    for who in (world.outside, world.host, world.c, world.a):
        four = [who.ask("192.0.2.1", PORT + more, timeout=0.4) is not None for more in range(4)]
        six = [who.ask("2001:db8::1", PORT + more, timeout=0.4) is not None for more in range(4)]
        assert (four, six) == ([True, False, True, False], [False, True, False, True]), who.name
    assert world.host.ask("127.0.0.1", PORT, timeout=0.4) is None
    assert world.host.ask("::1", PORT + 4) is not None


def test_where_bridges_hand_frames_to_the_packet_filter(world):
    """As with Docker and Kubernetes on the host: every way but one, and who asks for that one is told."""
    world.host.sysctl("net.bridge.bridge-nf-call-ip6tables=1")
    try:
        world.do("ensure", world.one)
        world.do("ensure", world.two)
        world.do("publish", world.one, "pod-a", addresses(world.a), (PortMapping(PORT, 80),))
        assert world.notes == []
        for who, address in WAYS:
            if address != "::1":
                assert getattr(world, who).ask(address, PORT)[0] == world.a.name, (who, address)
        assert world.b.ask(world.a.six, 80) == (world.a.name, world.b.six, 10)
        assert world.c.ask(world.a.six, 80, timeout=0.3) is None
        world.do("publish", world.one, "pod-a", addresses(world.a), (PortMapping(PORT, 80, host_ip="::1"),))
        assert [note.count("[::1] are not reached") for note in world.notes] == [1]
        checks = {check.name: check for check in world.host.within(lambda: list(host_checks()))}
        found = checks["::1"]
        assert (found.ok, found.hint) == (True, ""), "the filter of all bridges stays"
        assert found.detail.startswith("published ports of [::1] are not reached")
        assert "ip6tables=0" not in "".join(world.notes)
    finally:
        world.host.sysctl("net.bridge.bridge-nf-call-ip6tables=0")


def test_a_network_without_masquerade_is_seen_with_its_own_addresses(world):
    from kurma_core.value import replace

    world.outside.ip("route replace 10.201.1.0/24 via 192.0.2.1")
    network = replace(world.one, masquerade=False)
    world.do("ensure", network)
    assert world.a.ask("192.0.2.2", 80) == (world.outside.name, world.a.four, 10)
    # It is made anew when it is wanted otherwise.
    assert world.do("ensure", world.one)
    assert world.a.ask("192.0.2.2", 80) == (world.outside.name, "192.0.2.1", 10)


def test_who_hears_routers_goes_on(make_world):
    """A host that forwards would hear them no more. A pod is no router of its."""
    world = make_world()
    where = "/proc/sys/net/ipv6/conf/{}/accept_ra"
    for name in ("up0", "kbr1"):
        world.host.sysctl(f"net.ipv6.conf.{name}.accept_ra=1")
    world.do("ensure", world.one)
    heard = {name: world.host.run("cat", where.format(name)).strip() for name in ("up0", "kbr1")}
    assert heard == {"up0": "2", "kbr1": "0"}


def test_ports_of_other_machines_are_theirs(world):
    """Also of the number that a pod has published: for the host, for pods, and for who goes by the host."""
    world.do("ensure", world.one)
    world.do("ensure", world.two)
    ports = (PortMapping(80, 80, "tcp"), PortMapping(80, 80, "udp"))
    world.do("publish", world.one, "pod-a", addresses(world.a), ports)
    for kind in ("tcp", "udp"):
        for address, host in (("192.0.2.2", "192.0.2.1"), ("2001:db8::2", "2001:db8::1")):
            assert world.outside.ask(host, 80, kind)[0] == world.a.name
            for asks in (world.host, world.a, world.c):
                assert asks.ask(address, 80, kind)[0] == world.outside.name, (asks.name, address, kind)


def test_nobody_speaks_from_a_loopback_address(nft_alone, make_world):
    """Not even where the host's own settings would let him."""
    world = make_world()
    world.do("ensure", world.one)
    world.host.sysctl("net.ipv4.conf.kbr1.accept_local=1")
    world.b.within(_let_loopback_out)
    with world.host.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("10.201.1.1", 90))
        server.settimeout(0.4)
        for source, heard in ((world.b.four, True), ("127.0.0.1", False)):
            with world.b.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.bind((source, 0))
                client.sendto(b"x", ("10.201.1.1", 90))
                try:
                    assert server.recvfrom(8)[1][0] == source
                    arrived = True
                except TimeoutError:
                    arrived = False
            assert arrived == heard, source


def test_pods_of_an_isolated_network_do_not_reach_each_other_by_the_host(world):
    from kurma_core.value import replace

    world.do("ensure", replace(world.one, isolated=True))
    for cable in ("kv12", "kv13"):
        world.host.ip(f"link set {cable} type bridge_slave isolated on")
    # As a neighbour would that sends everything to the host.
    for place, other in ((world.a, world.b), (world.b, world.a)):
        place.ip(f"route add {other.four}/32 via 10.201.1.1")
    try:
        refused = world.b.ask(world.a.four, 80, timeout=0.3)
        world.do("ensure", world.one)
        allowed = world.b.ask(world.a.four, 80)
    finally:
        for place, other, cable in ((world.a, world.b, "kv12"), (world.b, world.a, "kv13")):
            place.ip(f"route del {other.four}/32 via 10.201.1.1")
            world.host.ip(f"link set {cable} type bridge_slave isolated off")
    assert refused is None
    assert allowed is not None


def test_a_new_pod_gets_what_is_sent_to_its_port_by_udp(world):
    """A client that never stops keeps alive what the kernel remembers, of the time before any pod, too."""
    world.do("ensure", world.one)
    ports = (PortMapping(PORT, 80, "udp"),)
    client = world.outside
    assert client.ask("192.0.2.1", PORT, "udp", source=4000, timeout=0.2) is None
    world.do("publish", world.one, "pod-a", addresses(world.a), ports)
    assert client.ask("192.0.2.1", PORT, "udp", source=4000)[0] == world.a.name
    assert client.ask("192.0.2.1", PORT, "udp", source=4000)[0] == world.a.name
    world.do("withdraw", world.one, "pod-a")
    assert client.ask("192.0.2.1", PORT, "udp", source=4000, timeout=0.2) is None
    world.do("publish", world.one, "pod-b", addresses(world.b), ports)
    assert client.ask("192.0.2.1", PORT, "udp", source=4000)[0] == world.b.name
    assert client.ask("2001:db8::1", PORT, "udp", source=4000)[0] == world.b.name
    # One that was killed without a word leaves its ports to who comes.
    world.do("publish", world.one, "pod-a", addresses(world.a), ports)
    assert client.ask("192.0.2.1", PORT, "udp", source=4000)[0] == world.a.name
    assert client.ask("2001:db8::1", PORT, "udp", source=4000)[0] == world.a.name
    world.do("withdraw", world.one, "pod-b")
    assert client.ask("192.0.2.1", PORT, "udp", source=4000)[0] == world.a.name


def remembered(world, asked):
    """Numbers of the connections by UDP that the kernel remembers, by whom they were sent to.

    :param asked: of these addresses and ports.
    """

    def look():
        found = {}
        with Netfilter() as netfilter:
            for family, size in ((socket.AF_INET, 4), (socket.AF_INET6, 16)):
                for _, one in netfilter.dump(1 << 8 | 1, family, b""):
                    sent = parse_attributes(one[1])
                    address = parse_attributes(sent[1])[2 if size == 4 else 4]
                    what = parse_attributes(sent[2])
                    if what[1] == bytes((socket.IPPROTO_UDP,)):
                        to = socket.inet_ntop(family, address), int.from_bytes(what[3], "big")
                        found.setdefault(to, set()).add(one[12])
        return {to: numbers for to, numbers in found.items() if to in asked}

    return world.host.within(look)


def test_no_other_connections_are_forgotten(shared_world, monkeypatch, tmp_path):
    """Than those that lead elsewhere than the ports do, or to a pod by a port that it has no more."""
    world = shared_world
    only(monkeypatch, tmp_path, "nft")
    ports = [PortMapping(PORT + more, 80, "udp") for more in range(2)]
    try:
        world.do("ensure", world.one)
        world.do("publish", world.one, "pod-a", addresses(world.a), (ports[0],))
        # Somebody else's rule leads a port to a pod, too.
        world.host.run("nft", "add table inet kept")
        world.host.run("nft", "add chain inet kept gate { type nat hook prerouting priority -110; }")
        for family, word, to in (("ipv4", "ip", world.b.four), ("ipv6", "ip6", f"[{world.b.six}]")):
            rule = f"meta nfproto {family} udp dport 7000 dnat {word} to {to}:80"
            world.host.run("nft", f"add rule inet kept gate {rule}")
        stays, goes = set(), set()
        for place, address, port in (
            (world.outside, "192.0.2.1", 7000),
            (world.outside, "2001:db8::1", 7000),
            (world.host, world.a.four, 80),
            (world.host, world.a.six, 80),
            (world.a, "192.0.2.2", 80),
            (world.a, "2001:db8::2", 80),
        ):
            assert place.ask(address, port, "udp") is not None, (place.name, address, port)
            stays.add((address, port))
        for address in ("192.0.2.1", "2001:db8::1"):
            assert world.outside.ask(address, PORT, "udp")[0] == world.a.name
            goes.add((address, PORT))
        before = remembered(world, stays | goes)
        assert set(before) == stays | goes
        # Another port, of another pod; and the first one again, which leads where it did.
        world.do("publish", world.one, "pod-b", addresses(world.b), (ports[1],))
        world.do("publish", world.one, "pod-a", addresses(world.a), (ports[0],))
        assert remembered(world, stays | goes) == before
        world.do("withdraw", world.one, "pod-a")
        assert remembered(world, stays | goes) == {to: before[to] for to in stays}
    finally:
        world.host.run("nft", "delete table inet kept")
        world.do("remove", world.one)


def test_kernel_without_nftables(shared_world, monkeypatch, tmp_path):
    """Nor does it list connections: what it lacks is refused, and holds nothing of ours."""
    world = shared_world
    only(monkeypatch, tmp_path, "nft")
    known = Netfilter.ask

    def ask(self, kind, *rest):
        if kind >> 8 in (1, 10):
            raise OSError(errno.EINVAL, "Invalid argument")
        return known(self, kind, *rest)

    monkeypatch.setattr(Netfilter, "ask", ask)
    for call in ("check", "ensure"):
        with pytest.raises(NetworkError, match="this kernel has no nftables") as caught:
            world.do(call, world.one)
        assert "modprobe nf_tables" in caught.value.hint
    world.do("withdraw", world.one, "pod-a")
    world.do("remove", world.one)
    assert world.do("found") == []


def test_what_the_packet_filter_refuses_is_an_error(shared_world):
    """It has nftables, and the question is wrong."""

    def ask():
        with Netfilter() as netfilter:
            netfilter.dump(10 << 8 | 200, 0, b"")

    with pytest.raises(OSError, match="Invalid argument"):
        shared_world.host.within(ask)
