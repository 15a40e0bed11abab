"""Log text: what an app wrote to one stream at one moment."""

from __future__ import annotations

from _operator import itemgetter

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
