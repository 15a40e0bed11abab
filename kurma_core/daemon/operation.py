"""What a thread of the daemon is doing for somebody, and how that is told what happens on the way."""

from __future__ import annotations

import base64
import contextlib
import contextvars
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kurma_core.cancellation import current as cancellation
from kurma_core.errors import KurmaError, UsageError

if TYPE_CHECKING:
    from kurma_core.progress import Progress
    from kurma_core.trust.encryption import Passphrases

Json = Any
#: Seconds between two lines that say how far something is.
_INTERVAL = 0.1
#: How often a client that asks people for passphrases may say that it does.
_MOST_ATTEMPTS = 9


class Operation:
    """One request's work.

    :param tell: gets a message for whoever asked: ``{"is": "note", "text": …}``, ``{"is": "progress", …}``.
    :param attempts: how often it is worth to ask them for a passphrase; 0: they know none.
    :param hears_progress: whether anybody wants to know how far it is.
    """

    def __init__(
        self, tell: Callable[[dict[str, Json]], None], *, attempts: int = 0, hears_progress: bool = False
    ) -> None:
        self.tell = tell
        self.attempts = attempts
        self._hears_progress = hears_progress

    def note(self, text: str) -> None:
        self.tell({"is": "note", "text": text})

    def problem(self, error: KurmaError) -> None:
        """Something is wrong that does not end the operation."""
        from kurma_core.daemon.failures import error_json

        self.tell({"is": "problem", **error_json(error)})

    def progress(self) -> Progress | None:
        """What tells them how far it is; None: they do not listen."""
        return _Progress(self.tell) if self._hears_progress else None

    def ask(self, what: str, *, wrong: bool) -> bytes | None:
        """The passphrase of the archive called ``what``; None: they have none.

        :raises Cancelled: they have gone.
        """
        question = _Question()
        try:
            self.tell({"is": "ask", "id": question.id, "what": what, "wrong": wrong})
            with cancellation().waking(question.answered.set):
                question.answered.wait()
            return question.answer
        finally:
            question.close()


class _Question:
    """One that waits for its answer. It is known by what nobody can guess but who was asked."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(16)
        self.answered = threading.Event()
        self.answer: bytes | None = None
        _QUESTIONS[self.id] = self

    def close(self) -> None:
        _QUESTIONS.pop(self.id, None)


_QUESTIONS: dict[str, _Question] = {}


def answer(ident: str, passphrase: str | None) -> None:
    """:param passphrase: as base64; None: there is none.

    :raises UsageError: nothing of that id was asked, or it was answered; or that is no base64.
    """
    try:
        found = None if passphrase is None else base64.b64decode(passphrase, validate=True)
    except ValueError:
        raise UsageError("a passphrase is said in base64") from None
    question = _QUESTIONS.pop(ident, None)
    if question is None:
        raise UsageError("nobody waits for that answer", hint="the operation that asked has ended")
    question.answer = found
    question.answered.set()


def attempts_of(header: str | None) -> int:
    """What ``Kurma-Passphrases`` says."""
    return min(int(header), _MOST_ATTEMPTS) if header and header.isascii() and header.isdigit() else 0


class _Progress:
    """Says how far it is as often as people can see, and no oftener."""

    def __init__(self, tell: Callable[[dict[str, Json]], None]) -> None:
        self._tell = tell
        self._what = ""
        self._total: int | None = None
        self._done = self._skipped = 0
        self._told = 0.0

    def start(self, what: str, total: int | None) -> None:
        self._what, self._total, self._done, self._skipped = what, total, 0, 0
        self._say()

    def skip(self, count: int) -> None:
        self._done += count
        self._skipped += count

    def advance(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._told >= _INTERVAL:
            self._say()

    def finish(self) -> None:
        self._say(finished=True)

    def _say(self, *, finished: bool = False) -> None:
        self._told = time.monotonic()
        self._tell(
            {
                "is": "progress",
                "what": self._what,
                "total": self._total,
                "done": self._done,
                "skipped": self._skipped,
                "finished": finished,
            }
        )


_current: contextvars.ContextVar[Operation | None] = contextvars.ContextVar("operation", default=None)
_NOBODYS = Operation(lambda message: None)


def current() -> Operation:
    """The one that this thread works for; one that nobody hears, where it works for nobody."""
    return _current.get() or _NOBODYS


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


class _Asked:
    """The passphrases of who asked for the work of this thread."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self.attempts = max(1, operation.attempts)

    def get(self, what: str, *, wrong: bool) -> bytes | None:
        return self._operation.ask(what, wrong=wrong) if self._operation.attempts else None


def asking() -> Passphrases:
    """What the daemon's client has for ``Settings.passphrases``: they are asked for, and kept nowhere."""
    return _Asked(current())


__all__ = ["Operation", "answer", "asking", "attempts_of", "current", "noting", "working"]
