"""AppArmor profiles and SELinux contexts: what becomes of them on machines that are made up (X4)."""

from __future__ import annotations

import os

import pytest
from kurma_isolators_linux.driver import DEFAULTS, EXCLUSIVE, GATED, ISOLATORS, LinuxIsolators

from kurma_core.appc.image import Isolator
from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.isolation import IsolatorPlugin, compile_isolators
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.value import replace

LINUX = IsolatorPlugin(ISOLATORS, LinuxIsolators, DEFAULTS, EXCLUSIVE, GATED)

APPARMOR, SELINUX = "os/linux/apparmor-profile", "os/linux/selinux-context"
CONTEXT = {"user": "system_u", "role": "system_r", "type": "svirt_lxc_net_t", "level": "s0-s0:c0.c1023"}
PROFILES = """\
/usr/bin/man (enforce)
a name (of a kind) (kill)
draft (complain)
web (enforce)
web//child (enforce)
anything (unconfined)
"""


@pytest.fixture
def host(tmp_path):
    """A machine with both, which has no kernel of this world."""
    files = {
        "sys/module/apparmor/parameters/enabled": "Y\n",
        "sys/kernel/security/apparmor/profiles": PROFILES,
        "sys/fs/selinux/enforce": "1",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return IsolatorHost({}, 1, root=str(tmp_path))


def compiled(name, value, host, scope="app"):
    return LinuxIsolators().compile(name, value, scope, host)


@pytest.mark.parametrize("profile", ["web", "web//child", "/usr/bin/man", "a name (of a kind)"])
def test_a_loaded_profile_is_enforced(host, profile):
    for value in (profile, {"profile": profile}):
        told = compiled(APPARMOR, value, host)
        assert (told.outcome, told.plan) == ("enforced", IsolatorPlan(apparmor=profile))


@pytest.mark.parametrize("profile", ["we", "child", "web (enforce)", "(enforce)", "WEB", "a name"])
def test_a_profile_that_is_not_loaded_is_refused(host, profile):
    for scope, value in (("app", profile), ("pod", profile), ("pod", {"profile": profile})):
        with pytest.raises(IsolatorError, match=r"is not loaded$") as caught:
            compiled(APPARMOR, value, host, scope)
        assert f'"{profile}"' in str(caught.value)
        assert "apparmor_parser -r" in caught.value.hint


def test_a_profile_that_denies_nothing_is_no_wall(host, tmp_path):
    told = compiled(APPARMOR, "draft", host)
    assert (told.outcome, told.plan.apparmor) == ("modified", "draft")
    assert "complain mode" in told.note
    with pytest.raises(IsolatorError, match="loaded as unconfined: it denies nothing"):
        compiled(APPARMOR, "anything", host)
    assert compiled(APPARMOR, "unconfined", host).plan == IsolatorPlan()
    own = tmp_path / "proc/self/attr/apparmor/current"
    own.parent.mkdir(parents=True)
    own.write_text("kurma (enforce)\n")
    assert compiled(APPARMOR, "unconfined", host).plan == IsolatorPlan(apparmor="unconfined")


def test_a_kernel_without_apparmor(host, tmp_path):
    enabled = tmp_path / "sys/module/apparmor/parameters/enabled"
    enabled.write_text("N\n")
    told = compiled(APPARMOR, "web", host)
    assert (told.outcome, told.plan, told.note) == (
        "ignored",
        IsolatorPlan(),
        "AppArmor is switched off in this kernel",
    )
    enabled.unlink()
    told = compiled(APPARMOR, "nothing", host)
    assert (told.outcome, told.plan, told.note) == ("ignored", IsolatorPlan(), "this kernel has no AppArmor")


def test_profiles_that_cannot_be_looked_up_are_refused(host, tmp_path):
    profiles = tmp_path / "sys/kernel/security/apparmor/profiles"
    profiles.unlink()
    with pytest.raises(IsolatorError, match="there is no /sys/kernel/security/apparmor/profiles") as caught:
        compiled(APPARMOR, "web", host)
    assert caught.value.hint == "mount -t securityfs securityfs /sys/kernel/security"
    profiles.mkdir()
    with pytest.raises(IsolatorError, match="profiles: Is a directory"):
        compiled(APPARMOR, "web", host)


def test_a_context_is_what_the_kernel_makes_of_it(host, tmp_path):
    told = compiled(SELINUX, CONTEXT, host)
    plan = IsolatorPlan(selinux="system_u:system_r:svirt_lxc_net_t:s0-s0:c0.c1023")
    assert (told.outcome, told.plan) == ("enforced", plan)
    enforce = tmp_path / "sys/fs/selinux/enforce"
    enforce.write_text("0")
    told = compiled(SELINUX, CONTEXT, host)
    assert (told.outcome, told.plan) == ("modified", plan)
    assert "permissive" in told.note
    enforce.unlink()
    told = compiled(SELINUX, CONTEXT, host)
    assert (told.outcome, told.plan) == ("modified", plan)
    assert "/sys/fs/selinux is not mounted" in told.note
    os.rmdir(enforce.parent)
    told = compiled(SELINUX, CONTEXT, host)
    assert (told.outcome, told.plan) == ("ignored", IsolatorPlan())


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"type": None},
            {"type": ""},
            {"type": "a:b"},
            {"user": "a b"},
            {"role": "é"},
            {"level": "s0\n"},
            {"x": "y"},
        ),
        *({"level": None}, {"level": "s0 c1"}, {"user": "u" * 1001}),
    ],
)
def test_a_context_that_is_none_is_refused(host, change):
    value = {key: part for key, part in {**CONTEXT, **change}.items() if part is not None}
    with pytest.raises(IsolatorError, match=SELINUX):
        compiled(SELINUX, value, host)


def test_a_pods_is_a_default_of_its_apps(host):
    """Unless they have one of their own; also for an app that is added to a pod that is there."""
    pod = [Isolator(APPARMOR, "web"), Isolator(SELINUX, CONTEXT)]
    own = [Isolator(APPARMOR, "/usr/bin/man"), Isolator(SELINUX, {**CONTEXT, "type": "own_t"})]
    apps = {"usual": [], "own": own}
    added = replace(host, pod={each.name: each.value for each in pod})
    made = compile_isolators(pod, apps, [LINUX], host, strict=True)
    for isolation in (made, compile_isolators(None, apps, [LINUX], added)):
        found = {name: (plan.apparmor, plan.selinux) for name, plan in isolation.apps.items()}
        assert found == {
            "usual": ("web", "system_u:system_r:svirt_lxc_net_t:s0-s0:c0.c1023"),
            "own": ("/usr/bin/man", "system_u:system_r:own_t:s0-s0:c0.c1023"),
        }
    assert (made.pod.apparmor, made.pod.selinux) == (None, None)
    told = {(each.scope, each.name): (each.outcome, each.default) for each in made.reports}
    assert told[None, APPARMOR] == told["own", SELINUX] == ("enforced", False)
    assert told["usual", SELINUX] == ("enforced", True)


def test_a_pods_is_ignored_under_a_stager_that_applies_nothing(host):
    why = "it applies no isolators"
    made = compile_isolators([Isolator(APPARMOR, "web")], {"app": []}, [LINUX], host, unapplied=why)
    told = [(each.outcome, each.note) for each in made.reports if each.name == APPARMOR]
    assert told == [("ignored", why), ("ignored", why)]
