"""What holds for a bridge network whichever plugin serves it: who reaches whom, by what, and what is left (W3, W4,
W8, W9)."""

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kurma_testing.networks import interfaces_in

from kurma_core.errors import NetworkError
from tests.integration.networking.netpods import NetPod, bridged, networking_of, on_host
from tests.integration.networking.world import HOST, NEIGHBOUR, QUICK, SERVER

pytestmark = pytest.mark.root
KINDS = ["bridge", "cni"]
FAMILIES = (0, 1)
ANY = ("0.0.0.0", "::")


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(params=["bridge", pytest.param("cni", marks=pytest.mark.full)])
def kind(request):
    return request.param


@pytest.fixture
def networking(kind, world, tmp_path):
    """Two networks of the kind, ``one`` and ``two``, and ``other`` of the other kind. Nothing is left of them."""
    other = next((each for each in KINDS if each != kind), kind)
    kinds = {"one": kind, "two": kind, "other": other}
    entries = [bridged(each, name, number, tmp_path) for number, (name, each) in enumerate(kinds.items())]
    before = on_host()
    networking = networking_of(tmp_path, {"container_networks": entries})
    yield networking
    for name in kinds:
        networking.remove(name)
    assert on_host() == before


@pytest.fixture
def pod(networking, kind, stack):
    """``pod(NETWORK, ports=…)``: a pod that has joined it, and leaves it at the end."""

    def make(*nets, ports=()):
        found = NetPod(networking, stack)
        if kind == "cni" or "other" in nets:
            # CNI's programs wait for the kernel to look for duplicates.
            found.sysctl("net.ipv6.conf.default.accept_dad", "0")
        stack.callback(found.leave)
        return found.join(*nets, ports=ports)

    return make


def test_who_reaches_whom(pod, world):
    """Pods of one network each other, their host, what is around it, and what is beyond; nobody out there them."""
    one, two = pod("one"), pod("one")
    assert interfaces_in(one.namespace) == ["eth0", "lo"]
    for family in FAMILIES:
        with one.listen(80) as pods, world.host.listen(8000) as host, contextlib.ExitStack() as around:
            near, far = (around.enter_context(place.listen(8000)) for place in (world.neighbour, world.server))
            assert two.reaches(pods, one.addresses[family], 80) == two.addresses[family]
            assert one.reaches(pods, one.addresses[family], 80) == one.addresses[family]
            assert world.host.reaches(pods, one.addresses[family], 80) in (one.gateways[family], HOST[family])
            assert two.reaches(host, two.gateways[family], 8000) == two.addresses[family]
            assert two.reaches(host, HOST[family], 8000) == two.addresses[family]
            # The machines outside have no way back to the pod: they answer the host.
            assert two.reaches(near, NEIGHBOUR[family], 8000) == HOST[family]
            assert two.reaches(far, SERVER[family], 8000) == HOST[family]
        with world.server.receive(8001, ANY[family]) as far, one.receive(53, ANY[family]) as pods:
            assert one.reaches(far, SERVER[family], 8001) == HOST[family]
            assert two.reaches(pods, one.addresses[family], 53) == two.addresses[family]


def test_nobody_comes_in_who_was_not_asked(pod, world, kind):
    """Neighbours that know the way to a pod's address; they get its answers. CNI's plugins let them in."""
    one = pod("one")
    for family in FAMILIES:
        world.neighbour.ip("route", "add", one.addresses[family], "via", HOST[family])
        with one.listen(80) as pods, world.neighbour.listen(8000) as near:
            if kind == "bridge":
                assert world.neighbour.is_cut_off(pods, one.addresses[family], 80)
            else:
                world.neighbour.reaches(pods, one.addresses[family], 80)
            assert one.reaches(near, NEIGHBOUR[family], 8000) == HOST[family]


def test_networks_are_apart(pod, world):
    """By trying, in both directions: pods of two networks do not reach each other."""
    here, peer, far = pod("one"), pod("one"), pod("two")
    for family in FAMILIES:
        with contextlib.ExitStack() as sockets:
            ours, theirs, out = (sockets.enter_context(p.listen(80)) for p in (here, far, world.server))
            ours_udp, theirs_udp = (sockets.enter_context(p.receive(53, ANY[family])) for p in (here, far))
            assert far.is_cut_off(ours, here.addresses[family], 80)
            assert far.is_cut_off(ours_udp, here.addresses[family], 53)
            assert here.is_cut_off(theirs, far.addresses[family], 80)
            assert here.is_cut_off(theirs_udp, far.addresses[family], 53)
            # It is not that nobody reaches anybody.
            assert peer.reaches(ours, here.addresses[family], 80) == peer.addresses[family]
            assert peer.reaches(ours_udp, here.addresses[family], 53) == peer.addresses[family]
            for one in (here, far):
                assert one.reaches(out, SERVER[family], 80) == HOST[family]


def apart(here, there):
    """Neither reaches the other, by TCP, UDP or ICMP, of either family."""
    for asks, asked in ((here, there), (there, here)):
        for family in FAMILIES:
            address = asked.addresses[family]
            with asked.listen(80) as server, asked.receive(53, ANY[family]) as datagrams:
                assert asks.is_cut_off(server, address, 80)
                assert asks.is_cut_off(datagrams, address, 53)
            assert not asks.pings(address, QUICK)


@pytest.mark.full
def test_networks_of_two_kinds(pod, kind, world):
    """One on a bridge of CNI's, whose chain lets in who comes from no bridge of CNI's, and one on a native one do
    not reach each other but by published ports."""
    here, peer = pod("one"), pod("one")
    there = pod("other", ports=["8080:80"])
    native = here if kind == "bridge" else there
    apart(here, there)
    for family in FAMILIES:
        assert peer.pings(here.addresses[family])
        assert native.pings(native.gateways[family])
        assert native.pings(SERVER[family])
        with here.listen(80) as ours, there.listen(80) as server, world.server.listen(80) as far:
            peer.reaches(ours, here.addresses[family], 80)
            here.reaches(server, HOST[family], 8080)
            for one in (here, there):
                assert one.reaches(far, SERVER[family], 80) == HOST[family]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["bridge"])
def test_a_network_may_reach_a_bridge_of_others(pod, stack, tmp_path, kind, world):
    """``reaches``; nobody comes in by that. Without it, the network is apart again from the next pod on."""
    there = pod("other")
    apart_again = bridged("bridge", "open", 7, tmp_path)
    for entry in ({**apart_again, "reaches": ["ktest2"]}, apart_again):
        networking = networking_of(tmp_path, {"container_networks": [entry]}, "state")
        if "reaches" in entry:  # the second time it is the same network
            stack.callback(networking.remove, "open")
        here = NetPod(networking, stack)
        stack.callback(here.leave)
        here.join("open")
        for family in FAMILIES:
            with there.listen(80) as server, here.listen(80) as ours:
                if entry is apart_again:
                    assert here.is_cut_off(server, there.addresses[family], 80)
                else:
                    here.reaches(server, there.addresses[family], 80)
                assert there.is_cut_off(ours, here.addresses[family], 80)


@pytest.mark.full
def test_networks_of_two_state_directories(pod, kind, world, stack, tmp_path):
    """Of the same name; neither knows of the other."""
    entry = bridged(kind, "one", 7, tmp_path)
    other = networking_of(tmp_path, {"container_networks": [entry]}, "other-state")
    stack.callback(other.remove, "one")
    here = pod("one")
    there = NetPod(other, stack)
    there.sysctl("net.ipv6.conf.default.accept_dad", "0")
    stack.callback(there.leave)
    there.join("one", ports=["8088:80"])
    apart(here, there)
    if kind == "bridge":
        for family in FAMILIES:
            with there.listen(80) as server:
                here.reaches(server, HOST[family], 8088)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_published_ports(pod, world, kind, protocol):
    """W9: from outside, from the host by loopback and by its address, from other pods, and from the pod itself."""
    one = pod("one", ports=[f"8080:80/{protocol}", f"9000-9002:90-92/{protocol}"])
    # The policy that keeps CNI's bridges apart holds for published ports, too.
    others = [pod("one"), *([pod("two"), pod("other")] if kind == "bridge" else [])]
    for family in FAMILIES:
        with contextlib.ExitStack() as sockets:
            server, last = (
                sockets.enter_context(one.listen(port) if protocol == "tcp" else one.receive(port, ANY[family]))
                for port in (80, 92)
            )
            assert world.neighbour.reaches(server, HOST[family], 8080) == NEIGHBOUR[family]
            assert world.server.reaches(server, HOST[family], 8080) == SERVER[family]
            for place in (world.host, *others, one):
                place.reaches(server, HOST[family], 8080)
            world.neighbour.reaches(last, HOST[family], 9002)
            assert world.neighbour.is_cut_off(last, HOST[family], 9001)
            if family == 0:
                world.host.reaches(server, "127.0.0.1", 8080)
                world.host.reaches(last, "127.0.0.1", 9002)
            others[0].reaches(server, others[0].gateways[family], 8080)


def test_ports_of_one_address(pod, world):
    """``-p IP:…`` is that address alone."""
    one = pod("one", ports=["127.0.0.1:8081:80", f"{HOST[0]}:8082:80", f"[{HOST[1]}]:8083:80"])
    with one.listen(80) as server:
        world.host.reaches(server, "127.0.0.1", 8081)
        for place in (world.host, world.neighbour):
            place.reaches(server, HOST[0], 8082)
            place.reaches(server, HOST[1], 8083)
        assert world.neighbour.is_cut_off(server, HOST[0], 8081)
        assert world.host.is_cut_off(server, "127.0.0.1", 8082)
        assert world.neighbour.is_cut_off(server, HOST[0], 8083)
        assert world.neighbour.is_cut_off(server, HOST[1], 8082)


def test_a_pod_that_comes_again_has_its_ports_again(networking, pod, world):
    """Restart: out and in again, under the same UUID; the port is nobody's in between."""
    one = pod("one", ports=["8080:80"])
    one.leave()
    with one.listen(80) as server:
        assert world.neighbour.is_cut_off(server, HOST[0], 8080)
        one.join("one", ports=["8080:80"])
        assert world.neighbour.reaches(server, HOST[0], 8080) == NEIGHBOUR[0]
    one.leave()
    two = pod("one", ports=["8080:81"])
    with two.listen(81) as server:
        assert world.neighbour.reaches(server, HOST[0], 8080) == NEIGHBOUR[0]
        assert world.server.reaches(server, HOST[1], 8080) == SERVER[1]


def test_none_reaches_nothing(networking, pod, world, stack):
    one, alone = pod("one", ports=["8080:80"]), NetPod(networking, stack).join("none")
    stack.callback(alone.leave)
    with one.listen(80) as pods, world.host.listen(8000) as host, world.server.listen(8000) as far:
        for family in FAMILIES:
            for server, address, port in (
                (pods, one.addresses[family], 80),
                (pods, HOST[family], 8080),
                (host, one.gateways[family], 8000),
                (host, HOST[family], 8000),
                (host, ("127.0.0.1", "::1")[family], 8000),
                (far, SERVER[family], 8000),
            ):
                assert alone.is_cut_off(server, address, port), address
    with alone.listen(80) as own:
        assert alone.reaches(own, "127.0.0.1", 80) == "127.0.0.1"
        assert alone.reaches(own, "::1", 80) == "::1"
        assert one.is_cut_off(own, "127.0.0.1", 80)


def test_two_networks_of_one_pod(pod, world):
    one, two, both = pod("one"), pod("two"), pod("two:far0", "one")
    assert interfaces_in(both.namespace) == ["eth0", "far0", "lo"]
    with one.listen(80) as first, two.listen(80) as second:
        for family in FAMILIES:
            both.reaches(first, one.addresses[family], 80)
            both.reaches(second, two.addresses[family], 80)
            assert one.is_cut_off(second, two.addresses[family], 80)


@pytest.mark.full
def test_a_failing_second_network_undoes_the_first(networking, pod, stack):
    """W4. What the first had taken is free again."""
    first = pod("one")
    late = NetPod(networking, stack)
    before = on_host()
    wanted = first.addresses[0]
    with pytest.raises(NetworkError, match=wanted):
        late.join("two", f"one,ip={wanted}", ports=["8080:80"])
    assert interfaces_in(late.namespace) == ["lo"]
    assert {one for one in on_host() - before if "ktest1" not in one and late.uuid[:8] in one} == set()
    late.leave()  # and may be repeated
    late.join("two", ports=["8080:80"])
    late.leave()


def test_optional_networks(networking, stack, pod):
    first = pod("one")
    late = NetPod(networking, stack).join("two", f"one,ip={first.addresses[0]},optional")
    assert [one.network for one in late.attachments] == ["lo", "two"]
    assert interfaces_in(late.namespace) == ["eth0", "lo"]
    late.leave()


def test_leaving_by_another_process_after_a_restart(networking, pod, tmp_path, world):
    """From what is on record, whatever the configuration says by then."""
    one = pod("one", ports=["8080:80"])
    later = networking_of(tmp_path, {}, "state")
    later.delete_all(one.attachments, **one.where)
    later.delete_all(one.attachments, **one.where)
    assert interfaces_in(one.namespace) == ["lo"]
    with one.listen(80) as server:
        assert world.host.is_cut_off(server, "127.0.0.1", 8080)


@pytest.mark.full
def test_an_add_that_is_killed_half_way(networking, stack, kind, pod):
    """By SIGKILL, at moments through all of it: ``delete`` leaves nothing, and the pod can join after all."""
    pod("one")
    before = on_host()
    one = NetPod(networking, stack).plan("one", ports=["8080:80"])
    whole = _seconds(lambda: networking.add_all(one.attachments, **one.where))
    one.leave()
    for part in range(8):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                networking.add_all(one.attachments, **one.where)
            os._exit(0)
        time.sleep(whole * part / 7)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        one.leave()
        assert interfaces_in(one.namespace) == ["lo"]
        assert on_host() == before
    one.join("one", ports=["8080:80"])
    one.leave()


def _seconds(function):
    begun = time.monotonic()
    function()
    return time.monotonic() - begun


def test_many_pods_have_addresses_of_their_own(networking, stack):
    """Joined and left ten at a time, more than once; each address is one pod's, and free again afterwards."""
    for _ in range(2):
        pods = [NetPod(networking, stack) for _ in range(20)]
        for one in pods:
            one.sysctl("net.ipv6.conf.default.accept_dad", "0")
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(lambda one: one.join("one"), pods))
            addresses = [address for one in pods for address in one.addresses]
            assert len(addresses) == len(set(addresses)) == 40
            for one in pods:
                seen = one.ip("-o", "address", "show", "dev", "eth0", "scope", "global")
                assert all(f" {address}/" in seen for address in one.addresses)
            list(pool.map(NetPod.leave, pods))
