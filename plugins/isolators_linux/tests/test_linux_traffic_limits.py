"""Limits of a pod's traffic hold in both directions, and never for loopback; measured by real transfers (X3)."""

import contextlib
import os
import socket
import subprocess
import threading
import time
import uuid

import pytest
from kurma_isolators_linux.driver import LinuxIsolators
from kurma_testing.networks import interfaces_in, pod_namespace

from kurma_core.errors import NetworkError
from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.models.isolator import TrafficLimit

pytestmark = pytest.mark.root

#: Bytes per second: little enough for a busy machine.
RATE = 1_000_000
SECONDS = 0.6


def limited(namespace, limits, held=None):
    return LinuxIsolators().limit_traffic(namespace, limits, held or {})


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def namespace():
    """A pod's network namespace with two interfaces, each joined to ours."""
    with pod_namespace(str(uuid.uuid4())) as path, contextlib.ExitStack() as stack:
        name = os.path.basename(path)
        ip("-n", name, "link", "set", "lo", "up")
        for number, inside in enumerate(("eth0", "eth1")):
            ours = f"kx{number}"
            ip("link", "add", ours, "type", "veth", "peer", "name", inside, "netns", name)
            stack.callback(subprocess.run, ["ip", "link", "del", ours], capture_output=True)
            ip("address", "add", f"10.77.{number}.1/24", "dev", ours)
            ip("link", "set", ours, "up")
            ip("-n", name, "address", "add", f"10.77.{number}.2/24", "dev", inside)
            ip("-n", name, "link", "set", inside, "up")
        yield path


def speed(namespace, direction, address="10.77.0.2", *, both_inside=False):
    """Bytes per second that get through, as their reader counts them."""

    def listen():
        return socket.create_server((address, 0))

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(in_network_namespace(namespace, listen))
        server.settimeout(5)

        def connect():
            return socket.create_connection(server.getsockname(), timeout=5)

        outer = stack.enter_context(in_network_namespace(namespace, connect) if both_inside else connect())
        inner = stack.enter_context(server.accept()[0])
        sender, reader = (inner, outer) if direction == "out" else (outer, inner)
        end = time.monotonic() + SECONDS

        def send():
            sender.settimeout(0.2)
            while time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    sender.send(bytes(1 << 16))

        thread = threading.Thread(target=send)
        thread.start()
        reader.settimeout(0.2)
        count, begin = 0, time.monotonic()
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                count += len(reader.recv(1 << 20))
        elapsed = time.monotonic() - begin
        thread.join()
        return count / elapsed


def is_held(found, rate=RATE):
    """What packets carry besides, and what goes at once at the beginning, make some of it."""
    return rate / 4 < found < rate * 1.3


@pytest.mark.vm
def test_both_directions_are_held_and_loopback_is_not(namespace):
    assert limited(namespace, [TrafficLimit("in", RATE), TrafficLimit("out", RATE)]) == ()
    for direction in ("out", "in"):
        assert is_held(speed(namespace, direction)), direction
    assert is_held(speed(namespace, "in", "10.77.1.2")), "each interface"
    assert speed(namespace, "out", "127.0.0.1", both_inside=True) > 3 * RATE
    # What an app says to another one under an address of the pod does not leave it, either.
    assert speed(namespace, "out", "10.77.0.2", both_inside=True) > 3 * RATE


@pytest.mark.full
def test_one_direction_of_one_interface(namespace):
    limits = [TrafficLimit("in", RATE, "eth0"), TrafficLimit("out", RATE, "eth7")]
    assert limited(namespace, limits) == ("eth7",)
    assert is_held(speed(namespace, "in"))
    assert speed(namespace, "out") > 3 * RATE
    assert speed(namespace, "in", "10.77.1.2") > 3 * RATE


@pytest.mark.full
def test_the_lowest_holds_and_limits_come_and_go(namespace):
    lower = [TrafficLimit("out", 3 * RATE), TrafficLimit("out", RATE), TrafficLimit("out", 2 * RATE, "eth0")]
    limited(namespace, lower)
    limited(namespace, lower)
    assert is_held(speed(namespace, "out"))
    limited(namespace, [*lower[::2], TrafficLimit("in", RATE)])
    assert is_held(speed(namespace, "out"), 2 * RATE)
    assert is_held(speed(namespace, "in"))
    limited(namespace, [])
    assert speed(namespace, "out") > 3 * RATE
    assert speed(namespace, "in") > 3 * RATE
    assert set(interfaces_in(namespace)) == {"lo", "eth0", "eth1"}


def test_the_least_and_the_most(namespace):
    for rate in (1000, (1 << 32) - 1):
        limited(namespace, [TrafficLimit("in", rate), TrafficLimit("out", rate)])
    assert speed(namespace, "out") > 3 * RATE
    assert speed(namespace, "in") > 3 * RATE


def test_a_namespace_that_is_not_there(tmp_path):
    with pytest.raises(NetworkError, match="cannot limit the pod's traffic"):
        limited(str(tmp_path / "none"), [TrafficLimit("in", RATE)])


def test_nothing_but_loopback(namespace):
    with pod_namespace(str(uuid.uuid4())) as bare:
        assert limited(bare, [TrafficLimit("in", RATE), TrafficLimit("out", RATE, "eth0")]) == ("eth0",)
        assert interfaces_in(bare) == ["lo"]
