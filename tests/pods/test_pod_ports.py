"""Which published ports clash (W9)."""

import pytest

from kurma_core.errors import NetworkError
from kurma_core.models import PortMapping
from kurma_core.pod_store import PodStore
from kurma_core.pods.listeners import Listener
from kurma_core.pods.ports import check_free

UUID = "aaaa0000-0000-4000-8000-000000000001"
HTTP = PortMapping(80, 8080)


def nobody(protocol, port, address):
    return None


@pytest.fixture
def store(tmp_path):
    return PodStore(str(tmp_path))


@pytest.mark.parametrize(
    "other",
    [
        PortMapping(80, 1),
        PortMapping(80, 1, host_ip="127.0.0.1"),
        PortMapping(80, 1, host_ip="0.0.0.0"),
        PortMapping(80, 1, host_ip="::"),
    ],
)
def test_clashes(store, other):
    with pytest.raises(NetworkError, match="80/tcp of the host is published twice"):
        check_free(store, UUID, (HTTP, other), nobody)


@pytest.mark.parametrize("other", [PortMapping(81, 8080), PortMapping(80, 8080, "udp")])
def test_does_not_clash(store, other):
    check_free(store, UUID, (HTTP, other), nobody)


def at(*addresses):
    return tuple(PortMapping(80, 1, host_ip=address) for address in addresses)


@pytest.mark.parametrize(
    "addresses", [("127.0.0.1", "127.0.0.2"), ("0.0.0.0", "::"), ("0.0.0.0", "::1"), ("::", "127.0.0.1")]
)
def test_addresses_of_their_own(store, addresses):
    check_free(store, UUID, at(*addresses), nobody)


@pytest.mark.parametrize("addresses", [("::1", "0:0:0:0:0:0:0:1"), ("::", "fd00::1"), ("0.0.0.0", "10.0.0.1")])
def test_addresses_that_are_the_same(store, addresses):
    with pytest.raises(NetworkError, match="published twice"):
        check_free(store, UUID, at(*addresses), nobody)


def test_a_port_that_somebody_listens_on(store):
    asked = []

    def listener(protocol, port, address):
        asked.append((protocol, port, address))
        return Listener("::", 81, "udp", "dnsmasq (process 7)") if port == 81 else None

    ports = (PortMapping(80, 1, host_ip="127.0.0.1"), PortMapping(81, 2, "udp"))
    with pytest.raises(NetworkError) as caught:
        check_free(store, UUID, ports, listener)
    assert caught.value.message == (
        "port 81/udp of the host is in use by dnsmasq (process 7), which listens on [::]:81"
    )
    assert caught.value.hint
    assert asked == [("tcp", 80, "127.0.0.1"), ("udp", 81, "")]
