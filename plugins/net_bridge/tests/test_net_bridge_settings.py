"""What may stand in a bridge network's configuration, and what is said of the rest."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kurma_net_bridge.settings import parse_settings
from kurma_net_bridge.subnets import Subnet, parse_address, parse_cidr

from kurma_core.errors import NetworkError

GOOD = {"name": "mine", "bridge": "mine0", "subnets": ["10.90.0.0/24", "fd00:90::/64"]}


def test_the_least_that_is_needed():
    settings = parse_settings({"name": "mine", "bridge": "mine0", "subnets": ["10.90.0.0/24"]})
    assert (settings.bridge, [str(one) for one in settings.subnets]) == ("mine0", ["10.90.0.0/24"])
    assert (settings.masquerade, settings.hairpin, settings.isolated) == (True, True, False)
    assert (settings.mtu, settings.routes, settings.reaches) == (None, None, ())


def test_all_of_it():
    routes = [{"dst": "10.0.0.0/8"}, {"dst": "::/0", "gw": "fd00:90::7"}]
    settings = parse_settings(
        {
            **GOOD,
            "masquerade": False,
            "hairpin": False,
            "isolated": True,
            "mtu": 1400,
            "routes": routes,
            "reaches": ["b", "a"],
        }
    )
    assert settings.reaches == ("a", "b")
    assert (settings.masquerade, settings.hairpin, settings.isolated, settings.mtu) == (False, False, True, 1400)
    assert [str(route) for route in settings.routes] == ["10.0.0.0/8", "::/0"]
    assert settings.routes[0].gateway is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bridge": None}, "bridge: expected the name of an interface: 1 to 15 bytes"),
        ({"bridge": 7}, "bridge: expected the name of an interface: 1 to 15 bytes"),
        ({"bridge": "a-name-that-is-long"}, 'without blanks and / : %, found "a-name-that-is-long"'),
        ({"bridge": "a/b"}, "bridge: expected the name of an interface: 1 to 15 bytes"),
        ({"bridge": ".."}, "bridge: expected the name of an interface: 1 to 15 bytes"),
        ({"bridge": "a b"}, "bridge: expected the name of an interface: 1 to 15 bytes"),
        ({"bridge": "kurma%d"}, "bridge: expected the name of an interface: 1 to 15 bytes"),
        ({"subnets": None}, "subnets: expected a list of subnets"),
        ({"subnets": "10.90.0.0/24"}, "subnets: expected a list of subnets"),
        ({"subnets": []}, "subnets: expected a list of subnets"),
        ({"subnets": [10]}, "subnets[0]: expected a subnet, ADDRESS/LENGTH"),
        ({"subnets": ["10.90.0.0"]}, 'has no bits behind its prefix, found "10.90.0.0"'),
        ({"subnets": ["10.90.0.0/33"]}, "subnets[0]: expected a subnet"),
        (
            {"subnets": ["10.90.0.1/24"]},
            "subnets[0]: expected a subnet, ADDRESS/LENGTH, whose",
        ),
        ({"subnets": ["10.90.0.0/31"]}, "expected a prefix of at most 30 bits"),
        ({"subnets": ["fd00::/127"]}, "expected a prefix of at most 126 bits"),
        (
            {"subnets": ["10.90.0.0/24", "10.91.0.0/24"]},
            '[1]: expected one subnet of IPv4, found "10.91.0.0/24" ',
        ),
        ({"subnets": ["127.0.0.0/8"]}, 'expected no loopback addresses (127.0.0.0/8), found "127.0.0.0/8"'),
        ({"subnets": ["127.5.0.0/16"]}, "expected no loopback addresses"),
        ({"subnets": ["0.0.0.0/1"]}, "expected no loopback addresses"),
        ({"subnets": ["224.1.0.0/16"]}, "expected no multicast addresses"),
        ({"subnets": ["::/64"]}, "expected no loopback addresses"),
        ({"subnets": ["ff02::/64"]}, "expected no multicast addresses"),
        ({"subnets": ["fe80::/64"]}, "expected no link-local addresses"),
        ({"masquerade": "yes"}, 'masquerade: expected true or false, found "yes"'),
        ({"reaches": "lab0"}, "reaches: expected a list"),
        ({"reaches": [7]}, "reaches[0]: expected the name of an interface: 1 to 15 bytes"),
        ({"reaches": ["a b"]}, '/ : %, found "a b"'),
        ({"mtu": 1279}, "mtu: expected at least 1280 bytes, which IPv6 needs, found 1279"),
        ({"mtu": True}, "mtu: expected an integer from 68 to 65535"),
        ({"mtu": "1500"}, "mtu: expected an integer from 68 to 65535"),
        ({"routes": "0.0.0.0/0"}, "routes: expected a list"),
        ({"routes": [{"gw": "10.90.0.1"}]}, "routes[0].dst: expected a subnet"),
        (
            {"routes": [{"dst": "10.0.0.1/8"}]},
            "routes[0].dst: expected a subnet, ADDRESS/LENGTH",
        ),
        ({"routes": [{"dst": "x"}]}, 'bits behind its prefix, found "x"'),
        (
            {"routes": [{"dst": "10.0.0.0/8", "gw": "10.91.0.1"}]},
            'gw: expected an address of 10.90.0.0/24, found "10.91.0.1"',
        ),
        (
            {"routes": [{"dst": "10.0.0.0/8", "gw": "fd00:90::1"}]},
            'gw: expected an address of 10.90.0.0/24, found "fd0',
        ),
        (
            {"subnets": ["10.90.0.0/24"], "routes": [{"dst": "::/0"}]},
            "dst: expected a destination of a family",
        ),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(NetworkError) as caught:
        parse_settings({**GOOD, **change})
    assert 'network "mine" has a wrong configuration: ' in caught.value.message
    assert message in caught.value.message


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(NetworkError, match="subnet: unknown key") as caught:
        parse_settings({**GOOD, "subnet": "10.90.0.0/24"})
    assert caught.value.hint == "did you mean subnets?"
    with pytest.raises(NetworkError, match="ipam: unknown key") as caught:
        parse_settings({**GOOD, "ipam": {}})
    assert "subnets" in caught.value.hint


@given(st.ip_addresses(), st.integers(0, 128))
def test_subnets_are_those_of_the_library(address, length):
    network = ip_network((address, min(length, address.max_prefixlen)), strict=False)
    one = Subnet(*parse_cidr(str(network)))
    assert ip_network(str(one)) == network
    assert (one.first, one.last) == (int(network[0]), int(network[-1]))
    assert one.contains(int(address))
    assert parse_address(str(address)) == (address.version, int(address))


@given(st.text(max_size=40))
def test_no_text_is_too_odd(text):
    assert parse_cidr(text) is None or "/" in text
    assert parse_address(text) is None or set(text) <= set("0123456789abcdefABCDEF:.")
