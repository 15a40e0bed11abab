"""What a thread of the daemon is doing for somebody, and how that is told what happens on the way."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

Json = Any


class Operation:
    """One request's work.

    :param tell: gets a message for whoever asked: ``{"is": "note", "text": …}``, ``{"is": "progress", …}``.
    """

    def __init__(self, tell: Callable[[dict[str, Json]], None]) -> None:
        self._tell = tell

    def note(self, text: str) -> None:
        self._tell({"is": "note", "text": text})


_current: contextvars.ContextVar[Operation | None] = contextvars.ContextVar("operation", default=None)


@contextlib.contextmanager
def working(operation: Operation) -> Iterator[None]:
    """This thread works for that operation, for as long as the block lasts."""
    token = _current.set(operation)
    try:
        yield
    finally:
        _current.reset(token)


def noting(otherwise: Callable[[str], None]) -> Callable[[str], None]:
    """Where notes go: to who asked for the work of the thread that notes.

    :param otherwise: gets those of threads that work for nobody.
    """

    def note(text: str) -> None:
        operation = _current.get()
        if operation is None:
            otherwise(text)
        else:
            operation.note(text)

    return note


__all__ = ["Operation", "noting", "working"]
