"""Standard streams: those of a call, and what apps wrote to theirs."""

from __future__ import annotations

from _operator import itemgetter

from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class LogText(NamedTuple):
        """What an app wrote to one stream at one moment: whole lines, or a part of one. A named tuple,
        for there are many.

        :param at: RFC 3339 with nanoseconds, as in the file.
        :param stream: ``stdout`` or ``stderr``.
        :param partial: one line, which goes on in the next text of that stream.
        :param text: the bytes; newlines stand between lines, and none behind the last.
        """

        app: str
        at: str
        stream: str
        partial: bool
        text: bytes

else:
    _OF_LOG_TEXT = ("app", "at", "stream", "partial", "text")

    class LogText(tuple):
        """As :mod:`typing` would make it, which takes longer to import than all of this."""

        __slots__ = ()
        app, at, stream, partial, text = (property(itemgetter(place)) for place in range(len(_OF_LOG_TEXT)))

        def __new__(cls, app, at, stream, partial, text):
            return tuple.__new__(cls, (app, at, stream, partial, text))

        def _replace(self, **changes):
            return type(self)(**{**dict(zip(_OF_LOG_TEXT, self, strict=True)), **changes})


@frozen
class Stdio:
    """Standard input, output and error, not closed by the callee.

    :param terminal: ``stdin`` is a terminal.
    :param signals: a descriptor from which numbers of signals come, a byte each, for a call-in that is waited for.
        At its end the call-in is asked to end, by SIGTERM. -1: there is none.
    :param relayed: these are pipes or a pseudo-terminal of Kurma's own, in raw mode, and fit to be given to a
        program inside a pod. Else they are the caller's own, which no program of a pod may have.
    """

    stdin: int
    stdout: int
    stderr: int
    terminal: bool = False
    signals: int = -1
    relayed: bool = False
