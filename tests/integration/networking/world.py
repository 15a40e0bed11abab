"""What lies around the tests' host: machines on its own link, a router, and a server beyond the router.

::

    host  ---+--- neighbour        198.51.100.0/24, 2001:db8:100::/64
             +--- router --- server     203.0.113.0/24, 2001:db8:200::/64

Each is a network namespace; the host is the one that the tests run in. Its default route is by the router. Nobody
out there knows a way to the host's pods: they answer the host, or nobody. Who listens, connects or sends does it
from a :class:`Place`, so that one test reads the same for pods, the host and machines.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import uuid

from kurma_testing.networks import pod_namespace

from kurma_core.linux.namespaces import in_network_namespace

#: The host's interface on its link.
UPLINK = "up0"
HOST = ("198.51.100.1", "2001:db8:100::1")
NEIGHBOUR = ("198.51.100.2", "2001:db8:100::2")
ROUTER = ("198.51.100.254", "2001:db8:100::fe")
BEYOND = ("203.0.113.254", "2001:db8:200::fe")
SERVER = ("203.0.113.2", "2001:db8:200::2")
LENGTHS = (24, 64)

#: Seconds within which what can be reached answers, and for which what cannot is tried.
PATIENCE = 5.0
QUICK = 0.4
#: Of IPv4 and of IPv6: family, protocol, type of the request and of the reply.
_ECHO = (
    (socket.AF_INET, socket.IPPROTO_ICMP, 8, 0),
    (socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, 129),
)


class Place:
    """Where a test listens or connects: a network namespace, by its path; None: the host's own.

    :param addresses: its IPv4 and IPv6 address, where it has them.
    """

    def __init__(self, namespace: str | None = None, addresses: tuple[str, ...] = ()) -> None:
        self.namespace = namespace
        self.addresses = addresses

    @property
    def ipv4(self) -> str:
        return next(one for one in self.addresses if ":" not in one)

    @property
    def ipv6(self) -> str:
        return next(one for one in self.addresses if ":" in one)

    def inside(self, function):
        """What the function returns, or raises, there. The sockets that it makes stay there."""
        return function() if self.namespace is None else in_network_namespace(self.namespace, function)

    def ip(self, *words: str) -> str:
        """ip(8), there."""
        where = () if self.namespace is None else ("-n", os.path.basename(self.namespace))
        return subprocess.run(("ip", *where, *words), check=True, capture_output=True, text=True).stdout

    def batch(self, *lines: str) -> None:
        """Several commands of ip(8) at once, there."""
        where = () if self.namespace is None else ("-n", os.path.basename(self.namespace))
        subprocess.run(("ip", *where, "-batch", "-"), check=True, input="\n".join(lines), text=True)

    def sysctl(self, name: str, value: str | None = None) -> str:
        """The setting, there, after it was set if need be. Only those of ``net`` are the namespace's own."""

        def work() -> str:
            with open("/proc/sys/" + name.replace(".", "/"), "r" if value is None else "r+") as file:
                if value is not None:
                    file.write(value)
                    return value
                return file.read().strip()

        return self.inside(work)

    # -- who listens --

    def listen(self, port: int, address: str = "") -> socket.socket:
        """A TCP socket that listens there; without an address on all of both families."""

        def work() -> socket.socket:
            if address:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                return socket.create_server((address, port), family=family)
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)

        return self.inside(work)

    def receive(self, port: int, address: str = "0.0.0.0") -> socket.socket:
        """A UDP socket of one family, bound there."""

        def work() -> socket.socket:
            found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
            found.bind((address, port))
            return found

        return self.inside(work)

    # -- who asks --

    def reaches(self, server: socket.socket, address: str, port: int, seconds: float = PATIENCE) -> str:
        """Says something to ``server`` from here, at that address and port, and hears the answer.

        :param server: of :meth:`listen` or :meth:`receive`.
        :returns: the address that it came from, as the server sees it.
        :raises OSError: it does not get there, or the answer does not come back.
        """
        ask = self._ask_tcp if server.type == socket.SOCK_STREAM else self._ask_udp
        return self.inside(lambda: ask(server, address, port, seconds))

    def is_cut_off(self, server: socket.socket, address: str, port: int) -> bool:
        """Whether nothing gets from here to ``server`` at that address, or nothing back."""
        try:
            self.reaches(server, address, port, QUICK)
        except OSError:
            return True
        return False

    def pings(self, address: str, seconds: float = PATIENCE) -> bool:
        """Whether an echo comes back from there."""
        family, protocol, request, reply = _ECHO[":" in address]
        mark = uuid.uuid4().bytes
        # Type, code, sum, identifier, sequence; the kernel fills in the sum of IPv6 alone.
        head = bytes((request, 0, 0, 0)) + mark[:4]
        total = sum(int.from_bytes((head + mark)[at : at + 2], "big") for at in range(0, 24, 2))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        message = head[:2] + (total ^ 0xFFFF).to_bytes(2, "big") + head[4:] + mark
        end = time.monotonic() + seconds
        with self.inside(lambda: socket.socket(family, socket.SOCK_RAW, protocol)) as sock:
            try:
                sock.sendto(message, (address, 0))
                while (left := end - time.monotonic()) > 0:
                    sock.settimeout(left)
                    heard, where = sock.recvfrom(256)
                    at = 0 if ":" in address else 20  # behind IPv4's header
                    if where[0] == address and heard[at] == reply and heard.endswith(mark):
                        return True
            except OSError:
                pass
        return False

    @staticmethod
    def _ask_tcp(server: socket.socket, address: str, port: int, seconds: float) -> str:
        server.settimeout(seconds)
        with socket.create_connection((address, port), timeout=seconds) as client:
            peer, where = server.accept()
            with peer:
                peer.settimeout(seconds)
                client.sendall(b"hello")
                if peer.recv(5) != b"hello":
                    raise OSError("something else arrived")
                peer.sendall(b"there")
                if client.recv(5) != b"there":
                    raise OSError("something else came back")
            return _plain(where[0])

    @staticmethod
    def _ask_udp(server: socket.socket, address: str, port: int, seconds: float) -> str:
        server.settimeout(seconds)
        said = uuid.uuid4().bytes  # what is left of an earlier try is not an answer
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(seconds)
            client.connect((address, port))  # an answer from another address is none
            client.send(said)
            heard, where = server.recvfrom(64)
            server.sendto(heard[::-1], where)
            if client.recv(64) != said[::-1]:
                raise OSError("something else came back")
            return _plain(where[0])


class World:
    """The host and the machines around it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.host = Place(None, HOST)
        self.neighbour, self.router, self.server = (
            Place(stack.enter_context(pod_namespace(str(uuid.uuid4()))), addresses)
            for addresses in (NEIGHBOUR, (*ROUTER, *BEYOND), SERVER)
        )
        stack.callback(subprocess.run, ("ip", "link", "del", UPLINK), capture_output=True, check=False)
        self._connect()

    def _connect(self) -> None:
        near, far, beyond = (
            os.path.basename(p.namespace or "") for p in (self.neighbour, self.router, self.server)
        )
        for place in (self.neighbour, self.router, self.server):
            place.sysctl("net.ipv6.conf.default.accept_dad", "0")
        self.router.batch(
            "link set lo up",
            "link add link0 type bridge mcast_snooping 0",
            "link set link0 up",
            f"link add port0 type veth peer name eth0 netns {near}",
            f"link add out0 type veth peer name eth0 netns {beyond}",
            "link set port0 master link0 up",
            "link set out0 up",
            *_addresses("link0", ROUTER),
            *_addresses("out0", BEYOND),
        )
        self.host.batch(f"link add {UPLINK} type veth peer name port1 netns {far}")
        self.host.sysctl(f"net.ipv6.conf.{UPLINK}.accept_dad", "0")  # of the pods' links nothing is changed
        self.host.batch(
            *_addresses(UPLINK, HOST),
            f"link set {UPLINK} up",
        )
        self.router.batch("link set port1 master link0 up")
        for place, gateway in ((self.neighbour, ROUTER), (self.server, BEYOND)):
            place.batch("link set lo up", *_addresses("eth0", place.addresses), "link set eth0 up")
            place.batch(*(f"route add default via {one}" for one in gateway))
        self.host.batch(*(f"route add default via {one}" for one in ROUTER))
        for name in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            self.router.sysctl(name, "1")


@contextlib.contextmanager
def world_around():
    """The machines around the host, for as long as the block runs."""
    with contextlib.ExitStack() as stack:
        yield World(stack)


def _addresses(interface: str, addresses: tuple[str, ...]) -> list[str]:
    # No waiting for duplicates: each address is one machine's.
    return [
        f"address add {one}/{LENGTHS[':' in one]} dev {interface}" + (" nodad" if ":" in one else "")
        for one in addresses
    ]


def _plain(address: str) -> str:
    """An IPv4 address also where a socket of both families tells it."""
    return address.removeprefix("::ffff:")
