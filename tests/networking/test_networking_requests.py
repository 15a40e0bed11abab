"""``--net`` and ``-p``: what is understood, and what is refused with a reason."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.api.network_options import parse_net, parse_port, parse_ports
from kurma_core.errors import UsageError
from kurma_core.models.network import NetworkRequest, PortMapping
from kurma_core.schema import SchemaError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mynet", NetworkRequest("mynet")),
        ("mynet:eth3", NetworkRequest("mynet", "eth3")),
        ("mynet:IP=10.1.2.3", NetworkRequest("mynet", ips=("10.1.2.3",))),
        ("mynet,optional", NetworkRequest("mynet", optional=True)),
        ("mynet:veth{{num}}", NetworkRequest("mynet", "veth{{num}}")),
        ("mynet,ip=10.1.2.3", NetworkRequest("mynet", ips=("10.1.2.3",))),
        ("a:b,ip=10.1.2.3/24,ip=fd00::1,mac=02:AB:00:00:00:01",
         NetworkRequest("a", "b", ("10.1.2.3/24", "fd00::1"), "02:ab:00:00:00:01")),
        ("a,arg=K8S_POD_NAME=web 0,arg=X=,ip=10.1.2.3",
         NetworkRequest("a", ips=("10.1.2.3",), args={"K8S_POD_NAME": "web 0", "X": ""})),
    ],
)  # fmt: skip
def test_networks(text, expected):
    assert parse_net(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a name is missing"),
        (":eth0", "a name is missing"),
        ("a:", "the interface is missing"),
        ("a,ip=10.1.2", '"10.1.2" is not an address'),
        ("a,ip=10.1.2.3/33", '"10.1.2.3/33" is not an address'),
        ("a,ip=10.1.2.3\x00", "is not an address"),
        ("a,mac=02:00:00:00:00", "is no MAC address"),
        ("a,mac=01:00:00:00:00:00", "is a multicast address"),
        ("a,mac=00:00:00:00:00:00", "is nobody's: all of it is zero"),
        ("a,ipp=10.1.2.3", 'unknown option "ipp=10.1.2.3"'),
        ("a,ip", 'unknown option "ip"'),
        ("a,optional=perhaps", 'unknown option "optional=perhaps"'),
        ("a,", 'unknown option ""'),
        ("a,arg=x", 'unknown option "arg=x"'),
        ("a,arg==x", "the argument's name: expected a name of ASCII letters, digits and _"),
        ("a,arg=K;L=x", "the argument's name: expected a name of ASCII letters"),
        ("a,arg=IP=10.1.2.3", "the argument's name: expected an argument that Kurma does not set itself"),
        ("a,arg=K=x;IP=10.1.2.3", "the argument K: expected printable text without ; and ="),
        ("a,arg=K=x=y", "the argument K: expected printable text"),
        ("a,arg=K=x\n", "the argument K: expected printable text"),
        ("a,arg=K=1,arg=K=2", "the argument K is given twice"),
    ],
)
def test_malformed_networks(text, why):
    with pytest.raises(UsageError) as caught:
        parse_net(text)
    assert why in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "args", [{"K;L": "x"}, {"": "x"}, {"IP": "10.1.2.3"}, {"K": "x;IP=10.1.2.3"}, {"K": 1}, {"K": None}, []]
)
def test_arguments_of_a_client_are_checked(args):
    with pytest.raises(SchemaError, match=r"^the NetworkRequest\.args"):
        NetworkRequest.from_json({"name": "a", "args": args})


def test_arguments_as_json():
    request = NetworkRequest("a", args={"K": "x y"})
    assert NetworkRequest.from_json(request.to_json()) == request


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8080:80", PortMapping(8080, 80)),
        ("53:53/udp", PortMapping(53, 53, "udp")),
        ("127.0.0.1:8080:80/tcp", PortMapping(8080, 80, "tcp", "127.0.0.1")),
        ("[::1]:8080:80", PortMapping(8080, 80, "tcp", "::1")),
        ("1:65535", PortMapping(1, 65535)),
    ],
)
def test_ports(text, expected):
    assert parse_port(text) == expected
    assert parse_ports(text) == (expected,)


def test_ranges_of_ports():
    assert parse_ports("8000-8002:80-82/udp") == tuple(PortMapping(8000 + n, 80 + n, "udp") for n in range(3))
    with pytest.raises(UsageError, match="not a range"):
        parse_port("8000-8002:80-82")


@pytest.mark.parametrize(
    ("text", "hint"),
    [("80", "80:80"), ("80/udp", "80:80/udp"), ("[::1]:8000-8001", "[::1]:8000-8001:8000-8001")],
)
def test_a_port_of_the_pod_alone_says_how_to_write_it(text, hint):
    with pytest.raises(UsageError, match="the pod's port is missing") as caught:
        parse_ports(text)
    assert caught.value.hint == f"for the same port on both sides: {hint}"
    parse_ports(hint)


def test_an_address_without_brackets_is_shown_with_them():
    with pytest.raises(UsageError, match=r"an IPv6 address stands in brackets: \[::1\]:8080:80"):
        parse_ports("::1:8080:80")


@pytest.mark.parametrize(
    "address", ["23.0.0.1", "223.255.0.1", "240.0.0.1", "0.0.0.0", "[ff::1]", "[::]", "[fe80::1]"]
)
def test_addresses_that_a_host_may_have(address):
    assert parse_port(f"{address}:80:81").host_ip == address.strip("[]")


def test_a_range_has_its_limit():
    assert len(parse_ports("1-1024:2001-3024")) == 1024
    with pytest.raises(UsageError, match="it has 65535 ports, 1024 are allowed in one range") as caught:
        parse_ports("1-65535:1-65535")
    assert "--net host" in caught.value.hint
    with pytest.raises(UsageError, match="a range of 11 ports leads to one of 5"):
        parse_ports("8000-8010:80-84")


@pytest.mark.parametrize(
    "text",
    ["", "80", ":80", "80:", "0:80", "80:65536", "80:-1", "+80:80", "8 0:80", "²:80", "80:80/icmp", "80:80/",
     "1-3:1-2", "3-1:3-1", "localhost:80:80", "::1:80:80", "[127.0.0.1]:80:80", "[::1]80:80", "a:b:c:d"],
)  # fmt: skip
def test_malformed_ports(text):
    with pytest.raises(UsageError) as caught:
        parse_ports(text)
    assert f"malformed port {text!r}" in caught.value.message


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        (
            "8080:80,8081:81/udp",
            "one mapping is wanted, or a range of ports",
            "write: -p 8080:80 -p 8081:81/udp",
        ),
        ("-1:80", '"-1" is not a port (1 to 65535)', "write [IP:]HOST:POD"),
        ("80:8-", '"8-" is not a port (1 to 65535)', "write [IP:]HOST:POD"),
    ],
)
def test_words_for_what_is_often_mistaken(text, why, hint):
    with pytest.raises(UsageError) as caught:
        parse_ports(text)
    assert caught.value.message == f"malformed port {text!r}: {why}"
    assert caught.value.hint.startswith(hint)


@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text):
    for parse in (parse_net, parse_ports):
        with suppress(UsageError):
            parse(text)
