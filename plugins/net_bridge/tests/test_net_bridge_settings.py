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
        ({"bridge": None}, "bridge: the name of an interface is wanted"),
        ({"bridge": 7}, "bridge: the name of an interface is wanted"),
        ({"bridge": "a-name-that-is-long"}, "bridge: 'a-name-that-is-long' is no interface's name"),
        ({"bridge": "a/b"}, "no interface's name"),
        ({"bridge": ".."}, "no interface's name"),
        ({"bridge": "a b"}, "no interface's name"),
        ({"bridge": "kurma%d"}, "no interface's name"),
        ({"subnets": None}, "subnets: a list of subnets is wanted"),
        ({"subnets": "10.90.0.0/24"}, "subnets: a list of subnets is wanted"),
        ({"subnets": []}, "subnets: a list of subnets is wanted"),
        ({"subnets": [10]}, "subnets: 10 is no subnet"),
        ({"subnets": ["10.90.0.0"]}, "subnets: '10.90.0.0' is no subnet"),
        ({"subnets": ["10.90.0.0/33"]}, "is no subnet"),
        ({"subnets": ["10.90.0.1/24"]}, "subnets: 10.90.0.1/24 has bits behind its prefix"),
        ({"subnets": ["10.90.0.0/31"]}, "an IPv4 prefix has at most 30 bits"),
        ({"subnets": ["fd00::/127"]}, "an IPv6 prefix has at most 126 bits"),
        ({"subnets": ["10.90.0.0/24", "10.91.0.0/24"]}, "10.91.0.0/24 is the second of IPv4"),
        ({"subnets": ["127.0.0.0/8"]}, r"127.0.0.0/8 is loopback, or holds such addresses"),
        ({"subnets": ["127.5.0.0/16"]}, "is loopback"),
        ({"subnets": ["0.0.0.0/1"]}, "is loopback"),
        ({"subnets": ["224.1.0.0/16"]}, "is multicast"),
        ({"subnets": ["::/64"]}, "is loopback"),
        ({"subnets": ["ff02::/64"]}, "is multicast"),
        ({"subnets": ["fe80::/64"]}, "is link-local"),
        ({"masquerade": "yes"}, "masquerade: true or false is wanted, not 'yes'"),
        ({"reaches": "lab0"}, "reaches: a list of bridges is wanted"),
        ({"reaches": [7]}, "reaches: the name of an interface is wanted"),
        ({"reaches": ["a b"]}, "reaches: 'a b' is no interface's name"),
        ({"mtu": 1279}, "mtu: 1280 to 65535 bytes are wanted, not 1279"),
        ({"mtu": True}, "mtu: 1280 to 65535"),
        ({"mtu": "1500"}, "mtu: 1280 to 65535"),
        ({"routes": "0.0.0.0/0"}, "routes: a list is wanted"),
        ({"routes": [{"gw": "10.90.0.1"}]}, "no object with dst"),
        ({"routes": [{"dst": "10.0.0.1/8"}]}, "routes: 10.0.0.1/8 has bits behind its prefix"),
        ({"routes": [{"dst": "x"}]}, "routes: 'x' is no subnet"),
        ({"routes": [{"dst": "10.0.0.0/8", "gw": "10.91.0.1"}]}, "the gateway '10.91.0.1' is no address of 10.90"),
        ({"routes": [{"dst": "10.0.0.0/8", "gw": "fd00:90::1"}]}, "the gateway 'fd00:90::1' is no address of"),
        ({"subnets": ["10.90.0.0/24"], "routes": [{"dst": "::/0"}]}, "::/0 is IPv6, and the network has no such"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(NetworkError) as caught:
        parse_settings({**GOOD, **change})
    assert 'network "mine" has a wrong configuration: ' in caught.value.message
    assert message in caught.value.message


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(NetworkError, match="unknown key subnet") as caught:
        parse_settings({**GOOD, "subnet": "10.90.0.0/24"})
    assert caught.value.hint == "did you mean subnets?"
    with pytest.raises(NetworkError, match="unknown key ipam") as caught:
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
