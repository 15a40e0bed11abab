"""What rules there should be, and how they are written: without a kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kurma_net_bridge.packet_filter import nftables
from kurma_net_bridge.packet_filter.network_rules import NetworkRules, check_network, comment, is_id
from kurma_net_bridge.packet_filter.published_ports import published

from kurma_core.errors import NetworkError
from kurma_core.models.network import PortMapping
from kurma_core.value import replace

NETWORK = NetworkRules("1f2e3d4c", "one", "kbr1", ("10.1.0.0/24", "fd00:1::/64"))
BOTH = ("10.1.0.2/24", "fd00:1::2/64", "fe80::1/64")

PORTS = st.builds(
    PortMapping,
    st.integers(1, 65535),
    st.integers(1, 65535),
    st.sampled_from(["tcp", "udp", "sctp"]),
    st.one_of(
        st.sampled_from(["", "0.0.0.0", "::"]),
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map(lambda address: address.exploded),
    ),
)


@given(st.lists(PORTS, max_size=8))
def test_every_port_leads_to_the_pods_address_of_its_family(ports):
    found = published(NETWORK, BOTH, ports)
    for port in ports:
        mine = [one for one in found if (one.host_port, one.pod_port) == (port.host_port, port.pod_port)]
        families = {one.family for one in mine if one.protocol == port.protocol}
        wanted = {4, 6} if not port.host_ip else {6} if ":" in port.host_ip else {4}
        assert wanted <= families
    assert {one.address for one in found} <= {"10.1.0.2", "fd00:1::2"}
    assert len(found) == sum(1 if port.host_ip else 2 for port in ports)


@given(st.text(max_size=300))
def test_a_comment_is_one_plain_word_whatever_the_name(name):
    text = comment(name)
    assert len(text.encode()) <= 64
    assert not set(text) & set('"\\ \n,;{}')
    mark = nftables._mark(replace(NETWORK, network=name))
    assert len(mark.encode()) < 128
    assert set(mark) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-@: ")


def test_no_port_leads_to_a_link_local_address():
    found = published(NETWORK, ("fe80::1/64", "feb0::1", "fd00:1::2/64"), [PortMapping(80, 80)])
    assert [one.address for one in found] == ["fd00:1::2"]


def test_a_port_without_an_address_for_it_is_refused():
    with pytest.raises(NetworkError, match=r"port 80/tcp cannot be published on ::1: the pod has no IPv6 address"):
        published(NETWORK, ("10.1.0.2",), [PortMapping(80, 80, host_ip="::1")])
    with pytest.raises(NetworkError, match="no IPv4 address"):
        published(NETWORK, ("fd00:1::2",), [PortMapping(80, 80, host_ip="0.0.0.0")])
    with pytest.raises(NetworkError, match="no IPv4 address"):
        published(NETWORK, (), [PortMapping(80, 80)])
    with pytest.raises(NetworkError, match="'nowhere' is not an address"):
        published(NETWORK, BOTH, [PortMapping(80, 80, host_ip="nowhere")])
    with pytest.raises(NetworkError, match="a port of dccp cannot be published") as caught:
        published(NETWORK, BOTH, [PortMapping(80, 80, "dccp")])
    assert caught.value.hint == "one of tcp, udp, sctp"


@pytest.mark.parametrize("bridge", ["", "br*", "br+", '"', "!br", "-o", "a b", "br\n", "br,c", "br;c", "é"])
def test_a_bridge_that_no_rule_can_name_is_refused(bridge):
    with pytest.raises(NetworkError, match="no rule can be written for an interface"):
        check_network(replace(NETWORK, bridge=bridge))


@pytest.mark.parametrize("wrong", ["", "1f2e3d4", "1f2e3d4c5", "1F2E3D4C", "1f2e3d4x"])
def test_an_id_is_eight_hex_digits(wrong):
    assert not is_id(wrong)
    with pytest.raises(NetworkError, match="is not an id for rules"):
        check_network(replace(NETWORK, id=wrong))


def test_rules_of_another_kind_have_another_sum():
    """Or what an earlier configuration has made would be taken for whole."""
    others = [
        replace(NETWORK, bridge="kbr2"),
        replace(NETWORK, subnets=("10.1.0.0/24",)),
        replace(NETWORK, masquerade=False),
        replace(NETWORK, isolated=True),
    ]
    assert len({nftables._mark(each) for each in (NETWORK, *others)}) == 5


def test_only_what_a_family_has_is_made():
    text = nftables.static_text(replace(NETWORK, subnets=("10.1.0.0/24",)))
    assert "ip6 " not in text
    text = nftables.static_text(replace(NETWORK, subnets=("fd00:1::/64",)))
    assert " ip " not in text
