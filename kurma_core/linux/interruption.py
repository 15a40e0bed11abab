"""Signals that are raised as exceptions, and the moments in which they must not be.

Nothing is imported here but what is built into Python: all of it may run in the middle of an import.
"""

from __future__ import annotations

import _thread
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

#: Seconds until a signal comes again.
_LATER = 0.001
#: Python's import system: what is raised in some of its steps leaves its locks held, for ever, and every other
#: thread that imports waits for them (CPython, ``importlib._bootstrap._get_module_lock``).
_IMPORTING = "<frozen importlib._bootstrap>"


def comes_again(number: int, frame: FrameType | None) -> bool:
    """Whether a signal interrupted what must not be, and has been put off: then nothing is to be raised now.

    :param frame: what was interrupted, as the signal's handler is told.
    """
    if frame is None or frame.f_code.co_filename != _IMPORTING:
        return False
    send_again(number)
    return True


def send_again(number: int) -> None:
    """The signal comes to this process again, a moment later: at once would be in the same place still."""

    def again() -> None:
        time.sleep(_LATER)
        os.kill(os.getpid(), number)

    _thread.start_new_thread(again, ())
