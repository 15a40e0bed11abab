"""Shared parts of all contract suites: tests of options, the texts and values that a stranger may send,
and checks of errors, of cancellation, and of what stays open."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled, ConfigError, KurmaError, PluginError, PluginSkipped

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import Driver

#: ``make_driver(**OPTIONS)`` makes a driver as a new process does: each has the same state directory.
MakeDriver = Callable[..., Any]

#: Texts that reach a plugin in the place of a name, an address or a value.
HOSTILE = (
    *("", " ", "\0", "a\0b", "a\nb", "\r\n", "\x1b[31mred", "\x7f", "\x9b1m", "\u202eabc", "\ud800", "\udcff"),
    *("..", "../../../../etc/passwd", "/", "-rf", "--help", "$(id)", "`id`", "%s%n{0}", "a" * 300, "é" * 100_000),
    *("0", "-1", "9" * 400, "1e999", "NaN", "true", "null", "[]", "{}"),
)
#: Values that reach it in the place of any other.
STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 80, 1e300, float("nan"), [], [None], {}, {"": {}}, [[[[]]]], *HOSTILE),
)

_PATIENCE = 5.0


def check_refusal(error: KurmaError, given: str = "") -> None:
    """Checks an error: it is the plugin's own, and one line.

    :param given: the text that was refused. A message may repeat it: the core escapes control characters where it
        prints.
    :raises AssertionError: it is none such.
    """
    assert not isinstance(error, PluginError), f"the plugin failed instead of refusing: {error.message}"
    assert error.message, "an error says what failed, on what, and why"
    odd = {character for character in error.message if ord(character) < 32 or 127 <= ord(character) < 160}
    assert odd <= set(given), f"the message has the characters {sorted(odd)}: {error.message!r}"


@contextmanager
def refusing(*kinds: type[KurmaError], given: object = "") -> Iterator[None]:
    """A block that works, or is refused by one of these errors (:func:`check_refusal`)."""
    try:
        yield
    except kinds as error:
        check_refusal(error, given if isinstance(given, str) else "")


@contextmanager
def cancelled() -> Iterator[None]:
    """A block that works for an operation that was cancelled: it ends as ever, or by :class:`Cancelled`."""
    operation = Cancellation()
    operation.cancel()
    with governing(operation):
        with suppress(Cancelled):
            yield


class _CancelledAt(Cancellation):
    """An operation that is cancelled when code looks at it for the ``looks``-th time, counted from 0.

    :param during: if that look begins a wait, it is cancelled while the code waits, from another thread.
    """

    __slots__ = ("_during", "_left")

    def __init__(self, looks: int, during: bool) -> None:
        super().__init__()
        self._left = looks
        self._during = during

    def check(self) -> None:
        self._look(self.cancel)
        super().check()

    def waking(self, wake: Callable[[], object]) -> Any:
        self._look(threading.Timer(0.01, self.cancel).start if self._during else self.cancel)
        return super().waking(wake)

    def _look(self, at_last: Callable[[], object]) -> None:
        if self._left == 0:
            at_last()
        self._left -= 1


def cancelled_midway(call: Callable[[], object], then: Callable[[], object] = lambda: None) -> None:
    """Calls a hook that may wait for an operation that is cancelled when the hook first looks at it, then at its
    second look, its fourth, and so on until a call ends before; each before a wait, and during it.

    :param then: called after each: undoes it, and checks what is left.
    """
    for during in (False, True):
        looks = 0
        while True:
            operation = _CancelledAt(looks, during)
            with governing(operation), suppress(Cancelled):
                call()
            then()
            if not operation.cancelled:
                break
            looks = looks * 2 or 1


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """A block after which this process has as many descriptors and threads as before, at the latest after some
    seconds: a server of the test may run in this process, too.

    :raises AssertionError: it has more.
    """
    before = _open()
    yield
    deadline = time.monotonic() + _PATIENCE
    while True:
        after = _open()
        if after[0] <= before[0] and after[1] <= before[1]:
            return
        assert time.monotonic() < deadline, f"descriptors and threads: {before} before, {after} after"
        time.sleep(0.01)


def _open() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


class DriverContract:
    """Base of all suites. Their fixtures ``options``, ``make_driver``, ``driver`` and ``declaration`` are those of
    the distribution ``kurma-testing``, by the mark ``kurma_driver``; a subclass may define its own ``driver``."""

    # -- the contract of all kinds --

    def test_options_are_described(self, declaration: Driver) -> None:
        for option in declaration.options:
            assert option.help.strip(), f"option {option.name} has no help"
            assert "\n" not in option.help, f"the help of option {option.name} is one line"
            assert option.name == option.name.strip(), option.name

    def test_defaults_are_allowed(
        self, declaration: Driver, make_driver: MakeDriver, options: Mapping[str, Any]
    ) -> None:
        """As an administrator would write them."""
        make_driver(**{one.name: one.default for one in declaration.options if one.name not in options})

    def test_an_unknown_option_is_refused(self, declaration: Driver, make_driver: MakeDriver) -> None:
        with pytest.raises(ConfigError):
            make_driver(**{"no-such-option": 1})

    def test_wrong_options_are_refused(
        self, declaration: Driver, make_driver: MakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A value works, or is refused by a ConfigError or PluginSkipped, whatever it is."""
        monkeypatch.chdir(tmp_path)  # for options that are paths
        for option in declaration.options:
            for value in STRANGE:
                try:
                    with refusing(ConfigError, given=value):
                        make_driver(**{option.name: value})
                except PluginSkipped:
                    continue

    def test_making_a_driver_keeps_nothing_open(self, declaration: Driver, make_driver: MakeDriver) -> None:
        """A process makes one anew when its configuration is read again."""
        make_driver()
        with nothing_left_open():
            make_driver()
