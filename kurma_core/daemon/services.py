"""Runs the services (``kurma.services``) that the configuration enables, each in a thread of its own.

A service that fails is started again after a pause, which grows. A changed configuration is passed to the service;
if it does not take it, the service is stopped and started with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.api.host import ServiceInfo
from kurma_core.cancellation import Cancellation, governing
from kurma_core.daemon.process.log import SERVICE, about
from kurma_core.daemon.process.threads import begin, pause_after
from kurma_core.errors import Cancelled, KurmaError, PluginError
from kurma_core.hookspecs.service import ServiceHooks, ServiceHost

if TYPE_CHECKING:
    from kurma_core.api.operations import Api
    from kurma_core.client.local.managers import Managers

Json = Any
GROUP = "kurma.services"
_LOG = logging.getLogger("kurmad")
#: Seconds that a required service has until it is ready, before kurmad gives up its start.
_STARTING = 30.0
#: Seconds that a service has to end once it is cancelled.
_STOPPING = 10.0
#: Seconds of work after which earlier failures no longer lengthen the pause.
_HEALTHY = 60.0


class Services:
    """:param client: does the operations of services.
    :param recovered: set once services may start.
    :param start_timeout: of a required service, in seconds. :param stop_timeout: of each service.
    :param pause: seconds until a service that has failed is started again, by the number of failures before.
    """

    def __init__(
        self,
        client: Api,
        recovered: threading.Event,
        *,
        start_timeout: float = _STARTING,
        stop_timeout: float = _STOPPING,
        pause: Callable[[int], float] = pause_after,
    ) -> None:
        self._client = client
        self._recovered = recovered
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._pause = pause
        self._services: dict[str, _Service] = {}
        #: Notified of each change.
        self._lock = threading.Condition()
        #: Managers whose services are to run, while a thread is starting them.
        self._wanted: Managers | None = None
        self._closed = False

    def use(self, managers: Managers) -> None:
        """Starts, reloads and stops services until those of that configuration run. Does so in the background, in
        a thread of its own: services may be slow to import and to stop. Before :meth:`close` only.

        :raises BusyError: no thread can be started.
        """
        enabled = _enabled(managers)
        with self._lock:
            if not enabled and not self._services:
                return
            running, self._wanted = self._wanted is not None, managers
            for name, required in enabled.items():
                self._known(name).required |= required
        if not running:
            begin(threading.Thread(target=self._apply, name="services", daemon=True))

    def _known(self, name: str) -> _Service:
        return self._services.setdefault(name, _Service(name, self._client, self._pause, self._changed))

    def _changed(self) -> None:
        with self._lock:
            self._lock.notify_all()

    def _apply(self) -> None:
        self._recovered.wait()
        managers: Managers | None = None
        while True:
            with self._lock:
                if self._closed or self._wanted is managers:
                    self._wanted = None
                    return
                managers = self._wanted
            if managers is not None:
                try:
                    self._change(managers)
                except Exception:  # noqa: BLE001 (kurmad goes on)
                    _LOG.exception("a mistake in kurmad")

    def _change(self, managers: Managers) -> None:
        enabled = _enabled(managers)
        with self._lock:
            gone = [service for name, service in self._services.items() if name not in enabled]
            services = [self._known(name) for name in enabled]
        for service in gone:
            if service.stop(self._stop_timeout):
                with self._lock:
                    del self._services[service.name]
        for service in services:
            service.required = enabled[service.name]
            self._update(service, managers)

    def _update(self, service: _Service, managers: Managers) -> None:
        """Starts the service, or passes it its new configuration, if there is any."""
        try:
            config = managers.registry.settings(GROUP, service.name)
            if service.serves() and (config == service.config or service.reload(config, self._stop_timeout)):
                return
        except KurmaError as error:
            service.stop(self._stop_timeout)
            service.fail(error.message)
            return
        if service.stop(self._stop_timeout):
            with self._lock:
                if not self._closed:
                    service.start(lambda: managers.registry.driver(GROUP, service.name, again=True), config)

    def is_starting(self) -> bool:
        """Whether a required service is not ready yet, and has not failed either."""
        with self._lock:
            return self._time_left() > 0

    def _time_left(self) -> float:
        """Seconds that the required services still have until they are ready."""
        return max((service.time_left(self._start_timeout) for service in self._services.values()), default=0)

    def wait_for_required(self) -> bool:
        """Waits until the required services are ready. :returns: False: these services were closed meanwhile.

        :raises PluginError: a required service does not run.
        """
        with self._lock:
            while not self._closed and (left := self._time_left()) > 0:
                self._lock.wait(left)
            if self._closed:
                return False
        for one in self.states():
            if one.required and one.state != "running":
                reason = one.reason or f"not ready within {self._start_timeout:g} seconds"
                raise PluginError(
                    f"service {one.name!r} is required and does not run: {reason}", plugin=f"{GROUP}/{one.name}"
                )
        return True

    def states(self) -> tuple[ServiceInfo, ...]:
        with self._lock:
            return tuple(service.info() for service in self._services.values())

    def problems(self) -> list[str]:
        """A line for each required service that does not run."""
        return [
            f"service {one.name!r} is required and {one.state}" + (f": {one.reason}" if one.reason else "")
            for one in self.states()
            if one.required and one.state != "running"
        ]

    def close(self) -> None:
        """Stops all services together. Repeatable."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            services = tuple(self._services.values())
        for service in services:
            service.cancel()
        end = time.monotonic() + self._stop_timeout
        for service in services:
            service.stop(end - time.monotonic())


class _Service:
    """A service, started again after failures. :meth:`start`, :meth:`reload` and :meth:`stop` have one caller at a
    time."""

    def __init__(self, name: str, client: Api, pause: Callable[[int], float], changed: Callable[[], None]) -> None:
        self.name = name
        self._pause = pause
        self._changed = changed
        self.required = False
        self.config: Mapping[str, Json] = {}
        self._client = client
        #: Makes the driver. :raises KurmaError: it cannot be made.
        self._make: Callable[[], ServiceHooks] = ServiceHooks
        #: None: it has not been made.
        self._driver: ServiceHooks | None = None
        self._operation = Cancellation()
        self._thread: threading.Thread | None = None
        self._state, self._reason = "starting", ""
        #: When it was started.
        self._since: float | None = None

    def info(self) -> ServiceInfo:
        return ServiceInfo(self.name, self._state, self._reason, self.required)

    def time_left(self, patience: float) -> float:
        """Seconds that it still has until it is ready; 0: it is, or it has failed, or it is not required.

        :param patience: from its start.
        """
        if not self.required or self._state != "starting":
            return 0
        return patience if self._since is None else self._since + patience - time.monotonic()

    def serves(self) -> bool:
        """Whether it has been started and will not end by itself."""
        return self._thread is not None and self._thread.is_alive() and not self._operation.cancelled

    def start(self, make: Callable[[], ServiceHooks], config: Mapping[str, Json]) -> None:
        self._make, self._driver, self.config = make, None, config
        self._operation, self._since = Cancellation(), time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(self._operation,), name=f"service-{self.name}", daemon=True
        )
        self._turn("starting")
        try:
            begin(self._thread)
        except KurmaError as error:
            self._thread = None
            self.fail(error.message)

    def fail(self, why: str) -> None:
        """It cannot be started until the next reload."""
        self._turn("failed", why)

    def reload(self, config: Mapping[str, Json], patience: float) -> bool:
        """Passes the service its new configuration. :returns: whether it has taken it.

        :param patience: in seconds; after that the service is stopped.
        """
        driver = self._driver
        if self._state != "running" or driver is None:
            return False
        answers: list[bool] = []

        def ask() -> None:
            try:
                answers.append(driver.reload(config))
            except KurmaError as error:
                _LOG.error("service %s: it refused its new configuration: %s", self.name, error.message)

        asking = threading.Thread(target=ask, name=f"service-{self.name}", daemon=True)
        begin(asking)
        asking.join(patience)
        if answers != [True]:
            return False
        self.config = config
        _LOG.info("service %s: it has its new configuration", self.name)
        return True

    def cancel(self) -> None:
        self._operation.cancel()

    def stop(self, seconds: float) -> bool:
        """Stops it. Repeatable.

        :returns: False: it still runs after that time; its thread is left alone.
        """
        self.cancel()
        if self._thread is None:
            return True
        self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            self._turn("failed", "it does not end; restart kurmad")
            return False
        self._thread = None
        self._turn("stopped")
        return True

    def _run(self, operation: Cancellation) -> None:
        failures = 0
        with governing(operation), about(service=self.name):
            try:
                while True:
                    begun = time.monotonic()
                    why = self._serve(operation)
                    operation.check()
                    if self._state == "running" and time.monotonic() - begun > _HEALTHY:
                        failures = 0
                    pause = self._pause(failures)
                    failures += 1
                    self._turn("waiting", f"{why}; started again after {pause:g} s")
                    operation.pause(pause)
                    self._turn("starting")
            except Cancelled:
                pass

    def _serve(self, operation: Cancellation) -> str:
        """Makes its driver, unless it has one, and lets it serve. :returns: why it has ended."""

        def ready() -> None:
            if self._operation is operation and self._state == "starting":
                self._turn("running")

        try:
            log = logging.getLogger(SERVICE + self.name)
            if self._driver is None:
                self._driver = self._make()
            self._driver.serve(ServiceHost(self._client, log, ready))
        except KurmaError as error:
            _LOG.debug("service %s", self.name, exc_info=error)
            return error.message
        except BaseException as error:  # noqa: BLE001 (Cancelled, mostly; the thread belongs to the service alone)
            return f"it raised {type(error).__name__}"
        return "it has ended"

    def _turn(self, state: str, reason: str = "") -> None:
        if (state, reason) != (self._state, self._reason):
            self._state, self._reason = state, reason
            level = logging.WARNING if state in ("waiting", "failed") else logging.INFO
            _LOG.log(level, "service %s: %s", self.name, f"{state}: {reason}" if reason else state)
            self._changed()


def _enabled(managers: Managers) -> dict[str, bool]:
    """The services that are to run, and whether each is required; also one that is not installed and required."""
    try:
        names = managers.registry.names(GROUP)
    except KurmaError as error:
        _LOG.error("services: %s", error.message)
        names = ()
    sections = managers.config.plugins.get("services", {})
    required = {name: True for name, section in sections.items() if section.required}
    return {**dict.fromkeys(names, False), **required}
