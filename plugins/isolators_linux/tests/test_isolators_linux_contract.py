"""Held to the contract of isolators, on hosts of every generation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kurma_isolators_linux import plugin
from kurma_isolators_linux.about import ABOUT
from kurma_isolators_linux.driver import ISOLATORS, LinuxIsolators
from kurma_testing.isolators import HOSTS, IsolatorContract

from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.value import replace

CAPS = "os/linux/capabilities-{}-set".format
ABOUTS = {name: LinuxIsolators().about(name) for name in ABOUT}


CONTEXT = ABOUTS["os/linux/selinux-context"].example


def both(name, *values):
    """Cases of either scope."""
    return [(name, value, scope) for value in values for scope in ("app", "pod")]


@pytest.mark.kurma_driver(plugin)
class TestLinuxIsolators(IsolatorContract):
    # The examples of all, and what else is worth it.
    good = (
        *((name, about.example, scope) for name, about in ABOUTS.items() for scope in about.scopes),
        *both("host/api-access", True, False, "read"),
        ("host/privileged", True, "app"),
        ("host/privileged", True, "pod"),
        ("host/privileged", False, "pod"),
        ("kurma.io/devices", [], "app"),
        ("kurma.io/devices", [{"path": "/dev/own/seed", "hostPath": "/dev/urandom", "access": "wr"}], "pod"),
        ("os/linux/namespaces", {}, "app"),
        ("os/linux/namespaces", {"net": "host", "pid": "private"}, "pod"),
        ("os/linux/privileged", True, "app"),
        ("os/linux/privileged", True, "pod"),
        ("os/linux/no-new-privileges", False, "app"),
        *both("resource/cpu", {"request": "250m", "limit": "500m"}, {"limit": 2}, {"request": 0}),
        *both("resource/memory", {"request": "1G", "limit": "2G"}, {"limit": 1 << 62}, {"request": "1Mi"}),
        *both("kurma.io/pids-limit", {"limit": 100}, {"limit": "unlimited"}, {"limit": "1E"}),
        *(("kurma.io/ulimits", value, "app") for value in ({}, {"core": 0}, {"nofile": [0, 1], "stack": [1, -1]})),
        *both("resource/block-bandwidth", {"default": True, "limit": "2M"}),
        *both("resource/block-iops", {"default": True, "limit": "1000"}),
        *both("kurma.io/block-read-bandwidth", {"path": "/", "limit": "1K"}, {"path": "/none/here", "limit": 1}),
        *both("kurma.io/block-write-bandwidth", {"path": "/proc", "limit": "1K"}),
        *both("resource/network-bandwidth", {"default": True, "limit": "1G"}, {"default": True, "limit": "1E"}),
        *both("kurma.io/network-read-bandwidth", {"device": "eth0", "limit": "100Mi"}),
        *both("kurma.io/network-write-bandwidth", {"device": "eth0", "limit": "100Mi"}),
        (CAPS("retain"), {"set": []}, "app"),
        (CAPS("remove"), {"set": []}, "app"),
        ("os/linux/oom-score-adj", -1000, "app"),
        ("os/linux/cpu-shares", 2, "app"),
        ("os/linux/cpu-shares", 262144, "pod"),
        ("os/unix/sysctl", {}, "pod"),
        ("os/linux/seccomp-retain-set", {"set": ["read", "@systemd/io-event"], "errno": "EPERM"}, "app"),
        ("os/linux/seccomp-retain-set", {"set": ["@appc.io/all"]}, "app"),
        ("os/linux/seccomp-remove-set", {"set": ["mount", "vm86"], "errno": ""}, "app"),
        ("kurma.io/seccomp-profile", "none", "app"),
        ("kurma.io/seccomp-profile", "default", "app"),
    )
    bad = (
        *((name, value, "app") for name in ("host/api-access", "host/privileged") for value in ("true", 1, None)),
        *both("host/api-access", 0, "full", [True]),
        ("os/linux/privileged", "yes", "pod"),
        *(("os/linux/namespaces", value, "pod") for value in ("host", {"net": "none"}, {"cgroup": "host"}, [])),
        *(("kurma.io/devices", [entry], "app") for entry in ("/dev/none-such", "/dev", "fuse", "/dev/../etc", 7)),
        *(
            ("kurma.io/devices", [entry], "app")
            for entry in ("/dev/null", "/dev/pts/3", "/dev/shm/x", "/proc/kcore")
        ),
        *(
            ("kurma.io/devices", [{"path": "/dev/seed", "hostPath": "/dev/urandom", **more}], "app")
            for more in (
                {"access": "rx"},
                {"access": ""},
                {"access": "rr"},
                {"mode": "0666"},
                {"path": "/dev/shm"},
            )
        ),
        ("kurma.io/devices", {"path": "/dev/urandom"}, "app"),
        ("kurma.io/devices", [{"path": each, "hostPath": "/dev/zero"} for each in ("/dev/a", "/dev/a/b")], "app"),
        ("os/linux/seccomp-retain-set", {"set": []}, "app"),
        ("os/linux/seccomp-retain-set", {"set": ["@rkt/default"]}, "app"),
        ("os/linux/seccomp-remove-set", {"set": ["execve"]}, "app"),
        ("os/linux/seccomp-remove-set", {"set": ["mount"], "errno": "EXYZ"}, "app"),
        ("os/linux/seccomp-remove-set", {"set": ["mount"]}, "pod"),
        ("kurma.io/seccomp-profile", "strict", "app"),
        *both(
            "os/linux/apparmor-profile",
            "",
            " my-profile",
            "my\nprofile",
            {"profile": "my-profile", "mode": "enforce"},
            {"profile": ""},
            {"name": "my-profile"},
            "other",
        ),
        *both("os/linux/apparmor-profile", "x" * 1001, None, ["my-profile"]),
        *both("os/linux/selinux-context", "system_u:system_r:container_t:s0", {}, {**CONTEXT, "level": ""}),
        *both(
            "os/linux/selinux-context",
            {**CONTEXT, "type": "a:b"},
            {**CONTEXT, "user": 5},
            {**CONTEXT, "more": "x"},
        ),
        ("os/linux/no-new-privileges", "true", "app"),
        ("os/linux/no-new-privileges", True, "pod"),
        *both("resource/cpu", "1", {}, {"limit": 0}, {"request": 2, "limit": 1}, {"limit": 1, "default": True}),
        *both("resource/memory", {"limit": "64Ki"}, {"limit": "1G", "request": "2G"}, {"limit": "1G", "swap": 0}),
        *both("kurma.io/pids-limit", 100, {"limit": 0}, {"limit": "many"}, {"limit": -1}),
        ("kurma.io/pids-limit", {"limit": 3}, "pod"),
        *(
            ("kurma.io/ulimits", {"nofile": pair}, "app")
            for pair in ([2, 1], [-1, 1], -1, -2, "1", True, None, 1.5, [], [1], [1, 2, 3], [1, "2"], 1 << 63)
        ),
        *(("kurma.io/ulimits", value, "app") for value in ([], None, {"files": 1}, {"NOFILE": 1})),
        ("kurma.io/ulimits", {"core": 0}, "pod"),
        *both("resource/block-bandwidth", {"limit": "2M"}, {"default": False, "limit": "2M"}, {"default": True}),
        *both("resource/block-iops", {"default": True, "limit": 0}, {"default": True, "limit": 1, "request": 1}),
        *both("kurma.io/block-read-bandwidth", {"limit": "1K"}, {"path": "data", "limit": "1K"}),
        *both("kurma.io/block-write-bandwidth", {"path": "/", "limit": "a lot"}, {"path": "/\0", "limit": 1}),
        *both("resource/network-bandwidth", {"default": True, "limit": 0}, {"default": True, "limit": 999}),
        *both("kurma.io/network-read-bandwidth", {"device": "lo", "limit": "1M"}, {"limit": "1M"}),
        *both(
            "kurma.io/network-write-bandwidth",
            {"device": "a/b", "limit": "1M"},
            {"device": "x" * 16, "limit": "1M"},
        ),
        *(
            (CAPS(way), value, "app")
            for way in ("remove", "retain")
            for value in (["CAP_KILL"], {"set": "CAP_KILL"})
        ),
        *((CAPS("retain"), {"set": [word]}, "app") for word in ("CAP_NONE", "", "CAP_", 5, None, "CAP_KILL\n")),
        (CAPS("retain"), {"set": [], "sets": []}, "app"),
        (CAPS("retain"), {"set": ["CAP_KILL"]}, "pod"),
        *(("os/linux/oom-score-adj", value, "app") for value in (-1001, 1001, "5", 1.5, True)),
        *(("os/linux/cpu-shares", value, "app") for value in (1, 262145, "512", True)),
        ("os/unix/sysctl", {"net.ipv4.ip_forward": "1"}, "app"),
        ("os/unix/sysctl", ["net.ipv4.ip_forward"], "pod"),
    )

    @pytest.fixture(params=sorted(HOSTS))
    def host(self, request: pytest.FixtureRequest, tmp_path: Path) -> IsolatorHost:
        """This machine's root, but for the profiles that are loaded."""
        root = tmp_path / "root"
        for name, files in (
            ("sys/module/apparmor/parameters", {"enabled": "Y\n"}),
            ("sys/kernel/security/apparmor", {"profiles": "my-profile (enforce)\n"}),
        ):
            (root / name).mkdir(parents=True)
            for file, text in files.items():
                (root / name / file).write_text(text)
        for place in ("/", "/sys"):
            for name in os.listdir(place):
                if not (root / place[1:] / name).exists():
                    (root / place[1:] / name).symlink_to(f"{place}/{name}")
        return replace(HOSTS[request.param], root=str(root))


def test_all_of_them_are_told_of() -> None:
    assert sorted(ABOUT) == sorted(ISOLATORS)
