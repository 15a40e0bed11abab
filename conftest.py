"""What every test of this checkout begins with."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Programs that the tests start hear signals, even where we were started to ignore them (``nohup``, or a
    script's ``&``). To catch one is enough: a program that is exec'd begins with its default.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
