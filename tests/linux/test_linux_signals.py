"""Signals by name and number."""

import signal

import pytest

from kurma_core.linux.process import signal_number


@pytest.mark.parametrize("text", ["15", "TERM", "SIGTERM", "sigterm"])
def test_names_and_numbers(text):
    assert signal_number(text) == 15


def test_real_time_signals():
    assert signal_number("SIGRTMIN+3") == signal.SIGRTMIN + 3
    assert signal_number("RTMAX-1") == signal.SIGRTMAX - 1
    assert signal_number("RTMIN") == signal.SIGRTMIN


@pytest.mark.parametrize("text", ["", "0", "65", "-1", "SIG", "SIGNONE", "RTMIN-1", "RTMIN+99", "RTMIN+", "²"])
def test_no_signals(text):
    assert signal_number(text) is None
