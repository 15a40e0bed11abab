"""Messages to a client while its operation is done: notes, progress, problems, questions for passphrases.

A client may read slowly, or not at all, and the operation goes on all the same: another caller may wait for what
it holds, such as a download. So messages are sent as far as the connection takes them at once. Notes wait for
that; progress does not. Only the end of the operation waits for the client.
"""

from __future__ import annotations

import base64
import contextlib
import contextvars
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kurma_core.api.wire import error_to_json
from kurma_core.cancellation import current as cancellation
from kurma_core.daemon.http.error_status import Gone
from kurma_core.errors import KurmaError, UsageError

if TYPE_CHECKING:
    import socket

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
        self.tell({"is": "problem", **error_to_json(error)})

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


#: Messages that wait for a reader.
_MOST = 1000
#: Words of which the next says the same, and more.
_PASSING = ("progress",)


class Messages:
    """Any thread may tell. Whoever has gone is told nothing, and nobody hears of that here.

    :param connected: where it goes. :param send: sends one message there, and raises Gone.
    """

    def __init__(self, connected: socket.socket, send: Callable[[Json], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: deque[Json] = deque()
        self._lost = 0
        self._gone = self._begun = False
        self._poll = select.poll()
        self._poll.register(connected, select.POLLOUT)

    @property
    def silent(self) -> bool:
        """Whether nothing was told yet: the answer may still be another one."""
        return not (self._begun or self._waiting)

    def tell(self, message: dict[str, Json]) -> None:
        """As much as goes at once."""
        with self._lock:
            if not (message["is"] in _PASSING and (self._waiting or not self._writable())):
                self._waiting.append(message)
            if len(self._waiting) > _MOST:
                self._waiting.popleft()
                self._lost += 1
            try:
                while self._waiting and self._writable():
                    self._begun = True
                    self._send(self._waiting.popleft())
            except Gone:
                self._gone = True

    def end(self, message: dict[str, Json]) -> None:
        """All the rest, and the last message. :raises Gone: nobody reads it."""
        with self._lock:
            if self._lost:
                self._waiting.appendleft({"is": "note", "text": f"{self._lost} notes were not read in time"})
            self._waiting.append(message)
            while self._waiting:
                self._send(self._waiting.popleft())

    def _writable(self) -> bool:
        """Whether there is room for some messages: a unix socket says so while a quarter of it is full at most."""
        return not self._gone and bool(self._poll.poll(0))
