"""Umask, limits, scheduling, I/O priority, memory policy and cgroup files of an app (18, H6)."""

from __future__ import annotations

import os

import pytest

from kurma_core.linux.cgroups import Layout
from kurma_core.models.isolator import CgroupSetting, IoPriority, IsolatorPlan, MemoryPolicy, Scheduling
from tests.kit.images import shell

pytestmark = pytest.mark.root

SETTINGS = IsolatorPlan(
    umask=0o027,
    io_priority=IoPriority("best-effort", 6),
    scheduling=Scheduling("batch", nice=7),
    memory_policy=MemoryPolicy("bind", "0"),
    rlimits={"locks": (11, 12), "rttime": (5, -1), "sigpending": (77, 88)},
)
LIMITS = "/file locks|pending signals|realtime timeout/ {print $(NF-2), $(NF-1)}"
READ = (
    "umask; awk '{print $19, $41}' /proc/self/stat; awk '{print $2; exit}' /proc/self/numa_maps; ionice; "
    f"awk '{LIMITS}' /proc/self/limits"
)
SHOWN = "0027\n7 3\nbind:0\nbest-effort: prio 6\n11 12\n77 88\n5 unlimited\n"


@pytest.mark.vm
def test_all_that_runs_in_an_app_has_them(pods):
    """Handlers, main, and a command that is run later; another app has none of them."""
    handlers = [{"name": "pre-start", "exec": ["/bin/sh", "-c", READ]}]
    apps = {
        "main": shell(f"{READ}; touch /made; stat -c %a /made; exec sleep 1000", eventHandlers=handlers),
        "other": shell(f"{READ}; exec sleep 1000"),
    }
    pod = pods(apps, plans={"main": SETTINGS}).started()
    assert pod.wait_log("640\n") == f"{SHOWN}{SHOWN}640\n"
    assert pod.run("sh", "-c", READ) == (0, SHOWN, "")
    other = pod.wait_log("unlimited", "other.log").splitlines()
    assert other[:3] == ["0022", f"{os.getpriority(os.PRIO_PROCESS, 0)} 0", "default"]
    assert pod.run("sh", "-c", "umask", app="other") == (0, "0022\n", "")
    # The stager keeps its own: it serves the other apps, too.
    assert os.sched_getscheduler(pod.process.pid) == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, pod.process.pid) == os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.parametrize(
    ("plan", "shown"),
    [
        (IsolatorPlan(umask=0), ("umask", "0000")),
        (IsolatorPlan(scheduling=Scheduling("idle")), ("awk '{print $41}' /proc/self/stat", "5")),
        (IsolatorPlan(scheduling=Scheduling(nice=-5)), ("awk '{print $19}' /proc/self/stat", "-5")),
        (IsolatorPlan(io_priority=IoPriority("idle")), ("ionice", "idle")),
        (
            IsolatorPlan(memory_policy=MemoryPolicy("local")),
            ("awk '{print $2;exit}' /proc/self/numa_maps", "local"),
        ),
        (
            IsolatorPlan(memory_policy=MemoryPolicy("interleave", "0", static=True)),
            ("awk '{print $2;exit}' /proc/self/numa_maps", "interleave=static:0"),
        ),
    ],
)
def test_each_alone_and_for_an_ordinary_user(pods, plan, shown):
    pod = pods({"main": shell(shown[0], user="1000", group="1000")}, plans={"main": plan})
    assert pod.ended() == 0, pod.output()
    assert pod.log().split(": prio")[0].strip() == shown[1]


def test_a_deadline_is_the_programs_and_not_its_childrens(pods):
    """A process with a deadline could not fork otherwise."""
    plan = IsolatorPlan(scheduling=Scheduling("deadline", runtime=10**8, deadline=10**9, period=10**9))
    script = "awk '{print $41}' /proc/$$/stat; awk '{print $41}' /proc/self/stat; true"
    pod = pods({"main": shell(script)}, plans={"main": plan})
    if pod.ended():  # as where another cpuset divides the processors
        assert "cannot set the scheduling deadline" in pod.output()
        assert "time that no other has taken" in pod.output()
    else:
        assert pod.log() == "6\n0\n"


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            IsolatorPlan(memory_policy=MemoryPolicy("bind", "900")),
            "cannot set the memory policy bind of the nodes 900: Invalid argument; see /sys/devices/system/node",
        ),
        (
            IsolatorPlan(rlimits={"nofile": (9, 8)}),
            "cannot set the limit nofile to 9:8: current limit exceeds maximum limit",
        ),
    ],
)
def test_what_the_kernel_refuses_fails_the_start(pods, plan, said):
    pod = pods({"main": shell("echo here")}, plans={"main": plan})
    assert pod.ended() != 0
    assert said in pod.output()


@pytest.mark.vm
def test_any_file_of_the_cgroups(pods):
    """One of a controller, one of the v2 hierarchy itself; of the app and of the pod."""
    layout = Layout.detect()
    settings = []
    if layout.of("cgroup") is not None:
        settings.append((CgroupSetting("cgroup", "cgroup.max.descendants", "7"), "7"))
    memory = layout.of("memory")
    assert memory is not None
    file, value = ("memory.swappiness", "33") if memory.version == 1 else ("memory.oom.group", "1")
    settings.append((CgroupSetting("memory", file, value), value))
    plan = IsolatorPlan(cgroup=tuple(setting for setting, _ in settings))
    pod = pods({"main": shell("echo up; exec sleep 1000")}, plans={"main": plan}, pod_plan=plan).started()
    for setting, value in settings:
        hierarchy = layout.of(setting.controller)
        for group in (pod.setup.cgroup, f"{pod.setup.cgroup}/app-main"):
            with open(f"{hierarchy.directory}/{group}/{setting.file}") as opened:
                assert opened.read() == f"{value}\n", (group, setting)


def test_a_sysctl_of_the_pods_processes(pods):
    """The PID namespace's: the stager itself is in the host's."""

    def host() -> str:
        with open("/proc/sys/vm/memfd_noexec") as file:
            return file.read()

    before = host()
    plan = IsolatorPlan(sysctls={"vm.memfd_noexec": "1"})
    pod = pods({"main": shell("cat /proc/sys/vm/memfd_noexec")}, pod_plan=plan)
    assert pod.ended() == 0, pod.output()
    assert (pod.log(), host()) == ("1\n", before)
    assert before == "0\n"


def test_the_stager_takes_no_sysctl_of_the_host(pods):
    pod = pods({"main": shell("true")}, pod_plan=IsolatorPlan(sysctls={"user.max_net_namespaces": "5"}))
    assert pod.ended() != 0
    assert "not a sysctl of the pod's own: 'user.max_net_namespaces'" in pod.output()
