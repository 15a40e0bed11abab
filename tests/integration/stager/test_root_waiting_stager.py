"""A stager that is started before its pod is known, and handed one over (``kurma.io/stager/waits``, G10)."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import HostError, StagerError
from kurma_core.linux import namespaces
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.mounts import mountinfo
from kurma_core.models.pod import MountSetup
from kurma_core.models.streams import Stdio
from kurma_core.spawner.client import Spawner
from kurma_core.staging.aci_stager import AciStager
from kurma_core.staging.callin import StagerTimes
from kurma_core.staging.prestarted import PrestartPlace
from kurma_core.staging.stager_process import StagerImage
from kurma_core.value import replace
from tests.kit.images import shell
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

#: Holds a waiting stager, says which, and stays.
_HOLDER = """
import json, os, sys, time
from kurma_core.appc.image import ImageManifest
from kurma_core.spawner.client import Spawner
from kurma_core.staging.stager_process import StagerImage
from kurma_core.staging.prestarted import PrestartPlace, prestart
path, manifest, directory, cgroup = sys.argv[1:]
image = StagerImage("sha512-" + "0" * 128, path, ImageManifest.parse(json.loads(manifest)))
stager = prestart(Spawner(), "default", image, PrestartPlace(directory, cgroup, None))
print(stager.pid, flush=True)
time.sleep(1000)
"""


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def switches(pid):
    """How often it has been given a processor."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[2])


def asleep(stager):
    """It and its PID 1 have come to where they wait: neither has run for a while. :returns: both."""
    until(lambda: len(children(stager.pid)) == 1)
    both = [stager.pid, *children(stager.pid)]

    def still():
        before = [switches(pid) for pid in both]
        time.sleep(0.1)
        return before == [switches(pid) for pid in both]

    until(still, "they sleep")
    return both


@pytest.fixture
def place(tmp_path):
    """A place to wait in; and nothing is left of its cgroup."""
    made = []

    def make(cgroup=None, network_namespace=None):
        directory = tmp_path / f"waiting-{len(made)}"
        directory.mkdir()
        tree = CgroupTree(cgroup or f"kurma-test/waiting-{os.getpid()}-{len(made)}")
        tree.create()
        made.append(tree)
        return PrestartPlace(str(directory), tree.name, network_namespace)

    yield make
    for tree in made:
        assert tree.pids() == []
        tree.remove()


@pytest.fixture
def engine(stager_tree):
    """An engine that has no pod yet."""
    with Spawner() as spawner:
        yield AciStager("default", lambda **_: stager_tree, spawner, "test", StagerTimes(stop=3))


def handing(place, seen=None, between=None):
    """:param seen: told of the stager as it waits; ``between`` of it and the pod, right before the hand-over."""

    def begin(stager, setup):
        waiting = stager.prestart(place(setup.cgroup, setup.network_namespace))
        if seen is not None:
            asleep(waiting)
            seen(waiting)
        if between is not None:
            between(waiting, setup)
        return stager.hand_over(waiting, setup)

    return begin


def test_a_pod_is_handed_over_and_lives(pods, place, tmp_path):
    """The same stager, the same root, network and cgroup as of a pod whose stager was started for it."""
    before = {}

    def seen(waiting):
        before["pid"], before["first"] = waiting.pid, children(waiting.pid)
        before["root"] = sorted(os.listdir(f"/proc/{waiting.pid}/root"))
        before["layers"] = os.listdir(f"/proc/{waiting.pid}/root/layers")
        before["mounts"] = {one.target for one in mountinfo(waiting.pid)}

    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "file").write_text("of the volume\n")
    pod = pods(
        {"main": shell('echo "$GREETING from $(hostname)"; cat /data/file; exec sleep 1000')},
        volumes={"data": str(tmp_path / "volume")},
        mounts={"main": [MountSetup("data", "/data", False, False)]},
        environment=[("GREETING", "hello"), ("AC_METADATA_URL", "http://10.0.0.1:1/t")],
        begin=handing(place, seen),
    ).started()
    assert pod.process.pid == before["pid"]
    assert before["first"] == children(pod.process.pid)[:1]  # PID 1 was there before
    assert "manifest" not in before["root"]
    assert before["layers"] == []
    assert not any(target.startswith(("/pod", "/sys/fs/cgroup")) for target in before["mounts"])
    assert "hello from test-host\nof the volume\n" in pod.wait_log("of the volume")
    with open(f"/proc/{pod.process.pid}/environ") as file:
        names = {pair.partition("=")[0] for pair in file.read().split("\0")}
    assert not names & {"HOSTNAME", "AC_METADATA_URL", "GREETING"}
    code, out, _ = pod.run("sh", "-c", "echo $AC_METADATA_URL; cat /proc/1/comm")
    assert (code, out) == (0, "http://10.0.0.1:1/t\nkurma-init\n")
    assert json.loads(pod.call("status")[1])["main"]["exited"] is False
    mounted = {one.target: one for one in mountinfo(pod.process.pid)}
    layer = f"/layers/{pod.setup.apps[0].layers[0].id}"
    assert "ro" in mounted[layer].options
    assert all(not one.propagation for one in mounted.values())
    assert pod.process.pid in CgroupTree(pod.setup.cgroup).pids()
    assert pod.output() == ""
    assert pod.stop() == 0
    assert pod.app()["exitReason"] == "killed"


def test_what_it_prints_after_is_the_pods(pods, place):
    """A failure is told as any other stager's: its output has come along."""
    pod = pods({"main": shell("true", user="nobody-here")}, begin=handing(place))
    with pytest.raises(StagerError, match="nobody-here"):
        pod.started()
    assert "nobody-here" in pod.output()
    pod.ended()


@pytest.mark.full
def test_it_sleeps_while_it_waits(engine, place):
    """No wake-up, no pod, no name; and it ends by itself, with its PID 1, once nobody can bring it one."""
    waiting = engine.prestart(place())
    everybody = asleep(waiting)
    counted = [switches(pid) for pid in everybody]
    time.sleep(1)
    assert [switches(pid) for pid in everybody] == counted
    os.close(waiting._go)
    assert select.select([waiting], [], [], 10)[0]
    assert os.waitstatus_to_exitcode(os.waitpid(waiting.pid, 0)[1]) == 0
    until(lambda: not any(alive(pid) for pid in everybody))
    with open(waiting.output) as file:
        assert file.read() == ""
    os.close(waiting.pidfd)
    os.close(waiting._ready)
    waiting._go = None


def test_it_ends_with_its_holder(stager_tree, place):
    """kill -9 of whoever holds it leaves no stager that waits for ever."""
    where = place()
    argv = [sys.executable, "-c", _HOLDER, stager_tree.path, json.dumps(stager_tree.manifest.to_json())]
    with subprocess.Popen([*argv, where.directory, where.cgroup], stdout=subprocess.PIPE) as holder:
        try:
            pid = int(holder.stdout.readline())
            until(lambda: len(children(pid)) == 1)
            everybody = [pid, *children(pid)]
        finally:
            holder.kill()
    until(lambda: not any(alive(one) for one in everybody), "its end")


def test_killed_while_it_waits(pods, place):
    """Told as what it is, with nothing left of it; a stager that is started for the pod does."""
    ended = []

    def between(waiting, setup):
        ended.extend(asleep(waiting))
        os.kill(waiting.pid, signal.SIGKILL)
        select.select([waiting], [], [], 10)

    def begin(stager, setup):
        with pytest.raises(StagerError, match="the waiting one is of no use to pod test: it has ended"):
            handing(place, None, between)(stager, setup)
        until(lambda: not any(alive(pid) for pid in ended))
        null = os.open("/dev/null", os.O_RDWR)
        try:
            return stager.start(setup, Stdio(null, null, null))
        finally:
            os.close(null)

    pod = pods({"main": shell("echo here")}, begin=begin)
    assert pod.ended() == 0
    assert pod.log() == "here\n"


def test_no_byte_before_all_is_in_place(pods, place, tmp_path, busybox_root):
    """One layer that is not there: the stager goes unused, has read no manifest, and no app has run."""
    layer = tmp_path / "layer"
    layer.mkdir()
    held = []

    def between(waiting, setup):
        asleep(waiting)
        held.append(waiting)
        shutil.rmtree(layer)

    with pytest.raises(HostError, match=f"bind {layer} on /layers/"):
        pods({"main": shell("echo ran")}, roots=[str(layer), busybox_root], begin=handing(place, None, between))
    (waiting,) = held
    assert not alive(waiting.pid)
    (output,) = tmp_path.glob("*/stager/output")
    assert output.read_text() == ""  # it would have said that there is no manifest
    assert list(tmp_path.glob("*/pod/*")) == []


def test_a_pod_with_a_cgroup_of_its_own(pods, place):
    """One that was prepared before: the stager and its PID 1 are moved, all of them."""

    def begin(stager, setup):
        waiting = stager.prestart(place())
        begin.place = waiting.place.cgroup
        return stager.hand_over(waiting, setup)

    pod = pods({"main": shell("exec sleep 1000")}, begin=begin).started()

    def moved():
        # Children first: a short-lived one may end before the cgroup is read.
        return {pod.process.pid, *children(pod.process.pid)} <= set(CgroupTree(pod.setup.cgroup).pids())

    until(moved)
    assert not CgroupTree(begin.place).exists()
    with open(f"/proc/{pod.process.pid}/cgroup") as file:
        assert begin.place not in file.read()
    assert pod.run("true")[0] == 0
    assert pod.stop() == 0


def test_the_network_must_be_the_pods(pods, place, tmp_path):
    """It cannot be moved into another: what waits elsewhere is refused, in the pod's own it is taken."""
    paths = [f"/run/netns/kurma-test-{os.getpid()}-{number}" for number in range(2)]
    with Spawner() as spawner:
        try:
            for path in paths:
                spawner.make_namespace(path)

            def other(stager, setup):
                waiting = stager.prestart(place(None, paths[1]))
                with pytest.raises(StagerError, match="it waits in another network namespace"):
                    stager.hand_over(waiting, setup)
                assert not alive(waiting.pid)
                return handing(place)(stager, setup)

            pod = pods({"main": shell("exec sleep 1000")}, network_namespace=paths[0], begin=other).started()
            assert os.path.samefile(f"/proc/{pod.app()['pid']}/ns/net", paths[0])
            # /sys, too, is that network's: it was mounted by the stager that waited.
            code, out, _ = pod.run("ls", "/sys/class/net")
            assert (code, out.split()) == (0, ["lo"])
            assert pod.stop() == 0
        finally:
            for path in paths:
                namespaces.unpin(path)


def test_who_cannot_be_handed_over(pods, place, stager_tree):
    """An image that has changed since, one that does not say that it waits, a pod with its caller's input."""
    current = [stager_tree]

    def begin(stager, setup):
        stager._image = lambda **_: current[0]
        silent = ImageManifest.parse({**stager_tree.manifest.to_json(), "annotations": []})
        current[0] = replace(stager_tree, manifest=silent)
        with pytest.raises(StagerError, match="does not wait for its pod"):
            stager.prestart(place(setup.cgroup))
        current[0] = stager_tree
        waiting = stager.prestart(place(setup.cgroup))
        current[0] = replace(stager_tree, id="sha512-" + "9" * 128)
        with pytest.raises(StagerError, match="its image is not the stager's any more"):
            stager.hand_over(waiting, setup)
        assert not alive(waiting.pid)
        current[0] = stager_tree
        waiting = stager.prestart(place(setup.cgroup))
        asking = replace(setup, apps=(replace(setup.apps[0], interactive=True),))
        with pytest.raises(StagerError, match="standard input is its caller's"):
            stager.hand_over(waiting, asking)
        waiting = stager.prestart(place(setup.cgroup))
        return stager.hand_over(waiting, setup)

    assert pods({"main": shell("true")}, begin=begin).ended() == 0


def test_a_stager_of_another_kind_waits(pods, place, busybox_root, tmp_path):
    """The annotation is all: a shell's ``head -c 1 <&5`` keeps the protocol."""
    root = tmp_path / "foreign"
    shutil.copytree(busybox_root, root, symlinks=True)
    steps = ("head -c 1 <&5 >/dev/null", "exec 5<&-", "cat /manifest >/pod/seen", "ls /layers >>/pod/seen")
    (root / "init").write_text("\n".join(["#!/bin/sh", *steps, "exec 4>&-", "exec sleep 1000"]))
    (root / "init").chmod(0o755)
    manifest = ImageManifest.parse(
        {
            "acKind": "ImageManifest",
            "acVersion": "0.8.11",
            "name": "example.com/waits",
            "app": {"exec": ["/init"], "user": "0", "group": "0"},
            "annotations": [{"name": "kurma.io/stager/waits", "value": "true"}],
        }
    )
    foreign = StagerImage("sha512-" + "7" * 128, str(root), manifest)
    seen = []

    def begin(stager, setup):
        waiting = stager.prestart(place(setup.cgroup))
        time.sleep(0.2)
        seen.append(os.path.exists(f"{setup.directory}/pod/seen"))
        return stager.hand_over(waiting, setup)

    pod = pods({"main": shell("true")}, stager_image=foreign, begin=begin).started()
    with open(f"{pod.directory}/pod/seen") as file:
        text = file.read()
    assert seen == [False]
    assert text.startswith('{"kurmaVersion":"test"')
    assert pod.setup.apps[0].layers[0].id in text.rpartition("}")[2]
    pod.process.signal(signal.SIGKILL)
    assert pod.ended() == 137
