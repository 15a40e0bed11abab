"""Limits of traffic that a network applies itself."""

import json

from kurma_core import config as configuration
from kurma_core.hookspecs.network import NetworkHooks
from kurma_core.models.isolator import TrafficLimit
from kurma_core.models.network import NetworkRequest
from kurma_core.networking.manager import Networking

UUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"


class Holding(NetworkHooks):
    """A network kind that holds pods to rates where its configuration says so."""

    def setup(self, config):
        pass

    def limits(self, config):
        return config.get("holds", False)


class Loopback(NetworkHooks):
    def interface(self, config):
        return "lo"


def test_only_networks_that_hold_get_limits(tmp_path):
    entries = [{"name": "a", "plugin": "x", "holds": True}, {"name": "b", "plugin": "x"}]
    file = tmp_path / "kurma.json"
    file.write_text(json.dumps({"container_networks": entries}))
    config = configuration.load(str(file), str(tmp_path / "state"))
    drivers = {"x": Holding(), "lo": Loopback()}
    networking = Networking(config, drivers.__getitem__, lambda alias: None, print)
    wanted = [NetworkRequest("b"), NetworkRequest("a")]
    plan = networking.plan(wanted, (), UUID, {"nameservers": ("192.0.2.1",)})
    assert networking.limited(plan, ()) == plan
    limits = (
        TrafficLimit("in", 9),
        TrafficLimit("in", 5, "eth1"),
        TrafficLimit("in", 7),
        TrafficLimit("out", 1, "x"),
    )
    limited = networking.limited(plan, limits)
    assert [one.limits for one in limited] == [(), (), (TrafficLimit("in", 5, "eth1"),)]
    assert [one.dns for one in limited] == [{"nameservers": ("192.0.2.1",)}] * 3
    assert [one.base for one in limited] == [True, False, False]
    assert networking.limited(plan, (TrafficLimit("in", 1000, "eth0"),)) == plan  # that is b's
