"""``kurma.io/linux-resources``: its files on hosts of either generation of cgroups, and wrong values (C8)."""

from __future__ import annotations

import pytest
from kurma_isolators_linux import linux_resources, plugin
from kurma_testing import load_driver

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.value import replace

NAME = "kurma.io/linux-resources"
CONTROLLERS = ("cpu", "memory", "pids", "cpuset", "hugetlb")
MIB = 1 << 20


@pytest.fixture
def root(tmp_path):
    """A made-up machine: its kernel counts swap, and has huge pages of 2 MB."""
    made = tmp_path / "machine"
    for name in ("proc/swaps", "proc/cmdline", "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text("")
    (made / "sys/kernel/mm/hugepages/hugepages-2048kB").mkdir(parents=True)
    (made / "proc/self").mkdir()
    (made / "proc/self/oom_score_adj").write_text("0\n")
    (made / "proc/self/status").write_text("CapEff:\t000001ffffffffff\n")
    return str(made)


@pytest.fixture
def hosts(root):
    v1 = IsolatorHost(cgroups=dict.fromkeys(CONTROLLERS, 1), cpus=4, root=root)
    return v1, replace(v1, cgroups=dict.fromkeys((*CONTROLLERS, "cgroup", "io"), 2))


@pytest.fixture
def driver(tmp_path):
    return load_driver(plugin, tmp_path)


def written(compiled):
    return {setting.file: setting.value for setting in compiled.plan.cgroup}


@pytest.mark.parametrize(
    ("value", "v1", "v2"),
    [
        (
            {"cpuPeriod": 50000, "cpuQuota": 1500, "cpuShares": 2},
            {"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "1500", "cpu.shares": "2"},
            {"cpu.max": "1500 50000", "cpu.weight": "1"},
        ),
        ({"cpuQuota": -1}, {"cpu.cfs_quota_us": "-1"}, {"cpu.max": "max 100000"}),
        ({"memoryLimit": 4096}, {"memory.limit_in_bytes": "4096"}, {"memory.max": "4096"}),
        (
            {"memoryLimit": "64Mi", "memorySwapLimit": 96 * MIB},
            {"memory.limit_in_bytes": str(64 * MIB), "memory.memsw.limit_in_bytes": str(96 * MIB)},
            {"memory.max": str(64 * MIB), "memory.swap.max": str(32 * MIB)},
        ),
        (
            {"memoryLimit": MIB, "memorySwapLimit": -1},
            {"memory.limit_in_bytes": str(MIB), "memory.memsw.limit_in_bytes": "-1"},
            {"memory.max": str(MIB), "memory.swap.max": "max"},
        ),
        ({"cpusetCpus": "0-1,3", "cpusetMems": "0"}, *[{"cpuset.cpus": "0-1,3", "cpuset.mems": "0"}] * 2),
        (
            {"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]},
            {"hugetlb.2MB.limit_in_bytes": "0"},
            {"hugetlb.2MB.max": "0"},
        ),
        ({"pidsLimit": 1}, *[{"pids.max": "1"}] * 2),
        ({"cpuQuota": 0, "memoryLimit": None, "cpusetCpus": "", "unified": {}, "hugepageLimits": []}, {}, {}),
    ],
)
def test_files(driver, hosts, value, v1, v2):
    for host, files in zip(hosts, (v1, v2), strict=True):
        compiled = driver.compile(NAME, value, "app", host)
        assert (written(compiled), compiled.outcome) == (files, "enforced")


def test_unified(driver, hosts):
    old, new = hosts
    value = {"unified": {"memory.high": "1048576", "cgroup.max.depth": "3"}}
    assert written(driver.compile(NAME, value, "app", new)) == value["unified"]
    with pytest.raises(IsolatorError, match=r"unified: memory\.high is a file of cgroup v2"):
        driver.compile(NAME, value, "app", old)
    with pytest.raises(IsolatorError, match=r"unified: .*misc\.max is a file of cgroup v2"):
        driver.compile(NAME, {"unified": {"misc.max": "max"}}, "app", old)
    odd = replace(new, cgroups={**new.cgroups, "": 2})
    for file in ("cgroup.procs", "cgroup.kill", "../memory.max"):
        with pytest.raises(IsolatorError, match="unified"):
            driver.compile(NAME, {"unified": {file: "1"}}, "app", odd)


def test_oom_score(driver, hosts):
    assert driver.compile(NAME, {"oomScoreAdj": 0}, "app", hosts[0]).plan.oom_score_adj == 0
    of_pod = driver.compile(NAME, {"oomScoreAdj": 500}, "pod", hosts[0])
    assert (of_pod.plan.oom_score_adj, of_pod.apps.oom_score_adj) == (None, 500)


def test_a_host_that_lacks_something(driver, hosts):
    bare = replace(hosts[1], cgroups={"cgroup": 2, "memory": 2})
    compiled = driver.compile(NAME, {"memoryLimit": MIB, "pidsLimit": 3}, "app", bare)
    assert (written(compiled), compiled.outcome) == ({"memory.max": str(MIB)}, "modified")
    assert compiled.note == "this host has no cgroup controller pids, so pidsLimit has no effect"
    assert driver.compile(NAME, {"pidsLimit": 3}, "app", bare).outcome == "ignored"
    pages = driver.compile(NAME, {"hugepageLimits": [{"pageSize": "1GB", "limit": 0}]}, "app", hosts[0])
    assert (pages.outcome, pages.note) == ("ignored", "this kernel has no huge pages of 1GB")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "expected an object"),
        ({"memory": 1}, "it has no member"),
        ({"cpuShares": -1}, "cpuShares: expected a whole number from 0"),
        ({"cpuQuota": 1.5}, "cpuQuota: expected a whole number"),
        ({"memoryLimit": True}, "memoryLimit: expected a whole number"),
        ({"memorySwapLimit": 4096}, "so it needs a memoryLimit"),
        ({"memoryLimit": 8192, "memorySwapLimit": 4096}, "that is not greater"),
        ({"cpusetCpus": "all"}, "expected a list such as"),
        ({"hugepageLimits": [{"pageSize": "2M", "limit": 1}]}, "hugepageLimits: expected"),
        ({"hugepageLimits": {}}, "hugepageLimits: expected a list"),
        ({"unified": {"memory.max": 1}}, "unified: expected texts by file"),
        ({"oomScoreAdj": 1001}, "oomScoreAdj: expected a whole number from -1000 to 1000"),
    ],
)
def test_wrong_values(driver, hosts, value, text):
    with pytest.raises(IsolatorError, match=text):
        driver.compile(NAME, value, "app", hosts[1])


def test_beside_other_isolators(driver, hosts):
    host = replace(hosts[0], siblings={"resource/memory": {"limit": "1G"}})
    with pytest.raises(IsolatorError, match="memoryLimit contradicts isolator resource/memory"):
        driver.compile(NAME, {"memoryLimit": MIB}, "app", host)
    assert driver.compile(NAME, {"pidsLimit": 7}, "app", host).outcome == "enforced"
    # The default limit of processes gives way.
    host = replace(hosts[0], siblings={NAME: {"pidsLimit": 7}})
    compiled = driver.compile("kurma.io/pids-limit", {"limit": 2048}, "app", host)
    assert (written(compiled), compiled.outcome) == ({}, "enforced")


def test_powers(driver, hosts):
    def needs(value, scope="app"):
        return [power.name for power in driver.powers(NAME, value, scope, hosts[0])]

    assert needs({"pidsLimit": 2048, "cpuShares": 4096, "oomScoreAdj": 10, "memoryLimit": -1}) == []
    for value in ({"pidsLimit": -1}, {"pidsLimit": 2049}, {"oomScoreAdj": -1}, {"unified": {"pids.max": "max"}}):
        assert needs(value) == [NAME]
    assert needs({"cpuShares": 1025}, "pod") == [NAME]


def test_an_update_leaves_what_it_does_not_say():
    before = {
        "memoryLimit": MIB,
        "cpuQuota": 50000,
        "oomScoreAdj": 5,
        "hugepageLimits": [{"pageSize": "2MB", "limit": 0}],
        "unified": {"memory.high": "1"},
    }
    value = {
        "memoryLimit": 0,
        "cpuQuota": -1,
        "cpusetCpus": "",
        "hugepageLimits": [{"pageSize": "1GB", "limit": 7}],
        "unified": {"memory.low": "2"},
    }
    assert linux_resources.changed(NAME, before, value) == {
        **before,
        "cpuQuota": -1,
        "hugepageLimits": [*before["hugepageLimits"], *value["hugepageLimits"]],
        "unified": {"memory.high": "1", "memory.low": "2"},
    }
