"""Answers requests: the page's files, the visit with a token, the page's data, streams and actions."""

from __future__ import annotations

import os
import re
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from kurma_core import errors
from kurma_core.cancellation import Cancellation
from kurma_core.errors import KurmaError
from kurma_dashboard import views
from kurma_dashboard.access import ADMIN, RefusedError, port_of
from kurma_dashboard.live import Channel, Live, LogReader

if TYPE_CHECKING:
    from logging import Logger

    from kurma_core.api.operations import Api
    from kurma_dashboard.access import Access
    from kurma_dashboard.exchange import Exchange, Request

Json = Any
_HTML, _TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": _HTML,
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_PAGE = os.path.join(os.path.dirname(__file__), "page")
_ACTIONS = ("start", "stop", "restart")
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Events of the past, and lines of a log, that the page gets.
_PAST_EVENTS = 200
_LOG_TAIL = 500
#: Log lines in one message.
_TOGETHER = 200
#: Seconds between two looks whether the reader of a stream is still there, and looks between two signs of life.
_LOOK = 2.0
_LOOKS = 5
#: The first kind that an error is of has its status; an error of no kind has 500.
_STATUS: tuple[tuple[type[KurmaError], int], ...] = (
    (errors.PodNotFoundError, 404),
    (errors.AppNotFoundError, 404),
    (errors.PodStateError, 409),
    (errors.PodEndedError, 409),
    (errors.UsageError, 400),
    (errors.PrivilegeError, 403),
    (errors.BusyError, 503),
)


def read_page() -> dict[str, tuple[bytes, str]]:
    """The page's files by name: content and content type."""
    found = {}
    for name in os.listdir(_PAGE):
        with open(os.path.join(_PAGE, name), "rb") as file:
            found[name] = file.read(), _TYPES[name.rpartition(".")[2]]
    return found


class Routes:
    """:param streams: takes a place of a stream; False: there is none left. :param streamed: gives it back."""

    def __init__(
        self,
        client: Api,
        log: Logger,
        access: Access,
        live: Live,
        streams: Callable[[], bool],
        streamed: Callable[[], None],
    ) -> None:
        self._client, self._log, self._access, self._live = client, log, access, live
        self._stream_begins, self._stream_ends = streams, streamed
        self._files = read_page()

    def answer(self, request: Request, exchange: Exchange, operation: Cancellation) -> None:
        """:raises RefusedError: the request is refused. :raises Gone: the client has gone."""
        if request.method not in ("GET", "POST"):
            raise RefusedError(405, "the method must be GET or POST")
        self._access.check_host(request.headers["host"])
        cookie_name = f"kurma-{port_of(request.headers['host'])}"
        role = self._access.role_of_cookie(request.cookie(cookie_name))
        changes = request.method == "POST"
        path = request.path
        if path == ("login",):
            # A link to the page, with the token, may stand anywhere; a form must be ours.
            if changes:
                self._access.check_origin(request.headers, required=True)
            self._login(request, exchange, cookie_name)
        elif not changes and path == ("",):
            name, status = ("index.html", 200) if role is not None else ("login.html", 401)
            exchange.answer(status, *self._files[name])
        elif not changes and len(path) == 1 and path[0] in self._files:
            exchange.answer(200, *self._files[path[0]])
        elif path[0] == "api" or path == ("logout",):
            self._access.check_origin(request.headers, required=changes)
            if role is None:
                raise RefusedError(401, "the token is missing or wrong", "kurma dashboard prints the address")
            if path == ("logout",):
                self._logout(exchange, cookie_name, changes=changes)
            elif changes:
                self._change(request, exchange, role)
            else:
                self._show(request, exchange, role, operation)
        else:
            raise RefusedError(404, "there is no such page")

    # -- visits --

    def _login(self, request: Request, exchange: Exchange, cookie_name: str) -> None:
        if request.method == "POST":
            form = parse_qs(request.body.decode("ascii", "replace"), max_num_fields=5)
            token = form.get("token", [""])[0].strip()
        else:
            token = request.query.get("token", "")
        role = self._access.role_of_token(token)
        if role is None:
            exchange.answer(401, *self._files["login.html"])
            return
        cookie = f"{cookie_name}={self._access.cookie(role)}; Path=/; HttpOnly; SameSite=Strict"
        exchange.answer(303, b"", _TEXT, (("Location", "/"), ("Set-Cookie", cookie)))

    def _logout(self, exchange: Exchange, cookie_name: str, *, changes: bool) -> None:
        if not changes:
            raise RefusedError(405, "the method must be POST")
        cookie = f"{cookie_name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"
        exchange.answer(303, b"", _TEXT, (("Location", "/"), ("Set-Cookie", cookie)))

    # -- data and streams --

    def _show(self, request: Request, exchange: Exchange, role: str, operation: Cancellation) -> None:
        match request.path[1:]:
            case ("session",):
                changes = role == ADMIN and not self._access.options.read_only
                facts = {"role": role, "changes": changes, "logs": role == ADMIN, "host": socket.gethostname()}
                exchange.answer_json(200, {**facts, "version": self._client.version().version})
            case ("pods",):
                exchange.answer_json(200, views.pods_json(self._client.pods()))
            case ("images",):
                exchange.answer_json(200, views.images_json(self._client.images_list().images))
            case ("networks",):
                exchange.answer_json(200, views.networks_json(self._client.networks_list()))
            case ("volumes",):
                exchange.answer_json(200, views.volumes_json(self._client.volumes_list()))
            case ("secrets",):
                exchange.answer_json(200, views.secrets_json(self._client.secrets_list()))
            case ("events",):
                last = deque(self._client.events(), maxlen=_PAST_EVENTS)
                exchange.answer_json(200, [views.event_json(event) for event in last])
            case ("live",):
                channel = self._live.open()
                try:
                    self._stream(exchange, channel)
                finally:
                    self._live.close(channel)
            case ("pods", pod, "logs") if _UUID.fullmatch(pod):
                if role != ADMIN:
                    raise RefusedError(403, "logs may hold secrets: this token does not show them")
                self._client.pod(pod)  # the stream itself cannot answer 404
                app = request.query.get("app") or None
                with operation.part() as part:
                    with LogReader(self._client, pod, app, _LOG_TAIL, part) as channel:
                        self._stream(exchange, channel)
            case _:
                raise RefusedError(404, "there is no such page")

    def _stream(self, exchange: Exchange, channel: Channel) -> None:
        """Sends messages until the channel is closed. :raises Gone: the client has gone, or does not read."""
        if not self._stream_begins():
            raise RefusedError(503, "too many pages are open", "close some, and load this one again")
        try:
            exchange.begin_events()
            quiet = 0
            while (messages := channel.take(_LOOK)) is not None:
                exchange.check()
                quiet = 0 if messages else quiet + 1
                if quiet == _LOOKS:
                    exchange.keep_alive()
                    quiet = 0
                lines = [value for kind, value in messages if kind == "line"]
                for at in range(0, len(lines), _TOGETHER):
                    exchange.event("lines", lines[at : at + _TOGETHER])
                for kind, value in messages:
                    if kind != "line":
                        exchange.event(kind, value)
            exchange.end_events()
        finally:
            self._stream_ends()

    # -- actions --

    def _change(self, request: Request, exchange: Exchange, role: str) -> None:
        if role != ADMIN:
            raise RefusedError(403, "this token shows pods, and does not change them")
        if self._access.options.read_only:
            raise RefusedError(403, "the dashboard is read-only", "read_only of the dashboard in kurma.yml")
        managed = request.json().get("managed") is True
        match request.path[1:]:
            case ("pods", pod, action) if _UUID.fullmatch(pod) and action in _ACTIONS:
                self._log.info("dashboard: %s of pod %s", action, pod)
                self._change_pod(pod, action, managed)
            case ("pods", pod, "apps", app, action) if _UUID.fullmatch(pod) and action in _ACTIONS:
                self._client.pod(pod)
                self._log.info("dashboard: %s of app %r of pod %s", action, app, pod)
                self._change_app(pod, app, action, managed)
            case _:
                raise RefusedError(404, "there is no such page")
        exchange.answer_json(200, {})

    def _change_pod(self, pod: str, action: str, managed: bool) -> None:
        if action in ("stop", "restart"):
            self._client.stop(pod, again=action == "restart", managed=managed)
        if action in ("start", "restart"):
            self._client.launch(pod, managed=managed)

    def _change_app(self, pod: str, app: str, action: str, managed: bool) -> None:
        if action in ("stop", "restart"):
            self._client.app_stop(pod, app, managed=managed)
        if action in ("start", "restart"):
            self._client.app_start(pod, app, managed=managed)


def status_of(error: KurmaError) -> int:
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 500
