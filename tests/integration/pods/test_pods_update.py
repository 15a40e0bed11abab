"""An app's resources are changed while it runs, and before it was started: all of them or none (C12)."""

import os

import pytest

from kurma_core.errors import AppNotFoundError, IsolatorError, StagerError, UsageError
from kurma_core.linux.cgroups import CgroupTree
from tests.kit.images import shell

pytestmark = pytest.mark.root

SLEEP = "exec sleep 1000"
NAME = "kurma.io/linux-resources"
MIB = 1 << 20


def group(pod, app):
    return CgroupTree(f"kurma/{pod.uuid}/app-{app}")


def limits(pod, app):
    """Memory, memory and swap, quota and period, processes: as on cgroup v1."""
    tree = group(pod, app)
    if tree.layout.of("memory").version == 1:
        memory = [int(tree.read("memory", f"memory.{word}limit_in_bytes")) for word in ("", "memsw.")]
    else:
        memory = [int(tree.read("memory", "memory.max"))]
        memory.append(memory[0] + int(tree.read("memory", "memory.swap.max")))
    if tree.layout.of("cpu").version == 1:
        cpu = [int(tree.read("cpu", f"cpu.cfs_{word}_us")) for word in ("quota", "period")]
    else:
        cpu = [int(word) for word in tree.read("cpu", "cpu.max").split()]
    return [*memory, *cpu, tree.read("pids", "pids.max")]


def update(house, pod, app, value, name=NAME):
    return house.client.app_update(pod.uuid, app, {name: value})


@pytest.mark.vm
def test_up_and_down_while_it_runs_and_before(house):
    """Memory and swap both grow and shrink; what an update does not name stays; the next start has it."""
    value = {"memoryLimit": 32 * MIB, "memorySwapLimit": 32 * MIB, "cpuQuota": 20000, "cpuPeriod": 50000}
    own = shell(SLEEP, isolators=[{"name": NAME, "value": {**value, "pidsLimit": 50}}])
    with house.running({"one": own}, net="none", name="grows") as pod:
        house.client.app_add(pod.uuid, house.request({"late": own}))
        for app in ("one", "late"):
            assert limits(pod, app) == [32 * MIB, 32 * MIB, 20000, 50000, "50"]
            more = {"memoryLimit": 64 * MIB, "memorySwapLimit": 80 * MIB, "cpuQuota": 0, "cpusetCpus": ""}
            update(house, pod, app, more)
            assert limits(pod, app) == [64 * MIB, 80 * MIB, 20000, 50000, "50"]
            update(house, pod, app, {"memoryLimit": 16 * MIB, "memorySwapLimit": 16 * MIB, "cpuQuota": 10000})
            assert limits(pod, app) == [16 * MIB, 16 * MIB, 10000, 50000, "50"]
        update(house, pod, "one", {"oomScoreAdj": 77, "pidsLimit": 9})
        (pid,) = [app.pid for app in house.client.pod(pod.uuid).apps if app.name == "one"]
        with open(f"/proc/{pid}/oom_score_adj") as file:
            assert file.read() == "77\n"
        house.client.app_start(pod.uuid, "late")
        assert limits(pod, "late")[:2] == [16 * MIB, 16 * MIB]
        assert house.state_of(pod).get("change") is None
        house.client.app_stop(pod.uuid, "one", force=True)
        house.client.app_start(pod.uuid, "one")
        (pid,) = [app.pid for app in house.client.pod(pod.uuid).apps if app.name == "one"]
        with open(f"/proc/{pid}/oom_score_adj") as file:
            assert file.read() == "77\n"
    # Of a pod that does not run: for its next start.
    update(house, pod, "one", {"memoryLimit": 24 * MIB, "memorySwapLimit": 24 * MIB})
    with house.started(house.client.pod("grows")) as pod:
        assert limits(pod, "one") == [24 * MIB, 24 * MIB, 10000, 50000, "9"]


def test_all_or_nothing(house):
    own = shell(SLEEP, isolators=[{"name": NAME, "value": {"memoryLimit": 32 * MIB, "cpuQuota": 20000}}])
    with house.running({"one": own}, net="none") as pod:
        tree = group(pod, "one")
        before = tree.read("pids", "pids.max"), tree.read("cpuset", "cpuset.cpus")
        document = house.client.pod(pod.uuid).manifest
        with pytest.raises(StagerError, match=r"cpuset\.cpus"):
            update(house, pod, "one", {"pidsLimit": 9, "cpusetCpus": "4095", "memoryLimit": 16 * MIB})
        assert (tree.read("pids", "pids.max"), tree.read("cpuset", "cpuset.cpus")) == before
        assert house.client.pod(pod.uuid).manifest == document
        assert house.state_of(pod).get("change") is None
        with pytest.raises(IsolatorError, match="memorySwapLimit"):
            update(house, pod, "one", {"memorySwapLimit": 4096})
        with pytest.raises(UsageError, match="an update changes limits"):
            update(house, pod, "one", {"set": ["CAP_KILL"]}, "os/linux/capabilities-retain-set")
        with pytest.raises(AppNotFoundError):
            update(house, pod, "two", {"pidsLimit": 9})
        assert house.client.pod(pod.uuid).manifest == document


def test_the_command(house):
    """``--memory`` and ``--cpus`` of an app without any; as many processors as there are is no limit."""
    with house.running({"one": SLEEP}, net="none", name="told") as pod:
        done = house.kurma("app", "update", "--memory", "32Mi", "--cpus", "0.5", "told", "one")
        assert (done.returncode, done.stderr) == (0, "")
        assert limits(pod, "one")[:4] == [32 * MIB, 32 * MIB, 50000, 100000]
        assert house.kurma("app", "update", "--cpus", str(os.cpu_count()), "told", "one").returncode == 0
        tree = group(pod, "one")
        file = {1: "cpu.cfs_quota_us", 2: "cpu.max"}[tree.layout.of("cpu").version]
        assert tree.read("cpu", file).split()[0] in ("-1", "max")
        assert "nothing is to be changed" in house.kurma("app", "update", "told", "one").stderr


@pytest.mark.full
def test_a_process_that_dies_at_it(house, monkeypatch):
    """The kernel has the new values, the definition the old ones: the next change makes both agree."""
    from kurma_core.pods.change.app_changes import PodApps

    def dies(*_):
        raise StagerError("dead")

    own = shell(SLEEP, isolators=[{"name": NAME, "value": {"pidsLimit": 50}}])
    with house.running({"one": own}, net="none") as pod:
        with monkeypatch.context() as patched:
            patched.setattr(PodApps, "_commit", dies)
            patched.setattr(PodApps, "_finish_change", dies)
            with pytest.raises(StagerError, match="dead"):
                update(house, pod, "one", {"pidsLimit": 9})
        assert group(pod, "one").read("pids", "pids.max") == "9"
        assert house.state_of(pod)["change"]["do"] == "update"
        update(house, pod, "one", {"cpuShares": 512})
        assert group(pod, "one").read("pids", "pids.max") == "50"
        assert house.state_of(pod).get("change") is None
