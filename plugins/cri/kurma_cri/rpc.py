"""Calls of the Container Runtime Interface: cancellation, status codes of errors, and the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import (
    AmbiguousReferenceError,
    AppNotFoundError,
    BusyError,
    Cancelled,
    CommandNotExecutableError,
    CommandNotFoundError,
    ConfigError,
    ImageNotFoundError,
    IsolatorError,
    KurmaError,
    ManifestError,
    PodExistsError,
    PodNotFoundError,
    PodStateError,
    PrivilegeError,
    UsageError,
    VolumeError,
)

Code = Any
_CODES = grpc.StatusCode
#: The first class that fits an error decides on its code; else it is INTERNAL.
_OF_ERRORS: tuple[tuple[type[KurmaError], Code], ...] = (
    (PodNotFoundError, _CODES.NOT_FOUND),
    (AppNotFoundError, _CODES.NOT_FOUND),
    (ImageNotFoundError, _CODES.NOT_FOUND),
    (PodExistsError, _CODES.ALREADY_EXISTS),
    (PodStateError, _CODES.FAILED_PRECONDITION),
    (BusyError, _CODES.UNAVAILABLE),
    (PrivilegeError, _CODES.PERMISSION_DENIED),
    (UsageError, _CODES.INVALID_ARGUMENT),
    (AmbiguousReferenceError, _CODES.INVALID_ARGUMENT),
    (ConfigError, _CODES.INVALID_ARGUMENT),
    (ManifestError, _CODES.INVALID_ARGUMENT),
    (VolumeError, _CODES.INVALID_ARGUMENT),
    (IsolatorError, _CODES.INVALID_ARGUMENT),
    (CommandNotFoundError, _CODES.INTERNAL),
    (CommandNotExecutableError, _CODES.INTERNAL),
)


class RpcError(Exception):
    """Ends a call with a status code.

    :param code: one of ``grpc.StatusCode``. :param message: one line; kubelet writes it into the pod's events.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def is_not_found(error: RpcError) -> bool:
    return bool(error.code == _CODES.NOT_FOUND)


def invalid(message: str) -> RpcError:
    """The caller's request is wrong, or asks for what this runtime does not do."""
    return RpcError(_CODES.INVALID_ARGUMENT, message)


def not_found(message: str) -> RpcError:
    return RpcError(_CODES.NOT_FOUND, message)


def failed_precondition(message: str) -> RpcError:
    return RpcError(_CODES.FAILED_PRECONDITION, message)


def deadline_exceeded(message: str) -> RpcError:
    return RpcError(_CODES.DEADLINE_EXCEEDED, message)


def unavailable(message: str) -> RpcError:
    """The caller should try again."""
    return RpcError(_CODES.UNAVAILABLE, message)


def already_exists(message: str) -> RpcError:
    return RpcError(_CODES.ALREADY_EXISTS, message)


def code_of(error: KurmaError) -> Code:
    """The status code of an error of Kurma's."""
    return next((code for kind, code in _OF_ERRORS if isinstance(error, kind)), _CODES.INTERNAL)


def text_of(error: KurmaError) -> str:
    """The error on one line, with its hint."""
    text = f"{error.message} ({error.hint})" if error.hint else error.message
    return " ".join(text.split())


class Interceptor(grpc.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Runs each call as an operation that ends with the client's interest in it, and answers errors by codes.

    :param log: gets a line for each call that failed, and, at level debug, for each call.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        name = details.method.rpartition("/")[2]
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._streaming(name, handler.unary_stream),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._calling(name, handler.unary_unary), handler.request_deserializer, handler.response_serializer
        )

    def _calling(self, name: str, behaviour: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def call(request: Any, context: Any) -> Any:
            operation = Cancellation()
            if not context.add_callback(operation.cancel):
                operation.cancel()
            code, message = _CODES.OK, ""
            try:
                with governing(operation):
                    return behaviour(request, context)
            except BaseException as error:  # noqa: BLE001 (each becomes a code)
                code, message = self._status(name, error)
            context.abort(code, message)

        return call

    def _streaming(self, name: str, behaviour: Callable[[Any, Any], Iterator[Any]]) -> Callable[[Any, Any], Any]:
        def call(request: Any, context: Any) -> Iterator[Any]:
            operation = Cancellation()
            if not context.add_callback(operation.cancel):
                operation.cancel()
            code, message = _CODES.OK, ""
            try:
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
            code, message = error.code, error.message
        elif isinstance(error, KurmaError):
            code, message = code_of(error), text_of(error)
        elif isinstance(error, Cancelled):
            code, message = _CODES.CANCELLED, "the client cancelled the call"
        else:
            self._log.exception("%s: a mistake in kurma-cri", name, exc_info=error)
            code, message = _CODES.INTERNAL, f"a mistake in kurma-cri: {type(error).__name__}"
        self._log.info("%s: %s: %s", name, code.name, message)
        return code, message
