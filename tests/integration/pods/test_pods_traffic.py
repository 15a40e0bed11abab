"""Limits of a pod's traffic, asked for by isolators: from inside, by real transfers, as apps come and go (X3)."""

import contextlib
import os
import socket

import pytest

from tests.integration.pods.support import received, shell, until

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
