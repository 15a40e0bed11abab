"""A host in a namespace of its own, with two networks, three pods and an outside, and what speaks in each."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from contextlib import suppress

import pytest
from kurma_net_bridge.packet_filter.network_rules import NetworkRules
from kurma_net_bridge.packet_filter.rules import Rules

from kurma_core.linux.namespaces import in_network_namespace

SERVICE = 80


class Place:
    """A network namespace. ``four`` and ``six``: its addresses."""

    def __init__(self, name, four, six):
        self.name, self.four, self.six = name, four, six
        self.path = f"/run/netns/{name}"
        self._ends = []
        subprocess.run(["ip", "netns", "add", name], check=True)
        self.ip("link set lo up")
        # Addresses can be used at once: nobody else is there to have them.
        self.sysctl("net.ipv6.conf.default.accept_dad=0")

    def ip(self, words):
        subprocess.run(["ip", "-n", self.name, *words.split()], check=True)

    def run(self, *command, stdin=None):
        """Standard output of a program in it."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, *command], input=stdin, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sysctl(self, setting):
        name, _, value = setting.partition("=")

        def write():
            path = "/proc/sys/" + name.replace(".", "/")
            if os.path.exists(path):
                with open(path, "w") as file:
                    file.write(value)

        self.within(write)

    def within(self, function):
        return in_network_namespace(self.path, function)

    def socket(self, family, kind):
        return self.within(lambda: socket.socket(family, kind))

    def serve(self, port=SERVICE):
        """Answers, by TCP and UDP, with its name and the address that it was asked from."""
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            sock = self.socket(socket.AF_INET6, kind)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(("::", port))
            self._ends.append(sock)
            if kind == socket.SOCK_STREAM:
                sock.listen(16)
            target = self._stream if kind == socket.SOCK_STREAM else self._datagrams
            threading.Thread(target=target, args=(sock,), daemon=True).start()

    def _stream(self, sock):
        with suppress(OSError):
            while True:
                connection, peer = sock.accept()
                with connection, suppress(OSError):
                    connection.settimeout(5)
                    count = 0
                    while chunk := connection.recv(65536):
                        count += len(chunk)
                    connection.sendall(f"{self.name} {_plain(peer[0])} {count}".encode())

    def _datagrams(self, sock):
        with suppress(OSError):
            while True:
                data, peer = sock.recvfrom(65536)
                if peer is None:  # shut down
                    return
                sock.sendto(f"{self.name} {_plain(peer[0])} {len(data)}".encode(), peer)

    def ask(self, address, port, kind="tcp", size=10, timeout=1.0, source=0):
        """Name of who answers, the address that it saw, and how much it got; or None: nobody answers."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with self.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as sock:
            sock.settimeout(timeout)
            if source:
                sock.bind(("", source))
            try:
                sock.connect((address, port))
                sock.sendall(b"x" * size)
                if kind == "tcp":
                    sock.shutdown(socket.SHUT_WR)
                name, peer, count = sock.recv(4096).decode().split()
            except (OSError, ValueError):
                return None
        return name, peer, int(count)

    def wait_for(self, address):
        """Until packets go to and fro: IPv6's first ones wait for the interfaces."""
        deadline = time.monotonic() + 5
        while True:
            with self.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as sock:
                sock.settimeout(0.05)
                try:
                    sock.connect((address, 9))
                except ConnectionRefusedError:
                    return
                except OSError:
                    assert time.monotonic() < deadline, f"{self.name} does not reach {address}"

    def close(self):
        for sock in self._ends:
            # accept() in another thread does not hear of close() alone.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        subprocess.run(["ip", "netns", "del", self.name], check=True)


def _plain(address):
    return address.removeprefix("::ffff:")


class World:
    """``host`` with the networks ``one`` (pods ``a``, ``b``) and ``two`` (pod ``c``), and ``outside``."""

    def __init__(self, name):
        self.notes = []
        self.host = Place(f"{name}-host", "192.0.2.1", "2001:db8::1")
        self.outside = Place(f"{name}-out", "192.0.2.2", "2001:db8::2")
        self.one = NetworkRules("1f2e3d4c", "one", "kbr1", ("10.201.1.0/24", "fd00:201:1::/64"))
        self.two = NetworkRules("2f2e3d4c", "two", "kbr2", ("10.201.2.0/24", "fd00:201:2::/64"))
        self.places = [self.host, self.outside]
        # As hosts are that forward nothing yet; a new namespace has its maker's setting.
        self.host.sysctl("net.ipv4.ip_forward=0")
        self.host.sysctl("net.ipv6.conf.all.forwarding=0")
        self._cable(self.outside, "up0", "192.0.2.1/24", "2001:db8::1/64")
        for number in (1, 2):
            self.host.ip(f"link add kbr{number} type bridge")
            self.host.ip(f"addr add 10.201.{number}.1/24 dev kbr{number}")
            self.host.ip(f"addr add fd00:201:{number}::1/64 dev kbr{number} nodad")
            self.host.ip(f"link set kbr{number} up")
            self.host.run("ip", "link", "set", f"kbr{number}", "alias", f"kurma {number}f2e3d4c")
        self.a = self._pod(f"{name}-a", 1, 2)
        self.b = self._pod(f"{name}-b", 1, 3)
        self.c = self._pod(f"{name}-c", 2, 2)
        for place in (self.outside, self.a, self.b, self.c):
            place.serve()
        for place, number in ((self.outside, 0), (self.a, 1), (self.b, 1), (self.c, 2)):
            place.wait_for("192.0.2.1" if number == 0 else f"10.201.{number}.1")
            place.wait_for("2001:db8::1" if number == 0 else f"fd00:201:{number}::1")
        self.host.sysctl("net.bridge.bridge-nf-call-ip6tables=0")

    def _pod(self, name, network, number):
        place = Place(name, f"10.201.{network}.{number}", f"fd00:201:{network}::{number}")
        self.places.append(place)
        cable = f"kv{network}{number}"
        self._cable(place, cable)
        self.host.ip(f"link set {cable} master kbr{network}")
        self.host.ip(f"link set {cable} type bridge_slave hairpin on")
        place.ip(f"route add default via 10.201.{network}.1")
        place.ip(f"-6 route add default via fd00:201:{network}::1")
        return place

    def _cable(self, place, name, *addresses):
        self.host.ip(f"link add {name} type veth peer name eth0 netns {place.name}")
        for address in addresses:
            self.host.ip(f"addr add {address} dev {name}" + (" nodad" if ":" in address else ""))
        place.ip(f"addr add {place.four}/24 dev eth0")
        place.ip(f"addr add {place.six}/64 dev eth0 nodad")
        place.ip("link set eth0 up")
        self.host.ip(f"link set {name} up")

    def rules(self):
        return Rules(self.notes.append)

    def do(self, call, *arguments):
        """A method of :class:`Rules` on the host, e.g. ``do("publish", network, …)``."""
        return self.host.within(lambda: getattr(self.rules(), call)(*arguments))

    def close(self):
        for place in reversed(self.places):
            place.close()


_NUMBERS = iter(range(1000))


@pytest.fixture
def make_world():
    """For tests that change more than rules."""
    worlds = []

    def make():
        worlds.append(World(f"kr{next(_NUMBERS)}"))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture(scope="module")
def shared_world(own_host):
    world = World(f"kr{next(_NUMBERS)}")
    yield world
    world.close()


def only(monkeypatch, tmp_path, *names):
    """Lets Kurma find these programs alone: ``NAME``, or ``NAME=TARGET``."""
    directory = tmp_path / f"bin{next(_NUMBERS)}"
    directory.mkdir()
    for each in names:
        name, _, target = each.partition("=")
        found = shutil.which(target or name)
        assert found, each
        (directory / name).symlink_to(found)
    for module in ("kurma_core.linux.programs", "kurma_net_bridge.packet_filter.nftables"):
        monkeypatch.setattr(f"{module}.search_path", lambda: str(directory))


def iptables(flavour):
    """What Kurma needs of one kind of iptables, for :func:`only`."""
    names = [f"{program}-{verb}" for program in ("iptables", "ip6tables") for verb in ("save", "restore")]
    return [f"{name}={name.replace('tables-', f'tables-{flavour}-')}" for name in names]


@pytest.fixture
def nft_alone(monkeypatch, tmp_path):
    """Of the programs that change rules, Kurma finds nft alone."""
    only(monkeypatch, tmp_path, "nft")


@pytest.fixture
def world(nft_alone, shared_world):
    """Without rules at the beginning."""
    shared_world.notes.clear()
    yield shared_world
    for network in (shared_world.one, shared_world.two):
        shared_world.do("remove", network)
    assert shared_world.do("found") == []
