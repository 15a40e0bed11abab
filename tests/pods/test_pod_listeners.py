"""Who listens on a port: found by real sockets."""

import os
import socket
import subprocess
import sys

import pytest

from kurma_core.pods.network.port_listeners import find_listener

KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def bound(protocol, address, *, only_v6=True):
    """A socket that waits at a free port of that address, and the port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found = socket.socket(family, KINDS[protocol])
    if family == socket.AF_INET6:
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_v6)
    found.bind((address, 0))
    if protocol == "tcp":
        found.listen()
    return found, found.getsockname()[1]


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize(
    ("address", "in_the_way_of", "not_of"),
    [
        ("127.0.0.1", ["", "0.0.0.0", "127.0.0.1"], ["127.0.0.2", "::", "::1", "192.0.2.7"]),
        ("0.0.0.0", ["", "0.0.0.0", "127.0.0.1", "192.0.2.7"], ["::", "::1"]),
        ("::1", ["", "::", "::1"], ["0.0.0.0", "127.0.0.1", "2001:db8::7"]),
        ("::", ["", "::", "::1", "2001:db8::7"], ["0.0.0.0", "127.0.0.1"]),
    ],
)
def test_where_a_socket_is_in_the_way(protocol, address, in_the_way_of, not_of):
    listener, port = bound(protocol, address)
    with listener:
        for wanted in in_the_way_of:
            found = find_listener(protocol, port, wanted)
            assert found is not None, wanted
            assert (found.address, found.port, found.protocol) == (address, port, protocol)
        for wanted in not_of:
            assert find_listener(protocol, port, wanted) is None, wanted
        other = "udp" if protocol == "tcp" else "tcp"
        assert find_listener(other, port, address) is None
    assert find_listener(protocol, port) is None


def test_a_socket_of_both_families_is_in_the_way_of_both():
    listener, port = bound("tcp", "::", only_v6=False)
    with listener:
        for wanted in ("", "0.0.0.0", "127.0.0.1", "::1"):
            assert find_listener("tcp", port, wanted).address == "::"


def test_who_it_is():
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
        "open('/proc/self/comm', 'w').write('a\\x1b[1mserver'); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        port = int(process.stdout.readline())
        found = find_listener("tcp", port)
        process.stdin.close()
    assert str(found) == f"a?[1mserver (process {process.pid}), which listens on 127.0.0.1:{port}"


def test_our_own_and_one_of_ipv6():
    listener, port = bound("udp", "::1")
    with listener:
        found = find_listener("udp", port)
    assert found.process.endswith(f"(process {os.getpid()})")
    assert str(found).endswith(f"which listens on [::1]:{port}")


def test_connections_are_in_nobodys_way():
    """What goes out from that port, and what has ended and is waited for by the kernel."""
    listener, port = bound("tcp", "127.0.0.1")
    with listener, socket.create_connection(("127.0.0.1", port)) as client:
        peer, _ = listener.accept()
        assert find_listener("tcp", client.getsockname()[1]) is None
        peer.close()  # the server's side ends first: TIME_WAIT is at its port
    assert find_listener("tcp", port) is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", 9))
        assert find_listener("udp", client.getsockname()[1]) is None


def test_other_protocols_have_none_that_we_know():
    assert find_listener("sctp", 80) is None
