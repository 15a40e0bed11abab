"""What limits of a pod's network become (X3)."""

from __future__ import annotations

import pytest
from kurma_isolators_linux import plugin
from kurma_testing import load_driver

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.models.isolator import TrafficLimit
from kurma_core.value import replace

HOST = IsolatorHost(cgroups={}, cpus=1)
BANDWIDTH = "resource/network-bandwidth"


@pytest.fixture
def driver(tmp_path):
    return load_driver(plugin, tmp_path)


def test_both_directions_of_every_interface(driver):
    compiled = driver.compile(BANDWIDTH, {"default": True, "limit": "1.5M"}, "pod", HOST)
    assert compiled.outcome == "enforced"
    assert compiled.plan.traffic == (TrafficLimit("in", 1_500_000), TrafficLimit("out", 1_500_000))


@pytest.mark.parametrize(("word", "direction"), [("read", "in"), ("write", "out")])
def test_one_direction_of_one_interface(driver, word, direction):
    value = {"device": "eth0", "limit": "100Mi"}
    compiled = driver.compile(f"kurma.io/network-{word}-bandwidth", value, "pod", HOST)
    assert compiled.plan.traffic == (TrafficLimit(direction, 100 << 20, "eth0"),)


def test_an_apps_limit_is_its_pods(driver):
    compiled = driver.compile(BANDWIDTH, {"default": True, "limit": "1M"}, "app", HOST)
    assert (compiled.outcome, compiled.note) == ("modified", "applied to the pod, whose apps share one network")
    assert compiled.plan.traffic


def test_the_hosts_network_is_not_limited(driver):
    compiled = driver.compile(BANDWIDTH, {"default": True, "limit": "1M"}, "pod", replace(HOST, host_network=True))
    assert compiled.outcome == "ignored"
    assert "the host's network" in compiled.note
    assert not compiled.plan.traffic


def test_more_than_the_kernel_can_hold_to(driver):
    compiled = driver.compile(BANDWIDTH, {"default": True, "limit": "1T"}, "pod", HOST)
    assert compiled.outcome == "modified"
    assert {limit.rate for limit in compiled.plan.traffic} == {(1 << 32) - 1}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (BANDWIDTH, {"limit": "1M"}, 'expected "default": true and a limit'),
        (BANDWIDTH, {"default": True, "limit": "1"}, "too small: at least 1K"),
        ("kurma.io/network-read-bandwidth", {"device": "lo", "limit": "1M"}, "over lo, is never limited"),
        (
            "kurma.io/network-read-bandwidth",
            {"device": 3, "limit": "1M"},
            "device: expected the name of an interface",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(driver, name, value, said):
    with pytest.raises(IsolatorError, match=said):
        driver.compile(name, value, "pod", HOST)
