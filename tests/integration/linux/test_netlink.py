"""Links, addresses and routes by our own client of netlink, as `ip` sees them."""

import errno
import os
import subprocess

import pytest
from kurma_testing.networks import pod_namespace

from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.linux.netlink import Netlink, NetlinkError

pytestmark = pytest.mark.root
MAC = bytes.fromhex("026b00000001")
FOUR, SIX = bytes((10, 208, 0, 1)), bytes.fromhex("fd000208000000000000000000000001")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def netlink():
    with Netlink() as netlink:
        yield netlink
        for name in ("nlp0", "nlb0"):
            netlink.delete_link(name)


@pytest.fixture
def other():
    with pod_namespace("netlink") as path:
        yield path


@pytest.fixture
def pair(netlink, other):
    """A bridge, and a pair whose other end is in another namespace."""
    netlink.add_bridge("nlb0", mac=MAC)
    netlink.set_link("nlb0", up=True)
    namespace = os.open(other, os.O_RDONLY)
    bridge = netlink.link("nlb0")
    netlink.add_veth("nlp0", "eth0", namespace, mac=MAC, mtu=1400, master=bridge.index)
    os.close(namespace)
    return bridge


def test_a_bridge(netlink):
    netlink.add_bridge("nlb0", mac=MAC, mtu=1300)
    link = netlink.link("nlb0")
    assert (link.name, link.kind, link.mac, link.mtu, link.up) == ("nlb0", "bridge", MAC, 1300, False)
    netlink.set_link("nlb0", up=True, alias="of a test")
    link = netlink.link("nlb0")
    assert (link.up, link.alias, link.index) == (True, "of a test", link.index)
    assert "UP" in output("ip", "link", "show", "nlb0")
    assert netlink.delete_link("nlb0") is True
    assert netlink.delete_link("nlb0") is False
    assert netlink.link("nlb0") is None
    netlink.add_bridge("nlb0", mac=MAC)
    assert netlink.delete_link("nlb0", index=link.index) is False, "another one of that name"
    assert netlink.delete_link("nlb0", index=netlink.link("nlb0").index) is True
    assert netlink.link("nlb0") is None


def test_a_pair(netlink, pair, other):
    link = netlink.link("nlp0")
    assert (link.kind, link.master, link.mtu, link.up) == ("veth", pair.index, 1400, True)
    assert (link.hairpin, link.isolated) == (False, False)
    with in_network_namespace(other, Netlink) as inside:
        peer = inside.link("eth0")
        assert (peer.mac, peer.mtu, peer.up, peer.master) == (MAC, 1400, False, 0)
        inside.set_link("eth0", up=True, mac=bytes.fromhex("026b00000002"))
        assert inside.link("eth0").mac == bytes.fromhex("026b00000002")
    netlink.set_link("nlp0", hairpin=True, isolated=True)
    link = netlink.link("nlp0")
    assert (link.hairpin, link.isolated) == (True, True)
    shown = output("bridge", "-d", "link", "show", "dev", "nlp0")
    assert "hairpin on" in shown
    assert "isolated on" in shown
    netlink.set_link("nlp0", hairpin=False, master=0)
    assert netlink.link("nlp0").master == 0


def test_lists(netlink, pair):
    names = {link.name for link in netlink.links()}
    assert {"lo", "nlb0", "nlp0"} <= names
    assert [link.name for link in netlink.links(master=pair.index)] == ["nlp0"]
    assert "nlp0" in [link.name for link in netlink.links(kind="veth")]
    assert "nlb0" in [link.name for link in netlink.links(kind="bridge")]


def test_addresses(netlink, pair):
    netlink.add_address(pair.index, FOUR, 24)
    netlink.add_address(pair.index, SIX, 64)
    found = [(one.family, one.value, one.length) for one in netlink.addresses(pair.index)]
    assert {(4, FOUR, 24), (6, SIX, 64)} <= set(found)
    shown = output("ip", "addr", "show", "nlb0")
    assert "10.208.0.1/24 brd 10.208.0.255 scope global" in shown
    assert "tentative" not in next(line for line in shown.splitlines() if "fd00:208::1" in line)
    with pytest.raises(NetlinkError, match=r"cannot add address 10\.208\.0\.1/24: File exists") as caught:
        netlink.add_address(pair.index, FOUR, 24)
    assert caught.value.errno == errno.EEXIST
    netlink.delete_address(pair.index, FOUR, 24)
    netlink.delete_address(pair.index, SIX, 64)
    assert not {FOUR, SIX} & {one.value for one in netlink.addresses(pair.index)}
    with pytest.raises(NetlinkError, match=r"cannot remove address 10\.208\.0\.1/24"):
        netlink.delete_address(pair.index, FOUR, 24)


def test_routes(netlink, pair):
    netlink.add_address(pair.index, FOUR, 24)
    netlink.add_address(pair.index, SIX, 64)
    gateway = bytes((10, 208, 0, 9))
    netlink.add_route(pair.index, bytes(4), 0, gateway)
    netlink.add_route(pair.index, bytes((198, 51, 100, 0)), 24)
    netlink.add_route(pair.index, bytes(16), 0, SIX[:-1] + b"\x09")
    found = netlink.routes(pair.index)
    assert (bytes(4), 0, gateway) in found
    assert (bytes((198, 51, 100, 0)), 24, None) in found
    assert (bytes(16), 0, SIX[:-1] + b"\x09") in found
    assert "default via 10.208.0.9 dev nlb0" in output("ip", "route")
    assert "default via fd00:208::9 dev nlb0" in output("ip", "-6", "route")
    with pytest.raises(NetlinkError) as caught:
        netlink.add_route(pair.index, bytes(4), 0, gateway)
    assert caught.value.errno == errno.EEXIST


def test_an_address_of_the_host_by_a_second_interface(netlink, pair):
    netlink.set_link("nlb0", up=True)
    netlink.add_local_route(pair.index, bytes(15) + b"\x01", 2048)
    lines = output("ip", "-6", "route", "show", "table", "local").splitlines()
    assert any(line.startswith("local ::1 dev nlb0") and "metric 2048" in line for line in lines)
    assert any(line.startswith("local ::1 dev lo") for line in lines)  # that stays
    with pytest.raises(NetlinkError) as caught:
        netlink.add_local_route(pair.index, bytes(15) + b"\x01", 2048)
    assert caught.value.errno == errno.EEXIST


def test_the_kernels_own_words(netlink, pair):
    with pytest.raises(NetlinkError, match=r"add a route to 0\.0\.0\.0/0: .*\(Nexthop has invalid gateway\)"):
        netlink.add_route(pair.index, bytes(4), 0, bytes((192, 0, 2, 1)))
    with pytest.raises(NetlinkError, match="change interface nono: No such device"):
        netlink.set_link("nono", up=True)
    with pytest.raises(NetlinkError, match="make bridge nlb0: File exists"):
        netlink.add_bridge("nlb0", mac=MAC)
    with pytest.raises(NetlinkError, match="make bridge a-name-that-is-long: Numerical result out of range"):
        netlink.add_bridge("a-name-that-is-long", mac=MAC)


@pytest.mark.full
def test_many_links_are_listed_whole(netlink, pair):
    """More than one answer's worth."""
    for number in range(60):
        netlink.add_bridge(f"nlx{number}", mac=MAC)
    try:
        assert len([link for link in netlink.links() if link.name.startswith("nlx")]) == 60
    finally:
        for number in range(60):
            netlink.delete_link(f"nlx{number}")
