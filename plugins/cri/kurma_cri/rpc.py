"""Errors of calls of the Container Runtime Interface: status codes and messages."""

from __future__ import annotations

from typing import Any

import grpc

from kurma_core.errors import (
    AmbiguousReferenceError,
    AppNotFoundError,
    BusyError,
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
#: Most characters of a message, and of one that is not ASCII: grpc sends it as a header of at most 8 KiB, in which
#: a character takes up to 12 bytes.
_LONGEST, _LONGEST_ENCODED = 2000, 600


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


def one_line(text: str) -> str:
    """A message that grpc can send: on one line, and not too long for a header."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    most = _LONGEST if line.isascii() else _LONGEST_ENCODED
    return line if len(line) <= most else f"{line[: most - 3]}..."


def text_of(error: KurmaError) -> str:
    """The error on one line, with its hint."""
    text = f"{error.message} ({error.hint})" if error.hint else error.message
    return one_line(text)
