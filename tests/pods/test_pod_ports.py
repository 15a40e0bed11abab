"""Which published ports clash (W9)."""

import pytest

from kurma_core.errors import NetworkError
from kurma_core.models import PortMapping
from kurma_core.pod_store import PodStore
from kurma_core.pods.ports import check_free

UUID = "aaaa0000-0000-4000-8000-000000000001"
HTTP = PortMapping(80, 8080)


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
        check_free(store, UUID, (HTTP, other))


@pytest.mark.parametrize("other", [PortMapping(81, 8080), PortMapping(80, 8080, "udp")])
def test_does_not_clash(store, other):
    check_free(store, UUID, (HTTP, other))


def test_addresses_of_their_own(store):
    check_free(store, UUID, (PortMapping(80, 1, host_ip="127.0.0.1"), PortMapping(80, 1, host_ip="127.0.0.2")))
