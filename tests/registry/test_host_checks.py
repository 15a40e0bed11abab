"""``kurma info --check``: what the host lacks, as the core and plugins tell it."""

import os
import subprocess
from pathlib import Path

import pytest
from kurma_isolators_linux.plugin import apparmor_checks

from kurma_core.client import Settings
from kurma_core.client.local.host_checks import (
    host_checks,
    of_host,
    of_kernel,
    of_process,
    of_space,
    start_of_kurmad,
)
from kurma_core.client.local.managers import Managers
from kurma_core.config import load
from kurma_core.errors import PluginError
from kurma_core.hookspecs.driver import HostCheck
from kurma_core.linux import programs
from kurma_core.linux.capabilities import NAMES
from kurma_core.linux.cgroups import Hierarchy, Layout

CHECKS = """
import threading
from kurma_core.cancellation import current
from kurma_core.errors import HostError, PluginSkipped
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, HostCheck, Option

@hookimpl
def kurma_network():
    {hook}
    return Driver(lambda context: None, options=(Option("word", str, "a", "any"),))

@hookimpl
def kurma_checks(context):
    {checks}
"""
WORD = "HostCheck('word', True, context.config.get('word', 'none'))"
FOUND = f"return [{WORD}, HostCheck('thing', False, '', 'buy one')]"
HANGS = "gate = threading.Event(); waking = current().waking(gate.set); waking.__enter__(); gate.wait()"


@pytest.fixture
def checked(tmp_path, install):
    """``checked(plugins, text)``: the checks of these plugins, by plugin and name, with that ``kurma.yml``."""

    def check(plugins, text="", patience=5.0):
        install("kurma-test", plugins)
        file = tmp_path / "kurma.yml"
        file.write_text(text)
        managers = Managers(
            Settings(str(file), str(tmp_path / "state"), host="local"), load(str(file), str(tmp_path / "state"))
        )
        found = list(host_checks(managers, patience))
        managers.close()
        return {
            (one.by, one.name): one for one in found if one.by.removeprefix("networks/") in (*plugins, "kurma")
        }

    return check


def source(hook="", checks=FOUND):
    return CHECKS.format(hook=hook or "pass", checks=checks)


def test_the_core_and_plugins_are_asked(checked):
    found = checked({"one": source()}, "plugins: {networks: {one: {config: {word: b}}}}")
    assert ("kurma", "cgroups") in found
    assert found["networks/one", "word"].detail == "b"
    thing = found["networks/one", "thing"]
    assert (thing.ok, thing.hint) == (False, "buy one")


def test_one_that_skips_itself_is_asked(checked):
    found = checked({"one": source("raise PluginSkipped('needs a thing')")})
    assert found["networks/one", "word"].detail == "none"
    found = checked({"two": "from kurma_core.errors import PluginSkipped\nraise PluginSkipped('needs a thing')"})
    assert "cannot work on this host: needs a thing" in found["networks/two", "plugin"].detail


@pytest.mark.parametrize(
    ("checks", "why"),
    [
        ("raise KeyError('x')", "network plugin 'one' of kurma-test 1.0 failed in kurma_checks: KeyError: 'x'"),
        ("raise HostError('no thing', hint='buy one')", "no thing"),
        ("return [True]", "network plugin 'one' of kurma-test 1.0 answered kurma_checks with [True]"),
    ],
)
def test_one_that_fails(checked, checks, why):
    found = checked({"one": source(checks=checks), "two": source()})
    assert not found["networks/one", "plugin"].ok
    assert found["networks/one", "plugin"].detail.startswith(why)
    assert found["networks/two", "word"].ok


def test_one_that_hangs(checked):
    found = checked({"one": source(checks=HANGS), "two": source()}, patience=0.5)
    assert found["networks/one", "plugin"].detail == "it does not answer in time"
    assert found["networks/two", "word"].ok


def test_plugins_that_import_one_package(checked, tmp_path, monkeypatch):
    """Two threads that begin at two modules which import each other wait for each other: Python ends that by an
    exception in one of them."""
    package = tmp_path / "packages" / "kurma_test_plugin_shared"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name, other in (("left", "right"), ("right", "left")):
        text = f"import importlib, time\ntime.sleep(0.4)\nimportlib.import_module('{package.name}.{other}')\n"
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(package.parent))
    found = checked({side: f"import {package.name}.{side}\n{source()}" for side in ("left", "right")})
    assert {key: one.detail for key, one in found.items() if key[0] != "kurma"} == {
        ("networks/left", "word"): "a",
        ("networks/right", "word"): "a",
        ("networks/left", "thing"): "",
        ("networks/right", "thing"): "",
    }


def test_an_import_that_hangs(checked):
    hangs = "import threading\nfrom kurma_core.cancellation import current\n" + HANGS
    found = checked({"one": hangs, "two": source()}, patience=4.0)
    assert found["networks/one", "plugin"].detail == "it does not answer in time"
    assert found["networks/two", "word"].ok


def test_one_that_is_disabled_is_not_asked(checked):
    found = checked({"one": source("1/0")}, "plugins: {networks: {one: {enabled: false}}}")
    assert [key for key in found if key[0] != "kurma"] == []


def test_a_hook_without_a_mark_or_with_a_wrong_argument_is_refused(install, registry):
    install("kurma-test", {"one": source().replace("@hookimpl\ndef kurma_checks", "def kurma_checks")})
    with pytest.raises(PluginError, match="kurma_checks has the name of a hook: mark it with @hookimpl"):
        registry().options("kurma.networks", "one")
    install("kurma-more", {"two": source().replace("kurma_checks(context)", "kurma_checks(contexd=None)")})
    with pytest.raises(PluginError, match="takes contexd, which its hook does not pass; the nearest is context"):
        registry().options("kurma.networks", "two")


def test_a_check_that_passes_has_no_hint(checked):
    found = checked({"one": source(checks="return [HostCheck('x', True, 'not all', 'rm a wall')]")})
    assert (found["networks/one", "x"].detail, found["networks/one", "x"].hint) == ("not all", "")


def test_a_plugin_without_the_argument(checked):
    found = checked(
        {"one": source(checks="return [HostCheck('x', True)]").replace("kurma_checks(context)", "kurma_checks()")}
    )
    assert found["networks/one", "x"].ok


def test_a_poor_host(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/filesystems").write_text("nodev\tproc\n\text4\n")
    found = {check.name: check for check in of_host(Layout(()), str(tmp_path))}
    assert found["cgroups"] == HostCheck(
        "cgroups", False, "none are mounted", "mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    )
    assert not any(check.ok for check in found.values())
    directory = "/etc/modules-load.d"
    assert found["overlay"].hint == (
        f"modprobe overlay && mkdir -p {directory} && echo overlay > {directory}/kurma-overlay.conf"
    )
    assert all(check.detail and check.hint for check in found.values())
    newer = [check for check in found.values() if "linux-image" in check.hint]
    assert [check.name for check in newer] == ["namespaces", "user namespaces", "seccomp"]
    assert all(check.detail.endswith("takes effect after a reboot") for check in newer)


@pytest.fixture
def poor(tmp_path):
    """``poor(kind, controllers, table)``: the check of a host with these hierarchies of cgroups.

    ``controllers`` are those of the v2 hierarchy; v1 has one hierarchy for each word of ``kind`` but ``v2``.
    """

    def check(kind, controllers="", table="", of_container=False):
        (tmp_path / "proc").mkdir(exist_ok=True)
        (tmp_path / "proc/cgroups").write_text(f"#subsys_name\thierarchy\tnum_cgroups\tenabled\n{table}")
        made = []
        for word in kind.split():
            directory = tmp_path / word
            directory.mkdir(exist_ok=True)
            made.append(Hierarchy(2 if word == "v2" else 1, (word,) if word != "v2" else (), str(directory), word))
        if "v2" in kind:
            (tmp_path / "v2/cgroup.controllers").write_text(f"{controllers}\n")
            if of_container:
                (tmp_path / "v2/cgroup.type").write_text("domain\n")
        return next(of_host(Layout(made), str(tmp_path)))

    return check


def rows(**of):
    """``/proc/cgroups``: hierarchy and whether the controller is enabled, by its name."""
    return "".join(f"{name}\t{number}\t1\t{enabled}\n" for name, (number, enabled) in of.items())


def test_controllers_of_both_versions(poor):
    assert poor("v2", "cpuset cpu io memory pids").ok
    assert poor("cpu memory pids blkio").ok
    assert poor("v2 memory blkio", "cpu pids").ok


def test_a_container_without_controllers(poor):
    """Neither a unit nor systemd is there: the person who starts the container changes it."""
    found = poor("v2", "cpu pids", rows(cpu=(0, 1), memory=(0, 1), blkio=(0, 1), pids=(0, 1)), of_container=True)
    assert not found.ok
    assert found.detail == (
        "the controllers memory, io or blkio are missing: the host does not delegate them to this container; "
        "the hint shows all cgroups of the host to it"
    )
    assert found.hint == "start the container with the host's cgroups: podman run --cgroupns host"


def test_a_controller_that_the_kernel_disables(poor, tmp_path):
    """Only the file of a Raspberry Pi is changed by a command: the hint is run, and it reboots nothing."""
    table = rows(cpu=(0, 1), memory=(0, 0), blkio=(0, 1), pids=(0, 1))
    found = poor("v2", "cpu io pids", table)
    assert (found.ok, found.hint) == (False, "remove memory from cgroup_disable= on the kernel's command line")
    assert found.detail.endswith("the hint takes effect after a reboot")
    file = tmp_path / "boot/firmware/cmdline.txt"
    file.parent.mkdir(parents=True)
    file.write_text("console=tty1 root=/dev/mmcblk0p2 rootwait\n")
    found = poor("v2", "cpu io pids", table)
    assert found.detail.endswith("the hint takes effect after a reboot")
    subprocess.run(["sh", "-ec", found.hint.replace("/boot", f"{tmp_path}/boot")], check=True)
    assert file.read_text() == "console=tty1 root=/dev/mmcblk0p2 rootwait cgroup_enable=memory\n"


def test_a_controller_that_the_kernel_lacks(poor):
    found = poor("v2", "cpu io memory", rows(cpu=(0, 1), memory=(0, 1), blkio=(0, 1)))
    assert found.detail == (
        "the controllers pids are missing: the kernel was built without them; "
        "a new kernel takes effect after a reboot"
    )
    assert found.hint.startswith("apt-get install linux-image-")


def test_a_hierarchy_that_is_not_mounted(poor):
    """What shares a hierarchy is mounted together."""
    at = "/sys/fs/cgroup"
    table = rows(cpu=(2, 1), cpuacct=(2, 1), memory=(3, 1), blkio=(4, 1), pids=(0, 1))
    assert poor("memory blkio", "", table).hint == (
        f"mkdir -p {at}/cpu,cpuacct && mount -t cgroup -o cpu,cpuacct cgroup {at}/cpu,cpuacct && "
        f"mkdir -p {at}/pids && mount -t cgroup -o pids cgroup {at}/pids"
    )
    found = poor("v2", "memory io pids", table)
    assert found.hint == "unmount that hierarchy: findmnt -t cgroup shows it"


def test_an_old_kernel():
    found = of_kernel("4.19.0-27-amd64")
    assert found.detail == (
        "it is 4.19.0-27-amd64, but Kurma needs 5.10 or later; a new kernel takes effect after a reboot"
    )
    assert found.hint.startswith("apt-get install linux-image-")
    assert of_kernel("5.10.0-33-amd64") == of_kernel("6.18+") == HostCheck("kernel", True)


def test_apparmor_without_its_parts(tmp_path, monkeypatch):
    def found():
        return [(check.ok, check.hint) for check in apparmor_checks(str(tmp_path))]

    assert found() == [], "the kernel has none"
    enabled = tmp_path / "sys/module/apparmor/parameters/enabled"
    enabled.parent.mkdir(parents=True)
    enabled.write_text("Y\n")
    assert found() == [(False, "mount -t securityfs securityfs /sys/kernel/security")]
    (tmp_path / "sys/kernel/security/apparmor").mkdir(parents=True)
    (tmp_path / "sys/kernel/security/apparmor/profiles").touch()
    program = tmp_path / "bin/apparmor_parser"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(programs, "DEFAULT_PATH", str(program.parent))  # the host may have the program
    assert found() == [(False, "apt-get install apparmor")]
    program.touch(0o755)
    assert found() == [(True, "")]
    enabled.write_text("N\n")
    assert found() == []


def test_kurmad_is_started_by_its_unit_if_that_serves_the_state_directory(tmp_path):
    units = (str(tmp_path / "etc"), str(tmp_path / "lib"))
    root = "run Kurma as root: sudo kurma list"
    assert start_of_kurmad("/run/kurma", units) == root
    (tmp_path / "lib").mkdir()
    unit = Path(__file__).parents[2] / "packaging/systemd/kurmad.socket"
    (tmp_path / "lib/kurmad.socket").write_text(unit.read_text())
    assert start_of_kurmad("/run/kurma", units) == "sudo systemctl start kurmad.socket"
    assert start_of_kurmad("/srv/other/run", units) == root


def test_a_process_without_a_capability(tmp_path):
    status = tmp_path / "status"
    status.write_text(f"Name:\tx\nCapEff:\t{(1 << 41) - 1 & ~(1 << NAMES.index('CAP_NET_ADMIN')):016x}\n")
    (found,) = of_process(str(status))
    if os.geteuid() == 0:
        assert (found.ok, found.detail) == (False, "this process lacks CAP_NET_ADMIN")
        assert found.hint.endswith("podman run --cap-add NET_ADMIN")
    else:
        assert (found.ok, found.hint) == (False, "run Kurma as root: sudo kurma list")


def test_a_state_directory_without_room(tmp_path):
    there = of_space(str(tmp_path / "none/yet"))
    assert there == HostCheck("space", True, f"{tmp_path}/none/yet does not exist yet")
    full = of_space(str(tmp_path), (1 << 60, 0))
    assert not full.ok
    assert "MiB are free" in full.detail
    assert full.hint == "kurma system prune"
    assert "inodes are free" in of_space(str(tmp_path), (0, 1 << 60)).detail
