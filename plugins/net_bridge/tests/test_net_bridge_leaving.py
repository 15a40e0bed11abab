"""A pod's interfaces are gone from the kernel's lists when its leaving is done, whatever the kernel does with them
after that.
"""

import errno
import os
import subprocess
import sys

import pytest
from kurma_net_bridge.links import remove_pair
from kurma_testing.networks import pod_namespace

from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.linux.netlink import Netlink, NetlinkError

pytestmark = pytest.mark.root
BRIDGE, PORT = "kltest0", "kvtest0"


@pytest.fixture
def bridge():
    """Its index."""
    with Netlink() as netlink:
        netlink.add_bridge(BRIDGE, mac=bytes.fromhex("026b00000009"))
        netlink.set_link(BRIDGE, up=True)
        yield netlink.link(BRIDGE).index
        for name in (PORT, BRIDGE):
            netlink.delete_link(name)


@pytest.fixture
def namespace():
    with pod_namespace("leaving") as path:
        yield path


def join(namespace, bridge):
    fd = os.open(namespace, os.O_RDONLY)
    try:
        with Netlink() as netlink:
            netlink.add_veth(PORT, "eth0", fd, master=bridge)
    finally:
        os.close(fd)


def inside(namespace):
    """Whether the pod has its interface."""
    with in_network_namespace(namespace, Netlink) as netlink:
        return netlink.link("eth0") is not None


def ports(bridge):
    with Netlink() as netlink:
        return [link.name for link in netlink.links(master=bridge)]


def everything():
    """Names of the host's interfaces, from two sources."""
    with Netlink() as netlink:
        return {link.name for link in netlink.links()} | set(os.listdir("/proc/sys/net/ipv4/conf"))


def test_gone_from_everywhere_and_back_again(bridge, namespace):
    for _ in range(20):
        join(namespace, bridge)
        assert ports(bridge) == [PORT]
        assert inside(namespace)
        remove_pair(PORT)
        assert PORT not in everything()
        assert ports(bridge) == []
        assert not inside(namespace)


def test_of_a_process_that_ends(bridge, namespace):
    join(namespace, bridge)
    code = f"import os; from kurma_net_bridge.links import remove_pair; remove_pair({PORT!r}); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert PORT not in everything()
    assert ports(bridge) == []
    assert not inside(namespace)


def test_none_is_success():
    remove_pair(PORT)


def test_what_the_kernel_refuses_is_raised():
    with pytest.raises(NetlinkError) as caught:
        remove_pair("lo")
    assert caught.value.errno == errno.EOPNOTSUPP
