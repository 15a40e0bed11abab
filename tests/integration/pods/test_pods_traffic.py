"""Limits of a pod's traffic, asked for by isolators: from inside, by real transfers, as apps come and go (X3)."""

import contextlib
import os
import socket
import subprocess

import pytest

from tests.kit.house import received
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

RATE = 1_000_000
#: Whoever connects is sent zeros without end; what it sends is counted by nobody.
SERVER = "while true; do nc -l -p 9000 -e cat /dev/zero; done"
BANDWIDTH = "resource/network-bandwidth"


def bandwidth(limit):
    return [{"name": BANDWIDTH, "value": {"default": True, "limit": limit}}]


def is_held(found, rate=RATE):
    return rate / 4 < found < rate * 1.3


def reports(house, pod):
    return {(one.scope, one.outcome) for one in house.client.pod(pod.uuid).isolators if one.name == BANDWIDTH}


@pytest.mark.vm
def test_a_pods_limit_holds_as_the_app_sees_it(house):
    """Out, read by us; in, counted by the app itself."""
    with house.running(SERVER, net="default", isolators=bandwidth("1M")) as pod:
        assert reports(house, pod) == {(None, "enforced")}
        assert is_held(received(house, pod))
        with socket.create_server(("", 0)) as server:
            server.settimeout(10)
            gateway, port = _gateway(house, pod), server.getsockname()[1]
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(BaseException):
                    peer, _ = server.accept()
                    while True:
                        peer.send(bytes(1 << 16))
                os._exit(0)
            _, out, errors = house.enter(
                pod.uuid, "sh", "-c", f"timeout 1 nc {gateway} {port} | wc -c", app="main"
            )
            os.waitpid(pid, 0)
        assert is_held(int(out)), errors


def _gateway(house, pod):
    (attachment,) = [one for one in house.state_of(pod)["attachments"] if one["network"] != "lo"]
    return attachment["result"]["addresses"][0]["gateway"]


@pytest.mark.full
def test_apps_limits_come_and_go_with_them(house):
    """The lowest of them is the pod's."""
    with house.running({"main": SERVER}, net="default") as pod:
        assert received(house, pod) > 20 * RATE
        app = shell("sleep 1000", isolators=bandwidth("1M"))
        record = house.client.app_add(pod.uuid, house.request({"slow": app}))
        assert [(one.scope, one.outcome, one.note) for one in record.isolators if one.name == BANDWIDTH] == [
            ("slow", "modified", "applied to the pod, whose apps share one network")
        ]
        house.client.app_add(pod.uuid, house.request({"less": shell("true", isolators=bandwidth("3M"))}))
        assert is_held(received(house, pod))
        house.client.app_rm(pod.uuid, "slow")
        assert is_held(received(house, pod), 3 * RATE)
        house.client.app_rm(pod.uuid, "less")
        assert received(house, pod) > 20 * RATE


HELD = {
    "name": "held",
    "plugin": "cni",
    "cniVersion": "0.4.0",
    "plugins": [
        {"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.96.0.0/24"}},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
    ],
}


def own_limits(uuid):
    """Directions in which the pod's interface is held inside its namespace, and so by Kurma itself."""

    def seen(*command):
        run = ["ip", "netns", "exec", f"kurma-{uuid}", *command]
        return subprocess.run(run, check=True, capture_output=True, text=True).stdout

    out = {"out"} if " tbf " in seen("tc", "qdisc", "show", "dev", "eth0") else set()
    return out | ({"in"} if "kurma-in" in seen("ip", "-o", "link") else set())


def test_only_what_is_stricter_is_done_beside_cnis_bandwidth(make_house):
    """Nothing is held twice, and nothing is forgotten for what the network holds."""
    house = make_house({"stop_timeout": 3, "container_networks": [HELD]})
    with house.running({"main": "sleep 1000"}, net="held", isolators=bandwidth("3M")) as pod:
        assert given(house, pod) == {"in", "out"}
        assert own_limits(pod.uuid) == set()
        for limit, directions in (("1M", {"in", "out"}), ("5M", set())):
            app = shell("sleep 1000", isolators=bandwidth(limit))
            house.client.app_add(pod.uuid, house.request({"other": app}))
            assert own_limits(pod.uuid) == directions
            house.client.app_rm(pod.uuid, "other")
            assert own_limits(pod.uuid) == set()
    write = [{"name": "kurma.io/network-write-bandwidth", "value": {"device": "eth0", "limit": "3M"}}]
    read = [{"name": "kurma.io/network-read-bandwidth", "value": {"device": "eth0", "limit": "9M"}}]
    with house.running({"main": "sleep 1000"}, net="held", isolators=write) as pod:
        assert given(house, pod) == {"out"}
        house.client.app_add(pod.uuid, house.request({"other": shell("sleep 1000", isolators=read)}))
        assert own_limits(pod.uuid) == {"in"}
    apps = {"main": shell("sleep 1000", isolators=bandwidth("1M")), "other": "sleep 1000"}
    with house.running(apps, net="held") as pod:
        assert given(house, pod) == set(), "an app's limit goes with it, and CNI's stays"
        assert own_limits(pod.uuid) == {"in", "out"}


def given(house, pod):
    """Directions in which the network was given limits to apply."""
    (attachment,) = [one for one in house.state_of(pod)["attachments"] if one["network"] == "held"]
    return {limit["direction"] for limit in attachment["limits"]}


def test_a_pod_without_a_network_and_one_of_the_hosts(house):
    record, out = house.run("ip -o link | wc -l", net="none", isolators=bandwidth("1M"))
    assert (out, record.exit_code) == ("1\n", 0)
    record, _ = house.run("true", net="host", isolators=bandwidth("1M"))
    assert [(one.outcome, one.note) for one in record.isolators if one.name == BANDWIDTH] == [
        ("ignored", "the pod is in the host's network, which is not its to limit")
    ]


def test_an_interface_that_is_not_there_is_told(house):
    value = {"device": "eth9", "limit": "1M"}
    house.run("true", net="none", isolators=[{"name": "kurma.io/network-read-bandwidth", "value": value}])
    until(lambda: any("has no interface eth9" in note for note in house.notes), "the note")
