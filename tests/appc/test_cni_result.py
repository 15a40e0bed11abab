"""The Result of a network's add, in every shape of CNI, and hostile ones (W3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.appc.cni_result import parse_result
from kurma_core.errors import NetworkError
from kurma_core.models.network import AddressResult, NetworkResult

OLD = {
    "ip4": {"ip": "10.1.0.2/16", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]},
    "ip6": {"ip": "fd00::2/64", "routes": [{"dst": "::/0"}]},
    "dns": {"nameservers": ["10.1.0.1"], "domain": "pods.example", "options": ["ndots:1"]},
}
NEW = {
    "cniVersion": "0.4.0",
    "interfaces": [{"name": "eth0"}],
    "ips": [
        {"version": "4", "address": "10.1.0.2/16", "gateway": "10.1.0.1", "interface": 0},
        {"version": "6", "address": "fd00::2/64"},
    ],
    "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "::/0"}],
    "dns": {"nameservers": ["10.1.0.1"], "search": ["pods.example"], "options": ["ndots:1"]},
}
NEWEST = {
    **NEW,
    "cniVersion": "1.1.0",
    "ips": [{k: v for k, v in ip.items() if k != "version"} for ip in NEW["ips"]],
    "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "table": 7}, {"dst": "::/0"}],
}


@pytest.mark.parametrize("value", [OLD, {**OLD, "cniVersion": "0.2.0"}, NEW, NEWEST])
def test_every_shape_says_the_same(value):
    assert parse_result(value, "n") == NetworkResult(
        addresses=(AddressResult("10.1.0.2/16", "10.1.0.1"), AddressResult("fd00::2/64")),
        routes=(("0.0.0.0/0", "10.1.0.1"), ("::/0", None)),
        nameservers=("10.1.0.1",),
        search=("pods.example",),
        options=("ndots:1",),
        raw=value,
    )


@pytest.mark.parametrize(
    "value", [{}, {"cniVersion": "1.0.0"}, {"ips": None, "cniVersion": "1.0.0"}, {"ip4": None}]
)
def test_no_address_is_a_result_too(value):
    assert parse_result(value, "n").addresses == ()


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (None, r"\$: expected an object"),
        ({"cniVersion": "9.0.0"}, r"\$\.cniVersion: expected one of"),
        (
            {"ip4": {"ip": "10.1.0.2"}},
            r"\$\.ip4\.ip: expected an address with a prefix length, found '10\.1\.0\.2'",
        ),
        ({"ip4": {"ip": "fd00::2/64"}}, r"\$\.ip4\.ip: expected an IPv4 address"),
        ({"ip6": {"ip": "10.1.0.2/16"}}, r"\$\.ip6\.ip: expected an IPv6 address"),
        ({"ip4": {"ip": "10.1.0.2/33"}}, r"\$\.ip4\.ip"),
        ({"ip4": {"ip": "10.1.0.2/16", "gateway": "x"}}, r"\$\.ip4\.gateway: expected an address"),
        ({"ips": {}}, r"\$\.ips: expected a list"),
        ({"ips": [{}] * 257}, r"\$\.ips: expected a list of at most 256"),
        ({"ips": [3]}, r"\$\.ips\[0\]: expected an object"),
        ({"ips": [{"address": "10.1.0.2/16\n"}]}, r"\$\.ips\[0\]\.address"),
        ({"ips": [], "routes": [{"dst": "default"}]}, r"\$\.routes\[0\]\.dst"),
        ({"dns": {"nameservers": ["a b"]}}, r"\$\.dns\.nameservers\[0\]: expected one word"),
        ({"dns": {"nameservers": ["ns.example"]}}, r"\$\.dns\.nameservers\[0\]: expected an address"),
        ({"dns": {"search": ["a\nnameserver 6.6.6.6"]}}, r"\$\.dns\.search\[0\]: expected one word"),
        ({"dns": {"options": "ndots"}}, r"\$\.dns\.options: expected a list"),
    ],
)
def test_what_is_wrong_is_named(value, where):
    with pytest.raises(NetworkError, match=f'network "mynet" returned a wrong result: {where}'):
        parse_result(value, "mynet")


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["10.0.0.1/8", "::1", "1.0.0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "cniVersion",
                    "ip4",
                    "ip6",
                    "ips",
                    "ip",
                    "address",
                    "gateway",
                    "routes",
                    "dst",
                    "gw",
                    "dns",
                    "search",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_JSON)
def test_any_json_is_understood_or_refused(value):
    try:
        result = parse_result(value, "n")
    except NetworkError as error:
        assert error.data["network"] == "n"  # noqa: PT017 - both ways are right
        return
    assert all("/" in address.address for address in result.addresses)
