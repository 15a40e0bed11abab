"""The contract suite for services (:class:`kurma_core.hookspecs.service.ServiceHooks`), to be subclassed::

@pytest.mark.kurma_driver(my_module)
class TestMyService(ServiceContract):
    @pytest.fixture
    def options(self, tmp_path):
        return {"socket": f"{tmp_path}/socket"}
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kurma_core.api.host import Event
from kurma_core.api.operations import Api, Operation, Transport
from kurma_core.cancellation import Cancellation, current, governing
from kurma_core.errors import BusyError, Cancelled, UsageError
from kurma_core.hookspecs.service import ServiceHooks, ServiceHost
from kurma_testing.contract import HOSTILE, DriverContract, nothing_left_open


class Answers(Transport):
    """A client's transport without a kurmad.

    :param answers: by an operation's name; an answer that can be called gets the arguments by name. Without one,
        events wait until the operation is cancelled, ``pods`` and ``listing`` are empty, and others are refused.
    """

    def __init__(self, answers: Mapping[str, Any] | None = None) -> None:
        self.answers = {"pods": [], "listing": [], "events": _no_events, **(answers or {})}
        #: The names of the operations that were called.
        self.called: list[str] = []

    def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        self.called.append(operation.name)
        if operation.name not in self.answers:
            raise UsageError(f"{operation.name} has no answer here")
        answer = self.answers[operation.name]
        return answer(**arguments) if callable(answer) else answer


def _no_events(follow: bool, **_: Any) -> Iterator[Any]:
    if follow:
        gate = threading.Event()
        with current().waking(gate.set):
            gate.wait()
    yield from ()


class Serving:
    """A service that serves in a thread of its own, as in kurmad; for a ``with`` statement, which ends it.

    :param answers: of its client: see :class:`Answers`.
    """

    def __init__(
        self, driver: ServiceHooks, answers: Mapping[str, Any] | None = None, patience: float = 5.0
    ) -> None:
        self._driver = driver
        self._patience = patience
        self._operation = Cancellation()
        self._thread = threading.Thread(target=self._run, name="service", daemon=True)
        self.ready = threading.Event()
        self.transport = Answers(answers)
        #: The exception with which it has ended; None: it runs, or it has returned.
        self.error: BaseException | None = None

    def __enter__(self) -> Serving:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.end(), "it does not end when it is cancelled"

    def _run(self) -> None:
        host = ServiceHost(Api(self.transport), logging.getLogger("service"), self.ready.set)
        with governing(self._operation):
            try:
                self._driver.serve(host)
            except BaseException as error:  # noqa: BLE001 (the test looks at it)
                self.error = error

    def alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> bool:
        """Waits until it ends by itself. :returns: whether it has ended within the time of the suite."""
        self._thread.join(self._patience)
        return not self._thread.is_alive()

    def end(self) -> bool:
        """Cancels it. :returns: as :meth:`wait`."""
        self._operation.cancel()
        return self.wait()


class ServiceContract(DriverContract):
    """Subclasses have the mark ``kurma_driver``, and options with which the service can work."""

    #: Most seconds until the service is ready, and until it has ended.
    patience = 5.0
    #: The answers of the operations that it uses: see :class:`Answers`.
    answers: Mapping[str, Any] = {}
    #: A configuration for ``reload``, if the service has that hook.
    config: Mapping[str, Any] = {}

    def serving(self, driver: ServiceHooks, answers: Mapping[str, Any] | None = None) -> Serving:
        return Serving(driver, self.answers if answers is None else answers, self.patience)

    def wait_ready(self, serving: Serving) -> None:
        assert serving.ready.wait(self.patience), f"it does not call ready(): {serving.error}"

    # -- the contract --

    def test_it_serves_until_it_is_cancelled(self, driver: ServiceHooks) -> None:
        with self.serving(driver) as serving:
            self.wait_ready(serving)
            time.sleep(0.2)  # not for a state: it has the time to end by mistake
            assert serving.alive(), serving.error
            assert serving.end(), f"it has not ended within {self.patience} seconds"
            assert serving.error is None or isinstance(serving.error, Cancelled), serving.error

    def test_it_can_be_cancelled_at_once(self, driver: ServiceHooks) -> None:
        with self.serving(driver):
            pass

    def test_it_can_serve_again(self, driver: ServiceHooks) -> None:
        for _ in range(2):
            with self.serving(driver) as serving:
                self.wait_ready(serving)

    def test_hostile_text_of_events_does_not_end_it(self, driver: ServiceHooks) -> None:
        """Names and reasons come from users, images and apps."""
        read = threading.Event()

        def events(follow: bool = False, **_: Any) -> Iterator[Event]:
            if follow:
                for number, text in enumerate(HOSTILE, 1):
                    yield Event(number, "2024-02-29T12:00:00Z", "pod", text, text, text, {text: [text]})
                read.set()
                yield from _no_events(follow)

        with self.serving(driver, {**self.answers, "events": events}) as serving:
            self.wait_ready(serving)
            while not read.wait(self.patience):
                if "events" not in serving.transport.called:
                    pytest.skip("it does not read events")
                assert serving.alive(), serving.error
            assert serving.end()
            assert serving.error is None or isinstance(serving.error, Cancelled), serving.error

    def test_it_ends_when_kurmad_cannot_do_what_it_asks(self, driver: ServiceHooks) -> None:
        """With an error or without one; it may also go on."""

        def refuse(**_: Any) -> Any:
            raise BusyError("too many requests")

        with self.serving(driver, dict.fromkeys((*self.answers, "pods", "listing", "events"), refuse)):
            pass

    def test_it_reloads(self, driver: ServiceHooks) -> None:
        with self.serving(driver) as serving:
            self.wait_ready(serving)
            driver.reload(dict(self.config))

    def test_it_keeps_nothing_open(self, driver: ServiceHooks) -> None:
        """kurmad starts it again for years."""
        with self.serving(driver) as serving:  # the first time may import modules
            self.wait_ready(serving)
        with nothing_left_open():
            for _ in range(3):
                with self.serving(driver) as serving:
                    self.wait_ready(serving)
