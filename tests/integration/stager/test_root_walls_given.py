"""What is the host's, given by a plan: devices, namespaces, all power (X5, X6); and to nobody else."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from kurma_core.linux import capabilities
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.isolator import Device, IsolatorPlan
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

CGROUP = "/sys/fs/cgroup/devices"
KMSG = Device("/dev/own/kmsg", "c", 1, 11, "r", 0o640, 0, 4)
EVERYTHING = tuple(capabilities.names(range(capabilities.last_cap() + 1)))
REFUSED = "Operation not permitted"
#: What the other apps of a pod may still not do, even where they may mount and so get past nodev.
OTHER = """
    ls /dev/own 2>&1 | grep -o 'No such file'
    mknod /work/log c 1 11; head -c 1 /work/log 2>&1 | grep -o 'Permission denied'
    mount -t tmpfs own /work; mknod /work/log c 1 11; head -c 1 /work/log 2>&1 | grep -o 'Operation not permitted'
    mknod /work/given c 1 5; head -c 1 /work/given | wc -c
"""
ADMIN = IsolatorPlan(capabilities=(*capabilities.names(capabilities.DEFAULT_SET), "CAP_SYS_ADMIN", "CAP_SYSLOG"))


@pytest.fixture(params=["controller", pytest.param("program", marks=pytest.mark.vm)])
def wall(request):
    """v1's controller; or a host without it, where v2 has to do."""
    there = os.path.isdir(CGROUP)
    if request.param == "controller":
        assert there, "this machine has no v1 devices controller: the tests need a hybrid host"
    if request.param == "controller" or not there:
        yield
        return
    assert os.environ.get("KURMA_TEST_HOST"), "changes this host's mounts: run it by tests/host"
    subprocess.run(["umount", CGROUP], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-t", "cgroup", "-o", "devices", "cgroup", CGROUP], check=True)


def test_a_device_is_the_apps_that_it_was_given_to(wall, pods):
    own = """
        stat -c '%F %t:%T %a %u:%g' /dev/own/kmsg
        head -c 1 /dev/own/kmsg | wc -c
        echo text 2>&1 > /dev/own/kmsg | grep -o 'Operation not permitted'
        mknod /work/log c 1 11; head -c 1 /work/log 2>&1 | grep -o 'Permission denied'
    """
    plans = {"main": IsolatorPlan(devices=(KMSG,), capabilities=(*ADMIN.capabilities,)), "other": ADMIN}
    # Waiting for each other is not needed: what each may is not a matter of time.
    pod = pods({"main": shell("( " + own + " ) 2>&1"), "other": shell("( " + OTHER + " ) 2>&1")}, plans=plans)
    assert pod.ended() == 0, pod.output()
    assert pod.log() == f"character special file 1:b 640 0:4\n1\n{REFUSED}\nPermission denied\n"
    assert pod.log("other.log") == f"No such file\nPermission denied\n{REFUSED}\n1\n"


def test_an_app_that_comes_later_gets_its_device_and_the_others_do_not(wall, pods):
    """The pod's wall is opened, and those of the apps that are there are closed first."""
    waits = shell("while ! [ -e /go ]; do sleep 0.05; done; ( " + OTHER + " ) 2>&1", user="0")
    pod = pods({"main": waits, "late": shell("true")}, plans={"main": ADMIN}).started()
    document = json.loads(Path(f"{pod.directory}/stager/manifest").read_text())
    part = {**document, "pod": {**document["pod"], "apps": []}}
    entry = dict(next(one for one in document["pod"]["apps"] if one["name"] == "late"), name="new")
    entry["app"] = shell("head -c 1 /dev/own/kmsg | wc -c")
    part["pod"]["apps"] = [entry]
    part["appImageOrder"] = {"new": document["appImageOrder"]["late"]}
    plan = IsolatorPlan(devices=(KMSG,), capabilities=(*ADMIN.capabilities,)).to_json()
    reserved = document["stagerConfig"]["kurma.io"]
    part["stagerConfig"]["kurma.io"]["apps"] = {"new": {**reserved["apps"]["late"], "plan": plan}}
    assert pod.call("app-add", "new", document=json.dumps(part).encode()) == (0, "", "")
    assert pod.call("app-start", "new")[0] == 0
    assert pod.wait_log("1\n", "new.log") == "1\n"
    assert pod.run("touch", "/go")[0] == 0
    assert pod.ended() == 0, pod.output()
    assert pod.log() == f"No such file\nPermission denied\n{REFUSED}\n1\n"


def test_a_privileged_app_has_everything_and_its_neighbour_nothing(wall, pods):
    script = """
        grep -E 'Cap(Bnd|Eff)|Seccomp:|NoNewPrivs' /proc/self/status
        grep -c ' /proc/\\(sys\\|kcore\\|sysrq-trigger\\|keys\\) ' /proc/self/mounts
        grep -o ' /sys sysfs rw' /proc/self/mounts
        mknod /work/log c 1 11; head -c 1 /work/log | wc -c
        head -c 1 /dev/own/kmsg | wc -c
        mkdir /m && mount -t tmpfs mine /m && echo mounted
    """
    mask = f"{capabilities.mask(capabilities.bounding()):016x}"  # nobody has more than who starts it
    plan = IsolatorPlan(privileged=True, capabilities=EVERYTHING, devices=(KMSG,))
    pod = pods(
        {"main": shell(script), "other": shell("( " + OTHER + " ) 2>&1")}, plans={"main": plan, "other": ADMIN}
    )
    assert pod.ended() == 0, pod.output()
    status = f"CapEff:\t{mask}\nCapBnd:\t{mask}\nNoNewPrivs:\t0\nSeccomp:\t0\n"
    assert pod.log() == f"{status}0\n /sys sysfs rw\n1\n1\nmounted\n"
    assert pod.log("other.log") == f"No such file\nPermission denied\n{REFUSED}\n1\n"
    notes = pod.document()["notes"]
    assert any("app main: privileged" in note and "power over the host" in note for note in notes), notes
    assert any("a privileged app may open all of the host's" in note for note in notes)
    assert "keys: each app has a session keyring of its own; main may call on others" in notes
    assert "landlock: no app has a domain, since all may mount (CAP_SYS_ADMIN)" in notes


# --- namespaces ---


def kinds(pid="self"):
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("ipc", "pid", "uts", "mnt", "cgroup")}


@pytest.mark.parametrize("shared", ["pid", "ipc", "uts"])
def test_one_namespace_is_the_hosts_and_no_other(pods, shared):
    plan = IsolatorPlan(namespaces={shared: "host"})
    pod = pods({"main": shell("hostname; cat /etc/hostname; echo ready; sleep 1000")}, pod_plan=plan).started()
    ours, theirs = kinds(), kinds(pod.app()["pid"])
    assert {kind for kind, found in theirs.items() if found == ours[kind]} == {shared}
    # A command run in it is where the app is.
    code, out, errors = pod.run("sh", "-c", "readlink /proc/self/ns/" + shared)
    assert (code, out.strip()) == (0, ours[shared]), errors
    assert any(note.startswith(f"{shared}: ") for note in pod.document()["notes"])
    name = os.uname().nodename if shared == "uts" else "test-host"
    assert pod.wait_log("ready") == f"{name}\n{name}\nready\n"
    assert os.uname().nodename != "test-host"
    assert pod.stop() == 0


def test_with_the_hosts_processes_nothing_is_killed_but_the_pods(pods):
    """What an app leaves behind ends with it; what is the host's goes on, whatever number it has."""
    plan = IsolatorPlan(namespaces={"pid": "host"})
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        look = f"kill -0 {bystander.pid} && echo seen; cat /proc/{bystander.pid}/environ >/dev/null || echo closed"
        script = f"{look}; (setsid sleep 777 &); echo left; sleep 1000"
        pod = pods({"main": shell(script)}, pod_plan=plan).started()
        pod.wait_log("left")
        assert pod.log(stream=b"stdout") == "seen\nclosed\nleft\n"
        members = CgroupTree(pod.setup.cgroup)
        (left,) = until(lambda: [pid for pid in members.pids() if command(pid) == "sleep 777"])
        assert bystander.pid not in members.pids()
        # The app's own number is the host's, and a command sees it.
        until(lambda: command(pod.app()["pid"]) == "sleep 1000")
        code, out, _ = pod.run("cat", f"/proc/{pod.app()['pid']}/comm")
        assert (code, out) == (0, "sleep\n")
        assert pod.stop() == 0
        assert command(left) == ""
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_with_the_hosts_processes_a_stager_that_is_killed_leaves_the_pods_cgroup_to_kill(pods):
    pod = pods({"main": shell("sleep 1000")}, pod_plan=IsolatorPlan(namespaces={"pid": "host"})).started()
    pid = pod.app()["pid"]
    pod.process.signal(signal.SIGKILL)
    assert pod.ended() == 128 + signal.SIGKILL
    CgroupTree(pod.setup.cgroup).kill(5)
    assert command(pid) == ""


def command(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().replace("\0", " ").strip()
    except FileNotFoundError:
        return ""
