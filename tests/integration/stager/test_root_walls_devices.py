"""Devices not given, where ``nodev`` does not help: on what an app with CAP_SYS_ADMIN mounts itself (H11)."""

import contextlib
import os
import subprocess

import pytest
from kurma_stager_default.inside.pod import device_cgroup

from kurma_core.linux import capabilities
from kurma_core.linux.cgroups import Hierarchy, Layout
from kurma_core.models.isolator import IsolatorPlan
from tests.kit.images import shell

pytestmark = pytest.mark.root

CGROUP = "/sys/fs/cgroup/devices"
# 1:11 is the kernel's log, there on every machine; 1:5 is /dev/zero, which is given.
TRY = """
    mount -t tmpfs own /work && cd /work
    mknod given c 1 5 && head -c 1 given | wc -c
    mknod log c 1 11 && head -c 1 log 2>&1 | grep -o 'Operation not permitted'
    mknod disk b $DISK && head -c 1 disk 2>&1 | grep -o 'Operation not permitted'
"""


def root_disk():
    """Major and minor number of a disk of this machine."""
    with open("/proc/partitions") as file:
        major, minor = file.read().split("\n")[2].split()[:2]
    return f"{major} {minor}"


def plan(*more):
    names = [*capabilities.names(capabilities.DEFAULT_SET), *more]
    return {"main": IsolatorPlan(capabilities=tuple(names))}


@pytest.fixture(params=["controller", pytest.param("program", marks=pytest.mark.vm)])
def wall(request):
    """v1's controller; or a host without it, where v2 has to do."""
    there = os.path.isdir(CGROUP)
    if request.param == "controller":
        if not there:
            pytest.fail("this machine has no v1 devices controller: the tests need a hybrid host")
        yield "the devices controller"
        return
    if not there:
        yield "a program of the cgroup"
        return
    assert os.environ.get("KURMA_TEST_HOST"), "changes this host's mounts: run it by tests/host"
    subprocess.run(["umount", CGROUP], check=True)
    try:
        yield "a program of the cgroup"
    finally:
        subprocess.run(["mount", "-t", "cgroup", "-o", "devices", "cgroup", CGROUP], check=True)


def test_what_was_not_given_cannot_be_opened(wall, pods):
    pod = pods({"main": shell(TRY)}, plans=plan("CAP_SYS_ADMIN"), environment=[("DISK", root_disk())])
    assert pod.ended() == 0, pod.output()
    refused = "Operation not permitted\n"
    assert pod.log(stream=b"stdout") == f"1\n{refused}{refused}", pod.log()
    notes = pod.document()["notes"]
    assert f"devices: those that were not given are refused by nodev and by {wall}" in notes


V1_FILES = """
    mkdir /c && mount -t cgroup -o devices own /c && cd /c && ls | grep -c -e kurma -e release_agent
    (echo a > devices.allow) 2>&1 | grep -o 'Operation not permitted'
    (echo 'c 1:11 rwm' > devices.allow) 2>&1 | grep -o 'Operation not permitted'
"""
V2_FILES = "mkdir /u && mount -t cgroup2 own /u && ls /u | grep -c -e kurma -e stager -e app-\n"


def test_all_capabilities_do_not_take_the_wall_down(wall, pods):
    """The app mounts cgroups, finds its own and no other, and may not allow itself what the pod's denies."""
    everything = IsolatorPlan(capabilities=tuple(capabilities.names(range(capabilities.last_cap() + 1))))
    v1 = wall == "the devices controller"
    script = (V1_FILES if v1 else "") + V2_FILES + TRY
    pod = pods({"main": shell(script)}, plans={"main": everything}, environment=[("DISK", root_disk())])
    assert pod.ended() == 0, pod.output()
    refused = "Operation not permitted\n"
    expected = (f"0\n{refused}{refused}" if v1 else "") + f"0\n1\n{refused}{refused}"
    assert pod.log(stream=b"stdout") == expected, pod.log()


def test_a_call_in_that_comes_before_its_time_is_in_nobodys_way():
    """v1 closes no cgroup that has others below: what was made for a call-in goes first, once that has ended."""
    assert os.path.isdir(CGROUP), "this machine has no v1 devices controller: the tests need a hybrid host"
    directory = f"{CGROUP}/kurma-test-{os.getpid()}"
    os.makedirs(f"{directory}/callins")
    try:
        device_cgroup.close(Layout([Hierarchy(1, ("devices",), directory, "devices")]), [])
        assert not os.path.exists(f"{directory}/callins")
        with open(f"{directory}/devices.list") as file:
            assert "a *:* rwm" not in file.read()
        os.mkdir(f"{directory}/callins")
        with subprocess.Popen(["/bin/sleep", "0.5"]) as call_in:
            with open(f"{directory}/callins/cgroup.procs", "w") as file:
                file.write(str(call_in.pid))
            device_cgroup.close(Layout([Hierarchy(1, ("devices",), directory, "devices")]), [])
            assert call_in.poll() is not None or not os.path.exists(f"{directory}/callins")
    finally:
        for path in (f"{directory}/callins", directory):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(path)
