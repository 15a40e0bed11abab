"""Tokens of the streaming server: each permits one request, once, within a minute."""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_cri.streaming.requests import Request

#: Seconds that a token is valid, and the most tokens that are valid at a time.
LIFETIME, MOST = 60.0, 1000


class TooManyTokensError(KurmaError):
    """As many tokens are open as there may be."""


class Tokens:
    """:param clock: in seconds; never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: The oldest first.
        self._open: dict[str, tuple[float, Request]] = {}

    def make(self, request: Request) -> str:
        """:returns: a new token for the request. :raises TooManyTokensError: there are too many."""
        with self._lock:
            self._drop_old()
            if len(self._open) >= MOST:
                raise TooManyTokensError(
                    f"{MOST} requests for streams were not used yet", hint=f"each expires after {LIFETIME:g} s"
                )
            token = secrets.token_urlsafe(24)
            self._open[token] = self._clock() + LIFETIME, request
            return token

    def take(self, kind: str, token: str) -> Request | None:
        """The token's request. It cannot be used again. :returns: None: there is no such token of that kind."""
        with self._lock:
            self._drop_old()
            _, request = self._open.get(token, (0.0, None))
            if request is None or kind != request.KIND:
                return None
            del self._open[token]
            return request

    def _drop_old(self) -> None:
        now = self._clock()
        for token, (end, _) in list(self._open.items()):
            if end > now:
                break
            del self._open[token]
