"""What security contexts become: isolators, users and groups; which are refused (C6, C8)."""

from __future__ import annotations

import contextlib
import re

import pytest
from kurma_cri import security_context
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import Records
from kurma_cri.rpc import RpcError

PROFILE = cri.SecurityProfile
SANDBOX = "ab" * 32
MASKED, READ_ONLY = "kurma.io/masked-paths", "kurma.io/read-only-paths"


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """SELinux's directory, which this kernel lacks."""
    monkeypatch.setattr(security_context, "_SELINUX_PLACE", str(tmp_path))
    return tmp_path


def security(**fields):
    return cri.LinuxContainerSecurityContext(**fields)


def isolators(context=None, pod=None, devices=()):
    linux = (
        cri.LinuxContainerConfig(security_context=context) if context is not None else cri.LinuxContainerConfig()
    )
    config = cri.ContainerConfig(linux=linux, devices=devices)
    pod = pod or cri.LinuxSandboxSecurityContext()
    found = security_context.isolators(config, SANDBOX, pod)
    assert len(dict(found)) == len(found)
    return dict(found)


def refused(says, *context, **more):
    with pytest.raises(RpcError, match=says):
        isolators(*context, **more)


def test_a_context_that_is_missing_or_empty():
    assert isolators() == {"kurma.io/seccomp-profile": "unconfined"}
    assert isolators(security()) == {"kurma.io/seccomp-profile": "unconfined", MASKED: [], READ_ONLY: []}
    given = isolators(security(masked_paths=["/proc/keys"], readonly_paths=["/proc/sys", "/etc"]))
    assert (given[MASKED], given[READ_ONLY]) == (["/proc/keys"], ["/proc/sys", "/etc"])


@pytest.mark.parametrize(
    ("context", "wanted"),
    [
        ({"seccomp": PROFILE()}, None),
        ({"seccomp": PROFILE(profile_type=PROFILE.RuntimeDefault), "seccomp_profile_path": "unconfined"}, None),
        ({"seccomp": PROFILE(profile_type=PROFILE.Unconfined)}, "unconfined"),
        ({"seccomp": PROFILE(profile_type=PROFILE.Localhost, localhost_ref="/a/b.json")}, {"path": "/a/b.json"}),
        ({"seccomp_profile_path": "runtime/default"}, None),
        ({"seccomp_profile_path": "docker/default"}, None),
        ({"seccomp_profile_path": "unconfined"}, "unconfined"),
        ({"seccomp_profile_path": "localhost//a.json"}, {"path": "/a.json"}),
    ],
)
def test_seccomp(context, wanted):
    assert isolators(security(**context)).get("kurma.io/seccomp-profile") == wanted


def test_under_a_stager_with_protections_of_its_own():
    """What kubelet always sends is left to it; what would change its protections is still asked for."""
    usual = {name: sorted(paths) for name, paths in security_context._KUBELETS.items()}

    def found(**context):
        config = cri.ContainerConfig()
        config.linux.security_context.CopyFrom(security(**context))
        pod = cri.LinuxSandboxSecurityContext()
        return dict(security_context.isolators(config, SANDBOX, pod, foreign=True))

    assert found(masked_paths=usual[MASKED], readonly_paths=usual[READ_ONLY], seccomp=PROFILE()) == {}
    assert found(masked_paths=[*usual[MASKED], "/proc/interrupts"], readonly_paths=usual[READ_ONLY]) == {}
    unconfined = PROFILE(profile_type=PROFILE.Unconfined)
    assert found(seccomp=unconfined) == {MASKED: [], READ_ONLY: []}
    local = PROFILE(profile_type=PROFILE.Localhost, localhost_ref="/p.json")
    assert found(seccomp=local)["kurma.io/seccomp-profile"] == {"path": "/p.json"}


def test_seccomp_that_is_refused():
    refused("needs a localhost_ref", security(seccomp=PROFILE(profile_type=PROFILE.Localhost)))
    refused("must be an absolute", security(seccomp=PROFILE(profile_type=PROFILE.Localhost, localhost_ref="a")))
    refused("seccomp_profile_path: expected", security(seccomp_profile_path="localhost/"))


@pytest.mark.parametrize(
    ("context", "wanted"),
    [
        ({}, None),
        ({"apparmor": PROFILE()}, None),
        ({"apparmor": PROFILE(profile_type=PROFILE.Unconfined)}, "unconfined"),
        ({"apparmor": PROFILE(profile_type=PROFILE.Localhost, localhost_ref="web")}, {"profile": "web"}),
        ({"apparmor": PROFILE(profile_type=PROFILE.Localhost, localhost_ref="localhost/web")}, {"profile": "web"}),
        ({"apparmor": PROFILE(), "apparmor_profile": "localhost/old"}, None),
        ({"apparmor_profile": "localhost/old"}, {"profile": "old"}),
        ({"apparmor_profile": "unconfined"}, "unconfined"),
        ({"apparmor_profile": "runtime/default"}, None),
    ],
)
def test_apparmor(context, wanted):
    assert isolators(security(**context)).get("os/linux/apparmor-profile") == wanted


def test_capabilities_and_privileges():
    given = cri.Capability(add_capabilities=["NET_ADMIN"], drop_capabilities=["ALL"])
    found = isolators(security(capabilities=given, no_new_privs=True))
    assert found["kurma.io/capabilities"] == {"add": ["NET_ADMIN"], "drop": ["ALL"], "ambient": []}
    assert found["os/linux/no-new-privileges"] is True
    pod = cri.LinuxSandboxSecurityContext(privileged=True)
    context = security(
        privileged=True,
        capabilities=given,
        masked_paths=["/proc/keys"],
        seccomp=PROFILE(profile_type=PROFILE.Localhost, localhost_ref="/x"),
    )
    assert isolators(context, pod) == {"os/linux/privileged": True, "os/linux/apparmor-profile": "unconfined"}
    refused("the sandbox of a privileged container must be privileged", context)


def test_devices():
    devices = [
        cri.Device(host_path="/dev/null", container_path="/dev/null", permissions="rw"),
        cri.Device(host_path="/dev/zero", container_path="/dev/data", permissions="r"),
        cri.Device(host_path="/dev/snd"),
    ]
    assert isolators(security(), devices=devices)["kurma.io/devices"] == [
        {"path": "/dev/data", "hostPath": "/dev/zero", "access": "r"},
        {"path": "/dev/snd", "hostPath": "/dev/snd", "access": "rwm"},
    ]
    refused("must be below /dev", security(), devices=[cri.Device(host_path="/dev/a", container_path="/x")])


def test_selinux_on_a_kernel_that_has_it(place):
    """The containers of a sandbox share its label; others have another one."""
    pod = cri.LinuxSandboxSecurityContext(selinux_options=cri.SELinuxOption(type="spc_t"))
    label = isolators(security(), pod)["os/linux/selinux-context"]
    assert {**label, "level": ""} == {"user": "system_u", "role": "system_r", "type": "spc_t", "level": ""}
    assert re.fullmatch(r"s0:c\d+,c\d+", label["level"])
    own = security(selinux_options=cri.SELinuxOption(level="s0:c1,c2"))
    assert isolators(own, pod)["os/linux/selinux-context"]["level"] == "s0:c1,c2"
    assert isolators(own, pod)["os/linux/selinux-context"]["type"] == "container_t"
    levels = {security_context.selinux_level(f"{number:064x}") for number in range(200)}
    assert len(levels) > 195
    records = Records(None)
    with contextlib.ExitStack() as stack:
        ids = [stack.enter_context(records.making(lambda id: id[0])) for _ in range(16)]
    assert len({id[0] for id in ids}) == 16, "no two sandboxes have the same level"
    refused("type: 'a:b' is not a word", security(selinux_options=cri.SELinuxOption(type="a:b")))


def test_selinux_elsewhere_is_checked_and_ignored(place):
    place.rmdir()
    options = cri.SELinuxOption(user="u", role="r", type="t", level="s0")
    assert "os/linux/selinux-context" not in isolators(security(selinux_options=options))
    refused("level: 's 0'", security(selinux_options=cri.SELinuxOption(level="s 0")))


def value(number):
    return cri.Int64Value(value=number)


@pytest.mark.parametrize(
    ("context", "wanted"),
    [
        ({}, (None, None, (), "merge")),
        ({"run_as_user": value(0)}, ("0", None, (), "merge")),
        ({"run_as_user": value(5), "run_as_group": value(0)}, ("5", "0", (), "merge")),
        ({"run_as_username": "www", "supplemental_groups": [7, 8]}, ("www", None, (7, 8), "merge")),
        ({"supplemental_groups_policy": cri.Strict, "supplemental_groups": [7]}, (None, None, (7,), "strict")),
    ],
)
def test_users_and_groups(context, wanted):
    found = security_context.identity(security(**context))
    assert (found.user, found.group, found.groups, found.policy) == wanted


@pytest.mark.parametrize(
    "context",
    [
        {"run_as_group": value(1)},
        {"run_as_user": value(1), "run_as_username": "a"},
        {"run_as_user": value(-1)},
        {"run_as_user": value(1 << 32)},
        {"supplemental_groups": [-5]},
        {"supplemental_groups_policy": 9},
    ],
)
def test_users_and_groups_that_are_refused(context):
    with pytest.raises(RpcError):
        security_context.identity(security(**context))


@pytest.mark.parametrize(
    "context",
    [
        {"run_as_group": value(1)},
        {"run_as_user": value(-1)},
        {"supplemental_groups": [-1]},
        {"supplemental_groups_policy": 2},
        {"seccomp": PROFILE(profile_type=PROFILE.Localhost)},
        {"selinux_options": cri.SELinuxOption(level="s0\n")},
    ],
)
def test_a_sandbox_that_is_refused(context):
    with pytest.raises(RpcError):
        security_context.check_sandbox(cri.LinuxSandboxSecurityContext(**context))
