"""Calls of drivers: errors name the plugin and the hook, answers are checked, interruptions pass."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import functools
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from kurma_testing import bound

from kurma_core.cancellation import Cancellation, current, governing
from kurma_core.daemon.process.log import Plain, about
from kurma_core.errors import (
    Cancelled,
    HostError,
    Interrupted,
    IsolatorError,
    KurmaError,
    PluginError,
    PluginSkipped,
)
from kurma_core.hookspecs import Hooks, hookimpl, hookspec
from kurma_core.plugins.calls import SlowCalls, Source
from kurma_core.signals import raise_signals
from tests.kit.waiting import until


class Part(Hooks):
    """The specification of an object that a driver returns."""

    pid: int

    @hookspec(required=True)
    def size(self) -> int: ...


class Kind(Hooks):
    @hookspec(required=True)
    def act(self, value: object) -> object: ...

    @hookspec(raises=(OSError,))
    def files(self) -> None: ...

    @hookspec
    def part(self, value: object) -> Part | None:
        return None

    @hookspec
    def number(self, value: object) -> int:
        return 0

    @hookspec
    def rate(self, value: object) -> float:
        return 0.0

    @hookspec
    def names(self, value: object) -> tuple[str, ...]:
        return ()

    @hookspec
    def pairs(self, value: object) -> tuple[tuple[str, int], ...]:
        return ()

    @hookspec
    def table(self, value: object) -> Mapping[str, Sequence[str] | None]:
        return {}


class Driver:
    """Does what its argument says."""

    @hookimpl
    def act(self, value):
        return value() if callable(value) else value

    @hookimpl
    def part(self, value):
        return value

    number = rate = names = pairs = table = part

    @hookimpl
    def files(self):
        raise FileNotFoundError(errno.ENOENT, "no such file")


@pytest.fixture
def driver():
    return bound(Kind, Driver(), "kurma.isolators", "wild")


def failing(error):
    def fail():
        raise error

    return fail


def recursing():
    return recursing()


class Root(BaseException):
    pass


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (failing(KeyError("pid")), "KeyError: 'pid'"),
        (failing(SystemExit(3)), "SystemExit: 3"),
        (failing(GeneratorExit()), "GeneratorExit"),
        (failing(asyncio.CancelledError()), "CancelledError"),
        (failing(Root("up")), "Root: up"),
        (failing(Mute()), "Mute"),
        (failing(ValueError("line\n" * 1000)), "ValueError: line line line"),
        (failing(FileNotFoundError(2, "no such file")), "FileNotFoundError: [Errno 2] no such file"),
        (recursing, "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_an_error_names_the_plugin_and_the_hook(driver, action, said):
    with pytest.raises(PluginError) as caught:
        driver.act(action)
    message = f"isolator plugin 'wild' of {__name__} failed in act: {said}"
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.data["plugin"] == "kurma.isolators/wild"
    assert caught.value.data["call"] == "act"
    assert "kurma --debug" in caught.value.hint
    assert caught.value.__cause__ is not None


def test_kurmad_logs_where_a_call_failed_and_for_which_request(caplog):
    """18."""
    source = Source("kurma.isolators", "wild", "dist 1.0", daemon=True)
    driver = source.bound((Kind,), Driver())
    with about(request="POST /v1/pods", by="process 1"), pytest.raises(PluginError) as caught:
        driver.act(lambda: {}["mtu"])
    assert caught.value.hint == "this is a mistake in the plugin; the log of kurmad shows where"
    (record,) = caplog.records
    with about(request="POST /v1/pods"):
        head, *trace = Plain(priorities=False).format(record).splitlines()
    assert head.endswith(
        "kurmad: error: isolator plugin 'wild' of dist 1.0 failed in act: KeyError: 'mtu'; request: POST /v1/pods"
    )
    assert trace[0] == "Traceback (most recent call last):"
    assert any("test_calls.py" in line for line in trace)


def test_an_error_in_the_plugins_own_words_stays(driver):
    error = IsolatorError("the value is wrong", hint="write 3")
    with pytest.raises(IsolatorError) as caught:
        driver.act(failing(error))
    assert caught.value is error
    assert error.data["call"] == "kurma.isolators/wild act"
    nested = PluginError("another one is broken", plugin="kurma.networks/x")
    with pytest.raises(PluginError):
        driver.act(failing(nested))
    assert nested.data["plugin"] == "kurma.networks/x", "the plugin that failed, not the one that called it"


def test_a_limit_of_the_host_is_told_as_such(driver):
    with pytest.raises(HostError, match="No space left on device") as caught:
        driver.act(failing(OSError(errno.ENOSPC, "No space left on device", "/")))
    assert caught.value.data["call"] == "act"
    assert "gc" in (caught.value.hint or "") or "room" in (caught.value.hint or "")


def test_an_exception_that_the_hook_declares_passes(driver):
    with pytest.raises(FileNotFoundError):
        driver.files()


def test_a_plugin_that_finds_out_late_that_it_cannot_work_here(driver):
    with pytest.raises(PluginError, match=r"'wild' of .* cannot work on this host: needs a moon$"):
        driver.act(failing(PluginSkipped("needs a moon")))


@pytest.mark.parametrize("error", [Cancelled(), Interrupted(15)])
def test_an_interruption_that_the_plugin_makes_is_its_failure(driver, error):
    """18."""
    with pytest.raises(PluginError, match=rf"'wild' of .* failed in act: {type(error).__name__}: "):
        driver.act(failing(error))


def test_a_keyboard_interrupt_that_no_key_made_is_the_plugins_failure(driver):
    """18: Ctrl-C is raised in the main thread alone, and there by the handler of kurma."""
    ask = functools.partial(driver.act, failing(KeyboardInterrupt()))
    with ThreadPoolExecutor(1) as pool, pytest.raises(PluginError, match=r"failed in act: KeyboardInterrupt$"):
        pool.submit(ask).result()
    with signals_raised(), pytest.raises(PluginError, match=r"failed in act: KeyboardInterrupt$"):
        ask()
    with pytest.raises(KeyboardInterrupt):
        ask()  # Python itself may have raised it


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Interrupted)], ids=str
)
def test_a_signal_while_a_plugin_runs_is_no_failure_of_the_plugin(driver, number, error):
    with signals_raised(), pytest.raises(error):
        driver.act(lambda: signal.raise_signal(number))


@pytest.mark.parametrize(
    "how", [lambda error: error, lambda error: Cancelled("because of it")], ids=["it", "another"]
)
def test_a_cancellation_that_the_plugin_raises_again_is_no_failure_of_the_plugin(driver, how):
    """18."""
    operation = Cancellation()
    operation.cancel()

    def act():
        try:
            current().check()
        except Cancelled as error:
            raise how(error) from error.__cause__

    with governing(operation), pytest.raises(Cancelled):
        driver.act(act)


@contextlib.contextmanager
def signals_raised():
    """Handles signals as the command line does."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.unraisablehook
    try:
        raise_signals()
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_hook_works_in_the_operation_of_its_caller(driver):
    operation = Cancellation()
    waits = threading.Event()

    def wait():
        with current().waking(waits.set):
            threading.Timer(0, operation.cancel).start()
            waits.wait()

    with governing(operation), pytest.raises(Cancelled):
        driver.act(wait)


@pytest.mark.parametrize(
    ("hook", "good", "bad"),
    [
        ("number", (0, 7), (True, None, "7", 7.0)),
        ("rate", (0, 1.5), (True, None, "1")),
        ("names", ((), ("a", "b")), (None, "ab", ["a"], ("a", 1), (b"a",), {"a": 1})),
        ("pairs", ((), (("a", 1),)), ((("a",),), (("a", "b"),), ("ab",), ((1, "a"),), None)),
        (
            "table",
            ({}, {"a": None}, {"a": ["x"]}, {"a": ("x",)}),
            ({1: None}, {"a": "x"}, {"a": [1]}, [("a", None)]),
        ),
    ],
)
def test_an_answer_of_another_type_is_the_plugins_fault(driver, hook, good, bad):
    ask = getattr(driver, hook)
    for value in good:
        assert ask(value) is value
    for value in bad:
        with pytest.raises(PluginError) as caught:
            ask(value)
        text = Kind.HOOKS[hook].answer.text
        assert (
            str(caught.value) == f"isolator plugin 'wild' of {__name__} answered {hook} with {value!r}, not {text}"
        )
        assert caught.value.data["plugin"] == "kurma.isolators/wild"


def test_an_answer_that_cannot_be_shown(driver):
    class Odd:
        def __repr__(self):
            raise RuntimeError

    with pytest.raises(PluginError, match="answered number with a Odd, not int"):
        driver.number(Odd())


# --- objects that a driver returns -----------------------------------------------------------------------------


class Good:
    pid = 1

    @hookimpl
    def size(self):
        raise KeyError("size")


def test_an_object_that_a_driver_returns_is_checked_and_its_errors_name_the_plugin(driver):
    part = driver.part(Good())
    assert part.pid == 1
    with pytest.raises(PluginError, match=r"^isolator plugin 'wild' of .* failed in size: KeyError"):
        part.size()
    assert driver.part(None) is None
    assert driver.part(part) is part


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"pid": 1}, "lacks size"),
        ({"size": Good.size}, "lacks pid"),
        ({"size": Good.size, "pid": "1"}, "X.pid is '1', not int"),
        ({"size": lambda self: 1, "pid": 1}, "its method size has the name of a hook"),
    ],
)
def test_a_wrong_object_is_the_fault_of_the_hook_that_returned_it(driver, members, said):
    with pytest.raises(
        PluginError, match=r"^isolator plugin 'wild' of .* failed in part: TypeError: its "
    ) as caught:
        driver.part(type("X", (), members)())
    assert said in str(caught.value)


def test_an_object_is_checked_once_for_each_class():
    kept = []
    source = Source("kurma.isolators", "wild", "kurma-wild 1.0", keep=lambda cls, kind, taken: kept.append(cls))
    driver = source.bound((Kind,), Driver())
    for _ in range(3):
        assert driver.part(Good()).pid == 1
    assert kept == [Driver, Good]


def test_many_threads_call_one_driver(driver):
    failed = []

    def work(number):
        answers = {(driver.act(number), driver.part(Good()).pid) for _ in range(200)}
        failed.extend(answers - {(number, 1)})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_the_error_of_a_call_is_an_error_of_kurma(driver):
    with pytest.raises(KurmaError):
        driver.act(failing(LookupError()))


def test_a_call_that_takes_long_is_noted_in_its_context_and_logged() -> None:
    noted: list[tuple[str, Cancellation]] = []
    logged: list[str] = []
    operation, over = Cancellation(), threading.Event()
    slow = SlowCalls(lambda text: noted.append((text, current())), logged.append, after=0.05)

    def call(answer: int) -> int:
        over.wait(20)
        return answer

    assert slow.watch("quick", lambda: 1) == 1
    with ThreadPoolExecutor(1) as pool, governing(operation):
        context = contextvars.copy_context()
        waits = pool.submit(context.run, slow.watch, "a plugin: add", call, 5)
        until(lambda: len(logged) > 1, "noted again")
        over.set()
        assert waits.result(20) == 5
    assert {text for text, _ in noted} == set(logged) == {"a plugin: add has taken 0 s"}
    assert {where for _, where in noted} == {operation}


def test_a_call_that_takes_long_does_not_wait_for_who_reads_the_note() -> None:
    def broken(text: str) -> None:
        told.set()
        raise BrokenPipeError

    told = threading.Event()
    assert SlowCalls(broken, after=0.05).watch("a plugin: add", told.wait, 20)


def test_the_watching_thread_runs_before_the_call() -> None:
    """Python 3.11 crashes if it ends while a thread begins, as after a short command."""
    before = set(sys._current_frames())
    during = SlowCalls(lambda text: None).watch("a plugin: add", lambda: set(sys._current_frames()))
    assert len(during - before) == 1
