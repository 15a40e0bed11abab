"""Messages to a client while its operation is done: notes, progress, problems, questions for passphrases.

A client may read slowly, or not at all. The operation must not wait for it, since another caller may wait for a
resource of the operation, such as a download. So messages are sent only as far as the connection accepts them at
once. Notes that do not fit are kept for later, progress is dropped. Only the end of the operation waits for the
client.
"""

from __future__ import annotations

import base64
import contextlib
import contextvars
import logging
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.api.wire import error_to_json
from kurma_core.cancellation import current as cancellation
from kurma_core.daemon.http.error_status import Gone
from kurma_core.errors import KurmaError, UsageError

if TYPE_CHECKING:
    import socket

    from kurma_core.api.operations import Progress

Json = Any
_LOG = logging.getLogger("kurmad")
#: Seconds between two messages about progress.
_INTERVAL = 0.1
#: The most attempts that a client may ask for.
_MOST_ATTEMPTS = 9


class Conversation:
    """Sends the client of a request the progress of the operation, and asks it for passphrases
    (:class:`kurma_core.trust.encryption.Passphrases`).

    :param tell: sends a message: ``{"is": "note", "text": …}``, ``{"is": "progress", …}``.
    :param headers: of the request of a client that reads messages during the operation; None: it does not.
    """

    def __init__(self, tell: Callable[[dict[str, Json]], None], headers: Mapping[str, str] | None = None) -> None:
        self.tell = tell
        self._hears = headers is not None
        self._attempts = attempts_of((headers or {}).get("kurma-passphrases"))

    def problem(self, error: KurmaError) -> None:
        """Sends an error that does not end the operation."""
        self.tell({"is": "problem", **error_to_json(error)})

    def progress(self) -> Progress | None:
        """Sends progress to the client; None: it does not read any."""
        return _Progress(self.tell) if self._hears else None

    @property
    def attempts(self) -> int:
        return max(1, self._attempts)

    def get(self, what: str, *, wrong: bool) -> bytes | None:
        """Asks the client for the passphrase of the archive called ``what``; None: it has none.

        :raises Cancelled: the client has disconnected.
        """
        if not self._attempts:
            return None
        question = _Question()
        try:
            self.tell({"is": "ask", "id": question.id, "what": what, "wrong": wrong})
            with cancellation().waking(question.answered.set):
                question.answered.wait()
            return question.answer
        finally:
            question.close()


class _Question:
    """A question that waits for its answer. Only the client that gets its id can answer it."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(16)
        self.answered = threading.Event()
        self.answer: bytes | None = None
        _QUESTIONS[self.id] = self

    def close(self) -> None:
        _QUESTIONS.pop(self.id, None)


_QUESTIONS: dict[str, _Question] = {}


def answer(ident: str, passphrase: str | None) -> None:
    """Answers a question.

    :param ident: the question's id. :param passphrase: base64; None: the client has none.
    :raises UsageError: no question of that id waits; or the passphrase is not base64.
    """
    try:
        found = None if passphrase is None else base64.b64decode(passphrase, validate=True)
    except ValueError:
        raise UsageError("the passphrase must be base64-encoded") from None
    question = _QUESTIONS.pop(ident, None)
    if question is None:
        raise UsageError("no operation waits for that answer", hint="the operation that asked has ended")
    question.answer = found
    question.answered.set()


def attempts_of(header: str | None) -> int:
    """How often the client can be asked for a passphrase, by its header ``Kurma-Passphrases``; 0: it cannot."""
    return min(int(header), _MOST_ATTEMPTS) if header and header.isascii() and header.isdigit() else 0


class _Progress:
    """Sends the progress of an operation, at most ten times a second."""

    def __init__(self, tell: Callable[[dict[str, Json]], None]) -> None:
        self._tell = tell
        self._what = self._kind = ""
        self._total: int | None = None
        self._done = self._skipped = 0
        self._sent_at = 0.0

    def start(self, what: str, total: int | None, kind: str = "bytes") -> None:
        self._what, self._total, self._kind, self._done, self._skipped = what, total, kind, 0, 0
        self._say()
        self._sent_at = 0.0  # send the next message at once, so that the client learns that data came

    def skip(self, count: int) -> None:
        self._done += count
        self._skipped += count

    def advance(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._sent_at >= _INTERVAL:
            self._say()

    def finish(self) -> None:
        self._say(finished=True)

    def _say(self, *, finished: bool = False) -> None:
        self._sent_at = time.monotonic()
        self._tell(
            {
                "is": "progress",
                "what": self._what,
                "total": self._total,
                "kind": self._kind,
                "done": self._done,
                "skipped": self._skipped,
                "finished": finished,
            }
        )


def unheard(message: dict[str, Json]) -> None:
    """Logs the notes of operations whose clients do not read notes: as warnings, whose repeats are held back."""
    if message["is"] == "note":
        _LOG.warning("%s", message["text"])


#: Outside of all requests.
_OF_KURMAD = Conversation(unheard)
_CURRENT: contextvars.ContextVar[Conversation] = contextvars.ContextVar("conversation", default=_OF_KURMAD)


def current() -> Conversation:
    """That of the request that this thread works for."""
    return _CURRENT.get()


def note(text: str) -> None:
    """Sends a note to the client for which this thread works, or to the log if there is no client."""
    current().tell({"is": "note", "text": text})


@contextlib.contextmanager
def conversing(conversation: Conversation) -> Iterator[None]:
    """Inside the ``with`` statement, this thread works for the client of that conversation."""
    token = _CURRENT.set(conversation)
    try:
        yield
    finally:
        _CURRENT.reset(token)


#: Messages that wait for a reader.
_MOST = 1000


class Messages:
    """Sends messages to a client as fast as it reads them. Any thread may use it. Ignores that the client has
    disconnected.

    :param connected: the connection.
    :param send: sends one message on it, or raises Gone.
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
        """Whether nothing was sent yet, so that the answer may still be of another kind."""
        return not (self._begun or self._waiting)

    def tell(self, message: dict[str, Json]) -> None:
        """Sends as much as the connection accepts at once; progress that it does not accept is dropped."""
        with self._lock:
            if not (message["is"] == "progress" and (self._waiting or not self._writable())):
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
        """Sends all waiting messages, and the last one. :raises Gone: the client has disconnected."""
        with self._lock:
            if self._lost:
                self._waiting.appendleft({"is": "note", "text": f"{self._lost} notes were not read in time"})
            self._waiting.append(message)
            while self._waiting:
                self._send(self._waiting.popleft())

    def _writable(self) -> bool:
        """Whether there is room for some messages: the kernel reports a unix socket as writable while at most a
        quarter of its buffer is used."""
        return not self._gone and bool(self._poll.poll(0))
