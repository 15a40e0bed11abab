"""The namespaces of pods, held by mounts: whoever comes, and whatever lies at their places (W11)."""

import os
import signal
import subprocess
import threading

import pytest

from kurma_core.errors import HostError
from kurma_core.linux import mounts, namespaces
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def pinned(uuid):
    return f"/run/netns/kurma-{uuid}"


def mounted(path):
    """The mounts on a path, the uppermost first; what lies below another mount and cannot be reached is none."""
    known = {one.id: one for one in mounts.mountinfo()}
    try:
        fd = os.open(path, os.O_PATH)
    except FileNotFoundError:
        return []
    with open(f"/proc/self/fdinfo/{fd}") as file:
        (number,) = [int(line.split()[1]) for line in file if line.startswith("mnt_id:")]
    os.close(fd)
    found = []
    while number in known and known[number].target == path:
        found.append(known[number])
        number = known[number].parent
    return found


@pytest.mark.parametrize("userns", ["none", "auto"])
def test_they_outlive_all_of_the_pod_and_are_entered_with_ordinary_tools(house, userns):
    run = house.launch("sleep 1000", userns=userns)
    record = house.client.pod(run.uuid)
    inode = os.stat(pinned(run.uuid)).st_ino
    run.kill()
    os.kill(record.stager_pid, signal.SIGKILL)
    until(lambda: not alive(record.stager_pid), "the stager's end")
    assert f"kurma-{run.uuid}" in output("ip", "netns", "list")
    for command in (("ip", "netns", "exec", f"kurma-{run.uuid}"), ("nsenter", f"--net={pinned(run.uuid)}")):
        assert output(*command, "readlink", "/proc/self/ns/net").strip() == f"net:[{inode}]"
        assert "127.0.0.1/8" in output(*command, "ip", "address")
    house.client.gc(grace=0)
    assert not os.path.lexists(pinned(run.uuid))


def test_what_lies_over_it_goes_with_it(house):
    with house.running("sleep 1000") as pod:
        for _ in range(2):
            output("mount", "--bind", "/dev/null", pinned(pod.uuid))
        (one,) = house.client.network_check()
        assert one.what == f"network namespace {pinned(pod.uuid)}"
    assert mounted(pinned(pod.uuid)) == []
    assert not os.path.lexists(pinned(pod.uuid))


def test_an_empty_file_is_nothing_any_more(house):
    record = house.client.prepare(house.request("ip link show lo", net="none"))
    os.makedirs("/run/netns", exist_ok=True)
    with open(pinned(record.uuid), "w"):
        pass
    assert house.start(record.uuid)[0].exit_code == 0
    assert not os.path.lexists(pinned(record.uuid))


def test_a_strangers_namespace_of_its_name_stays(house):
    """As where a copy of the state directory runs the same pod."""
    record = house.client.prepare(house.request("true", net="none"))
    output("ip", "netns", "add", f"kurma-{record.uuid}")
    inode = os.stat(pinned(record.uuid)).st_ino
    for _ in range(2):
        with pytest.raises(HostError, match=r"cannot make the network namespace .* exists there"):
            house.start(record.uuid)
    house.client.gc(grace=1000)
    assert house.client.network_check(repair=True) == []
    house.client.rm(record.uuid)
    assert os.stat(pinned(record.uuid)).st_ino == inode
    output("ip", "netns", "delete", f"kurma-{record.uuid}")


def unmount_place():
    """As it is after a boot: /run/netns is not a mount."""
    while mounted("/run/netns"):
        output("umount", "--lazy", "/run/netns")


@pytest.mark.parametrize("how", ["no mount", "missing", "private", "made by ip"])
def test_the_place_is_made_right(house, how):
    assert not os.path.isdir("/run/netns") or os.listdir("/run/netns") == []
    if how in ("no mount", "missing"):
        unmount_place()
    if how == "missing" and os.path.isdir("/run/netns"):
        os.rmdir("/run/netns")
    if how == "private":
        os.makedirs("/run/netns", exist_ok=True)
        if not mounted("/run/netns"):
            output("mount", "--bind", "/run/netns", "/run/netns")
        output("mount", "--make-private", "/run/netns")
    if how == "made by ip":
        unmount_place()
        output("ip", "netns", "add", "before")
    with house.running("sleep 1000") as pod:
        (place,) = mounted("/run/netns")
        assert any(word.startswith("shared:") for word in place.propagation)
        output("ip", "netns", "add", "after")
        assert "lo" in output("ip", "netns", "exec", f"kurma-{pod.uuid}", "ip", "link")
        # Who has a mount namespace of his own (a slave, as systemd gives) sees it go.
        seer = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "slave", "sh", "-c", f"test -e {pinned(pod.uuid)} && cat"],
            stdin=subprocess.PIPE,
        )
        until(lambda: os.readlink(f"/proc/{seer.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"), "its namespace")
    names = {os.path.basename(one.target) for one in mounts.mountinfo(seer.pid) if one.fstype == "nsfs"}
    assert f"kurma-{pod.uuid}" not in names
    seer.communicate()
    for name in ("before", "after") if how == "made by ip" else ("after",):
        output("ip", "netns", "delete", name)
    assert os.listdir("/run/netns") == []


def test_the_place_is_made_once_by_many(tmp_path):
    """Two mounts, one over the other, would hide what is pinned below."""
    for turn in range(60):
        place = f"/run/place-{turn}"
        barrier = threading.Barrier(6)

        def make(number, place=place, barrier=barrier):
            barrier.wait()
            namespaces.pin("/proc/self/ns/net", f"{place}/{number}")

        threads = [threading.Thread(target=make, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        try:
            assert len(mounted(place)) == 1
            assert all(len(mounted(f"{place}/{number}")) == 1 for number in range(6))
        finally:
            while mounted(place):
                output("umount", "--lazy", place)
            for name in os.listdir(place):
                os.unlink(f"{place}/{name}")
            os.rmdir(place)
