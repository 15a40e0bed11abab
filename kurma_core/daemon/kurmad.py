"""The daemon as a whole: takes the state directory, listens, owns pods, ends."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import signal
import time
from typing import TYPE_CHECKING

from kurma_core.cancellation import shielded
from kurma_core.client import Settings, connect_here, socket_path
from kurma_core.client.config_check import problems
from kurma_core.client.left import tell_left
from kurma_core.client.starting import LOCK as START_LOCK
from kurma_core.config import load
from kurma_core.daemon import (  # noqa: F401 (they fill the table)
    apps,
    events,
    figures,
    images,
    metrics,
    networks,
    openapi,
    pod_operations,
    stagers,
    system,
    trust,
)
from kurma_core.daemon.dispatch import Dispatcher
from kurma_core.daemon.http.server import Server
from kurma_core.daemon.limits import Limits
from kurma_core.daemon.operation import asking, noting
from kurma_core.daemon.pods.app_sockets import AppSockets
from kurma_core.daemon.pods.initial import InitialPods
from kurma_core.daemon.pods.listing import Listing
from kurma_core.daemon.pods.owned import OwnedPods, RunningPod
from kurma_core.daemon.pods.prestarted import PrestartedPods
from kurma_core.daemon.pods.recovery import Recovery
from kurma_core.daemon.pods.restarts import Restarts
from kurma_core.daemon.process.idle import IdleEnd
from kurma_core.daemon.process.readiness import Notifier
from kurma_core.daemon.process.rest import MemoryTrimmer
from kurma_core.daemon.process.run_directory import RunDirectory, passed_sockets
from kurma_core.daemon.reload import changed, with_fixed
from kurma_core.errors import KurmaError
from kurma_core.linux import memory
from kurma_core.models.stdio import Stdio
from kurma_core.state_directory import run_dir_hint
from kurma_core.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.client.local import LocalClient
    from kurma_core.config import Config
    from kurma_core.linux.service_manager import Service
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.manager import PodManager
    from kurma_core.pods.readied import Readied
    from kurma_core.pods.request import PodRequest
    from kurma_core.progress import Progress

_LOG = logging.getLogger("kurmad")
#: Seconds that pods have at the daemon's end, besides what their apps and their handlers may take.
_STOPPING = 5.0
#: Seconds within which a healthy daemon's threads get on.
_PATIENCE = 5.0
#: How often a run directory is made again that others remove at the same time.
_ATTEMPTS = 10


class Daemon:
    """:param settings: as a command has them; what it notes for nobody in particular goes to the log.
    :param stop_pods: its pods are stopped when it ends.
    :param service: what a service manager has given to this process.
    """

    def __init__(self, settings: Settings, *, stop_pods: bool = False, service: Service | None = None) -> None:
        self._settings = settings
        self._stop_pods = stop_pods
        config = self._load()
        own = Settings(
            config_file=settings.config_file,
            state_dir=settings.state_dir,
            state_dir_origin=settings.state_dir_origin,
            host="local",
            signals=False,
            daemon=True,
            debug=settings.debug,
            note=noting(lambda text: _LOG.info("%s", text)),
            passphrases=asking,
        )
        self.config = config
        self.client: LocalClient = connect_here(own, config)
        self.owners = OwnedPods(lambda: self.manager, self._ended)
        self.restarts = Restarts(lambda: self.manager, lambda uuid: self.launch(uuid, again=True))
        self.supply = PrestartedPods(lambda: self.client)
        self.listing = Listing(lambda: self.manager)
        self.recovery = Recovery(
            lambda: self.manager, self.owners, self.restarts.look, lambda uuid: self.doors.see(uuid)
        )
        self.initial = InitialPods(self, self.recovery.done)
        dispatcher = Dispatcher(self)
        self.metrics = dispatcher.metrics
        self.feed = events.Feed(self.client.journal)
        self.server = Server(dispatcher)
        self.doors = AppSockets(self.server, lambda: self.client.services)
        self.client.services.api_changed = self.doors.changed
        self._idle: IdleEnd | None = None
        self._path = socket_path(None, config)
        self._place = RunDirectory(self._path, config.state_dir, run_dir_hint(config))
        self._lent = service.sockets if service is not None else ()
        self.told = Notifier(service, self._is_well)
        self.owners.changed = self._pods_changed
        self._rest = MemoryTrimmer()
        self.server.served = self._rest.tired
        self._failed: KurmaError | None = None
        self._ending = False

    @property
    def manager(self) -> PodManager:
        return self.client.manager

    def launch(
        self,
        reference: str,
        stdio: Stdio | None = None,
        up: Callable[[RunningPod], None] = lambda running: None,
        *,
        again: bool = False,
        readied: Readied | None = None,
        settled: Callable[[], None] = lambda: None,
    ) -> RunningPod:
        """Starts a pod that the daemon owns.

        :param stdio: None: it has nothing to read, and nobody to write to but its logs.
        :param up: see :meth:`OwnedPods.launch`.
        :param again: by its policy.
        :param readied: what it was prepared with: see :meth:`PrestartedPods.begin`.
        :param settled: see :meth:`PodManager.start`.
        """
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC) if stdio is None else -1
        try:
            given, begin = stdio or Stdio(null, null, null, relayed=True), time.monotonic()
            running = self.owners.launch(reference, given, up, again=again, readied=readied, settled=settled)
            self.metrics.started(time.monotonic() - begin)
            return running
        except BaseException as error:
            self.doors.see(reference)
            if not again and isinstance(error, KurmaError):
                with contextlib.suppress(KurmaError):  # there is no such pod, say
                    self.restarts.look(self.manager.store.find(reference).uuid)
            raise
        finally:
            if null >= 0:
                os.close(null)

    def run(
        self,
        request: PodRequest,
        progress: Progress | None = None,
        up: Callable[[RunningPod], None] = lambda running: None,
    ) -> RunningPod:
        """Prepares a pod and starts it, of what is there for pods to come if it fits.

        :param up: see :meth:`OwnedPods.launch`.
        :raises KurmaError: it could not be prepared, and nothing is left; or it could not be started: see
            :meth:`PodManager.start`.
        """
        begun = self.supply.begin(request, progress)
        try:
            with begun:
                return self.launch(begun.record.uuid, up=up, readied=begun.readied)
        except BaseException as error:
            if request.ephemeral:
                with shielded(), contextlib.suppress(KurmaError):
                    self.manager.remove(begun.record.uuid)
            elif isinstance(error, KurmaError):
                tell_left(self.client, error, begun.record.uuid)
            raise

    def _ended(self, record: PodRecord) -> None:
        self.doors.close(record.uuid)
        if self.manager.is_ephemeral(record.uuid):
            self.manager.remove(record.uuid)
        else:
            # From here on it may be anybody's again.
            self.recovery.look_soon(record.uuid)

    # -- its life --

    def serve(self, ready: Callable[[], None] = lambda: None, idle: float | None = None) -> None:
        """Until SIGTERM or SIGINT. Pods that run go on, unless they are to be stopped. SIGHUP has the
        configuration read again.

        :param ready: called once requests are answered.
        :param idle: seconds after which it ends by itself, if it has nothing to do for so long.
        :raises HostError: another daemon serves the state directory; or it cannot be served.
        """
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signals = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, {*signals, signal.SIGHUP})
        self._place.take()
        # Before there are threads that have one of their own.
        memory.one_heap()
        try:
            if idle is not None:
                self._end_after(idle)
            limits = Limits()
            self.client.services.spawner.settle = limits.give_back
            limits.take()
            self.client.warm()
            # What is there by now stays: no collection of garbage looks through it again, while a start waits.
            gc.freeze()
            # Before anybody can ask how that stands; what it does waits for the recovery.
            self.initial.reconcile()
            self._listen()
            self.owners.start()
            self.server.start()
            self.restarts.times.start()
            self.recovery.start()
            self.supply.start()
            self._rest.start()
            _LOG.info("serves %s at %s", self.config.state_dir, self._path)
            self.client.journal.tell("daemon", "started", None, "kurmad", {"pid": os.getpid(), "version": VERSION})
            self.told.ready(self._status())
            ready()
            while signal.sigwait({*signals, signal.SIGHUP}) == signal.SIGHUP:
                self.told.reloading()
                self.reload()
                self.told.ready(self._status())
            _LOG.info("ends; %s", "its pods are stopped" if self._stop_pods else "pods that run go on")
            # A second one ends it at once, with all the rest left to whoever comes next.
            for number in signals:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            self.client.journal.tell("daemon", "ended", None, "kurmad", {"pid": os.getpid()})
        finally:
            self.told.stopping()
            self.close()
        if self._failed is not None:
            raise self._failed

    def _listen(self) -> None:
        if self._lent:
            for listener in passed_sockets(self._lent):
                self.server.listen_to(listener)
                if listener.getsockname() != self._path:
                    _LOG.warning("it listens at %s; commands look for %s", listener.getsockname(), self._path)
        else:
            self.server.listen(self._place.listener())
        self._watch_place()

    def _watch_place(self) -> None:
        watched = self._place.watched()
        if watched is not None:
            self.server.when_readable(watched, self._look_at_place)

    def _look_at_place(self) -> None:
        """By the accepting thread, when something in the run directory has changed."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                # Until it is found to be in order under a watch that sees what happens from then on.
                while self._place.changed():
                    _LOG.warning("%s was removed: kurmad listens there anew", self._path)
                    listener = self._place.listener()
                    self.server.shut()
                    self.server.listen(listener)
                    self._watch_place()
                return
            except KurmaError as error:
                # Somebody is still removing the directory, perhaps.
                if error.data.get("errno") != errno.ENOENT or not left:
                    self._failed = error
                    self._end()
                    return

    def _listen_again(self) -> None:
        """By the accepting thread, which had shut the socket before it saw that somebody has come."""
        try:
            self.server.listen(self._place.listener())
        except KurmaError:
            self._look_at_place()  # which is being removed, perhaps

    def _end(self) -> None:
        """By itself: as SIGTERM does, once."""
        if not self._ending:
            self._ending = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _is_well(self) -> bool:
        return self.server.answers(_PATIENCE) and self.owners.answers(_PATIENCE)

    def _pods_changed(self) -> None:
        self.server.stir()
        self.told.status(self._status())
        self._rest.tired()

    def _status(self) -> str:
        count = len(self.owners.uuids())
        return f"{count} {'pod' if count == 1 else 'pods'}"

    def _end_after(self, seconds: float) -> None:
        lock = f"{self.config.run_dir}/{START_LOCK}"
        times = (self.restarts.times, *self.initial.times)
        self._idle = IdleEnd(seconds, self._has_work, times, lock, self._listen_again, self._end)
        self.server.end_when(self._idle)
        for each in times:
            each.one_less = self.server.stir
        self.recovery.when_done(self.server.stir)

    def _has_work(self) -> bool:
        """Besides connections and what is done by itself: what somebody has to be there for."""
        return bool(self.owners.uuids()) or not self.recovery.done.is_set()

    def close(self) -> None:
        self._place.withdraw()
        self.feed.close()
        self.doors.close_all()
        self.server.close()
        self.initial.close()
        self.recovery.close()
        self.restarts.close()
        self.supply.close()
        if self._stop_pods:
            self.owners.stop_all(2 * self.config.stop_timeout + _STOPPING)
        self.owners.close()
        self._rest.close()
        self.client.close()
        self._place.close()
        if self._idle is not None:
            self._idle.close()

    def reload(self) -> None:
        """Reads the configuration again. One in which ``kurma config check`` finds a problem changes nothing."""
        client = None
        try:
            config = self._load()
            taken, fixed = changed(self.config, config)
            if taken:
                # Pods that run keep what they were started with.
                client = self.client.successor(with_fixed(self.config, config))
                wrong = problems(client)
                for problem in wrong:
                    _LOG.error("the configuration is as it was: %s", problem.message)
                if wrong:
                    return
                client.warm()
        except KurmaError as error:
            _LOG.error("the configuration is as it was: %s", error.message)
            return
        for key in fixed:
            _LOG.warning("%s stays %s until kurmad is started again", key, self.config.values[key])
        new = f"new: {', '.join(taken)}" if taken else "nothing that takes effect is new"
        _LOG.info("the configuration was read again: %s", new)
        if client is not None:
            self.config, self.client = client.config, client
            self.supply.refresh()
        else:
            self.supply.look()
        self.doors.refresh()
        self.client.journal.tell("daemon", "reloaded", None, "kurmad", {"pid": os.getpid()})
        # In any case: images that initial pods name may be others by now.
        self.initial.reconcile()

    def _load(self) -> Config:
        settings = self._settings
        return load(settings.config_file, settings.state_dir, state_dir_origin=settings.state_dir_origin)


__all__ = ["Daemon", "KurmaError"]
