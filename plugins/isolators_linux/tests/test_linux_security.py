"""``kurma.io/capabilities``, ``kurma.io/masked-paths``, ``kurma.io/read-only-paths``: plans and powers (C8)."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest
from kurma_isolators_linux.driver import DEFAULTS, EXCLUSIVE, GATED, ISOLATORS, LinuxIsolators

from kurma_core.appc.image import Isolator
from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.isolation import IsolatorPlugin, compile_isolators
from kurma_core.linux import capabilities as linux
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.value import replace

LINUX = IsolatorPlugin(ISOLATORS, LinuxIsolators, DEFAULTS, EXCLUSIVE, GATED)
#: In a user namespace apps can have every capability, whatever this process has.
HOST = IsolatorHost({}, 1, userns=True)
CAPABILITIES, MASKED, READ_ONLY = "kurma.io/capabilities", "kurma.io/masked-paths", "kurma.io/read-only-paths"
PRIVILEGED = replace(HOST, siblings={"os/linux/privileged": True})
DEFAULT, EVERY = frozenset(linux.names(linux.DEFAULT_SET)), frozenset(linux.NAMES)


def compiled(name: str, value: Any, host: IsolatorHost = HOST) -> Any:
    return LinuxIsolators().compile(name, value, "app", host)


def powers(name: str, value: Any, host: IsolatorHost = HOST) -> list[str]:
    return [one.name for one in LinuxIsolators().powers(name, value, "app", host)]


@pytest.mark.parametrize(
    ("value", "bounding", "ambient"),
    [
        ({}, DEFAULT, ()),
        ({"add": ["NET_ADMIN", "cap_chown"]}, DEFAULT | {"CAP_NET_ADMIN"}, ()),
        ({"drop": ["chown", "CAP_SYS_TIME"]}, DEFAULT - {"CAP_CHOWN"}, ()),
        ({"drop": ["ALL"]}, set(), ()),
        ({"add": ["ALL"]}, EVERY, ()),
        ({"add": ["all"], "drop": ["NET_RAW"]}, EVERY - {"CAP_NET_RAW"}, ()),
        ({"add": ["NET_RAW"], "drop": ["ALL"]}, {"CAP_NET_RAW"}, ()),
        ({"add": ["ALL", "KILL"], "drop": ["ALL"]}, {"CAP_KILL"}, ()),
        ({"drop": ["ALL"], "ambient": ["NET_BIND_SERVICE"]}, {"CAP_NET_BIND_SERVICE"}, ("CAP_NET_BIND_SERVICE",)),
        ({"bounding": ["KILL"], "ambient": ["CAP_CHOWN"]}, {"CAP_KILL", "CAP_CHOWN"}, ("CAP_CHOWN",)),
        ({"bounding": []}, set(), ()),
        ({"bounding": ["ALL"]}, EVERY, ()),
    ],
)
def test_the_sets(value: Any, bounding: Any, ambient: Any) -> None:
    found = compiled(CAPABILITIES, value)
    assert found.outcome == "enforced"
    assert (frozenset(found.plan.capabilities), found.plan.ambient) == (frozenset(bounding), ambient)
    assert powers(CAPABILITIES, value) == [
        f"{CAPABILITIES}={one}" for one in linux.NAMES if one in frozenset(bounding) - DEFAULT
    ]


def test_the_default_is_that_of_the_images_kind() -> None:
    registry = replace(HOST, fewer_capabilities=True)
    assert powers(CAPABILITIES, {"add": ["NET_RAW"]}, registry) == [f"{CAPABILITIES}=CAP_NET_RAW"]
    left = DEFAULT - {"CAP_AUDIT_WRITE", "CAP_MKNOD", "CAP_NET_RAW", "CAP_KILL"}
    assert frozenset(compiled(CAPABILITIES, {"drop": ["KILL"]}, registry).plan.capabilities) == left


def test_what_kurma_lacks_is_told_if_it_was_named(tmp_path: Any) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("CapPrm:\t000001fffeffffff\n")
    host = replace(HOST, userns=False, root=str(tmp_path))
    named = compiled(CAPABILITIES, {"add": ["SYS_RESOURCE"]}, host)
    assert (named.outcome, "CAP_SYS_RESOURCE" in named.note) == ("modified", True)
    every = compiled(CAPABILITIES, {"add": ["ALL"]}, host)
    assert (every.outcome, len(every.plan.capabilities)) == ("enforced", len(linux.NAMES) - 1)


@pytest.mark.parametrize(
    "value", [None, [], {"set": []}, {"bounding": [], "add": []}, {"bounding": [], "drop": []}, {"x": []}]
)
def test_another_form_is_refused(value: Any) -> None:
    with pytest.raises(IsolatorError, match="expected an object with lists bounding and ambient"):
        compiled(CAPABILITIES, value)


def test_wrong_words() -> None:
    with pytest.raises(IsolatorError, match="add: expected a list of capabilities"):
        compiled(CAPABILITIES, {"add": "KILL"})
    with pytest.raises(IsolatorError, match='drop: no such capability: "NET_ADMINN"'):
        compiled(CAPABILITIES, {"drop": ["NET_ADMINN"]})


def test_it_stands_alone_and_the_filter_follows_it() -> None:
    """The profile allows the calls of the capabilities that the app has."""
    both = [Isolator(CAPABILITIES, {}), Isolator("os/linux/capabilities-retain-set", {"set": []})]
    with pytest.raises(IsolatorError, match="cannot stand beside"):
        compile_isolators([], {"app": both}, [LINUX], HOST)
    apps = {"few": (), "more": [Isolator(CAPABILITIES, {"add": ["SYS_ADMIN"]})]}
    found = compile_isolators([], apps, [LINUX], HOST).apps
    assert "CAP_SYS_ADMIN" in found["more"].capabilities
    assert found["few"].seccomp != found["more"].seccomp


def test_lists_of_paths() -> None:
    usual = ["/proc/sys", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger"]
    assert compiled(READ_ONLY, usual).plan == IsolatorPlan(read_only_paths=tuple(usual))
    assert compiled(MASKED, ["/a", "/b/", "/a"]).plan == IsolatorPlan(masked_paths=("/a", "/b/"))
    assert compiled(MASKED, []).plan == IsolatorPlan(masked_paths=())
    for name in (MASKED, READ_ONLY):
        assert compiled(name, ["/a"], PRIVILEGED).plan == IsolatorPlan()
        assert powers(name, ["/a"], PRIVILEGED) == []
        for wrong in ("/a", ["a"], ["/"], ["/a/../b"], [7], {}, ["/\n"]):
            with pytest.raises(IsolatorError, match=name):
                compiled(name, wrong)


def test_less_than_usual_is_a_power() -> None:
    usual = ["/proc/sys", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger"]
    assert powers(READ_ONLY, [*usual, "/etc"]) == powers(READ_ONLY, ["/proc"]) == []
    assert powers(READ_ONLY, usual[1:]) == powers(READ_ONLY, []) == [READ_ONLY]
    kubelets = [
        *("/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
        *("/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi"),
        *("/sys/firmware", "/sys/devices/virtual/powercap"),
    ]
    assert powers(MASKED, kubelets) == powers(MASKED, ["/proc/", "/sys"]) == []
    assert powers(MASKED, kubelets[1:]) == powers(MASKED, ["/proc/kcorex", "/sys"]) == [MASKED]


@pytest.mark.root
def test_a_directory_stands_for_the_devices_below_it(tmp_path: Any) -> None:
    place = tmp_path / "dev/many"
    (place / "inner").mkdir(parents=True)
    (place / "file").write_text("")
    for name, number in (("inner/b", 5), ("a", 3)):
        os.mknod(place / name, 0o600 | stat.S_IFCHR, os.makedev(1, number))
    host = replace(HOST, root=str(tmp_path))
    wanted = [{"path": "/dev/own", "hostPath": "/dev/many", "access": "r"}]
    found = compiled("kurma.io/devices", wanted, host).plan.devices
    told = [(one.path, one.minor, one.access) for one in found]
    assert told == [("/dev/own/a", 3, "r"), ("/dev/own/inner/b", 5, "r")]
    assert powers("kurma.io/devices", wanted, host) == ["kurma.io/devices=/dev/many"]
    (tmp_path / "dev/none").mkdir()
    with pytest.raises(IsolatorError, match="the directory /dev/none has no devices"):
        compiled("kurma.io/devices", ["/dev/none"], host)


def test_variables_with_other_names() -> None:
    name = "kurma.io/environment"
    given = [{"name": "my:variable", "value": "1"}, {"name": " ", "value": ""}]
    found = compiled(name, {"environment": given})
    assert (found.outcome, found.plan) == ("enforced", IsolatorPlan(environment={"my:variable": "1", " ": ""}))
    assert powers(name, {"environment": given}) == []
    pairs = [("", "secret"), ("a=b", "secret"), ("é", "secret"), ("a\n", "secret"), ("a", "secret\0")]
    for wrong in (*({"name": one, "value": secret} for one, secret in pairs), {"name": "a"}, "a"):
        with pytest.raises(IsolatorError, match=r"printable ASCII characters except =") as caught:
            compiled(name, {"environment": [wrong]})
        assert "secret" not in str(caught.value)
    for value in ([], {}, {"environment": given, "x": 1}):
        with pytest.raises(IsolatorError, match="expected a list of variables"):
            compiled(name, value)
