"""One HTTP connection to the metadata service: reads requests, answers one at a time, never blocks."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from kurma_core.metadata.http import HttpError, RequestReader, Response

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from kurma_core.metadata.http import Request

#: Seconds for a whole request to arrive; for the next one to begin; for the client to read an answer; and after a
#: refusal, for discarding what the client still sends: closing at once would reset the connection before the
#: client has read the reason.
REQUEST_TIME, IDLE_TIME, ANSWER_TIME, FAREWELL_TIME = 10.0, 15.0, 20.0, 2.0
_READ_SIZE = 16384
_FAREWELL_SIZE = 1 << 20
#: MSG_NOSIGNAL: writing to a client that has gone is an error, and sends no SIGPIPE.
_NO_SIGNAL = 0x4000


class Connection:
    """One connection.

    :param answer: returns the answer to a request; other exceptions than :class:`HttpError` are answered by 500.
    :param now: seconds of the monotonic clock, here and in all methods.
    """

    def __init__(self, sock: socket.socket, answer: Callable[[Request], Response], now: float) -> None:
        self._socket = sock
        self._answer = answer
        self._reader = RequestReader()
        self._out: list[memoryview] = []
        self._ending = False
        self._used = False
        self._farewell = 0
        self.fd = sock.fileno()
        self.closed = False
        self.begun = now
        #: The client has sent the token, or is in the pod's network namespace.
        self.trusted = False
        self.deadline = now + REQUEST_TIME
        #: Events that the connection waits for, and events that epoll watches for.
        self.interest = self.watched = select.EPOLLIN

    @property
    def idle(self) -> bool:
        """Whether the connection is between two requests: one was answered, and no byte of the next has come."""
        return self._used and not (self._reader.started or self._out or self._ending)

    def advance(self, now: float) -> bool:
        """Does the work that is possible without blocking, up to one request.

        :returns: whether more work is possible already.
        """
        try:
            return self._advance(now)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.closed = True
            return False

    def _advance(self, now: float) -> bool:
        if self._out:
            self._flush(now)
            return self._reader.started and not (self._out or self._ending)
        if self._ending:
            data = self._socket.recv(_READ_SIZE)
            self._farewell += len(data)
            self.closed = not data or self._farewell > _FAREWELL_SIZE
            return False
        try:
            request = self._reader.next()
            if request is None:
                request = self._read(now)
        except HttpError as error:
            self._say(error.response(), now, keep_alive=False)
            return False
        if request is None:
            if self._reader.continue_wanted:
                self._reader.continue_wanted = False
                self._out.append(memoryview(b"HTTP/1.1 100 Continue\r\n\r\n"))
                self._flush(now, self.deadline)
            return False
        response = self._answered(request)
        self.trusted = self.trusted or response.status != 401
        self._say(response, now, keep_alive=request.keep_alive, body=request.method != b"HEAD")
        return self._reader.started and not (self._out or self._ending)

    def _read(self, now: float) -> Request | None:
        data = self._socket.recv(_READ_SIZE)
        if not data:
            self.closed = True
            return None
        idle = self.idle
        self._reader.feed(data)
        request = self._reader.next()
        if idle and self._reader.started:
            # Empty lines before a request do not start it, so they do not extend the deadline.
            self.deadline = now + REQUEST_TIME
        return request

    def _answered(self, request: Request) -> Response:
        try:
            return self._answer(request)
        except HttpError as error:
            return error.response()
        except Exception:  # noqa: BLE001 - a request, or a record on disk, must not end the service of all pods
            return HttpError(500, "the pod's records cannot be read").response()

    def _say(self, response: Response, now: float, *, keep_alive: bool, body: bool = True) -> None:
        self._ending = not keep_alive
        self._used = True
        head = response.head(keep_alive=keep_alive)
        # A small answer is sent in one piece; a large body is not copied, since connections share it.
        if len(response.body) <= _READ_SIZE:
            self._out.append(memoryview(head + response.body if body else head))
        else:
            self._out += [memoryview(head), memoryview(response.body)] if body else [memoryview(head)]
        self.deadline = now + ANSWER_TIME
        self._flush(now)

    def _flush(self, now: float, deadline: float | None = None) -> None:
        """Sends the queued bytes. :param deadline: the deadline afterwards; None: the one for the next request."""
        self.interest = select.EPOLLOUT
        while self._out:
            sent = self._socket.send(self._out[0], _NO_SIGNAL)
            self._out[0] = self._out[0][sent:]
            if not self._out[0]:
                del self._out[0]
        self.interest = select.EPOLLIN
        if self._ending:
            self._socket.shutdown(1)  # no further answer follows
            self.deadline = now + FAREWELL_TIME
        else:
            self.deadline = now + (REQUEST_TIME if self._reader.started else IDLE_TIME)
        if deadline is not None:
            self.deadline = deadline

    def expire(self, now: float) -> None:
        """Ends the connection at its deadline. An incomplete request is answered by 408."""
        if not self._reader.started or self._out or self._ending:
            self.closed = True
            return
        try:
            late = HttpError(408, f"the request did not come within {REQUEST_TIME:g} s")
            self._say(late.response(), now, keep_alive=False)
        except OSError:
            self.closed = True

    def close(self) -> None:
        """May be repeated."""
        self.closed = True
        self._socket.close()
