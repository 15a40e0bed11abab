"""Links of the host, as they are looked at and removed where something has gone wrong."""

import subprocess

import pytest
from kurma_net_cni import links

from kurma_core.errors import NetworkError

pytestmark = pytest.mark.root
MAC = "0a:58:00:00:00:01"


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def pair():
    ip("link", "add", "kcl0", "address", MAC, "type", "veth", "peer", "name", "kcl1")
    yield
    subprocess.run(["ip", "link", "del", "kcl0"], capture_output=True, check=False)


def test_one_of_that_name_and_another_address_stays(pair):
    assert links.has_address("kcl0", MAC.upper())
    links.delete_link("kcl0", mac="0a:58:00:00:00:02")
    assert links.exists("kcl0")
    links.delete_link("kcl0", mac=MAC.upper())
    links.delete_link("kcl0", mac=MAC)
    assert not links.exists("kcl0")
    assert not links.exists("kcl1")
    links.delete_link("a-name-that-no-link-can-have")


def test_the_ports_of_a_bridge(pair):
    ip("link", "add", "kcb0", "type", "bridge")
    try:
        assert links.bridge_ports("kcb0") == ()
        ip("link", "set", "kcl0", "master", "kcb0")
        assert links.bridge_ports("kcb0") == ("kcl0",)
        for name in ("kcl0", "kcl9"):
            with pytest.raises(NetworkError, match=f"the link {name} is no bridge"):
                links.bridge_ports(name)
    finally:
        links.delete_link("kcb0")
    assert not links.exists("kcb0")


def test_what_the_kernel_refuses_is_told():
    with pytest.raises(NetworkError, match="cannot delete the link lo: cannot remove interface lo: "):
        links.delete_link("lo")
