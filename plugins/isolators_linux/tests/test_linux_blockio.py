"""What limits of block devices become, on a machine made up of files (X3)."""

from __future__ import annotations

import pytest
from kurma_isolators_linux import bandwidth, plugin
from kurma_testing import load_driver

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.value import replace

BANDWIDTH, IOPS = "resource/block-bandwidth", "resource/block-iops"
READ, WRITE = "kurma.io/block-read-bandwidth", "kurma.io/block-write-bandwidth"
R1, W1 = "blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"


@pytest.fixture
def machine(tmp_path):
    """A disk with a partition, an unused loop device, and what is mounted of them."""
    devices = tmp_path / "sys/devices"
    for name, number, size in (("sda", "8:0", "1000"), ("sda/sda1", "8:1", "900"), ("loop0", "7:0", "0")):
        (devices / name).mkdir(parents=True)
        (devices / name / "dev").write_text(f"{number}\n")
        (devices / name / "size").write_text(f"{size}\n")
        if "/" in name:
            (devices / name / "partition").write_text("1\n")
        else:
            (devices / name / "queue").mkdir()
        for link in (f"sys/class/block/{name.split('/')[-1]}", f"sys/dev/block/{number}"):
            (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / link).symlink_to(devices / name)
        if "/" not in name:
            (tmp_path / "sys/block").mkdir(exist_ok=True)
            (tmp_path / f"sys/block/{name}").symlink_to(devices / name)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "mounted on it").mkdir()
    (tmp_path / "proc/self/mountinfo").write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:22 / /proc rw - proc proc rw\n"
        f"3 1 0:30 / {str(tmp_path).replace(' ', chr(92) + '040')}/mounted\\040on\\040it rw - btrfs /dev/sda1 rw\n"
    )
    return tmp_path


@pytest.fixture
def v1(machine):
    return IsolatorHost(cgroups={"blkio": 1}, cpus=1, root=str(machine))


@pytest.fixture
def v2(machine):
    return IsolatorHost(cgroups={"io": 2}, cpus=1, root=str(machine))


@pytest.fixture
def driver(tmp_path):
    return load_driver(plugin, tmp_path)


def default(limit):
    return {"default": True, "limit": limit}


def written(compiled):
    return [(setting.file, setting.value) for setting in compiled.plan.cgroup]


def test_devices_that_hold_something_partitions_not(machine):
    assert bandwidth.block_devices(str(machine)) == ("8:0",)
    assert bandwidth.block_devices(str(machine / "proc")) == ()


def test_the_device_below_a_path(machine):
    root = str(machine)
    assert bandwidth.device_under("/", root) == ("8:0", "")
    assert bandwidth.device_under(f"{machine}/mounted on it", root) == ("8:0", "")
    assert bandwidth.device_under("/proc", root) == ("", "/proc is on no block device")
    assert bandwidth.device_under("/none/here", root) == ("", "there is no /none/here on this host")


def test_v1(driver, v1):
    compiled = driver.compile(BANDWIDTH, default("2M"), "app", v1)
    assert written(compiled) == [(R1, "8:0 2000000"), (W1, "8:0 2000000")]
    assert compiled.outcome == "modified"
    assert "by way of the cache" in compiled.note
    compiled = driver.compile(IOPS, default(30), "app", v1)
    assert written(compiled) == [
        ("blkio.throttle.read_iops_device", "8:0 30"),
        ("blkio.throttle.write_iops_device", "8:0 30"),
    ]


def test_v2(driver, v2):
    for scope in ("app", "pod"):
        compiled = driver.compile(BANDWIDTH, default("2M"), scope, v2)
        assert (written(compiled), compiled.outcome) == ([("io.max", "8:0 rbps=2000000 wbps=2000000")], "enforced")
        assert written(driver.compile(IOPS, default(30), scope, v2)) == [("io.max", "8:0 riops=30 wiops=30")]


def test_one_direction_of_one_device(driver, v1, v2):
    value = {"path": "/", "limit": "1Ki"}
    compiled = driver.compile(READ, value, "app", v1)
    # What is read is waited for: the cache does not stand in between.
    assert (written(compiled), compiled.outcome) == ([(R1, "8:0 1024")], "enforced")
    assert written(driver.compile(WRITE, value, "app", v2)) == [("io.max", "8:0 wbps=1024")]


@pytest.mark.parametrize("path", ["/none/here", "/proc"])
def test_a_path_without_a_device_is_ignored_and_that_is_said(driver, v1, v2, path):
    for host in (v1, v2):
        compiled = driver.compile(READ, {"path": path, "limit": "1Ki"}, "app", host)
        assert compiled.outcome == "ignored"
        assert path in compiled.note


def test_the_lowest_of_a_scope_holds_in_whatever_order(driver, v1, v2):
    """The kernel keeps what was written last."""
    isolators = {BANDWIDTH: default("2M"), READ: {"path": "/", "limit": "1M"}}
    for name in isolators:
        found = written(driver.compile(name, isolators[name], "app", replace(v1, siblings=isolators)))
        assert (R1, "8:0 1000000") in found
    host = replace(v2, siblings=isolators)
    assert written(driver.compile(BANDWIDTH, isolators[BANDWIDTH], "app", host)) == [
        ("io.max", "8:0 rbps=1000000 wbps=2000000")
    ]


def test_a_pods_limit_on_v1_is_each_apps(driver, v1, v2):
    """Its throttling is flat: what is written for the pod holds for no app."""
    compiled = driver.compile(BANDWIDTH, default("2M"), "pod", v1)
    assert (compiled.plan.cgroup, compiled.outcome) == ((), "modified")
    assert "each app is held to it" in compiled.note
    within = replace(v1, pod={BANDWIDTH: default("2M")})
    assert (BANDWIDTH, default("2M")) in driver.defaults("app", (), within)
    assert BANDWIDTH not in dict(driver.defaults("app", (BANDWIDTH,), within))
    assert BANDWIDTH not in dict(driver.defaults("app", (), replace(v2, pod=within.pod)))


def test_an_app_is_bound_by_its_pod_on_v1(driver, v1):
    within = replace(v1, pod={BANDWIDTH: default("2M"), READ: {"path": "/", "limit": "1M"}})
    compiled = driver.compile(BANDWIDTH, default("3M"), "app", within)
    assert written(compiled) == [(R1, "8:0 1000000"), (W1, "8:0 2000000")]
    assert "held to the pod's limit" in compiled.note
    compiled = driver.compile(BANDWIDTH, default("1K"), "app", within)
    assert written(compiled) == [(R1, "8:0 1000"), (W1, "8:0 1000")]
    assert "the pod's limit" not in compiled.note


def test_a_host_without_disks_or_without_the_controller(driver, v1, machine):
    compiled = driver.compile(BANDWIDTH, default("2M"), "app", replace(v1, root=str(machine / "proc")))
    assert (compiled.outcome, compiled.note) == ("ignored", "this host has no block devices")
    compiled = driver.compile(BANDWIDTH, default("2M"), "app", replace(v1, cgroups={}))
    assert compiled.outcome == "ignored"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (BANDWIDTH, {"limit": "2M"}, 'expected "default": true and a limit'),
        (IOPS, default("many"), 'limit: expected a quantity .*, got "many"'),
        (READ, {"path": "data", "limit": 1}, 'path: expected an absolute path, got "data"'),
        (READ, {"path": "/"}, "expected a limit"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(driver, v1, name, value, said):
    with pytest.raises(IsolatorError, match=said):
        driver.compile(name, value, "app", v1)
