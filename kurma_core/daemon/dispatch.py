"""From a request to its operation, and from what that says to an answer."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kurma_core import errors
from kurma_core.cancellation import Cancellation, governing
from kurma_core.client.frames import PROTOCOL
from kurma_core.daemon import operations
from kurma_core.daemon.access import shown
from kurma_core.daemon.bodies import check_keys
from kurma_core.daemon.failures import error_json, logged
from kurma_core.daemon.http.exchange import NDJSON, Exchange, Gone, LateError, Said, TooLargeError
from kurma_core.daemon.metrics import Metrics
from kurma_core.daemon.operation import Operation, attempts_of, working
from kurma_core.daemon.operations import TABLE, Call, Spec, parameters
from kurma_core.daemon.process.log import about
from kurma_core.daemon.telling import Telling

if TYPE_CHECKING:
    from kurma_core.daemon.http.daemon import Daemon
    from kurma_core.daemon.http.streams import Stream

Json = Any
_LOG = logging.getLogger("kurmad")
#: Behind an answer of kind ``lines``.
_MOST_NOTES = 20

#: The first that fits says it.
_STATUS: tuple[tuple[type[errors.KurmaError], int], ...] = (
    (TooLargeError, 413),
    (LateError, 408),
    (errors.BusyError, 503),
    (errors.PodNotFoundError, 404),
    (errors.ImageNotFoundError, 404),
    (errors.AppNotFoundError, 404),
    (errors.PluginNotFoundError, 404),
    (errors.NetworkNotFoundError, 404),
    (errors.StagerNotFoundError, 404),
    (errors.FetchNotFoundError, 404),
    (errors.UsageError, 400),
    (errors.ManifestError, 400),
    (errors.ArchiveError, 400),
    (errors.AmbiguousReferenceError, 400),
    (errors.ConfigError, 400),
    (errors.PodExistsError, 409),
    (errors.PodStateError, 409),
    (errors.PodEndedError, 409),
    (errors.PowerError, 403),
    (errors.PrivilegeError, 403),
    (errors.TrustError, 403),
)


class Dispatcher:
    """Answers exchanges. The table is complete when this is made."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.metrics = Metrics()
        self._routes = [(_pattern(spec.path), spec) for spec in TABLE]

    def __call__(self, exchange: Exchange) -> None:
        """:raises Gone: who asked has gone."""
        try:
            spec, path = self._find(exchange)
        except errors.KurmaError as error:
            status: Any = error.data.get("status", 400)
            headers = (("Allow", str(error.data["allow"])),) if status == 405 else ()
            exchange.respond_json(status, error_json(error), headers)
            return
        try:
            who = str(exchange.peer)
            with about(request=f"{exchange.method} {exchange.path}", by=who, **path):
                self._admit(spec, exchange)
                query = parameters(spec, exchange.query)
                call = Call(self._daemon, exchange, path, query, self._body(spec, exchange))
                with self._counted(spec, call):
                    self._run(spec, call)
        except Gone:
            raise
        except errors.KurmaError as error:
            if exchange.answered:
                exchange.fail(error_json(error))
            else:
                exchange.respond_json(status_of(error), error_json(error))
        except Exception as error:  # noqa: BLE001 (whoever asked is told in one line; the log has the rest)
            found = error_json(logged(error, spec.method, exchange.path))
            if exchange.answered:
                exchange.fail(found)
            else:
                exchange.respond_json(500, found)
        finally:
            self.metrics.requested(spec.name, exchange.status)

    @staticmethod
    def _admit(spec: Spec, exchange: Exchange) -> None:
        """What changes things is in the log, by whom: without the query and the body, which may hold secrets.

        :raises PrivilegeError: it is not for who asks.
        """
        allowed = spec.rights == "read" or exchange.peer.rights == "full"
        if spec.method != "GET" or not allowed:
            what = "asks for" if allowed else "is refused"
            _LOG.info("%s %s %s %s", exchange.peer, what, exchange.method, exchange.raw_path)
        if not allowed:
            hint = None
            if exchange.peer.pod is not None:
                hint = (
                    "who runs the host grants the app host/api-access in kurma.yml, and not host/api-access=read"
                )
            raise errors.PrivilegeError(f"{spec.method} {spec.path} is not for those who may only look", hint=hint)

    @staticmethod
    def _body(spec: Spec, exchange: Exchange) -> Json:
        """:raises UsageError: it is no JSON, has a key that there is not, or there is one where none is taken."""
        if spec.body is not None:
            body = exchange.json()
            check_keys(spec.body, body)
            return body
        if spec.takes is None and exchange.has_body():
            hint = "what it takes stands in the query: " + ", ".join(f"?{query.name}=" for query in spec.query)
            raise errors.UsageError(
                f"{spec.method} {spec.path} takes no body", hint=hint if spec.query else "it takes no parameters"
            )
        return None

    def _counted(self, spec: Spec, call: Call) -> contextlib.AbstractContextManager[None]:
        """What lasts holds none of the connections that others need."""
        if spec.kind == "stream" or spec.lasts or call.query.get("follow"):
            return self._daemon.server.lasting(call.exchange)
        return contextlib.nullcontext()

    def _find(self, exchange: Exchange) -> tuple[Spec, dict[str, str]]:
        allowed = []
        for pattern, spec in self._routes:
            match = pattern.fullmatch(exchange.raw_path)
            if match is None:
                continue
            if spec.method == exchange.method or (spec.method == "GET" and exchange.method == "HEAD"):
                return spec, {name: _decoded(text) for name, text in match.groupdict().items()}
            allowed.append(spec.method)
        if allowed:
            methods = ", ".join(sorted(set(allowed)))
            raise errors.UsageError(
                f"{exchange.path}: takes {methods}, and not {exchange.method}",
                status=405,
                allow=methods,
                unknown=True,
            )
        raise errors.UsageError(
            f"{exchange.path}: there is nothing there", hint="see /v1/openapi.json", status=404, unknown=True
        )

    def _run(self, spec: Spec, call: Call) -> None:
        exchange = call.exchange
        if spec.kind == "stream":
            if exchange.headers.get("upgrade", "").lower() != PROTOCOL:
                raise errors.UsageError(f"{spec.path} is asked for with Upgrade: {PROTOCOL}")
            from kurma_core.daemon.http.streams import serve

            def handle(stream: Stream) -> Json:
                call.stream = stream
                return spec.handler(call)

            serve(exchange, call.cancellation, handle)
            return
        if spec.kind == "bytes":
            with working(Operation(_unheard)), self._while_asked(spec, call):
                spec.handler(call)
            return
        if spec.kind == "lines":
            notes = _Notes()
            with working(Operation(notes.tell)), self._while_asked(spec, call):
                found = spec.handler(call)
                exchange.begin(NDJSON)
                for item in found:
                    exchange.message(self._shown(item, call))
            exchange.end(notes.texts)
            return
        if NDJSON in exchange.headers.get("accept", ""):
            self._told(spec, call)
            return
        with working(Operation(_unheard)), self._while_asked(spec, call):
            value = spec.handler(call)
        exchange.respond_json(200, self._shown(value, call))

    @staticmethod
    def _shown(value: Json, call: Call) -> Json:
        return value if call.exchange.peer.rights == "full" or isinstance(value, Said) else shown(value)

    @contextlib.contextmanager
    def _while_asked(self, spec: Spec, call: Call) -> Iterator[None]:
        """What may be given up is cancelled if who asked goes away, and nothing of anybody else's.

        :raises Gone: it was.
        """
        if not spec.given_up:
            yield
            return
        server = self._daemon.server
        cancellation = Cancellation()
        server.when_gone(call.exchange, cancellation.cancel)
        try:
            with governing(cancellation):
                yield
        except errors.Cancelled:
            raise Gone from None
        finally:
            server.unwatch(call.exchange)

    def _told(self, spec: Spec, call: Call) -> None:
        """Answers line by line: what is noted on the way, and the result last."""
        telling = Telling(call.exchange.socket, call.exchange.message)
        attempts = attempts_of(call.exchange.headers.get("kurma-passphrases"))
        try:
            with (
                working(Operation(telling.tell, attempts=attempts, hears_progress=True)),
                self._while_asked(spec, call),
            ):
                value = spec.handler(call)
        except errors.KurmaError as error:
            if telling.silent:
                raise
            last = {"is": "error", **error_json(error), "status": status_of(error)}
        except Gone:
            raise
        except Exception as error:
            if telling.silent:
                raise
            found = logged(error, spec.method, call.exchange.path)
            last = {"is": "error", **error_json(found), "status": 500}
        else:
            last = {"is": "result", "value": self._shown(value, call)}
        telling.end(last)
        call.exchange.end()


def status_of(error: errors.KurmaError) -> int:
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 500


class _Notes:
    """Those of an answer whose lines are something else: they come behind it."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def tell(self, message: Json) -> None:
        _unheard(message)
        if message["is"] == "note" and len(self.texts) < _MOST_NOTES:
            self.texts.append(message["text"])


def _unheard(message: dict[str, Json]) -> None:
    if message["is"] == "note":
        _LOG.info("%s", message["text"])


def _decoded(text: str) -> str:
    """A part of a path. :raises UsageError: no name of anything has such in it."""
    try:
        found = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise errors.UsageError(f"{text!r} in the path is no UTF-8") from None
    if "\0" in found:
        raise errors.UsageError("a part of the path has a zero byte in it")
    return found


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))


__all__ = ["Dispatcher", "error_json", "operations", "status_of"]
