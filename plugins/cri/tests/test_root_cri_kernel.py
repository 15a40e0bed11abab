"""The service applies a setting where the kernel supports it, and refuses it elsewhere (C5, C8, C12, C14).

The virtual machine has AppArmor and all controllers of cgroup v2.
"""

import os
import subprocess
import sys

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri

from kurma_core.linux.cgroups import Layout
from plugins.cri.tests.conftest import Node, refused
from plugins.cri.tests.test_root_cri_resources import MIB, tree, update, with_resources
from tests.integration.machine import has_apparmor

pytestmark = pytest.mark.root
INVALID = grpc.StatusCode.INVALID_ARGUMENT
PROFILE = "profile kurma-cri-test flags=(attach_disconnected,mediate_deleted) { file, capability, signal, }"
#: Executes a program that finds no mount_setattr(2), as before Linux 5.12.
WITHOUT_MOUNT_SETATTR = """\
import ctypes, os, struct, sys
code = struct.pack("HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, 442, 6, 0, 0, 0x50026, 6, 0, 0, 0x7FFF0000)
held = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(held))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 == libc.prctl(22, 2, program, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def apparmor(name):
    profile = cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref=name)
    return cri.LinuxContainerConfig(security_context=cri.LinuxContainerSecurityContext(apparmor=profile))


@pytest.mark.vm
def test_a_profile_of_apparmor(node, tmp_path):
    sandbox = node.run()
    config = node.container_config("cat", "/proc/self/attr/current", linux=apparmor("localhost/kurma-cri-test"))
    if not has_apparmor():
        assert not os.environ.get("KURMA_TEST_VM"), "the virtual machine's kernel has AppArmor"
        with refused(INVALID, "AppArmor"):
            node.create(sandbox, config)
        return
    with refused(INVALID, "kurma-cri-test", "not loaded"):
        node.create(sandbox, config)
    file = tmp_path / "profile"
    file.write_text(PROFILE)
    load = ["apparmor_parser", "--config-file=/dev/null", "--skip-cache"]
    subprocess.run([*load, "--replace", file], check=True)
    try:
        container = node.create(sandbox, config)
        node.start(container)
        assert node.wait_exited(container).exit_code == 0
        assert node.output(container) == ["kurma-cri-test (enforce)"]
    finally:
        node.clear()
        subprocess.run([*load, "--remove", file], check=True)


@pytest.mark.vm
def test_huge_pages_and_files_of_cgroup_v2(node):
    """Kubelet sends a limit of 0 for each size of huge pages, also where no controller counts them."""
    sandbox = node.run()
    there = Layout.of_host().versions()
    huge = {"hugepage_limits": [cri.HugepageLimit(page_size="2MB", limit=4 * MIB)]}
    config = with_resources(node, "sleep", "1000", **huge)
    if "hugetlb" in there:
        container = node.create(sandbox, config)
        assert node.status(container).resources.linux == cri.LinuxContainerResources(**huge)
        file = "hugetlb.2MB.max" if there["hugetlb"] == 2 else "hugetlb.2MB.limit_in_bytes"
        assert tree(node, container).read("hugetlb", file) == str(4 * MIB)
    else:
        container = node.create(sandbox, node.container_config("sleep", "1000"))
        with refused(INVALID, "resources.hugepage_limits", "no cgroup controller hugetlb"):
            node.create(sandbox, with_resources(node, "true", name="other", **huge))
        with refused(INVALID, "resources.hugepage_limits"):
            update(node, container, **huge)
    unified = {"memory.high": str(16 * MIB)}
    if there["memory"] == 2:
        update(node, container, unified=unified)
        assert tree(node, container).read("memory", "memory.high") == str(16 * MIB)
        assert node.status(container).resources.linux.unified == unified
        usual = {"memory.oom.group": "1", "memory.swap.max": "0"}  # kubelet's, for every container
        update(node, container, unified=usual)
        assert {file: tree(node, container).read("memory", file) for file in usual} == usual
        assert node.status(container).resources.linux.unified == {**unified, **usual}
    else:
        with refused(INVALID, "memory.high is a file of cgroup v2"):
            update(node, container, unified=unified)
    with refused(INVALID, "nonsense"):
        update(node, container, unified={"nonsense.max": "1"})


@pytest.mark.vm
def test_swap_and_pressure(node):
    """``memory_swap_limit_in_bytes`` is memory and swap together, on both versions of cgroups."""
    given = {"memory_limit_in_bytes": 32 * MIB, "memory_swap_limit_in_bytes": 48 * MIB}
    container = node.create(node.run(), with_resources(node, "sleep", "1000", **given))
    there = Layout.of_host().versions()
    version, own = there["memory"], tree(node, container)

    def swap():
        if version == 1:
            return int(own.read("memory", "memory.memsw.limit_in_bytes"))
        return int(own.read("memory", "memory.swap.max")) + int(own.read("memory", "memory.max"))

    assert swap() == 48 * MIB
    node.start(container)
    update(node, container, memory_limit_in_bytes=40 * MIB, memory_swap_limit_in_bytes=64 * MIB)
    assert swap() == 64 * MIB
    with refused(INVALID, "memorySwapLimit"):
        update(node, container, memory_swap_limit_in_bytes=MIB)
    assert swap() == 64 * MIB
    stats = node.runtime.ContainerStats(cri.ContainerStatsRequest(container_id=container)).stats
    assert stats.swap.timestamp > 0
    assert stats.swap.swap_usage_bytes.value == 0
    assert stats.swap.swap_available_bytes.value == 24 * MIB
    measured = "cgroup" in there and os.path.exists("/proc/pressure")
    assert measured or not os.environ.get("KURMA_TEST_VM"), "the virtual machine's kernel has pressure"
    for part in (stats.cpu, stats.memory, stats.io):
        assert (part.HasField("psi"), part.psi.HasField("Some"), part.psi.HasField("Full")) == (measured,) * 3
        assert part.timestamp > 0 or not measured


def features(make_house, kurmad, tmp_path, *wrap):
    """The features that a kurmad tells of its default handler, if a program executes it."""
    section = {"config": {"socket": f"{tmp_path}/cri.sock", "network": "default"}}
    house = make_house({"daemon": {"prestarted_stagers": 0}, "plugins": {"services": {"cri": section}}})
    node = Node(house, kurmad(house=house, wrap=wrap), f"{tmp_path}/cri.sock")
    (handler,) = node.runtime.Status(cri.StatusRequest()).runtime_handlers
    node.close()
    return handler.features.recursive_read_only_mounts, handler.features.user_namespaces


@pytest.mark.full
def test_features_that_the_kernel_lacks(make_house, kurmad, tmp_path):
    wrap = (sys.executable, "-c", WITHOUT_MOUNT_SETATTR)
    assert features(make_house, kurmad, tmp_path, *wrap) == (False, False)


@pytest.mark.full
def test_a_kernel_that_allows_no_user_namespaces(make_house, kurmad, tmp_path):
    (tmp_path / "most").write_text("0\n")
    script = f'mount --bind {tmp_path}/most /proc/sys/user/max_user_namespaces && exec "$@"'
    wrap = ("unshare", "--mount", "sh", "-c", script, "sh")
    assert features(make_house, kurmad, tmp_path, *wrap) == (True, False)
