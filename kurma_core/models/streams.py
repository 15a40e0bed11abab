"""Standard streams of a call, and log lines that apps wrote."""

from __future__ import annotations

from _operator import itemgetter

from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class LogText(NamedTuple):
        """Output of an app on one stream at one time: whole lines, or a part of one. A named tuple is cheap; there
        are many.

        :param at: RFC 3339 with nanoseconds, as in the file.
        :param stream: ``stdout`` or ``stderr``.
        :param partial: the text is a part of a line, which goes on in the next text of that stream.
        :param text: the bytes; lines are separated by newlines, without a newline at the end.
        """

        app: str
        at: str
        stream: str
        partial: bool
        text: bytes

else:
    _OF_LOG_TEXT = ("app", "at", "stream", "partial", "text")

    class LogText(tuple):
        """The same as a ``typing.NamedTuple``; importing :mod:`typing` takes longer than this module."""

        __slots__ = ()
        app, at, stream, partial, text = (property(itemgetter(place)) for place in range(len(_OF_LOG_TEXT)))

        def __new__(cls, app, at, stream, partial, text):
            return tuple.__new__(cls, (app, at, stream, partial, text))

        def _replace(self, **changes):
            return type(self)(**{**dict(zip(_OF_LOG_TEXT, self, strict=True)), **changes})


@frozen
class Stdio:
    """Standard input, output and error, not closed by the callee.

    :param stdin: descriptor of standard input. :param stdout: of standard output. :param stderr: of standard
        error.
    :param terminal: ``stdin`` is a terminal.
    :param signals: a descriptor that delivers signal numbers, a byte each, for a call-in that the caller waits
        for. At end of file the call-in gets SIGTERM. -1: there is no such descriptor.
    :param relayed: the descriptors are pipes or a pseudo-terminal of Kurma's own, in raw mode, which a
        program inside a pod may get. Otherwise they are the caller's own, which no program of a pod may have.
    """

    stdin: int
    stdout: int
    stderr: int
    terminal: bool = False
    signals: int = -1
    relayed: bool = False
