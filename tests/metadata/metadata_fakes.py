"""A pod as the service is handed it, and a client that says exactly what it is told to."""

from __future__ import annotations

import contextlib
import json
import re
import socket

from kurma_core.errors import PodNotFoundError
from kurma_core.metadata.api import ImageFacts
from kurma_core.metadata.listening import Listener
from kurma_core.metadata.service import MetadataService

TOKEN = "0123456789abcdef" * 3
UUID, OTHER = "11111111-2222-4333-8444-555555555555", "99999999-2222-4333-8444-555555555555"
IMAGE, EARLY_IMAGE = "sha512-" + "a" * 128, "sha512-" + "b" * 128
EARLY_ID = "sha256-" + "c" * 64
KEYS = {UUID: b"k" * 64, OTHER: b"o" * 64}
#: With an order and a spacing that nobody would make anew.
IMAGE_BYTES = b"""{"name" :"example.com/app", "annotations": [{"name": "authors", "value": "A"},
 {"name": "homepage","value":"http://a/"}, {"name": "example.com/level", "value": "1"}]}"""
EARLY_BYTES = b'{"acKind":"AppManifest","name":"example.com/early"}'
MANIFEST = {
    "acKind": "PodManifest",
    "apps": [
        {
            "name": "web",
            "image": {"id": IMAGE},
            "annotations": [{"name": "new", "value": "n"}, {"name": "homepage", "value": "http://pod/"}],
        },
        {"name": "early", "image": {"id": EARLY_IMAGE}},
    ],
    "annotations": [{"name": "ip-address", "value": "10.1.2.3"}, {"name": "example.com/näme", "value": "ü"}],
}


class FakeFacts:
    def __init__(self, uuid=UUID):
        self.uuid = uuid
        self.pod = MANIFEST
        self.number = 0
        #: How often an image was read.
        self.images = 0

    def stamp(self):
        return self.number

    def manifest(self):
        return self.pod

    def image(self, image_id):
        self.images += 1
        if image_id == IMAGE:
            return ImageFacts(IMAGE, IMAGE_BYTES, IMAGE_BYTES)
        if image_id == EARLY_IMAGE:
            return ImageFacts(EARLY_IMAGE, b'{"name":"example.com/early"}', EARLY_BYTES, EARLY_ID)
        raise PodNotFoundError("no such image")

    def key(self, uuid):
        # Of it a path is made.
        assert re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid)
        return KEYS.get(uuid)


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)


class Wire:
    """A connection. ``say`` writes; ``hear`` reads one answer, None: the other end has closed it."""

    def __init__(self, address, timeout=10.0):
        self.socket = socket.create_connection(address, timeout)
        self._buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def say(self, text):
        self.socket.sendall(text if isinstance(text, bytes) else text.replace("\n", "\r\n").encode())
        return self

    def hear(self, *, body=True):
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                assert self._buffer == b"", self._buffer
                return None
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", 0)) if body else 0
        while len(self._buffer) < length:
            assert self._more(), "the body is cut"
        found, self._buffer = self._buffer[:length], self._buffer[length:]
        return Answer(int(first.split()[1]), headers, found)

    def _more(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        self._buffer += data
        return data


def listener():
    """Where no namespace is needed: a port of this host's."""
    sock = socket.create_server(("127.0.0.1", 0), backlog=64)
    sock.setblocking(False)
    return Listener(sock, None, "")


@contextlib.contextmanager
def served(*pods, early=True):
    """The addresses at which these pods are served, all by one thread."""
    service = MetadataService()
    try:
        found = []
        for facts in pods or (FakeFacts(),):
            service.serve(listener, TOKEN, facts, early=early)
            made = service.wait(facts.uuid)
            found.append((made.address, made.port))
        yield found if len(found) > 1 else found[0], service
    finally:
        service.close()
