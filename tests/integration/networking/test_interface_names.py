"""Interface names as the kernel takes them, and as pods get them (W5)."""

import os
import socket
import uuid

import pytest
from kurma_testing.networks import interfaces_in, pod_namespace

from kurma_core.errors import NetworkError
from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.networking.interfaces import assign, check_name

pytestmark = pytest.mark.root


def make_links(names):
    from pyroute2 import IPRoute

    with IPRoute() as netlink:
        for name in names:
            netlink.link("add", ifname=name, kind="bridge")


def renamed(names):
    """What one link is called, each time after it was given the next of these names."""
    from pyroute2 import IPRoute

    found = []
    make_links(["first"])
    with IPRoute() as netlink:
        (index,) = netlink.link_lookup(ifname="first")
        for name in names:
            netlink.link("set", index=index, ifname=name)
            found.append(socket.if_indextoname(index))
    return found


def test_the_kernel_takes_every_name_that_is_accepted():
    """Each character that may stand in a name, at its beginning, within and at its end; and the longest name."""
    names = ["a" * 15, "veth+146d7cef"]
    for character in map(chr, range(256)):
        for name in (f"{character}k", f"k{character}k", f"kk{character}"):
            try:
                names.append(check_name(name, "net"))
            except NetworkError:
                continue
    names = list(dict.fromkeys(names))
    assert len(names) > 250
    with pod_namespace(str(uuid.uuid4())) as namespace:
        assert in_network_namespace(namespace, lambda: renamed(names)) == names


def test_the_documents_templates_in_a_real_namespace():
    """Kurma Network Specification: ``veth+{{shortuuid}}``; 4 + 1 + 8 bytes, which fit."""
    pod = str(uuid.uuid4())
    wanted = ["veth+{{shortuuid}}", "eth{{num}}", "web0", "eth{{num}}", "{{random 15}}", "r{{random 6}}"]
    names = assign([(f"n{index}", text) for index, text in enumerate(wanted)], pod)
    assert names[:4] == (f"veth+{pod[:8]}", "eth0", "web0", "eth1")
    with pod_namespace(pod) as namespace:
        in_network_namespace(namespace, lambda: make_links(names))
        assert set(interfaces_in(namespace)) == {"lo", *names}
        assert os.path.basename(namespace) == f"kurma-{pod}"
