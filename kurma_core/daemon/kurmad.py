"""The daemon as a whole: locks the state directory, serves requests, owns pods, ends."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from kurma_core import VERSION
from kurma_core.api.host import DaemonInfo, Health
from kurma_core.api.operations import Api
from kurma_core.cancellation import shielded
from kurma_core.client import Settings, socket_path
from kurma_core.client.client import Client, add_unstarted_pod
from kurma_core.client.local.managers import Managers, problems, run_dir_hint
from kurma_core.client.remote.start_kurmad import LOCK as START_LOCK
from kurma_core.config import load
from kurma_core.daemon.http import messages
from kurma_core.daemon.http.dispatch import Dispatcher
from kurma_core.daemon.http.server import Server
from kurma_core.daemon.metrics import Metrics
from kurma_core.daemon.operations import KurmadTransport
from kurma_core.daemon.pods.app_api_sockets import AppApiSockets
from kurma_core.daemon.pods.health_checks import HealthChecks
from kurma_core.daemon.pods.initial import InitialPods
from kurma_core.daemon.pods.listing import Listing
from kurma_core.daemon.pods.owned import OwnedPods, Restarts, RunningPod
from kurma_core.daemon.pods.prestarted import PreparedPod, PrestartedPods
from kurma_core.daemon.pods.recovery import Recovery
from kurma_core.daemon.process.lifecycle import IdleEnd, MemoryTrimmer, Notifier
from kurma_core.daemon.process.lock_and_socket import RunDirectory, passed_sockets
from kurma_core.daemon.reload import Reloads
from kurma_core.daemon.services import Services
from kurma_core.errors import KurmaError
from kurma_core.linux import libc
from kurma_core.models.streams import Stdio
from kurma_core.plugins.index import follow_path_files
from kurma_core.pods.daemon_interface import DaemonInterface

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from kurma_core.api.operations import Progress
    from kurma_core.api.pods import PodRequest
    from kurma_core.config import Config
    from kurma_core.daemon.process.service_manager import Service
    from kurma_core.models.pod import PodRecord

Json = Any
_LOG = logging.getLogger("kurmad")
#: Seconds that pods have at the daemon's end, besides the time for their apps and event handlers.
_STOPPING = 5.0
#: Seconds within which the threads of a healthy daemon answer.
_PATIENCE = 5.0
#: The same value as for dockerd and containerd; -1000 would keep the kernel from ending a daemon that leaks
#: memory.
_OOM_SCORE = -900


class Daemon:
    """The daemon: its parts, its start and its end.

    :param settings: the command's.
    :param stop_pods: stops its pods when it ends.
    :param service: the service manager's interface, from the environment of this process.
    """

    def __init__(self, settings: Settings, *, stop_pods: bool = False, service: Service | None = None) -> None:
        self._settings = settings
        self._stop_pods = stop_pods
        self.reloads = Reloads(self._load, lambda: self.managers, self._take_over)
        config = self._load()
        own = Settings(
            config_file=settings.config_file,
            state_dir=settings.state_dir,
            state_dir_origin=settings.state_dir_origin,
            host="local",
            signals=False,
            daemon=True,
            debug=settings.debug,
            note=messages.note,
            passphrases=messages.current,
        )
        self.config = config
        self.managers = Managers(own, config)
        self._transport = KurmadTransport(self)
        self.client = self._new_client()
        pods = self.pods = DaemonInterface(self.managers.pods)
        self.owners = OwnedPods(self._ended)
        self.health_checks = HealthChecks(pods, self.owners.running)
        self.owners.apps.looked, self.owners.ending = self.health_checks.look, self.health_checks.forget
        self.restarts = Restarts(pods, lambda uuid: self.launch(uuid, again=True))
        self.prestarted = PrestartedPods(pods)
        self.listing = Listing(pods, self.owners.uuids)
        self.metrics = Metrics()
        self.server = Server(Dispatcher(self, self.metrics))
        self.server.checksum = config.checksum()
        self.api_sockets = AppApiSockets(pods, self.server.listen_for_app, self.server.stop_listening_for_app)
        pods.on_api_changed(self.api_sockets.changed)
        self.recovery = Recovery(pods, self.owners, self.restarts.look, self.api_sockets.see)
        self.initial = InitialPods(
            pods, lambda: self.config, self.recovery.done, self.run, self.launch, self.restarts.look
        )
        self.services = Services(Api(self._transport), self.recovery.done)
        self._path = socket_path(None, config)
        self._run_directory = RunDirectory(self._path, config.state_dir, run_dir_hint(config))
        self._passed = service.sockets if service is not None else ()
        self._notifier = Notifier(service, self._is_well)
        self._trimmer = MemoryTrimmer()
        self.owners.changed = self._pods_changed
        self.server.served = self._trimmer.trim_later
        self._failed: KurmaError | None = None
        self._ending = self._ready = False

    def _new_client(self) -> Client:
        managers = self.managers
        return Client(managers.settings, self._transport, lambda: managers)

    # -- pods --

    def running(self, reference: str) -> RunningPod | None:
        """The pod, if the daemon owns it. :raises PodNotFoundError: there is no such pod."""
        return self.owners.running(self.pods.find(reference))

    def launch(
        self,
        reference: str,
        stdio: Stdio | None = None,
        up: Callable[[RunningPod], None] = lambda running: None,
        *,
        again: bool = False,
        prepared: PreparedPod | None = None,
        settled: Callable[[], None] = lambda: None,
    ) -> RunningPod:
        """Starts a pod that the daemon owns.

        :param stdio: None: it reads nothing, and writes to its logs only.
        :param up: called once the pod is up, before its end is waited for.
        :param again: by its policy.
        :param prepared: the pod, if it was prepared to be started at once: see :meth:`prepared`.
        :param settled: see :meth:`PodManager.start`.
        """
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC) if stdio is None else -1
        try:
            given, begin = stdio or Stdio(null, null, null, relayed=True), time.monotonic()
            if prepared is not None:
                pod = self.pods.start_prepared(prepared.take(), given, settled)
            else:
                pod = self.pods.start(reference, given, settled, again=again)
            running = self.owners.take(pod, up)
            self.metrics.started(time.monotonic() - begin)
            return running
        except BaseException as error:
            self.api_sockets.see(reference)
            if not again and isinstance(error, KurmaError):
                with contextlib.suppress(KurmaError):  # there may be no such pod
                    self.restarts.look(self.pods.find(reference))
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
        """Prepares a pod and starts it.

        :param up: see :meth:`launch`.
        :raises KurmaError: it could not be prepared, and nothing is left; or it could not be started: see
            :meth:`PodManager.start`.
        """
        with self.prepared(request, progress) as prepared:
            return self.launch(prepared.record.uuid, up=up, prepared=prepared)

    @contextlib.contextmanager
    def prepared(self, request: PodRequest, progress: Progress | None = None) -> Iterator[PreparedPod]:
        """Prepares a pod that is to be started inside the ``with`` statement, from a prestarted one if it fits.

        After an error inside, an ephemeral pod that is not up is removed; for another one, the error says that the
        pod still exists.
        """
        prepared = self.prestarted.begin(request, progress)
        uuid = prepared.record.uuid
        try:
            with prepared:
                yield prepared
        except BaseException as error:
            if request.ephemeral and not self.owners.holds(uuid):
                with shielded(), contextlib.suppress(KurmaError):
                    self.pods.remove(uuid)
            elif not request.ephemeral and isinstance(error, KurmaError):
                add_unstarted_pod(error, uuid, self.client.pod)
            raise

    def _ended(self, record: PodRecord) -> None:
        self.api_sockets.close(record.uuid)
        if self.pods.is_ephemeral(record.uuid):
            self.pods.remove(record.uuid)
        else:
            # From here on, other processes may change the pod.
            self.recovery.look_soon(record.uuid)

    # -- its life --

    def serve(self, ready: Callable[[], None] = lambda: None, idle: float | None = None) -> None:
        """Serves until SIGTERM or SIGINT; SIGHUP reloads the configuration. Pods run on, unless ``stop_pods``.

        :param ready: called once requests are answered.
        :param idle: seconds without work after which it ends by itself.
        :raises HostError: another daemon serves the state directory; or it cannot be served.
        """
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signals = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, {*signals, signal.SIGHUP})
        self._run_directory.lock()
        follow_path_files()
        # Before there are threads, which would get heaps of their own.
        libc.one_heap()
        try:
            if idle is not None:
                self._end_after(idle)
            limits = _Limits()
            self.pods.on_spawner_started(limits.restore)
            limits.raise_own()
            self.managers.warm()
            # Garbage collections skip the objects that exist now, so that no start waits for that.
            gc.freeze()
            # Called before requests can ask for the state of initial pods and services; the work waits for the
            # recovery.
            self.initial.reconcile()
            self.services.use(self.managers)
            self._listen()
            self.owners.start()
            self.server.start()
            self.restarts.times.start()
            self.recovery.start()
            self.prestarted.start()
            self._trimmer.start()
            _LOG.info("serves %s at %s", self.config.state_dir, self._path)
            self.managers.journal.tell(
                "daemon", "started", None, "kurmad", {"pid": os.getpid(), "version": VERSION}
            )
            if self.services.is_starting():
                work = (ready, idle)
                threading.Thread(target=self._become_ready, args=work, name="ready", daemon=True).start()
            else:
                self._become_ready(ready, idle)
            while signal.sigwait({*signals, signal.SIGHUP}) == signal.SIGHUP:
                if self._ready:
                    self._notifier.reloading()
                self.reloads.reload()
                if self._ready:
                    self._notifier.ready(self._status())
            _LOG.info("ends; %s", "its pods are stopped" if self._stop_pods else "pods that run go on")
            # A second signal ends it at once; the next kurmad recovers its pods.
            for number in signals:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            self.managers.journal.tell("daemon", "ended", None, "kurmad", {"pid": os.getpid()})
        finally:
            self.reloads.close()
            self._notifier.stopping()
            self.close()
        if self._failed is not None:
            raise self._failed

    def _become_ready(self, ready: Callable[[], None], idle: float | None) -> None:
        """Waits for the required services, and notifies kurmad's parent. Ends kurmad if one does not run.

        Meanwhile, the main thread heeds signals.
        """
        try:
            if not self.services.wait_for_required():
                return  # it ends
        except KurmaError as error:
            self._failed = error
            self._end()
            return
        self._ready = True
        self._notifier.ready(self._status())
        ready()
        if idle is None:  # a command that has it started wants the processor now, and checks for itself
            threading.Thread(target=self._log_problems, name="configuration", daemon=True).start()

    def _listen(self) -> None:
        if self._passed:
            for listener in passed_sockets(self._passed):
                self.server.listen(listener, passed=True)
                if listener.getsockname() != self._path:
                    _LOG.warning("it listens at %s; commands look for %s", listener.getsockname(), self._path)
        else:
            self.server.listen(self._run_directory.listener())
        self._watch_run_directory()

    def _watch_run_directory(self) -> None:
        watched = self._run_directory.watched()
        if watched is not None:
            self.server.poller.add(watched, self._look_at_run_directory)

    def _look_at_run_directory(self) -> None:
        """Called by the accepting thread after a change there."""
        try:
            self._run_directory.mend(self._listen_anew)
        except KurmaError as error:
            self._failed = error
            self._end()

    def _listen_anew(self, listener: socket.socket) -> None:
        self.server.shut()
        self.server.listen(listener)
        self._watch_run_directory()

    def _listen_again(self) -> None:
        """After the idle end was given up. Called by the accepting thread."""
        try:
            self.server.listen(self._run_directory.listener())
        except KurmaError:
            self._look_at_run_directory()  # the directory may have been removed

    def _end(self) -> None:
        """Ends as SIGTERM does; once."""
        if not self._ending:
            self._ending = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _is_well(self) -> bool:
        return self.server.poller.answers(_PATIENCE) and self.owners.poller.answers(_PATIENCE)

    def _pods_changed(self) -> None:
        self.server.stir()
        self._notifier.status(self._status())
        self._trimmer.trim_later()

    def _status(self) -> str:
        count = len(self.owners.uuids())
        return f"{count} {'pod' if count == 1 else 'pods'}"

    def _end_after(self, seconds: float) -> None:
        server, times = self.server, (self.restarts.times, *self.initial.times)

        def has_work() -> bool:
            planned = any(each.pending() for each in times)
            owns = bool(self.owners.uuids())
            return planned or owns or bool(self.services.states()) or not self.recovery.done.is_set()

        lock = f"{self.config.run_dir}/{START_LOCK}"
        server.idle = IdleEnd(
            seconds, lambda: server.connections, has_work, lock, server.shut, self._listen_again, self._end
        )
        for each in times:
            each.on_done = server.stir
        self.recovery.on_done = server.stir

    def close(self) -> None:
        self.services.close()
        self._run_directory.withdraw()
        self.api_sockets.close_all()
        self.server.close()
        self.initial.close()
        self.recovery.close()
        self.restarts.close()
        self.health_checks.close()
        self.prestarted.close()
        if self._stop_pods:
            self.owners.stop_all(self.config.stop_timeout, _STOPPING)
        self.owners.close()
        self.listing.close()
        self._trimmer.close()
        self.client.close()
        self._run_directory.close()
        if self.server.idle is not None:
            self.server.idle.close()

    # -- configuration --

    def _take_over(self, managers: Managers | None) -> None:
        if managers is not None:
            self.config, self.managers = managers.config, managers
            self.server.checksum = managers.config.checksum()
            self.client = self._new_client()
            self.pods.use(managers.pods)
            self.prestarted.discard_all()
        else:
            self.prestarted.compare_images()
        # Even if nothing is new: a service that failed is tried again.
        self.services.use(self.managers)
        self.api_sockets.refresh()
        # Even if nothing is new: the images of initial pods may have changed.
        self.initial.reconcile()

    def _log_problems(self) -> None:
        """Logs what ``kurma config check`` finds. kurmad serves all the same, so that pods can be stopped."""
        from kurma_core.plugins.problems import left_out

        try:
            found = problems(self.managers)
            for error in left_out(self.managers.registry, self.config):
                _LOG.warning("left out: %s", error.message)
        except KurmaError as error:
            found = (error,)
        for problem in found:
            _LOG.error("the configuration is wrong: %s", problem.message)

    # -- its state --

    def described(self) -> DaemonInfo:
        """The description of kurmad for ``info``: its process and initial pods."""
        said = {
            "pid": os.getpid(),
            "recovered": self.recovery.done.is_set(),
            **self.initial.to_json(),
            "configuration": self._settings.config_path,
            "configurationRead": self.reloads.read_at,
            "refused": self.reloads.refused_at,
            "services": [one.to_json() for one in self.services.states()],
        }
        return DaemonInfo.from_json(said)

    def health(self) -> Health:
        problems = [*self._problems(), *self.services.problems()]
        return Health("failing" if problems else "ok", VERSION, tuple(problems), self.services.states())

    def _problems(self) -> list[str]:
        """Problems that keep kurmad from its work, a line for each."""
        found = []
        if not self.owners.alive():
            found.append("no thread looks after its pods: the one that waits for their ends has ended")
        try:
            _try_to_write(self.config.state_dir)
        except OSError as error:
            found.append(f"the state directory {self.config.state_dir} cannot be written: {error.strerror}")
        try:
            self.managers.services.spawner.probe()
        except (KurmaError, OSError) as error:
            found.append(f"programs cannot be started: {error}")
        return found

    def _load(self) -> Config:
        settings = self._settings
        return load(settings.config_file, settings.state_dir, state_dir_origin=settings.state_dir_origin)


def _try_to_write(directory: str) -> None:
    """An unnamed file, which the kernel removes when it is closed."""
    fd = os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b"0" * 4096)
    finally:
        os.close(fd)


class _Limits:
    """Raises kurmad's own limits; restores the originals for the spawner, from which pods inherit them.

    kurmad may open as many descriptors as its hard limit allows, and is one of the last to be killed when memory
    runs out.
    """

    def __init__(self) -> None:
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._score = ""
        with contextlib.suppress(OSError):
            with open("/proc/self/oom_score_adj") as file:
                self._score = file.read().strip()

    def raise_own(self) -> None:
        hard = self._files[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if self._score and int(self._score) > _OOM_SCORE:
            self._write_score("self", str(_OOM_SCORE))

    def restore(self, pid: int) -> None:
        """Gives that process the original limits."""
        with contextlib.suppress(OSError):  # it has ended: its next user gets an error
            resource.prlimit(pid, resource.RLIMIT_NOFILE, self._files)
        if self._score:
            self._write_score(str(pid), self._score)

    @staticmethod
    def _write_score(pid: str, score: str) -> None:
        with contextlib.suppress(OSError):  # only root may lower it, and not in every container
            with open(f"/proc/{pid}/oom_score_adj", "w") as file:
                file.write(score)
