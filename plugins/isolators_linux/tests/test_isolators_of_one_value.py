"""Capabilities and isolators of one value: what they become (X2, X4)."""

from __future__ import annotations

import json

import pytest
from kurma_isolators_linux.driver import DEFAULTS, EXCLUSIVE, GATED, ISOLATORS, LinuxIsolators

from kurma_core.appc.image import Isolator
from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.isolation import IsolatorPlugin, compile_isolators
from kurma_core.models.isolator import RLIMITS, CgroupSetting, IsolatorPlan
from kurma_core.value import replace

LINUX = IsolatorPlugin(ISOLATORS, LinuxIsolators, DEFAULTS, EXCLUSIVE, GATED)

REMOVE, RETAIN = "os/linux/capabilities-remove-set", "os/linux/capabilities-retain-set"
V1, V2 = IsolatorHost({"cpu": 1}, 2), IsolatorHost({"cpu": 2}, 2)
FOURTEEN = frozenset(
    (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "KILL", "MKNOD"),
        *("NET_RAW", "NET_BIND_SERVICE", "SETUID", "SETGID", "SETPCAP", "SETFCAP", "SYS_CHROOT"),
    )
)


@pytest.fixture
def host(tmp_path):
    """A machine that lacks CAP_SYS_RESOURCE, where Kurma's own score is 100."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Name:\tx\nCapPrm:\t000001fffeffffff\nCapEff:\t0000000000000000\n")
    (tmp_path / "proc/self/oom_score_adj").write_text("100\n")
    (tmp_path / "proc/sys/kernel/cap_last_cap").write_text("37\n")
    return replace(V1, root=str(tmp_path))


def compiled(name, value, host=V1, scope="app"):
    return LinuxIsolators().compile(name, value, scope, host)


def names(capabilities):
    return {name.removeprefix("CAP_") for name in capabilities}


def test_no_new_privileges():
    for value in (True, False):
        assert compiled("os/linux/no-new-privileges", value).plan == IsolatorPlan(no_new_privileges=value)


def test_a_remove_set_is_taken_from_the_fourteen():
    plan = compiled(REMOVE, {"set": ["CAP_MKNOD", "cap_net_raw", "CHOWN", "CAP_SYS_ADMIN"]}).plan
    assert names(plan.capabilities) == FOURTEEN - {"MKNOD", "NET_RAW", "CHOWN"}
    assert plan.ambient == ()
    assert names(compiled(REMOVE, {"set": []}).plan.capabilities) == FOURTEEN
    assert compiled(REMOVE, {"set": sorted(FOURTEEN)}).plan.capabilities == ()


def test_the_default_capabilities_are_those_of_the_images_kind():
    """App Container's fourteen, or the eleven that podman gives; an explicit set stands on the same ground."""
    removed = [Isolator(REMOVE, {"set": ["CAP_CHOWN", "CAP_NET_RAW"]})]
    exact = [Isolator(RETAIN, {"set": ["CAP_NET_RAW"]})]
    apps = {"aci": (), "docker": (), "less": removed, "exact": exact}
    of_registries = ("docker", "less", "exact")
    done = compile_isolators([], apps, [LINUX], V1, fewer_capabilities=of_registries)
    eleven = FOURTEEN - {"AUDIT_WRITE", "MKNOD", "NET_RAW"}
    wanted = {"aci": FOURTEEN, "docker": eleven, "less": eleven - {"CHOWN"}, "exact": {"NET_RAW"}}
    assert {app: names(done.apps[app].capabilities) for app in apps} == wanted
    # A default gives a plain user nothing.
    assert done.apps["aci"].ambient == done.apps["docker"].ambient == ()
    values = {one.scope: one.value["set"] for one in done.reports if one.default and one.name == REMOVE}
    assert values == {"aci": [], "docker": ["CAP_NET_RAW", "CAP_MKNOD", "CAP_AUDIT_WRITE"]}
    # Where the app is privileged, it has all of them.
    every = compile_isolators([], {"all": [Isolator("os/linux/privileged", True)]}, [LINUX], V1)
    told = [one for one in every.reports if one.name == REMOVE]
    assert [(one.outcome, one.note) for one in told] == [("ignored", "the app is privileged")]


def test_a_retain_set_is_what_it_says():
    plan = compiled(RETAIN, {"set": ["CAP_SYS_TIME", "CAP_CHOWN", "CAP_CHOWN"]}).plan
    assert plan.capabilities == plan.ambient == ("CAP_CHOWN", "CAP_SYS_TIME")
    nothing = compiled(RETAIN, {"set": []}).plan
    assert (nothing.capabilities, nothing.ambient) == ((), ())


def test_what_cannot_be_given_is_told(host):
    for word, lacking in (("SYS_RESOURCE", host), ("BPF", replace(host, userns=True))):
        told = compiled(RETAIN, {"set": [word, "CAP_KILL"]}, lacking)
        assert (told.outcome, told.plan.capabilities) == ("modified", ("CAP_KILL",))
        assert f"without CAP_{word}," in told.note
    # Root of a user namespace has all that the kernel knows.
    assert compiled(RETAIN, {"set": ["SYS_RESOURCE"]}, replace(host, userns=True)).outcome == "enforced"
    assert compiled(RETAIN, {"set": ["BPF"]}, host).outcome == "enforced"


def test_who_is_not_root_is_told_what_root_could_give(host, tmp_path):
    status = "Uid:\t0\t{}\t0\t0\nCapPrm:\t0000000000000000\nCapBnd:\t0000000000000020\n"
    for uid, outcome in ((1000, "enforced"), (0, "modified")):
        (tmp_path / "proc/self/status").write_text(status.format(uid))
        assert compiled(RETAIN, {"set": ["CAP_KILL"]}, host).outcome == outcome


def test_resource_limits(host, tmp_path):
    """More than Kurma's own takes CAP_SYS_RESOURCE, also in a user namespace, and is a power."""
    name = "kurma.io/ulimits"
    found = compiled(name, {"nofile": [5, 6], "core": 0, "rttime": [1, -1]}, host)
    assert found.plan == IsolatorPlan(rlimits={"nofile": (5, 6), "core": (0, 0), "rttime": (1, -1)})
    assert (found.outcome, found.amounts) == ("enforced", "nofile 5:6, core 0:0, rttime 1:unlimited")
    assert compiled(name, {"memlock": -1}, host).plan.rlimits == {"memlock": (-1, -1)}, "the kernel decides"
    asked = {"memlock": [10, 9000], "core": -1}
    powers = LinuxIsolators().powers
    assert [one.name for one in powers(name, asked, "app", host)] == [f"{name}=memlock", f"{name}=core"]
    own = "".join(f"{one:47}{8192 if one == 'memlock' else 'unlimited'}\n" for one in RLIMITS)
    (tmp_path / "proc/self/limits").write_text(f"Limit\n{own}")
    assert [one.name for one in powers(name, asked, "app", host)] == [f"{name}=memlock"]
    for given in (host, replace(host, userns=True)):
        with pytest.raises(IsolatorError, match="memlock: a hard limit of 9000 is above Kurma's own, 8192") as got:
            compiled(name, asked, given)
        assert got.value.hint == "give at most 8192"
    (tmp_path / "proc/self/status").write_text("CapPrm:\t000001ffffffffff\n")
    assert compiled(name, asked, host).plan.rlimits == {"memlock": (10, 9000), "core": (-1, -1)}
    (tmp_path / "proc/sys/fs").mkdir()
    (tmp_path / "proc/sys/fs/nr_open").write_text("1000\n")
    with pytest.raises(IsolatorError, match="nofile: a hard limit of 1001 is above the kernel's maximum, 1000"):
        compiled(name, {"nofile": [1, 1001]}, host)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("CAP_NET_ADMINN", "did you mean CAP_NET_ADMIN?"),
        ("sys_adm", "did you mean CAP_SYS_ADMIN?"),
        ("all", "there is no word for all of them: name each, or give os/linux/privileged"),
        ("CAP_FOO", "they are named as in capabilities(7): CAP_CHOWN"),
        ("zzz", "they are named as in capabilities(7): CAP_CHOWN"),
        (7, "they are named as in capabilities(7): CAP_CHOWN"),
    ],
)
def test_an_unknown_capability_names_the_nearest(word, hint):
    with pytest.raises(IsolatorError, match="no such capability") as caught:
        compiled(RETAIN, {"set": [word]})
    assert caught.value.hint == hint


def test_all_capabilities_are_removed_by_keeping_none():
    with pytest.raises(IsolatorError) as caught:
        compiled(REMOVE, {"set": ["ALL"]})
    example = caught.value.hint.split("=", 1)[1].strip("'")
    assert compiled(RETAIN, json.loads(example)).plan.capabilities == ()


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("os/linux/namespaces", {"pid": "host", "mnt": "host"}, 'got "mnt"'),
        ("os/linux/namespaces", {"pid": "hots"}, 'got "hots" for pid'),
        ("kurma.io/devices", ["/dev/fuse", "/dev/fuse"], "/dev/fuse is given twice"),
    ],
)
def test_what_is_wrong_in_a_value_is_named(name, value, got):
    with pytest.raises(IsolatorError, match=f"{got}$"):
        compiled(name, value)


def test_both_sets_at_once_are_an_error():
    both = [Isolator(REMOVE, {"set": []}), Isolator(RETAIN, {"set": []})]
    with pytest.raises(IsolatorError, match=f"{RETAIN} of app web cannot stand beside {REMOVE}"):
        compile_isolators([], {"web": both}, [LINUX], V1)


def test_oom_score_adj(host):
    name = "os/linux/oom-score-adj"
    assert compiled(name, -1000, replace(V1, root="/nowhere")).plan == IsolatorPlan(oom_score_adj=-1000)
    for score in (100, 1000):
        assert compiled(name, score, host).plan.oom_score_adj == score
        assert compiled(name, score, host).outcome == "enforced"
    told = compiled(name, 99, host)
    assert (told.outcome, told.plan.oom_score_adj) == ("modified", 100)
    assert "100 instead of 99" in told.note
    # It is the host's right that counts.
    assert compiled(name, 99, replace(host, userns=True)).outcome == "modified"


@pytest.mark.parametrize(
    ("shares", "weight", "outcome"),
    [
        *((1024, 100, "enforced"), (2048, 200, "enforced"), (20, 2, "enforced"), (102400, 10000, "enforced")),
        *((2, 1, "modified"), (5, 1, "modified"), (262144, 10000, "modified")),
    ],
)
def test_cpu_shares(shares, weight, outcome):
    """Who has twice the shares of another has twice its weight, where v2 can tell them apart."""
    name = "os/linux/cpu-shares"
    for scope in ("app", "pod"):
        plan = compiled(name, shares, V1, scope).plan
        assert plan == IsolatorPlan(cgroup=(CgroupSetting("cpu", "cpu.shares", str(shares)),))
        told = compiled(name, shares, V2, scope)
        assert told.plan == IsolatorPlan(cgroup=(CgroupSetting("cpu", "cpu.weight", str(weight)),))
        assert told.outcome == outcome
    assert compiled(name, shares, IsolatorHost({}, 1)).outcome == "ignored"
