"""Calls of the Container Runtime Interface: checks of requests, cancellation, status codes, and the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled, KurmaError
from kurma_cri.fields import check_request
from kurma_cri.rpc import Code, RpcError, code_of, one_line, text_of

_CODES = grpc.StatusCode


class Interceptor(grpc.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Runs each call as an operation that ends with the client's interest in it, and answers errors by codes.

    :param log: gets a line for each call that failed, and, at level debug, for each call.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._handlers: dict[str, Any] = {}

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        made = self._handlers.get(details.method)
        if made is None and (handler := continuation(details)) is not None:
            made = self._handlers[details.method] = self._handler(details.method.rpartition("/")[2], handler)
        return made

    def _handler(self, name: str, handler: Any) -> Any:
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._streaming(name, handler.unary_stream),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._calling(name, handler.unary_unary),
            handler.request_deserializer,
            _unless_serialized(handler.response_serializer),
        )

    def _calling(self, name: str, behaviour: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def call(request: Any, context: Any) -> Any:
            operation = _operation(context)
            code, message = _CODES.OK, ""
            try:
                check_request(request)
                with governing(operation):
                    return behaviour(request, context)
            except BaseException as error:  # noqa: BLE001 (each becomes a code)
                code, message = self._status(name, error)
            context.abort(code, message)

        return call

    def _streaming(self, name: str, behaviour: Callable[[Any, Any], Iterator[Any]]) -> Callable[[Any, Any], Any]:
        def call(request: Any, context: Any) -> Iterator[Any]:
            operation = _operation(context)
            code, message = _CODES.OK, ""
            try:
                check_request(request)
                with governing(operation):
                    answers = behaviour(request, context)
                while True:
                    # The operation governs this thread only while the behaviour runs: grpc may take each answer in
                    # another context.
                    with governing(operation):
                        answer = next(answers, None)
                    if answer is None:
                        return
                    yield answer
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 (each becomes a code)
                code, message = self._status(name, error)
            context.abort(code, message)

        return call

    def _status(self, name: str, error: BaseException) -> tuple[Code, str]:
        if isinstance(error, RpcError):
            code, message = error.code, one_line(error.message)
        elif isinstance(error, KurmaError):
            code, message = code_of(error), text_of(error)
        elif isinstance(error, Cancelled):
            code, message = _CODES.CANCELLED, "the client cancelled the call"
        else:
            self._log.exception("%s: a mistake in kurma-cri", name, exc_info=error)
            code, message = _CODES.INTERNAL, f"a mistake in kurma-cri: {type(error).__name__}"
        self._log.info("%s: %s: %s", name, code.name, message)
        return code, message


def _unless_serialized(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """A serializer of answers, some of which are kept serialized."""
    return lambda answer: answer if isinstance(answer, bytes) else serialize(answer)


def _operation(context: Any) -> Cancellation:
    """The operation of a call: it is cancelled when the client is not interested in the call any more."""
    operation = Cancellation()
    if not context.add_callback(operation.cancel):
        operation.cancel()
    return operation
