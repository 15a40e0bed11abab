"""Limits of memory, CPU time, processes and block devices, asked for by isolators, bite: as the app finds it, and
as the kernel counts. On cgroup v1 and on v2 (X3, X5)."""

import os
import re
import signal
import time

import pytest

from kurma_core.errors import IsolatorError
from kurma_core.linux.cgroups import CgroupTree
from tests.kit.house import text_of
from tests.kit.images import shell
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

BUSY = "while :; do :; done"
#: Holds forty megabytes, for ever: a pipe that nobody reads from takes no more than a part of them.
HOLDS_40M = "mkfifo /tmp/pipe; exec 3<>/tmp/pipe; exec dd if=/dev/zero bs=40M count=1 >&3"


def isolator(name, **value):
    return {"name": name, "value": value}


def group(pod, app=None):
    return CgroupTree(f"kurma/{pod.uuid}" + (f"/app-{app}" if app else ""))


def version(controller):
    return CgroupTree("kurma").layout.of(controller).version


def status(house, pod, app):
    (found,) = [one for one in house.client.pod(pod.uuid).apps if one.name == app]
    return found


def reports(record, scope=None):
    return {one.name: (one.outcome, one.note) for one in record.isolators if one.scope == scope}


# --- memory ----------------------------------------------------------------------------------------------------


@pytest.mark.vm
def test_an_app_that_wants_more_memory_than_its_limit_is_ended(house):
    """By the kernel, and ``oom`` is what is said of it; the app beside it does not notice."""
    limit = isolator("resource/memory", limit="32Mi")
    apps = {"hog": shell("exec tail -c 200m /dev/zero", isolators=[limit]), "other": "sleep 1000"}
    with house.running(apps) as pod:
        hog = until(lambda: (found := status(house, pod, "hog")).exited and found, "its end")
        assert (hog.exit_code, hog.reason, hog.signal) == (137, "oom", 9)
        assert "killed for want of memory" in hog.message
        assert not status(house, pod, "other").exited
        file = {1: "memory.limit_in_bytes", 2: "memory.max"}[version("memory")]
        assert int(group(pod, "hog").read("memory", file)) == 32 << 20
        assert reports(house.client.pod(pod.uuid), "hog")["resource/memory"][0] == "enforced"


@pytest.mark.vm
def test_a_pods_memory_bounds_the_sum_of_its_apps(house):
    """Each of them is within its own limit; together they are not."""
    app = shell(HOLDS_40M, isolators=[isolator("resource/memory", limit="56Mi")])
    for limit, ended in (("64Mi", 1), ("160Mi", 0)):
        with house.running({"one": app, "two": app}, isolators=[isolator("resource/memory", limit=limit)]) as pod:

            def settled(pod=pod, ended=ended):
                """Who holds it all, or has been ended for it."""
                apps = house.client.pod(pod.uuid).apps
                gone = [one.reason for one in apps if one.exited]
                holding = [one for one in apps if not one.exited and memory_of(one.pid) >= 40 << 20]
                return gone == ["oom"] * ended and len(holding) == 2 - ended

            until(settled, f"one of each, with {limit}")


def memory_of(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            found = re.search(r"^VmRSS:\s+(\d+) kB", file.read(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) << 10 if found else 0


@pytest.mark.vm
def test_what_stands_for_the_pod_is_not_what_is_ended(house):
    """Although each process of the app is smaller than the stager. That takes a right that Kurma may not have."""
    with house.running() as pod:
        assert oom_score_adj(pod.stager.pid) == (-999 if _may_lower() else oom_score_adj("self"))
        assert oom_score_adj(status(house, pod, "main").pid) == oom_score_adj("self")
    if not _may_lower():
        return
    one = "dd if=/dev/zero bs=3M count=1 >&3"
    wait = "trap on=1 USR1; echo up; while [ ! $on ]; do sleep 0.1; done"
    many = f"mkfifo /tmp/pipe; exec 3<>/tmp/pipe; {wait}; for i in 1 2 3 4 5 6; do {one} & done; sleep 1000"
    limit = isolator("resource/memory", limit="16Mi")
    with house.running({"small": many, "other": "echo up; exec sleep 1000"}, isolators=[limit]) as pod:
        # Until an app's program is executed, its process is as large as the stager.
        for app in ("small", "other"):
            until(lambda app=app: text_of(house.client.logs(pod.uuid, app)) == "up\n", app)
        house.client.kill(pod.uuid, signal.SIGUSR1, "small")
        until(lambda: kills(group(pod, "small")), "a process that was ended")
        assert alive(pod.stager.pid)
        assert not status(house, pod, "other").exited


@pytest.mark.vm
def test_what_is_requested_is_kept(house):
    """On v2 a cgroup keeps no more than what is above it: the pod, and what all pods have in common."""
    file = {1: "memory.soft_limit_in_bytes", 2: "memory.low"}[version("memory")]

    def kept(*tree):
        return int(group(*tree).read("memory", file)) >> 20

    app = shell("sleep 1000", isolators=[isolator("resource/memory", request="8Mi", limit="64Mi")])
    with house.running({"one": app, "two": app}) as pod:
        assert (kept(pod, "one"), kept(pod, "two")) == (8, 8)
        if version("memory") == 2:
            above = CgroupTree("kurma")
            with house.running({"one": app}, isolators=[isolator("resource/memory", request="24Mi")]) as other:
                assert (kept(pod), kept(other)) == (16, 24)
                assert int(above.read("memory", file)) >> 20 == 40
                house.client.app_add(pod.uuid, house.request({"three": app}))
                assert (kept(pod), int(above.read("memory", file)) >> 20) == (24, 48)
                house.client.app_rm(pod.uuid, "three")
                assert kept(pod) == 16
            assert int(above.read("memory", file)) >> 20 == 16


def oom_score_adj(pid):
    with open(f"/proc/{pid}/oom_score_adj") as file:
        return int(file.read())


def _may_lower():
    """CAP_SYS_RESOURCE"""
    with open("/proc/self/status") as file:
        return bool(int(re.search(r"^CapEff:\s+(\w+)", file.read(), re.MULTILINE)[1], 16) >> 24 & 1)


def kills(tree):
    file = {1: "memory.oom_control", 2: "memory.events"}[version("memory")]
    return int(re.search(r"^oom_kill (\d+)", tree.read("memory", file), re.MULTILINE)[1])


def test_the_least_memory_is_enough_to_start_and_less_is_refused(house):
    record, out = house.run(
        {"main": shell("echo up", isolators=[isolator("resource/memory", limit="4Mi")])},
        isolators=[isolator("resource/memory", limit="16Mi")],
    )
    assert (record.exit_code, out) == (0, "up\n")
    before = house.uuids()
    with pytest.raises(Exception, match='resource/memory: a limit of "1Mi" is too small: at least 4Mi'):
        house.run({"main": shell("true", isolators=[isolator("resource/memory", limit="1Mi")])})
    assert house.uuids() == before


# --- CPU time --------------------------------------------------------------------------------------------------


def throttled(tree):
    return int(re.search(r"^nr_throttled (\d+)", tree.read("cpu", "cpu.stat"), re.MULTILINE)[1])


def used(tree):
    """Seconds of CPU time of all in it."""
    if version("cpu") == 2:
        return int(re.search(r"^usage_usec (\d+)", tree.read("cpu", "cpu.stat"), re.MULTILINE)[1]) / 1e6
    return int(tree.read("cpuacct", "cpuacct.usage")) / 1e9


@pytest.mark.vm
def test_an_app_has_no_more_time_than_its_quota(house):
    """As the app counts what its own child has used of some seconds, and as the kernel does."""
    limit = isolator("resource/cpu", limit="100m")
    now = "cut -d ' ' -f 1 /proc/uptime"
    script = f"{now}; timeout 2 sh -c '{BUSY}'; times; {now}; sleep 1000"
    with house.running({"main": shell(script, isolators=[limit])}) as pod:
        # The shell's own, then its children's: user and system. Before and after, the time.
        found = until(lambda: (words := house.log(pod).replace("Terminated", "").split())[5:] and words, "times")
        seconds = sum(int(one.split("m")[0]) * 60 + float(one.split("m")[1].strip("s")) for one in found[1:5])
        assert 0 < seconds < 0.25 * (float(found[5]) - float(found[0])), found
        assert throttled(group(pod, "main"))
        assert reports(house.client.pod(pod.uuid), "main")["resource/cpu"] == ("enforced", "")


@pytest.mark.vm
def test_a_pods_cpu_bounds_the_sum_of_its_apps(house):
    """Also what one of them is allowed of its own, which v1 would refuse."""
    # They are busy once the pod is up: the stager shares that tenth of a processor with them.
    script = f"trap on=1 USR1; echo up; while [ ! $on ]; do sleep 0.1; done; {BUSY}"
    apps = {"one": shell(script, isolators=[isolator("resource/cpu", limit="1500m")]), "two": script}
    with house.running(apps, isolators=[isolator("resource/cpu", limit="100m")]) as pod:
        for app in apps:
            until(lambda app=app: text_of(house.client.logs(pod.uuid, app)) == "up\n", f"the trap of {app}")
            house.client.kill(pod.uuid, signal.SIGUSR1, app)
        # Others may want all of the machine's time for a while.
        until(lambda: throttled(group(pod)), "want of time")
        begin, before = time.monotonic(), used(group(pod))
        time.sleep(1)
        share = (used(group(pod)) - before) / (time.monotonic() - begin)
        assert share < 0.4
        outcome, note = reports(house.client.pod(pod.uuid), "one")["resource/cpu"]
        if version("cpu") == 1:
            assert (outcome, note) == ("modified", "held to the pod's limit, 100m")
        else:
            assert outcome == "enforced"


def test_the_tiniest_and_the_largest_of_quotas_start(house):
    apps = {
        "tiny": shell("sleep 1000", isolators=[isolator("resource/cpu", limit="5m")]),
        "large": shell("sleep 1000", isolators=[isolator("resource/cpu", limit="1P")]),
    }
    cpus = [isolator("resource/cpu", limit=10**9)]
    with house.running(apps, isolators=cpus, grants=("resource/cpu",)) as pod:
        assert not any(one.exited for one in house.client.pod(pod.uuid).apps)


# --- processes -------------------------------------------------------------------------------------------------


@pytest.mark.vm
def test_a_fork_bomb_stops_at_its_limit(house):
    # A shell ends when it is refused a fork: the app's own process is none.
    script = "b() { b & b & sleep 1000; }; b & exec sleep 1000"
    bomb = shell(script, isolators=[isolator("kurma.io/pids-limit", limit=40)])
    with house.running({"bomb": bomb, "other": "sleep 1000"}) as pod:
        tree = group(pod, "bomb")
        until(lambda: refused(tree), "a fork that was refused")
        assert int(tree.read("pids", "pids.current")) <= 40
        # One may still look after it, from outside.
        assert house.enter(pod.uuid, "true", app="bomb") == (0, "", "")
        # Another app has processes as before, and so has the host.
        many = "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; jobs | wc -l; kill $(jobs -p)"
        code, out, errors = house.enter(pod.uuid, "sh", "-c", many, app="other")
        assert (code, out) == (0, "60\n"), errors


def refused(tree):
    return int(re.search(r"^max (\d+)", tree.read("pids", "pids.events"), re.MULTILINE)[1])


def test_every_app_is_held_to_some_number_of_processes(house):
    said = [isolator("kurma.io/pids-limit", limit="unlimited")]
    apps = {"main": "sleep 1000", "free": shell("sleep 1000", isolators=said)}
    with house.running(apps, grants=("kurma.io/pids-limit",)) as pod:
        assert group(pod, "main").read("pids", "pids.max") == "2048"
        assert group(pod, "free").read("pids", "pids.max") == "max"
        found = {(one.scope, one.default) for one in house.client.pod(pod.uuid).isolators}
        assert {("main", True), ("free", False)} <= found


@pytest.mark.vm
def test_a_pods_processes_bound_the_sum_of_its_apps(house):
    bomb = "b() { b & b & sleep 1000; }; b"
    with house.running({"one": bomb, "two": bomb}, isolators=[isolator("kurma.io/pids-limit", limit=50)]) as pod:
        until(lambda: refused(group(pod)) or refused(group(pod, "one")), "forks that were refused")
        assert int(group(pod).read("pids", "pids.current")) <= 50


@pytest.mark.vm
def test_a_pod_starts_with_the_fewest_processes_that_it_may_have(house):
    limits = {"isolators": [isolator("kurma.io/pids-limit", limit=1)]}
    handlers = {"eventHandlers": [{"name": "pre-start", "exec": ["/bin/true"]}]}
    record, _ = house.run(
        {"main": {"exec": ["/bin/true"], "user": "0", "group": "0", **limits, **handlers}},
        isolators=[isolator("kurma.io/pids-limit", limit=8)],
    )
    assert record.exit_code == 0


# --- block devices ---------------------------------------------------------------------------------------------


def transfer(block, count):
    """A file written and read again past the cache; the moments before, between and after are printed."""
    now = "cut -d ' ' -f 1 /proc/uptime"
    write = f"dd if=/dev/zero of=/file bs={block} count={count} oflag=direct 2>/dev/null"
    read = f"dd if=/file of=/dev/null bs={block} count={count} iflag=direct 2>/dev/null"
    return f"{now}; {write} || echo not written; {now}; {read} || echo not read; {now}"


def seconds_of(out):
    """Of writing, and of reading."""
    begin, between, end = map(float, out.split())
    return between - begin, end - between


@pytest.mark.vm
@pytest.mark.parametrize("scope", ["app", "pod"])
@pytest.mark.parametrize(
    ("name", "limit", "script"),
    [
        ("resource/block-bandwidth", "4M", transfer("1M", 4)),
        ("resource/block-iops", 20, transfer("4k", 20)),
    ],
    ids=["bandwidth", "iops"],
)
def test_block_devices_are_held(house, scope, name, limit, script):
    """A second's worth of transfers takes a second; what goes at once at the beginning is forgiven."""
    limits = [isolator(name, default=True, limit=limit)]
    pod = {"isolators": limits} if scope == "pod" else {}
    record, out = house.run({"main": shell(script, **({} if pod else {"isolators": limits}))}, **pod)
    wrote, read = seconds_of(out)
    assert wrote > 0.5, out
    assert read > 0.5, out
    outcome, note = reports(record, None if pod else "main")[name]
    assert outcome == ("modified" if _throttles_flatly() else "enforced"), note
    _, out = house.run(script)
    assert sum(seconds_of(out)) < wrote + read, "without a limit it is quicker"


def _throttles_flatly():
    return os.path.exists("/sys/fs/cgroup/blkio") and version("blkio") == 1


def test_one_direction_of_the_disk_below_a_path(house):
    """As early documents say it."""
    limits = [isolator("kurma.io/block-read-bandwidth", path=house.state, limit="4M")]
    _, out = house.run({"main": shell(transfer("1M", 4), isolators=limits)})
    wrote, read = seconds_of(out)
    assert read > 0.5, out
    assert wrote < read


@pytest.mark.full
def test_what_goes_by_way_of_the_cache_is_told_where_it_is_not_held(house):
    """v1's own limit: "modified" is the truth."""
    now = "cut -d ' ' -f 1 /proc/uptime"
    write = "dd if=/dev/zero of=/file bs=1M count=8"
    script = f"{now}; {write} oflag=direct 2>/dev/null; {now}; {write} 2>/dev/null; {now}"
    limits = [isolator("kurma.io/block-write-bandwidth", path=house.state, limit="4M")]
    record, out = house.run({"main": shell(script, isolators=limits)})
    direct, cached = seconds_of(out)
    assert direct > 1, out
    assert cached < direct / 2, out
    outcome, note = reports(record, "main")["kurma.io/block-write-bandwidth"]
    assert outcome == ("modified" if _throttles_flatly() else "enforced")
    assert ("by way of the cache" in note) == _throttles_flatly()


def test_a_device_that_is_gone_needs_no_limit(house):
    """What a pod was made with on a machine that has changed since."""
    record = house.client.prepare(house.request({"main": shell("echo up")}))
    path = house.path(record, "pod.json")
    with open(path) as file:
        text = file.read()
    setting = (
        '{"controller": "blkio", "file": "blkio.throttle.read_bps_device", "value": "250:77 1000"}'
        if _throttles_flatly()
        else '{"controller": "io", "file": "io.max", "value": "250:77 rbps=1000"}'
    )
    with open(path, "w") as file:
        file.write(re.sub(r'"cgroup": ?\[', f'"cgroup": [{setting},', text).replace(",]", "]"))
    _, out = house.start(record.uuid)
    assert out == "up\n"


# --- a cgroup's own settings -----------------------------------------------------------------------------------


@pytest.mark.vm
def test_settings_of_cgroups_as_the_kernel_has_them(house):
    """``kurma.io/linux-resources`` of an app and of its pod: from inside, and by the files of the cgroups (C8)."""
    own = {
        "cpuPeriod": 50000,
        "cpuQuota": 5000,
        "cpuShares": 512,
        "memoryLimit": 3 << 20,
        "memorySwapLimit": 3 << 20,
        "cpusetCpus": "0",
        "pidsLimit": 7,
        "oomScoreAdj": 321,
    }
    script = "cat /proc/self/oom_score_adj; grep Cpus_allowed_list /proc/self/status; sleep 1000"
    one = shell(script, isolators=[{"name": "kurma.io/linux-resources", "value": own}])
    of_pod = [{"name": "kurma.io/linux-resources", "value": {"memoryLimit": "64Mi", "pidsLimit": 100}}]
    with house.running({"one": one, "two": "cat /proc/self/oom_score_adj; sleep 1000"}, isolators=of_pod) as pod:
        until(lambda: "Cpus_allowed_list:\t0\n" in text_of(house.client.logs(pod.uuid, "one")), "its output")
        assert text_of(house.client.logs(pod.uuid, "one")).splitlines()[0].endswith("321")
        tree = group(pod, "one")
        if version("memory") == 1:
            files = {"memory.limit_in_bytes": "3145728", "memory.memsw.limit_in_bytes": "3145728"}
        else:
            files = {"memory.max": "3145728", "memory.swap.max": "0"}
        if version("cpu") == 1:
            files |= {"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "5000", "cpu.shares": "512"}
        else:
            files |= {"cpu.max": "5000 50000", "cpu.weight": "50"}
        files |= {"cpuset.cpus": "0", "pids.max": "7"}
        assert {file: tree.read(file.partition(".")[0], file) for file in files} == files
        assert group(pod, "two").read("pids", "pids.max") == "2048"
        assert group(pod).read("pids", "pids.max") == "100"
        found = reports(house.client.pod(pod.uuid), "one")
        assert found["kurma.io/linux-resources"] == ("enforced", "")
        assert found["kurma.io/pids-limit"] == ("enforced", "kurma.io/linux-resources decides on it")
    if version("memory") == 1:
        value = {"unified": {"memory.high": "1"}}
        with pytest.raises(IsolatorError, match=r"memory\.high is a file of cgroup v2"):
            house.run({"one": shell("true", isolators=[{"name": "kurma.io/linux-resources", "value": value}])})
