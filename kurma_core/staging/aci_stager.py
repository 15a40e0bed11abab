"""The engine of the Kurma Stager Specification: any signed image that keeps to it runs pods (G1 to G9).

The stager lives in a root made of its image, in a mount namespace of its own and the pod's network namespace, in
the host's PID namespace, and is called into by entering both. Nothing of it is copied per pod.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from kurma_core.errors import HostError, StagerError
from kurma_core.json_text import loads
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.files import replace_file
from kurma_core.models.isolator import needs_powers
from kurma_core.models.streams import Stdio
from kurma_core.schema import fit
from kurma_core.staging import stager_status
from kurma_core.staging.callin import CallIn, StagerTimes
from kurma_core.staging.stager_manifest import stager_manifest
from kurma_core.staging.stager_process import StagerProcess, find_again
from kurma_core.staging.stager_root import of_volume, places_of_pod, pod_parts, stager_root
from kurma_core.staging.start_stager import StagerImage, begin

if TYPE_CHECKING:
    from kurma_core.hookspecs.pod_setup import PodSetup
    from kurma_core.hookspecs.stager import RunningStager
    from kurma_core.linux.process import ProcessIdentity
    from kurma_core.models.pod import AppStatus
    from kurma_core.spawn_plan import Starter
    from kurma_core.staging.prestarted import PrestartedStager, PrestartPlace
    from kurma_core.staging.relay import CallerRelay

#: What the image of a stager says that puts apps into the pod's user namespace (H9).
USERNS_ANNOTATION = "kurma.io/stager/userns"
#: That it gives apps what isolator plans say of the host's (X5, X6).
POWERS_ANNOTATION = "kurma.io/stager/powers"
#: The last lines of a stager's output, as an error shows them.
_TAIL_LINES, _TAIL_BYTES = 5, 4096
_OF_THE_POD = ("HOSTNAME", "AC_METADATA_URL")
#: Seconds for a ``status`` call-in after one of the same stager has not answered.
_AFTER_SILENCE = 1.0
#: Shape of the record.
_CALL = {"cgroup": str, "verbs": [str]}


class ImageSource(Protocol):
    """Gives the image of a stager, verified; asked at every start."""

    def __call__(self, *, files: bool = True) -> StagerImage:
        """:param files: False: it runs already; what vouches for it is looked at, its files were before."""
        ...


class AciStager:
    """Implements :class:`kurma_core.hookspecs.stager.Stager` for stagers that are images."""

    #: It does, for images that say so.
    user_namespaces = True
    host_powers = True
    #: Whoever keeps one is never called into for it.
    status_file = True

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
        self._check_powers(pod, lambda: image)
        manifest = self._record(pod, image, stdio)
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

    def _check_powers(self, pod: PodSetup, image: Callable[[], StagerImage]) -> None:
        if not needs_powers(pod.plans.values(), pod.pod_plan):
            return
        manifest = image().manifest
        if manifest.annotation(POWERS_ANNOTATION) != "true":
            raise StagerError(
                f"stager {self.name}: its image {manifest.name} does not say that it gives apps devices and "
                f"namespaces of the host, or all power (annotation {POWERS_ANNOTATION})",
                hint="run the pod with another stager",
            )

    def prestart(self, place: PrestartPlace) -> PrestartedStager:
        """Starts the stager of a pod that is not known yet (G10).

        :raises StagerError: its image does not say that it can wait, or it could not be started.
        """
        from kurma_core.staging.prestarted import prestart

        image = self._image()
        if place.own:
            # What will stand beside what it prints, as far as that can be known.
            self._keep_call(place.directory, place.cgroup, image)
        return prestart(self.spawner, self.name, image, place)

    def hand_over(self, waiting: PrestartedStager, pod: PodSetup) -> StagerProcess:
        """As :meth:`start`, by a stager that waits: its root, cgroup and network are made whole, then it is told.

        Call :meth:`prepare` before. Whatever goes wrong, that stager is thrown away, and :meth:`start` will do.

        :raises StagerError: it cannot be this pod's, and why; its image has changed meanwhile.
        :raises HostError: it could not be made whole.
        """
        try:
            self._check_use(pod, waiting.why_not(pod))
            manifest = self.manifest(pod)
            waiting.move_to(pod.cgroup)
            operations = pod_parts(pod, manifest)
            if not waiting.place.own:
                operations[:0] = places_of_pod(pod.directory, CgroupTree(pod.cgroup))

            def meanwhile() -> None:
                image = self._image(files=False)
                self._check_use(
                    pod, None if image.id == waiting.image else "its image is not the stager's any more"
                )
                self._check_powers(pod, lambda: image)
                self._keep(pod, image, manifest, called=bool(waiting.place.own))
                os.rename(waiting.output, f"{pod.directory}/stager/output")

            try:
                self.spawner.bind_into(waiting.pid, operations, pidfd=waiting.pidfd, meanwhile=meanwhile)
            except HostError as error:
                raise of_volume(error, pod.volumes) from None
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
        """:raises StagerError: a waiting stager cannot be this pod's, and why."""
        if why_not is not None:
            raise StagerError(f"stager {self.name}: the waiting one is of no use to pod {pod.name}: {why_not}")

    def _record(self, pod: PodSetup, image: StagerImage, stdio: Stdio) -> bytes:
        """As :meth:`_keep`. :returns: the stager manifest."""
        size = _terminal_size(stdio) if any(each.terminal for each in pod.apps) else None
        manifest = self.manifest(pod, size)
        self._keep(pod, image, manifest)
        return manifest

    def _keep(self, pod: PodSetup, image: StagerImage, manifest: bytes, *, called: bool = False) -> None:
        """What it is told; where its call-ins go, and which it has.

        :param called: the latter two stand there.
        :raises StagerError: the pod has no apps, and could never get any.
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
        """What the stager is told of the pod. :param size: of the caller's terminal."""
        return stager_manifest(
            pod,
            self._version,
            stop_timeout=self.times.stop,
            log_size=self.times.log_size,
            log_count=self.times.log_count,
            terminal_size=size,
        )

    def attach_to(self, directory: str, identity: Mapping[str, Any]) -> StagerProcess | None:
        def members() -> list[int]:
            return CgroupTree(_call_record(directory)["cgroup"]).pids()

        return find_again(identity, lambda: last_output(directory), members)

    def status(self, directory: str, running: RunningStager | None) -> Mapping[str, AppStatus]:
        found = stager_status.read_status_file(directory)
        if found is not None:
            return found[0]
        if running is not None and running.alive():
            return self._ask(directory, running)
        return self._last_said(directory)

    def _ask(self, directory: str, running: RunningStager) -> Mapping[str, AppStatus]:
        """The ``status`` call-in, whose answer is kept: it is all that is known once the stager has ended (G8)."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        output, end = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                call = self.call_in(directory, running, ("/opt/stager/status",), Stdio(null, end, null), None)
            finally:
                os.close(end)
            try:
                text, code = call.answer(output, stager_status.LIMIT, min(self._status_time, self.times.status))
            except StagerError:
                # Others of its kind may be as mute: who lists many pods does not wait long for each.
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
        running: RunningStager,
        verb: str,
        arguments: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None = None,
    ) -> int:
        return self.begin(directory, running, verb, arguments, stdio, document).wait()

    def begin(
        self,
        directory: str,
        running: RunningStager,
        verb: str,
        arguments: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None = None,
    ) -> CallIn:
        """See :class:`kurma_core.hookspecs.stager.StagerOfTerminals`."""
        return self.call_in(directory, running, (f"/opt/stager/{verb}", *arguments), stdio, document)

    def call_in(
        self,
        directory: str,
        running: RunningStager,
        argv: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None,
    ) -> CallIn:
        """Starts a call-in. :raises StagerError: the stager has none of that name, or has ended."""
        return CallIn(
            self.spawner,
            running.pid,
            running.fileno(),
            _call_record(directory)["cgroup"],
            argv,
            stdio,
            document,
            self.times.document,
        )

    def app_verbs(self, directory: str) -> frozenset[str]:
        return frozenset(_call_record(directory)["verbs"])

    def no_verb(self, directory: str, verb: str) -> StagerError:
        return StagerError(
            f"its stager {self.name} has no app-{verb}",
            hint="the default stager has; a stager's image declares it by the annotation kurma.io/stager/callins",
        )

    def add_app(self, pod: PodSetup, running: RunningStager) -> None:
        self._check_powers(pod, self._image)
        from kurma_core.staging import app_callins

        app_callins.add(self, pod, running)

    def remove_app(self, directory: str, running: RunningStager, app: str, volumes: tuple[str, ...]) -> None:
        from kurma_core.staging import app_callins

        app_callins.remove(self, directory, running, app, volumes)

    def start_app(self, directory: str, running: RunningStager, app: str, timeout: float) -> None:
        from kurma_core.staging import app_callins

        app_callins.ask(self, directory, running, ("app-start", app), timeout)

    def stop_app(self, directory: str, running: RunningStager, app: str, timeout: float | None) -> None:
        from kurma_core.staging import app_callins

        app_callins.stop(self, directory, running, app, timeout)

    def stop(self, directory: str, running: RunningStager, *, force: bool) -> None:
        running.signal(signal.SIGKILL if force else signal.SIGTERM)
        if force:
            # On v1, what is frozen dies once it is thawed.
            with suppress(OSError, ValueError, KeyError):
                CgroupTree(_call_record(directory)["cgroup"]).thaw()

    def cleanup(self, directory: str, cgroup: str) -> None:
        # Whatever the stager started is in the pod's cgroup; its mounts go with the last process in them.
        CgroupTree(cgroup).kill()


def _environment(pod: PodSetup) -> dict[str, str]:
    """What a stager that knows only the document learns of its pod so (G4)."""
    found = dict(pair for app in pod.apps for pair in app.environment)
    if pod.metadata_url is not None:
        found["AC_METADATA_URL"] = pod.metadata_url
    return {name: value for name, value in {**found, "HOSTNAME": pod.hostname}.items() if name in _OF_THE_POD}


def _input(pod: PodSetup, stdio: Stdio) -> tuple[int | None, CallerRelay | None]:
    """The stager's standard input, None where no app takes the caller's, and what relays it there.

    A stager that had the caller's own terminal would go on reading it after this command was killed.
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
    """:raises OSError: it is lost, with the pod's directory perhaps. :raises StagerError: it is damaged."""
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
    """The last lines that the stager of the pod in that directory printed, joined by " / "; fit to be shown."""
    try:
        with open(f"{directory}/stager/output", "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    from kurma_core.linux.programs import one_line

    return one_line(" / ".join(line.strip() for line in text.splitlines()[-_TAIL_LINES:] if line.strip()))
