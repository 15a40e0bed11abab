"""Pods asked for over the socket of a kurmad, to the moment when their app writes."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from launching import request
from measuring import BenchError
from serving import Daemon

from kurma_core.value import replace

#: Seconds after which a daemon has replaced a stager that was taken, and takes nobody's processor.
SETTLES = 0.6


class Calling:
    """:param out: is mounted in the app, which writes to ``first`` there."""

    def __init__(self, daemon: Daemon, image: str, out: str) -> None:
        self._daemon = daemon
        self._body = json.dumps(replace(request(image, out), ephemeral=True).to_json()).encode()

    def whole(self, came: Callable[[], float]) -> float:
        """One request: milliseconds from before it connects. :param came: waits for the app."""
        return self._taken("/v1/pods?start=true", self._body, came)

    def prepared(self, came: Callable[[], float]) -> float:
        """The start of a pod that is there."""
        connection = self._sent("POST", "/v1/pods", self._body)
        return self._taken(f"/v1/pods/{_answer(connection)['uuid']}/start", b"", came)

    def _taken(self, target: str, body: bytes, came: Callable[[], float]) -> float:
        time.sleep(SETTLES)
        begun = time.perf_counter()
        connection = self._sent("POST", target, body)
        taken = (came() - begun) * 1000
        uuid = _answer(connection)["uuid"]
        _answer(self._sent("GET", f"/v1/pods/{uuid}/wait", None), gone=True)
        return taken

    def _sent(self, method: str, target: str, body: bytes | None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("kurmad", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(self._daemon.socket)
        connection.request(method, target, body, {"Content-Type": "application/json"})
        return connection


def _answer(connection: http.client.HTTPConnection, *, gone: bool = False) -> Any:
    """:param gone: that there is no such pod any more is no error."""
    answer = connection.getresponse()
    said = json.load(answer)
    connection.close()
    if answer.status != http.HTTPStatus.OK and not (gone and answer.status == http.HTTPStatus.NOT_FOUND):
        raise BenchError(f"kurmad: {said['error']['message']}")
    return said


__all__ = ["SETTLES", "Calling"]
