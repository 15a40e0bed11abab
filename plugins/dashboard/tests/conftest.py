"""A dashboard: kurmad with the service in a process of its own, and an HTTP client of its page."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tests.kit.waiting import until

SECTION = {"listen": "127.0.0.1:0"}


class Answer:
    """An answer of the server, read to its end."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def message(self):
        return self.json["error"]["message"]


class Board:
    """:param house: of kurmad's state directory. :param daemon: kurmad, in a process of its own."""

    def __init__(self, house, daemon):
        self.house = house
        self.daemon = daemon
        self.directory = f"{house.state}/plugins/kurma.services/dashboard"
        until(
            lambda: os.path.exists(f"{self.directory}/address"),
            lambda: f"the page's address: {daemon.log.read_text()}",
        )
        with open(f"{self.directory}/address") as file:
            self.address = file.read().strip()
        self.place = urlsplit(self.address).netloc
        self.port = int(self.place.rpartition(":")[2])

    @property
    def client(self):
        """Kurma's own client, by way of kurmad."""
        if not self.house.client.remote:
            self.house.reopen()
        return self.house.client

    def token(self, role):
        with open(f"{self.directory}/{role}.token") as file:
            return file.read().strip()

    def cookie(self, role):
        answer = self.ask("GET", f"/login?token={self.token(role)}", role=None)
        assert answer.status == 303, answer.body
        return answer.headers["Set-Cookie"].partition(";")[0]

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def ask(self, method, path, body=None, *, role="admin", origin="", headers=None):
        """:param role: whose cookie goes along; None: no cookie.
        :param origin: of the request; empty: the page's own, if the method is POST; None: none.
        """
        given = {"Host": self.place}
        if role is not None:
            given["Cookie"] = self.cookie(role)
        if origin == "":
            origin = f"http://{self.place}" if method == "POST" else None
        if origin is not None:
            given["Origin"] = origin
        given.update(headers or {})
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), given)
            return Answer(connection.getresponse())

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def post(self, path, body=None, **options):
        return self.ask("POST", path, body, **options)

    def raw(self, data):
        """All bytes of the answer to these bytes, until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), 30) as connected:
            connected.sendall(data)
            connected.shutdown(socket.SHUT_WR)
            found = b""
            while piece := connected.recv(65536):
                found += piece
            return found

    @contextlib.contextmanager
    def stream(self, path, role="admin"):
        """The server-sent events of a path: kind and value of each."""
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", path, headers={"Cookie": self.cookie(role)})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.headers["Content-Type"] == "text/event-stream"
            yield _events(response)

    def pod(self, uuid):
        """The JSON of a pod as the server sends it to the page; None: there is no such pod."""
        pods = self.get("/api/pods").json["pods"]
        return next((one for one in pods if one["uuid"] == uuid), None)

    def run(self, apps="sleep 1000", **options):
        """Runs a pod in the background. :returns: its UUID."""
        return self.client.prepare(self.house.request(apps, **options), start=True).uuid

    def clear(self):
        for pod in self.client.pods():
            self.client.rm(pod.uuid, force=True, managed=True)
        for volume in self.client.volumes_list():
            self.client.volume_rm(volume.name)
        for secret in self.client.secrets_list():
            self.client.secret_rm(secret.name)


def _events(response):
    kind = None
    for line in response:
        if line.startswith(b"event: "):
            kind = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            yield kind, json.loads(line[6:])


@pytest.fixture
def make_board(make_house, kurmad) -> Iterator[Callable[..., Board]]:
    """``make_board(**options)``: a dashboard with these options, on the shared state directory. It starts a
    kurmad: use ``board`` where the options do not matter."""
    with contextlib.ExitStack() as stack:

        def make(house=None, **options):
            section = {"dashboard": {"config": {**SECTION, **options}}}
            house = house or make_house({"stop_timeout": 3, "plugins": {"services": section}})
            board = Board(house, kurmad(house=house))
            stack.callback(lambda: board.daemon.process.poll() is None and board.clear())
            return board

        yield make


@pytest.fixture(scope="session")
def board_state(tmp_path_factory, busybox_image) -> tuple[str, str]:
    """A state directory with the stager and the busybox image, beside the shared one: that one has kurmads of
    single tests. :returns: its path; the image's ID."""
    from tests.kit.client import open_client

    directory = tmp_path_factory.mktemp("board")
    (directory / "kurma.json").write_text("{}")
    with open_client(str(directory / "kurma.json"), str(directory / "state")) as client:
        client.stager_build("default")
        return str(directory / "state"), client.image_fetch(busybox_image).id


@pytest.fixture(scope="module")
def module_board(board_state, tmp_path_factory) -> Iterator[Board]:
    from tests.kit.house import House
    from tests.kit.kurmad import Kurmad, ended

    directory = tmp_path_factory.mktemp("dashboard")
    config = directory / "kurma.json"
    section = {"dashboard": {"config": SECTION}}
    config.write_text(json.dumps({"stop_timeout": 3, "plugins": {"services": section}}))
    house = House(str(config), *board_state, str(directory))
    daemon = Kurmad(house)
    try:
        yield Board(house, daemon)
        ended(daemon)
    finally:
        daemon.process.kill()
        daemon.process.wait()
        house.close()


@pytest.fixture
def board(module_board) -> Iterator[Board]:
    """A dashboard that the tests of a module share; each test begins without pods, volumes and secrets."""
    yield module_board
    module_board.clear()
