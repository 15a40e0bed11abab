"""A small HTTP proxy that tunnels (``CONNECT``) each requested host to a server of the test's choice.

So a real server with a real certificate can serve as ``example.com`` on port 443, without root and without a name
service: the client resolves no name, and checks the certificate against the name that it asked for.
"""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress


class Proxy:
    """Listens on a free port of 127.0.0.1.

    :param hosts: the target ``host:port`` by the requested ``host:port``; others are refused (502).
    :param login: the ``USER:PASSWORD`` that the proxy requires; "" for none.
    :ivar asked: the ``host:port`` of each request.
    """

    def __init__(self, hosts: Mapping[str, str], login: str = "") -> None:
        self.hosts = dict(hosts)
        self.asked: list[str] = []
        self._login = "Basic " + base64.b64encode(login.encode()).decode() if login else ""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def start(self) -> Proxy:
        self._thread.start()
        return self

    def stop(self) -> None:
        # close() alone would not wake the thread that waits in accept().
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                data = client.recv(4096)
                if not data:
                    return
                head += data
            request, *lines = head.decode("latin-1").split("\r\n")
            target = request.split()[1]
            self.asked.append(target)
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            if self._login and headers.get("proxy-authorization") != self._login:
                self._refuse(client, "407 Proxy Authentication Required")
                return
            place = self.hosts.get(target)
            if place is None:
                self._refuse(client, "502 Bad Gateway")
                return
            host, _, port = place.rpartition(":")
            server = socket.create_connection((host, int(port)))
            self._open.append(server)
            client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            threading.Thread(target=_pump, args=(server, client), daemon=True).start()
            _pump(client, server)

    def _refuse(self, client: socket.socket, status: str) -> None:
        client.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        client.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(hosts: Mapping[str, str], login: str = "") -> Iterator[Proxy]:
    """Runs a :class:`Proxy` inside a ``with`` statement."""
    server = Proxy(hosts, login).start()
    try:
        yield server
    finally:
        server.stop()
