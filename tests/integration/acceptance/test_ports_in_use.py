"""A port of the host that somebody listens on is refused before anything starts (W9)."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest

from tests.kit.command import Kurma, one_line

pytestmark = pytest.mark.root


def listening(address: str, kind: socket.SocketKind) -> tuple[socket.socket, int]:
    """A socket that waits at a free port, and the port."""
    found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    found.bind((address, 0))
    if kind == socket.SOCK_STREAM:
        found.listen()
    return found, found.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "kind", "option", "said"),
    [
        ("0.0.0.0", socket.SOCK_STREAM, "{0}:80", "{0}/tcp"),
        ("127.0.0.1", socket.SOCK_STREAM, "127.0.0.1:{0}:80", "127.0.0.1:{0}/tcp"),
        pytest.param("127.0.0.1", socket.SOCK_DGRAM, "{0}:80/udp", "{0}/udp", marks=pytest.mark.full),
        pytest.param("::", socket.SOCK_STREAM, "{0}:80", "{0}/tcp", marks=pytest.mark.full),
        ("::1", socket.SOCK_DGRAM, "[::1]:{0}:53/udp", "[::1]:{0}/udp"),
    ],
)
def test_refused_and_named(kurma: Kurma, address: str, kind: socket.SocketKind, option: str, said: str) -> None:
    listener, port = listening(address, kind)
    with closing(listener):
        before, namespaces = kurma.traces(), set(os.listdir("/run/netns"))
        done = kurma.run("true", "-p", option.format(port), net="default")
        who = f"(process {os.getpid()}), which listens on"
        one_line(done, f"port {said.format(port)} of the host is in use by", who, hint="another port")
        one_line(kurma("prepare", "-p", option.format(port), kurma.image), who)
        # A namespace of an earlier test may go meanwhile.
        assert (kurma.traces(), set(os.listdir("/run/netns")) - namespaces) == (before, set())
        # Another protocol's port of that number is another port.
        word = "" if kind == socket.SOCK_DGRAM else "/udp"
        other = option.format(port).removesuffix("/udp") + word
        assert kurma.run("exit 3", "-p", other, net="default").returncode == 3


def test_a_prepared_pod_is_refused_when_it_starts(kurma: Kurma) -> None:
    listener, port = listening("127.0.0.1", socket.SOCK_STREAM)
    listener.close()
    kurma.out("prepare", "--name", "later", "-p", f"127.0.0.1:{port}:80", kurma.image, "--", "-c", "exit 4")
    with closing(socket.create_server(("127.0.0.1", port))):
        one_line(kurma("run-prepared", "later"), f"{port}/tcp of the host is in use by")
        assert kurma.pod("later")["state"] == "prepared"
        assert not any("later" in path for path in os.listdir("/run/netns"))
    assert kurma("run-prepared", "later").returncode == 4


def test_a_pod_in_the_hosts_network_has_its_ports_to_itself(kurma: Kurma) -> None:
    """Nothing is published there; that the app cannot listen either is its own to say."""
    listener, port = listening("0.0.0.0", socket.SOCK_STREAM)
    with closing(listener):
        assert kurma.run("exit 3", "-p", f"{port}:80", net="host").returncode == 3
