"""Resources for stagers that apply none, and for hosts without a controller (C8)."""

import pytest
from kurma_cri import resources
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import RpcError

HUGE = cri.HugepageLimit(page_size="2MB", limit=1)


def given(**fields):
    return cri.LinuxContainerResources(**fields)


def test_what_kubelet_sets_is_left_to_a_stager_that_applies_nothing():
    usual = {"memory.oom.group": "1", "memory.swap.max": "0"}
    none = cri.HugepageLimit(page_size="2MB")
    resources.check_foreign(
        given(cpu_period=100_000, cpu_shares=2, oom_score_adj=1000, unified=usual, hugepage_limits=[none])
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cpu_quota": 1000}, "resources.cpu_quota: the stager"),
        ({"memory_limit_in_bytes": 1}, "resources.memory_limit_in_bytes"),
        ({"memory_swap_limit_in_bytes": -1}, "resources.memory_swap_limit_in_bytes"),
        ({"cpuset_cpus": "0"}, "resources.cpuset_cpus"),
        ({"cpuset_mems": "0"}, "resources.cpuset_mems"),
        ({"hugepage_limits": [HUGE]}, "resources.hugepage_limits"),
        ({"unified": {"memory.swap.max": "1"}}, "resources.unified: memory.swap.max"),
    ],
)
def test_limits_are_refused_there(fields, said):
    with pytest.raises(RpcError, match=said):
        resources.check_foreign(given(**fields))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cpu_shares": 2}, "resources.cpu_shares: this host has no cgroup controller cpu"),
        ({"cpuset_cpus": "0"}, "controller cpuset"),
        ({"hugepage_limits": [HUGE]}, "controller hugetlb"),
        ({"unified": {"io.weight": "1"}}, "resources.unified: io.weight: this host has no cgroup controller io"),
    ],
)
def test_a_host_without_controllers(fields, said):
    none = cri.HugepageLimit(page_size="2MB")
    enough = given(memory_limit_in_bytes=1, oom_score_adj=3, hugepage_limits=[none])
    resources.check_host(enough, ("memory",))
    with pytest.raises(RpcError, match=said):
        resources.check_host(given(**fields), ("memory",))
