"""Lines on a terminal that are drawn anew in their place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

# ECMA-48: up so many lines, to the beginning; erase to the end of the line; erase all below.
_UP, _REST_OF_LINE, _REST = "\x1b[{}F", "\x1b[K", "\x1b[J"


class Screen:
    """What stands there at last stays. As many lines are shown as fit, each as far as it fits."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._drawn = 0

    @classmethod
    def of(cls, out: TextIO) -> Screen | None:
        """None: it is no terminal, or one that cannot do that."""
        return cls(out) if out.isatty() and os.environ.get("TERM") not in (None, "", "dumb") else None

    def show(self, lines: Iterable[str]) -> None:
        width, height = os.get_terminal_size(self._out.fileno())
        found = list(lines)
        # The cursor stands below them. A terminal that says no size has none that matters.
        room = height - 1 if height > 1 else len(found)
        if len(found) > room:
            found[room - 1 :] = [f"… and {len(found) - room + 1} more"]
        up = _UP.format(self._drawn) if self._drawn else ""
        cut = [line[: width - 1] if width > 1 else line for line in found]
        self._out.write(up + "".join(f"{line}{_REST_OF_LINE}\n" for line in cut) + _REST)
        self._out.flush()
        self._drawn = len(cut)

    def leave(self) -> None:
        """Nothing more is drawn here; the line where the cursor is may have got a ^C."""
        import sys

        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            self._out.write("\n")
            self._out.flush()
