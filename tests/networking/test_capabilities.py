"""Limits of traffic that a network holds itself: as CNI's capability ``bandwidth``, and not by the core, too."""

import json

import pytest

from kurma_core import config as configuration
from kurma_core.models.isolator import TrafficLimit
from kurma_core.models.network import NetworkRequest
from kurma_core.networking.manager import Networking
from kurma_core.networking.traffic import capability

UUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"


@pytest.mark.parametrize(
    ("limits", "rates"),
    [
        ([], {}),
        ([TrafficLimit("in", 1000)], {"ingressRate": 8000}),
        ([TrafficLimit("out", 3000), TrafficLimit("in", 7, "eth1")], {"egressRate": 24000}),
        ([TrafficLimit("in", 9), TrafficLimit("in", 5, "eth0"), TrafficLimit("in", 7)], {"ingressRate": 40}),
    ],
)
def test_limits_become_bits(limits, rates):
    """Bytes per second, as isolators have it, become bits; the lowest for the interface counts."""
    found = capability(limits, "eth0")
    assert {key: value for key, value in found.items() if key.endswith("Rate")} == rates
    bursts = {key.replace("Burst", "Rate") for key in found if key.endswith("Burst")}
    assert bursts == set(rates)


@pytest.mark.parametrize("rate", [1, 1_000_000, (1 << 32) - 1, 1 << 40])
def test_what_may_go_at_once_fits_the_plugin(rate):
    """A packet of the largest kind goes through, and the number is one of 32 bits."""
    burst = capability([TrafficLimit("in", rate)], "eth0")["ingressBurst"]
    assert (1 << 16) * 8 <= burst < 1 << 32


class Holding:
    """A network kind that holds pods to rates where its configuration says so."""

    def setup(self, config):
        pass

    def limits(self, config):
        return config.get("holds", False)


def test_only_networks_that_hold_get_limits(tmp_path):
    entries = [{"name": "a", "plugin": "x", "holds": True}, {"name": "b", "plugin": "x"}]
    file = tmp_path / "kurma.json"
    file.write_text(json.dumps({"container_networks": entries}))
    config = configuration.load(str(file), str(tmp_path / "state"))
    drivers = {"x": Holding(), "lo": object()}
    networking = Networking(config, drivers.__getitem__, lambda alias: None, config.state_dir, print)
    wanted = [NetworkRequest("b"), NetworkRequest("a")]
    plan = networking.plan(wanted, (), UUID, {"dns": {"servers": ["192.0.2.1"]}})
    assert networking.limited(plan, ()) == plan
    limited = networking.limited(plan, (TrafficLimit("in", 1000),))
    assert [sorted(one.capabilities) for one in limited] == [["dns"], ["dns"], ["bandwidth", "dns"]]
    assert limited[2].capabilities["bandwidth"]["ingressRate"] == 8000
    assert networking.limited(plan, (TrafficLimit("in", 1000, "eth0"),)) == plan  # that is b's
