"""What CPU, memory and process limits become on hosts of either generation of cgroups (X3, X5)."""

from __future__ import annotations

import pytest
from kurma_isolators_linux import plugin
from kurma_testing import load_driver

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.value import replace

V1 = IsolatorHost(cgroups=dict.fromkeys(("cpu", "memory", "pids"), 1), cpus=4)
V2 = IsolatorHost(cgroups=dict.fromkeys(("cpu", "memory", "pids"), 2), cpus=4)


@pytest.fixture
def compiled(tmp_path):
    driver = load_driver(plugin, tmp_path)

    def compile_one(name, value, host, scope="app"):
        result = driver.compile(name, value, scope, host)
        return {setting.file: setting.value for setting in result.plan.cgroup}, result.outcome, result.note

    return compile_one


@pytest.fixture
def counting(tmp_path):
    """A made-up machine whose kernel counts swap."""
    for name in ("proc/swaps", "proc/cmdline", "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"):
        path = tmp_path / "machine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return str(tmp_path / "machine")


# --- CPU -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "v1", "v2"),
    [
        ({"limit": "500m"}, ("512", "50000", "100000"), ("50", "50000 100000")),
        ({"request": "250m", "limit": "500m"}, ("256", "50000", "100000"), ("25", "50000 100000")),
        ({"limit": 2.5}, ("2560", "250000", "100000"), ("250", "250000 100000")),
        ({"limit": "10m"}, ("10", "1000", "100000"), ("1", "1000 100000")),
        # A quota is of a millisecond at least: over a longer time, then
        ({"limit": "9m"}, ("9", "9000", "1000000"), ("1", "9000 1000000")),
        ({"limit": "1m"}, ("2", "1000", "1000000"), ("1", "1000 1000000")),
        # All that there is, and more: no quota can bound that further
        ({"limit": 4}, ("4096", None, None), ("400", None)),
        ({"limit": "1P"}, ("262144", None, None), ("10000", None)),
        ({"request": "1"}, ("1024", None, None), ("100", None)),
    ],
)
def test_cpu(compiled, value, v1, v2):
    written, outcome, _ = compiled("resource/cpu", value, V1)
    found = tuple(written.get(file) for file in ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
    assert (found, outcome) == (v1, "enforced")
    written, outcome, _ = compiled("resource/cpu", value, V2)
    assert (tuple(written.get(file) for file in ("cpu.weight", "cpu.max")), outcome) == (v2, "enforced")


def test_the_period_comes_before_the_quota(tmp_path):
    """The other way round the kernel may see a share of the old period that is more than the parent's."""
    plan = load_driver(plugin, tmp_path).compile("resource/cpu", {"limit": "1m"}, "app", V1).plan
    assert [setting.file for setting in plan.cgroup][-2:] == ["cpu.cfs_period_us", "cpu.cfs_quota_us"]


def test_an_apps_quota_is_clamped_to_its_pods_on_v1(compiled):
    pod = {"resource/cpu": {"limit": "500m"}}
    written, outcome, note = compiled("resource/cpu", {"limit": 2}, replace(V1, pod=pod))
    assert (written["cpu.cfs_quota_us"], outcome) == ("50000", "modified")
    assert "the pod's limit, 500m" in note
    assert compiled("resource/cpu", {"limit": "500m"}, replace(V1, pod=pod))[1] == "enforced"
    assert (
        compiled("resource/cpu", {"limit": 2}, replace(V1, pod={"resource/cpu": {"request": 1}}))[1] == "enforced"
    )
    # v2 takes what is more than the parent's
    assert compiled("resource/cpu", {"limit": 2}, replace(V2, pod=pod))[0]["cpu.max"] == "200000 100000"


def test_cpu_shares_beside_it_decide_on_the_share(compiled):
    shares = {"os/linux/cpu-shares": 4096}
    written, outcome, _ = compiled("resource/cpu", {"limit": "500m"}, replace(V1, siblings=shares))
    assert "cpu.shares" not in written
    assert outcome == "enforced"
    value = {"request": "250m", "limit": "500m"}
    _, outcome, note = compiled("resource/cpu", value, replace(V1, siblings=shares))
    assert (outcome, note) == ("modified", "os/linux/cpu-shares decides on the share")


# --- memory --------------------------------------------------------------------------------------------------


def test_memory_is_held_with_its_swap(compiled, counting):
    value = {"request": "64Mi", "limit": "128Mi"}
    written, outcome, _ = compiled("resource/memory", value, replace(V1, root=counting))
    assert outcome == "enforced"
    assert written == {
        "memory.limit_in_bytes": "134217728",
        "memory.memsw.limit_in_bytes": "134217728",
        "memory.soft_limit_in_bytes": "67108864",
    }
    # v1 refuses less of both together than of memory alone
    assert list(written)[:2] == ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    written, outcome, _ = compiled("resource/memory", value, replace(V2, root=counting))
    assert outcome == "enforced"
    assert written == {"memory.max": "134217728", "memory.swap.max": "0", "memory.low": "67108864"}


def test_a_request_is_the_limit_where_there_is_none(compiled, counting):
    assert (
        compiled("resource/memory", {"limit": "1Gi"}, replace(V2, root=counting))[0]["memory.low"] == "1073741824"
    )
    written, _, _ = compiled("resource/memory", {"request": "1Gi", "limit": None}, replace(V2, root=counting))
    assert written == {"memory.low": "1073741824"}


@pytest.mark.parametrize("host", [V1, V2], ids=["v1", "v2"])
def test_where_swap_is_not_counted_that_is_said(compiled, tmp_path, host):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/swaps").write_text("")
    (tmp_path / "proc/cmdline").write_text("quiet swapaccount=0\n")
    written, outcome, note = compiled("resource/memory", {"limit": "1Gi"}, replace(host, root=str(tmp_path)))
    assert len(written) == 2
    assert outcome == "modified"
    assert "swap" in note


@pytest.mark.parametrize(("scope", "least"), [("app", "4Mi"), ("pod", "16Mi")])
def test_too_little_memory_is_refused(compiled, scope, least):
    with pytest.raises(IsolatorError, match=f'a limit of "1Mi" is too small: at least {least}'):
        compiled("resource/memory", {"limit": "1Mi"}, V1, scope)
    assert compiled("resource/memory", {"limit": least}, V1, scope)[1] in ("enforced", "modified")


# --- processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [V1, V2], ids=["v1", "v2"])
def test_processes(compiled, host):
    assert compiled("kurma.io/pids-limit", {"limit": "1K"}, host) == ({"pids.max": "1000"}, "enforced", "")
    for much in ("unlimited", "1G"):
        assert compiled("kurma.io/pids-limit", {"limit": much}, host)[0] == {"pids.max": "max"}


def test_an_app_has_a_limit_of_processes_unless_it_says_so(tmp_path):
    driver = load_driver(plugin, tmp_path)
    assert dict(driver.defaults("app", (), V1))["kurma.io/pids-limit"] == {"limit": 2048}
    assert "kurma.io/pids-limit" not in dict(driver.defaults("app", ("kurma.io/pids-limit",), V1))
    assert "kurma.io/pids-limit" not in dict(driver.defaults("pod", (), V1))
    # Where it cannot hold, too: that is told, and the app refused, unless the configuration does without.
    without = IsolatorHost(cgroups={}, cpus=1)
    assert dict(driver.defaults("app", (), without))["kurma.io/pids-limit"] == {"limit": 2048}
    assert driver.compile("kurma.io/pids-limit", {"limit": 2048}, "app", without).outcome == "ignored"


# --- what is wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("resource/cpu", "2", 'expected an object such as {"request": "250m", "limit": "500m"}, got "2"'),
        ("resource/cpu", {"limit": "2 cores"}, 'limit: expected a quantity of cores .*, got "2 cores"'),
        ("resource/cpu", {"limit": 0}, "a limit of 0 is too small: it must be more than 0"),
        ("resource/cpu", {"request": 2, "limit": "1500m"}, 'requests 2, more than its limit of "1500m"'),
        ("resource/cpu", {"limits": 1}, 'it has no member "limits"'),
        ("resource/memory", {}, "expected a request, a limit or both"),
        ("resource/memory", {"limit": "1G", "default": True}, "it has no default"),
        ("kurma.io/pids-limit", {}, "expected a limit, such as"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(compiled, name, value, said):
    with pytest.raises(IsolatorError, match=said) as caught:
        compiled(name, value, V1)
    assert str(caught.value).startswith(f"isolator {name}: ")


@pytest.mark.parametrize("name", ["resource/cpu", "resource/memory", "kurma.io/pids-limit"])
def test_without_the_controller_it_is_ignored(compiled, name):
    _, outcome, note = compiled(name, {"limit": "1G"}, IsolatorHost(cgroups={}, cpus=4))
    assert outcome == "ignored"
    assert "no cgroup controller" in note
