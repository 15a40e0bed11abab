"""Signals, as bytes on a descriptor."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os

#: Whoever sends one of these wants the call-in to end.
ENDING = (_signal.SIGTERM, _signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT)
#: What a call-in looks at.
WATCHED = (*ENDING, _signal.SIGCHLD, _signal.SIGWINCH, _signal.SIGCONT)


def catch(numbers: tuple[int, ...] = WATCHED) -> int:
    """A descriptor that becomes readable, one byte per signal, with their numbers."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in numbers:
        _signal.signal(number, _nothing)
    return read


def _nothing(_number: int, _frame: object) -> None:
    """Python calls it after it has written to the descriptor, which is all that is wanted."""
