"""Starts, calls and stops stagers that are images (Kurma Stager Specification).

A stager runs in a root made of its image, in its own mount namespace, the pod's network namespace and the host's
PID namespace. Call-ins enter both of the former. The image is shared by all pods, and not copied.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from kurma_core.errors import CommandNotFoundError, HostError, KurmaError, StagerError
from kurma_core.hookspecs.pod_setup import needed_kind
from kurma_core.hookspecs.stager import StagerFeatures, StagerHooks
from kurma_core.json_text import loads
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.files import replace_file
from kurma_core.models.isolator import needs_powers
from kurma_core.models.pod import KEEP_ROOT, PID, PID_POD
from kurma_core.models.streams import Stdio
from kurma_core.schema import fit
from kurma_core.spawn_plan import cgroups
from kurma_core.staging import stager_status
from kurma_core.staging.callin import CallIn, StagerTimes
from kurma_core.staging.stager_process import (
    CONTROL,
    StagerImage,
    StagerProcess,
    begin,
    find_again,
    keep_fork_server,
)
from kurma_core.staging.stager_root import (
    of_volume,
    places_of_pod,
    pod_parts,
    stager_manifest,
    stager_root,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kurma_core.hookspecs.pod_setup import PodSetup, VolumeSetup
    from kurma_core.hookspecs.stager import CallInHooks, RunningStagerHooks
    from kurma_core.linux.process import ProcessIdentity
    from kurma_core.models.isolator import IsolatorPlan
    from kurma_core.models.pod import AppStatus
    from kurma_core.spawn_plan import Starter
    from kurma_core.staging.prestarted import PrestartedStager, PrestartPlace
    from kurma_core.staging.relay import CallerRelay

#: Annotation of an image whose stager puts apps into the pod's user namespace.
USERNS_ANNOTATION = "kurma.io/stager/userns"
#: Annotation of an image whose stager applies isolator plans.
ISOLATORS_ANNOTATION = "kurma.io/stager/isolators"
#: Annotation of an image whose stager applies the host's devices, namespaces and privileges of isolator plans.
POWERS_ANNOTATION = "kurma.io/stager/powers"
#: Annotation of an image whose stager writes logs to a pod's log directory.
LOGS_ANNOTATION = "kurma.io/stager/logs"
#: Annotation of an image whose stager writes the changes to apps' roots where Kurma finds them.
ROOTS_ANNOTATION = "kurma.io/stager/roots"
#: Annotation of an image whose stager gives apps the PID namespaces that they ask for.
PID_ANNOTATION = "kurma.io/stager/pid"
#: Annotation of a stager image that mounts volumes of images, propagating volumes, and volumes below others.
VOLUMES_ANNOTATION = "kurma.io/stager/volumes"
#: Annotation of a stager image that gives apps their secrets.
SECRETS_ANNOTATION = "kurma.io/stager/secrets"
#: Most lines and bytes of a stager's output that an error shows.
_TAIL_LINES, _TAIL_BYTES = 5, 4096
_OF_THE_POD = ("HOSTNAME", "AC_METADATA_URL")
#: Seconds for each ``status`` call-in after one of the same stager has timed out.
_AFTER_SILENCE = 1.0
#: Schema of ``stager/call.json``.
_CALL = {"cgroup": str, "verbs": [str]}


class ImageSource(Protocol):
    """Returns the verified image of a stager; called at every start."""

    def __call__(self, *, files: bool = True) -> StagerImage:
        """:param files: False: a stager of this image runs already, so verify its signature only, and not its
        files.
        """
        ...


class AciStager(StagerHooks):
    """Drives stagers that are images."""

    def __init__(
        self,
        name: str,
        image: ImageSource,
        spawner: Starter,
        version: str,
        times: StagerTimes,
    ) -> None:
        self.name = name
        self._image = image
        self.spawner = spawner
        self._version = version
        self.times = times
        self._status_time = times.status

    def features(self) -> StagerFeatures:
        # Images declare user namespaces, powers, kinds of volumes and log directories by annotations. A stager
        # that writes ``status.json`` gets no ``status`` call-ins.
        return StagerFeatures(
            user_namespaces=True,
            pid_namespaces=True,
            host_powers=True,
            volume_kinds=True,
            status_file=True,
            log_directories=True,
            secrets=True,
            kept_roots=True,
        )

    def prepare(self, pod: PodSetup) -> None:
        for name in ("pod", "stager"):
            os.makedirs(f"{pod.directory}/{name}", mode=0o700, exist_ok=True)

    def start(self, pod: PodSetup, stdio: Stdio) -> StagerProcess:
        image = self._image()
        if pod.userns is not None and image.manifest.annotation(USERNS_ANNOTATION) != "true":
            raise StagerError(
                f"stager {self.name}: its image {image.manifest.name} does not say that it keeps pods in "
                f"their user namespace (annotation {USERNS_ANNOTATION})",
                hint="run the pod with --userns none, or with another stager",
            )
        self._check_image(pod, lambda: image)
        size = _terminal_size(stdio) if any(each.terminal for each in pod.apps) else None
        manifest = self.manifest(pod, size)
        self._keep(pod, image, manifest)
        stdin, relay = _input(pod, stdio)
        try:
            begun = begin(
                self.spawner,
                self.name,
                image,
                root=stager_root(image.path, pod, manifest, CgroupTree(pod.cgroup)),
                network_namespace=pod.network_namespace,
                cgroup=pod.cgroup,
                output=f"{pod.directory}/stager/output",
                stdin=stdin,
                environment=_environment(pod),
            )
        except BaseException as error:
            if relay is not None:
                relay.__exit__(None, None, None)
            if isinstance(error, HostError):
                raise of_volume(error, pod.volumes) from None
            raise
        running = self._running(pod, begun.process.identity, begun.process.pidfd, begun.ready, image.id)
        running.relay = relay
        return running

    def _check_image(self, pod: PodSetup, image: Callable[[], StagerImage]) -> None:
        """:raises StagerError: the pod asks for something that the image does not say that its stager does."""
        manifest = None
        for annotation, says, hint in _asked(pod):
            manifest = image().manifest if manifest is None else manifest
            if manifest.annotation(annotation) != "true":
                raise StagerError(
                    f"stager {self.name}: its image {manifest.name} does not say that {says}", hint=hint
                )

    def prestart(self, place: PrestartPlace) -> PrestartedStager:
        """Prestarts a stager for a pod that is not known yet.

        :raises StagerError: its image does not declare that it can wait, or it could not be started.
        """
        from kurma_core.staging.prestarted import prestart

        image = self._image()
        with suppress(KurmaError):  # without it, stagers are executed
            keep_fork_server(self.spawner, self.name, image)
        if place.own:
            # The directory becomes the pod's: write the record of the call-ins ahead.
            self._keep_call(place.directory, place.cgroup, image)
        return prestart(self.spawner, self.name, image, place)

    def hand_over(self, waiting: PrestartedStager, pod: PodSetup) -> StagerProcess:
        """As :meth:`start`, with a prestarted stager: completes its root and cgroup, and then releases it.

        Call :meth:`prepare` before. After any error the prestarted stager is discarded; use :meth:`start` then.

        :raises StagerError: the prestarted stager does not fit the pod, or the stager's image has changed.
        :raises HostError: its root or cgroup could not be completed.
        """
        try:
            self._check_use(pod, waiting.why_not(pod))
            manifest = self.manifest(pod)
            waiting.move_to(pod.cgroup)
            operations = pod_parts(pod, manifest)
            moved = pod.cgroup != waiting.place.cgroup
            if not waiting.place.own:
                operations[:0] = places_of_pod(pod.directory, CgroupTree(pod.cgroup))
            elif moved:
                operations[:0] = cgroups(CgroupTree(pod.cgroup))

            def meanwhile() -> None:
                image = self._image(files=False)
                self._check_use(
                    pod, None if image.id == waiting.image else "its image is not the stager's any more"
                )
                self._check_image(pod, lambda: image)
                self._keep(pod, image, manifest, called=bool(waiting.place.own) and not moved)
                os.rename(waiting.output, f"{pod.directory}/stager/output")

            try:
                self.spawner.bind_into(waiting.pid, operations, pidfd=waiting.pidfd, meanwhile=meanwhile)
            except HostError as error:
                raise of_volume(error, pod.volumes) from None
            if moved:
                waiting.remove_cgroup()
            pidfd, ready = waiting.go()
        except OSError as error:
            raise HostError(
                f"stager {self.name}: the waiting one cannot be given to pod {pod.name}: "
                f"{error.filename or ''}: {error.strerror}",
                errno=error.errno,
                path=error.filename,
                pod=pod.uuid,
            ) from None
        finally:
            waiting.discard()
        return self._running(pod, waiting.identity, pidfd, ready, waiting.image)

    def _check_use(self, pod: PodSetup, why_not: str | None) -> None:
        """:raises StagerError: there is a reason why the prestarted stager does not fit the pod."""
        if why_not is not None:
            raise StagerError(f"stager {self.name}: the waiting one is of no use to pod {pod.name}: {why_not}")

    def _keep(self, pod: PodSetup, image: StagerImage, manifest: bytes, *, called: bool = False) -> None:
        """Writes the stager manifest, and the record of the call-ins' cgroup and of the declared call-ins.

        :param called: the record of the call-ins is written already.
        :raises StagerError: the pod has no apps, and its stager cannot add any.
        """
        verbs = image.app_verbs
        if not pod.apps and "add" not in verbs:
            raise StagerError(
                f"stager {self.name}: a pod without apps could never get any: its image {image.manifest.name} "
                "declares no app-add",
                hint="name apps in the pod's file, or use another --stager",
            )
        own = f"{pod.directory}/stager"
        replace_file(f"{own}/manifest", manifest)
        if not called:
            self._keep_call(own, pod.cgroup, image)

    @staticmethod
    def _keep_call(directory: str, cgroup: str, image: StagerImage) -> None:
        call = {"cgroup": cgroup, "verbs": sorted(image.app_verbs)}
        replace_file(f"{directory}/call.json", json.dumps(call).encode())

    @staticmethod
    def _running(pod: PodSetup, identity: ProcessIdentity, pidfd: int, ready: int, image: str) -> StagerProcess:
        return StagerProcess(
            identity,
            pidfd,
            ready,
            lambda: last_output(pod.directory),
            image,
            lambda: CgroupTree(pod.cgroup).pids(),
            lambda: stager_status.unready(pod.directory),
        )

    def manifest(self, pod: PodSetup, size: tuple[int, int] | None = None) -> bytes:
        """The stager manifest of the pod. :param size: rows and columns of the caller's terminal."""
        return stager_manifest(
            pod,
            self._version,
            stop_timeout=self.times.stop,
            log_size=self.times.log_size,
            log_count=self.times.log_count,
            terminal_size=size,
        )

    def attach_to(self, directory: str, identity: Mapping[str, Any]) -> StagerProcess | None:
        return find_again(
            identity,
            lambda: last_output(directory),
            lambda: CgroupTree(_call_record(directory)["cgroup"]).pids(),
        )

    def status(self, directory: str, running: RunningStagerHooks | None) -> Mapping[str, AppStatus]:
        found = stager_status.read_status_file(directory)
        if found is not None:
            return found[0]
        if running is not None and running.alive():
            return self._ask(directory, running)
        return self._last_said(directory)

    def _ask(self, directory: str, running: RunningStagerHooks) -> Mapping[str, AppStatus]:
        """Runs the ``status`` call-in, and stores its answer, which is the only record once the stager has
        ended."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        output, end = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                call = self.begin(directory, running, "status", (), Stdio(null, end, null))
            finally:
                os.close(end)
            try:
                text, code = call.answer(output, stager_status.LIMIT, min(self._status_time, self.times.status))
            except StagerError:
                # Other pods of this stager may not answer either: keep the wait short for a list of many pods.
                self._status_time = _AFTER_SILENCE
                raise
        finally:
            os.close(output)
            os.close(null)
        if code != 0 and len(text) <= stager_status.LIMIT:
            raise StagerError(f"stager {self.name}: its status call-in ended with status {code}")
        apps = stager_status.parse_status_output(text)
        replace_file(f"{directory}/stager/last-status.json", text)
        return apps

    def _last_said(self, directory: str) -> Mapping[str, AppStatus]:
        try:
            with open(f"{directory}/stager/last-status.json", "rb") as stream:
                return stager_status.parse_status_output(stream.read())
        except FileNotFoundError:
            return {}

    def call(
        self,
        directory: str,
        running: RunningStagerHooks,
        verb: str,
        arguments: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None = None,
    ) -> int:
        return self.begin(directory, running, verb, arguments, stdio, document).wait()

    def begin(
        self,
        directory: str,
        running: RunningStagerHooks,
        verb: str,
        arguments: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None = None,
    ) -> CallIn:
        """Starts a call-in; see :meth:`kurma_core.hookspecs.stager.StagerHooks.begin`.

        :raises StagerError: the stager does not have this call-in, or has ended.
        """
        try:
            return CallIn(
                self.spawner,
                running.pid,
                running.fileno(),
                _call_record(directory)["cgroup"],
                (f"/opt/stager/{verb}", *arguments),
                stdio,
                document,
                self.times.document,
            )
        except CommandNotFoundError:
            message = f"this pod's stager has no call-in {verb!r} (/opt/stager/{verb})"
            raise StagerError(message, hint=self._if_outdated(directory)) from None

    def run_contained(
        self, directory: str, running: RunningStagerHooks, app: str, stdio: Stdio, document: bytes
    ) -> CallInHooks:
        if not stdio.terminal and CONTROL in self.app_verbs(directory):
            from kurma_core.staging.control import ForkedCommand

            return ForkedCommand(running, app, stdio, document)
        return self.begin(directory, running, "run", (app,), stdio, document)

    def app_verbs(self, directory: str) -> frozenset[str]:
        return frozenset(_call_record(directory)["verbs"])

    def no_verb(self, directory: str, verb: str) -> StagerError:
        return StagerError(
            f"its stager {self.name} has no app-{verb}",
            hint=self._if_outdated(directory)
            or "use a stager whose image declares it by the annotation kurma.io/stager/callins",
        )

    def _if_outdated(self, directory: str) -> str | None:
        """The hint for a call-in that the pod's stager lacks; None: the present Kurma has started the stager, so
        that a new one would lack it, too."""
        try:
            with open(f"{directory}/stager/manifest", "rb") as stream:
                version = loads(stream.read(), own=True)["kurmaVersion"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if version == self._version:
            return None
        uuid = os.path.basename(directory)
        return (
            f"Kurma {str(version)[:40]!a} started it; for a stager of Kurma {self._version}: kurma restart {uuid}"
        )

    def renew_volumes(self, volumes: Iterable[VolumeSetup], running: RunningStagerHooks, *, links: bool) -> None:
        """Mounts the volumes anew whose sources have been replaced since they were mounted.

        :param volumes: of the host. :param links: as for :func:`.stager_root.volume_mounts`.
        :raises VolumeError, HostError: a source cannot be mounted.
        """
        from kurma_core.staging import app_callins

        app_callins.renew(self, volumes, running, links=links)

    def add_app(self, pod: PodSetup, running: RunningStagerHooks) -> None:
        self._check_image(pod, self._image)
        from kurma_core.staging import app_callins

        app_callins.add(self, pod, running)

    def remove_app(self, directory: str, running: RunningStagerHooks, app: str, volumes: tuple[str, ...]) -> None:
        from kurma_core.staging import app_callins

        app_callins.remove(self, directory, running, app, volumes)

    def start_app(self, directory: str, running: RunningStagerHooks, app: str, timeout: float) -> None:
        from kurma_core.staging import app_callins

        app_callins.ask(self, directory, running, ("app-start", app), timeout)

    def stop_app(self, directory: str, running: RunningStagerHooks, app: str, timeout: float | None) -> None:
        from kurma_core.staging import app_callins

        app_callins.stop(self, directory, running, app, timeout)

    def reopen_log(self, directory: str, running: RunningStagerHooks, app: str) -> None:
        from kurma_core.staging import app_callins

        app_callins.ask(self, directory, running, ("app-reopen-log", app), self.times.change)

    def update_app(self, directory: str, running: RunningStagerHooks, app: str, plan: IsolatorPlan) -> None:
        from kurma_core.staging import app_callins

        app_callins.update(self, directory, running, app, plan)

    def stop(self, directory: str, running: RunningStagerHooks, force: bool) -> None:
        running.signal(signal.SIGKILL if force else signal.SIGTERM)
        if force:
            # On cgroup v1, a frozen process ends only after it is thawed.
            with suppress(OSError, ValueError, KeyError):
                CgroupTree(_call_record(directory)["cgroup"]).thaw()

    def cleanup(self, directory: str, cgroup: str) -> None:
        # All processes of the stager are in the pod's cgroup; its mounts go with the last process of its
        # namespaces.
        CgroupTree(cgroup).kill()


#: Hint about a pod for which a stager does too little.
_OTHER = "run the pod with another stager"


def _asked(pod: PodSetup) -> Iterator[tuple[str, str, str]]:
    """The features that a pod needs of its stager, besides the required parts of the protocol.

    :returns: for each, the annotation by which an image declares it, what the image says by it, and a hint.
    """
    if any(app.annotation(PID) not in (None, PID_POD) for app in pod.manifest.apps):
        yield PID_ANNOTATION, f"it gives apps PID namespaces (annotation {PID_ANNOTATION})", _OTHER
    # Each stager mounts volumes in their order, as the protocol says, and so those below others.
    volumes = {one.name: one for one in pod.volumes}
    needed = needed_kind(volumes, [app.mounts for app in pod.apps], nested=False)
    if needed is not None:
        yield VOLUMES_ANNOTATION, f"it mounts such volumes (annotation {VOLUMES_ANNOTATION}): {needed}", _OTHER
    if any(app.secrets for app in pod.apps):
        yield SECRETS_ANNOTATION, f"it gives apps secrets (annotation {SECRETS_ANNOTATION})", _OTHER
    if needs_powers(pod.plans.values(), pod.pod_plan):
        says = f"it gives apps devices and namespaces of the host, or all power (annotation {POWERS_ANNOTATION})"
        yield POWERS_ANNOTATION, says, _OTHER
    if pod.log_directory is not None or any(app.log_path is not None for app in pod.apps):
        says = f"it writes logs where a pod wants them (annotation {LOGS_ANNOTATION})"
        yield LOGS_ANNOTATION, says, f"{_OTHER}, or without kurma.io/log-dir and kurma.io/log-path"
    if pod.manifest.annotation(KEEP_ROOT) == "true":
        says = f"Kurma finds the changes to apps' roots (annotation {ROOTS_ANNOTATION})"
        yield ROOTS_ANNOTATION, says, f"{_OTHER}, or without --keep-root"


def _environment(pod: PodSetup) -> dict[str, str]:
    """The environment of the stager: the pod's facts for stagers that do not read ``stagerConfig``."""
    found = dict(pair for app in pod.apps for pair in app.environment)
    if pod.metadata_url is not None:
        found["AC_METADATA_URL"] = pod.metadata_url
    return {name: value for name, value in {**found, "HOSTNAME": pod.hostname}.items() if name in _OF_THE_POD}


def _input(pod: PodSetup, stdio: Stdio) -> tuple[int | None, CallerRelay | None]:
    """The stager's standard input and the relay for it; None: no app reads the caller's input.

    A relay is needed: a stager with the caller's own terminal would go on reading it after this command was
    killed.
    """
    if not any(each.interactive for each in pod.apps):
        return None, None
    if stdio.relayed:
        return stdio.stdin, None
    from kurma_core.staging.relay import CallerRelay

    relay = CallerRelay(stdio, wants_terminal=False).__enter__()
    return relay.stdin, relay


def _terminal_size(stdio: Stdio) -> tuple[int, int] | None:
    from kurma_core.linux import terminal

    return terminal.get_size(stdio.stdin) or terminal.get_size(stdio.stdout)


def _call_record(directory: str) -> dict[str, Any]:
    """Reads ``stager/call.json``. :raises OSError: it is missing. :raises StagerError: it is damaged."""
    path = f"{directory}/stager/call.json"
    with open(path, "rb") as stream:
        content = stream.read()
    try:
        value: dict[str, Any] = loads(content, own=True)
        fit(value, _CALL, "the record")
    except ValueError as error:
        raise StagerError(f"cannot read {path}: {error}", hint="kurma stop and kurma rm still work") from None
    return value


def last_output(directory: str) -> str:
    """The last lines that the stager of the pod in that directory printed, joined by " / " and made printable."""
    try:
        with open(f"{directory}/stager/output", "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    from kurma_core.linux.programs import one_line

    return one_line(" / ".join(line.strip() for line in text.splitlines()[-_TAIL_LINES:] if line.strip()))
