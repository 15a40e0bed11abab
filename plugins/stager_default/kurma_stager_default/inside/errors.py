"""The error of a failed set-up of an app or a pod, and the line that reports an error."""

from __future__ import annotations

import os


class SetupError(Exception):
    """An app or the pod cannot be set up. The text names the step, the object and the reason."""


def complain(text: str) -> None:
    """Writes an error to standard error as one line. Characters that could control a terminal are escaped: names
    of programs and files come from the app.
    """
    line = text if text.isprintable() else repr(text)[1:-1]
    try:  # noqa: SIM105 - contextlib costs every pod's start
        os.write(2, f"{line}\n".encode())
    except OSError:
        pass  # standard error may be closed, or a file on a full disk; the exit status still reports the failure
