"""Dispatches each request to its operation, and answers with the result or the error."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kurma_core import errors
from kurma_core.api.operations import NDJSON, OPERATIONS, Operation
from kurma_core.api.wire import PROTOCOL, error_to_json
from kurma_core.cancellation import Cancellation, governing
from kurma_core.daemon.http.caller_rights import check_rights, redacted
from kurma_core.daemon.http.calls import Call, check_keys, read_body, read_query
from kurma_core.daemon.http.error_status import Gone, status_of, told_error
from kurma_core.daemon.http.exchange import Exchange, Said
from kurma_core.daemon.http.handlers import handle
from kurma_core.daemon.http.messages import Conversation, Messages, conversing, unheard
from kurma_core.daemon.metrics import Metrics
from kurma_core.daemon.process.log import about

if TYPE_CHECKING:
    from kurma_core.daemon.http.calls import Daemon
    from kurma_core.daemon.http.streams import Stream

Json = Any
_LOG = logging.getLogger("kurmad")
#: The most notes behind an answer of kind ``lines``.
_MOST_NOTES = 20


class Dispatcher:
    """Answers exchanges. :param metrics: counts them."""

    def __init__(self, daemon: Daemon, metrics: Metrics) -> None:
        self._daemon = daemon
        self._metrics = metrics
        self._routes = [(_pattern(operation.path), operation) for operation in OPERATIONS.values()]

    def __call__(self, exchange: Exchange) -> None:
        """:raises Gone: the client has disconnected."""
        try:
            operation, path = self._find(exchange)
        except errors.KurmaError as error:
            status: Any = error.data.get("status", 400)
            headers = (("Allow", str(error.data["allow"])),) if status == 405 else ()
            exchange.respond_json(status, error_to_json(error), headers)
            return
        try:
            with about(request=f"{exchange.method} {exchange.path}", by=str(exchange.peer), **path):
                check_rights(exchange.peer, operation, f"{exchange.method} {exchange.raw_path}")
                query = read_query(operation, exchange.query)
                body = self._body(operation, exchange)
                arguments = {**path, **query, **read_body(operation, body)}
                call = Call(self._daemon, exchange, operation, arguments)
                with self._counted(call):
                    self._run(call)
        except Gone:
            raise
        except Exception as error:  # noqa: BLE001 (the client gets one line; the log has the rest)
            found = told_error(error, operation.verb, exchange.path)
            if exchange.answered:
                exchange.fail(error_to_json(found))
            else:
                exchange.respond_json(status_of(found), error_to_json(found))
        finally:
            self._metrics.requested(operation.name, exchange.status)

    @staticmethod
    def _body(operation: Operation, exchange: Exchange) -> Json:
        """:raises UsageError: it is not JSON or has an unknown key; or none is taken, or another protocol."""
        body = None
        if any("body" in one.place for one in operation.parameters):
            body = exchange.json()
            check_keys(operation, body)
        elif operation.takes is None and exchange.has_body():
            keys = [f"?{one.key}=" for one in operation.parameters if one.place == "query"]
            hint = "what it takes stands in the query: " + ", ".join(keys) if keys else "it takes no parameters"
            raise errors.UsageError(f"{operation.verb} {operation.path} takes no body", hint=hint)
        if operation.kind == "stream" and exchange.headers.get("upgrade", "").lower() != PROTOCOL:
            raise errors.UsageError(f"{operation.path} needs the header Upgrade: {PROTOCOL}")
        return body

    def _counted(self, call: Call) -> contextlib.AbstractContextManager[None]:
        """Counts the connection of a lasting operation separately, so that it does not use up the limit of
        ordinary connections."""
        operation = call.operation
        if operation.kind == "stream" or operation.lasts or call.arguments.get("follow"):
            return self._daemon.server.lasting(call.exchange)
        return contextlib.nullcontext()

    def _find(self, exchange: Exchange) -> tuple[Operation, dict[str, str]]:
        allowed = []
        for pattern, operation in self._routes:
            match = pattern.fullmatch(exchange.raw_path)
            if match is None:
                continue
            if operation.verb == exchange.method or (operation.verb == "GET" and exchange.method == "HEAD"):
                return operation, {name: _decoded(text) for name, text in match.groupdict().items()}
            allowed.append(operation.verb)
        if allowed:
            methods = ", ".join(sorted(set(allowed)))
            raise errors.UsageError(
                f"{exchange.path}: takes {methods}, not {exchange.method}",
                status=405,
                allow=methods,
                unknown=True,
            )
        raise errors.UsageError(
            f"no such path: {exchange.path}", hint="see /v1/openapi.json", status=404, unknown=True
        )

    def _run(self, call: Call) -> None:
        operation, exchange = call.operation, call.exchange
        if operation.kind == "stream":
            from kurma_core.daemon.http.streams import serve

            def handle_stream(stream: Stream) -> Json:
                call.stream = stream
                return operation.to_json(handle(call))

            serve(exchange, call.cancellation, handle_stream)
        elif operation.kind == "bytes":
            with conversing(Conversation(unheard)), self._while_asked(call):
                handle(call)
        elif operation.kind == "lines":
            notes = _Notes()
            with conversing(Conversation(notes.tell)), self._while_asked(call):
                found = handle(call)
                exchange.begin(NDJSON)
                for item in found:
                    exchange.message(self._json(item, call))
            exchange.end(notes.texts)
        elif NDJSON in exchange.headers.get("accept", ""):
            self._answer_in_lines(call)
        else:
            with conversing(Conversation(unheard)), self._while_asked(call):
                value = handle(call)
            exchange.respond_json(200, self._json(value, call))

    @staticmethod
    def _json(value: Any, call: Call) -> Json:
        """A result as JSON, as the caller may see it."""
        if isinstance(value, Said):
            return value
        said = call.operation.to_json(value)
        return said if call.exchange.peer.rights == "full" else redacted(said)

    @contextlib.contextmanager
    def _while_asked(self, call: Call) -> Iterator[None]:
        """Cancels the operation if its client disconnects, unless it must be completed.

        :raises Gone: it was cancelled.
        """
        if not call.operation.given_up:
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

    def _answer_in_lines(self, call: Call) -> None:
        """Answers line by line: messages on the way, and the result last."""
        told = Messages(call.exchange.socket, call.exchange.message)
        try:
            with conversing(Conversation(told.tell, call.exchange.headers)), self._while_asked(call):
                value = handle(call)
        except Gone:
            raise
        except Exception as error:
            if told.silent:
                raise
            found = told_error(error, call.operation.verb, call.exchange.path)
            last = {"is": "error", **error_to_json(found), "status": status_of(found)}
        else:
            last = {"is": "result", "value": self._json(value, call)}
        told.end(last)
        call.exchange.end()


class _Notes:
    """Notes that are sent after an answer whose lines are values."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def tell(self, message: Json) -> None:
        unheard(message)
        if message["is"] == "note" and len(self.texts) < _MOST_NOTES:
            self.texts.append(message["text"])


def _decoded(text: str) -> str:
    """A part of a path. :raises UsageError: no name of anything has such in it."""
    try:
        found = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise errors.UsageError(f"{text!r} in the path is not UTF-8") from None
    if "\0" in found:
        raise errors.UsageError("a part of the path has a zero byte in it")
    return found


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
