"""``os/unix/sysctl``: the pod's own settings, and no other (X4)."""

from __future__ import annotations

import pytest
from kurma_isolators_linux.driver import LinuxIsolators

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.value import replace

HOST = IsolatorHost({}, 1)
OWN = [
    *("net.ipv4.ip_forward", "net.core.somaxconn", "net.ipv4.conf.eth0/7.forwarding", "kernel.domainname"),
    *("kernel.shmmax", "kernel.shm_rmid_forced", "kernel.msgmni", "kernel.sem", "fs.mqueue.msg_max"),
    "vm.memfd_noexec",
]
FOREIGN = [
    *("kernel.core_pattern", "vm.swappiness", "fs.file-max", "kernel.shm", "kernel.semmsl", "kernel.hostname"),
    *("net", "net.", "fs.mqueue.", "fs.mqueue", "user.max_user_namespaces", "kernel", "NET.ipv4.ip_forward", ""),
    *("net..ipv4", "net.//.kernel.core_pattern", "net/../kernel/core_pattern", "net/./x", ".net.ipv4", "net. x"),
    *("net.ipv4\n.x", "/net/ipv4/ip_forward", "net.ipv4.", "net.a\\b"),
]


PING = {"net.ipv4.ping_group_range": "0 2147483647"}


def sysctl(value, host=HOST):
    return LinuxIsolators().compile("os/unix/sysctl", value, "pod", host)


@pytest.mark.parametrize("key", OWN)
def test_the_pods_own(key):
    assert sysctl({key: "1"}).plan.sysctls == {key: "1", **PING}
    assert sysctl({key: "1"}).outcome == "enforced"


@pytest.mark.parametrize("key", FOREIGN)
def test_others_are_refused(key):
    with pytest.raises(IsolatorError) as caught:
        sysctl({"net.ipv4.ip_forward": "1", key: "1"})
    if key.startswith(("vm", "kernel.core")):
        assert f"{key} is not a setting of a pod's own" in str(caught.value)
        for known in ("net.*", "fs.mqueue.*", "kernel.domainname", "kernel.shmmax"):
            assert known in caught.value.hint


def test_paths_are_names_too():
    assert sysctl({"net/ipv4/conf/eth0.7/forwarding": "1"}).plan.sysctls == {
        "net.ipv4.conf.eth0/7.forwarding": "1",
        **PING,
    }
    with pytest.raises(IsolatorError, match=r"net\.ipv4\.ip_forward is given twice"):
        sysctl({"net/ipv4/ip_forward": "1", "net.ipv4.ip_forward": "0"})


def test_ping_needs_no_capability():
    """Every pod with a network of its own, unless its isolator says otherwise; never the host's setting."""
    driver = LinuxIsolators()
    assert ("os/unix/sysctl", {}) in driver.defaults("pod", (), HOST)
    assert driver.defaults("pod", ("os/unix/sysctl",), HOST) == ()
    assert driver.defaults("pod", (), replace(HOST, host_network=True)) == ()
    assert sysctl({}).plan.sysctls == PING
    chosen = {"net.ipv4.ping_group_range": "1 0"}
    assert sysctl(chosen).plan.sysctls == chosen
    assert sysctl({}, replace(HOST, host_network=True)).plan.sysctls == {}
    assert sysctl({}, replace(HOST, shared=frozenset({"net"}))).plan.sysctls == {}


@pytest.mark.parametrize("value", ["", "a\nb", "\0", "x" * 2000, True, None, 1, 1.5, ["1"]])
def test_values_are_lines(value):
    with pytest.raises(IsolatorError, match=r"kernel\.domainname: expected a line of text"):
        sysctl({"kernel.domainname": value})
    assert sysctl({"net.ipv4.ip_local_port_range": "1000\t2000"}).plan.sysctls


@pytest.mark.parametrize(
    ("host", "keys", "whose"),
    [
        ({"host_network": True, "shared": frozenset({"net"})}, ("net.ipv4.ip_forward",), "network"),
        ({"shared": frozenset({"ipc", "user"})}, ("kernel.sem", "fs.mqueue.msg_max"), "IPC namespace"),
        ({"shared": frozenset({"uts"})}, ("kernel.domainname",), "UTS namespace"),
    ],
)
def test_what_is_shared_with_the_host_is_the_hosts(host, keys, whose):
    for key in OWN:
        if key not in keys and not (whose == "network" and key.startswith("net.")):
            continue
        with pytest.raises(IsolatorError, match=f"{key} would be the host's: the pod is in the host's {whose}"):
            sysctl({key: "1"}, replace(HOST, **host))
    others = {"network": "kernel.sem", "IPC namespace": "kernel.domainname", "UTS namespace": "net.core.somaxconn"}
    found = sysctl({others[whose]: "1"}, replace(HOST, **host)).plan.sysctls
    assert found == {others[whose]: "1", **({} if whose == "network" else PING)}
