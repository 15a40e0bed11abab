"""Standard input, output and error of a call."""

from __future__ import annotations

from kurma_core.value import frozen


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
