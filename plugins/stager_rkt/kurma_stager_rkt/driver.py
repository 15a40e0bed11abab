"""The stager driver ``rkt``: prepares, starts, stops and removes pods under a stage1 image, as rkt's stage0."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import FetchError, HostError, StagerError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.stager import StagerFeatures, StagerHooks
from kurma_core.json_text import loads
from kurma_core.linux import process
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.files import replace_file
from kurma_core.value import replace
from kurma_stager_rkt import enter_attach, entrypoints, pod_files, removal, roots, settings
from kurma_stager_rkt.apps import VERBS, PodApps
from kurma_stager_rkt.pod_directories import PREPARED, RUN, Places
from kurma_stager_rkt.pod_processes import end_strays
from kurma_stager_rkt.records import COPY, NOTE, Note, app_statuses
from kurma_stager_rkt.run_arguments import Decided, check, decide, run_arguments
from kurma_stager_rkt.running import RunningStage1
from kurma_stager_rkt.unmount import unmount_below

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import DriverContext, HostTree
    from kurma_core.hookspecs.pod_setup import PodSetup
    from kurma_core.hookspecs.stager import RunningStagerHooks
    from kurma_core.models.pod import AppStatus
    from kurma_core.models.streams import Stdio

_LOCK_FD = 3
#: A file in Kurma's directory of the pod, while apps are still to be added before the pod runs.
_COMING = "stager/coming"
_OUTPUT = "stager/output"
#: Seconds that stage1 may take to end after a forced stop.
_FORCE_PATIENCE = 2.0
#: Seconds to wait for the end of killed processes that hold a pod's lock.
_KILL_PATIENCE = 5.0


class Stage1Stager(StagerHooks):
    """The driver of one stage1 image."""

    def __init__(self, name: str, locator: str, context: DriverContext) -> None:
        self.name = name
        self._locator = locator
        self._context = context
        self._places = Places.of(context)
        #: Images that were verified when their pods were prepared, until these are started.
        self._trees: dict[str, HostTree] = {}

    @hookimpl
    def features(self) -> StagerFeatures:
        return StagerFeatures(
            joins_networks=True,
            user_namespaces=True,
            host_powers=True,
            ends_with_exit_code=True,
            default_hostname="rkt-{uuid}",
        )

    # -- its start --

    @hookimpl
    def prepare(self, pod: PodSetup) -> None:
        tree = self._image()
        decided = self._decided(pod, tree)
        note = decided.note
        run_arguments(note.stage1, decided.wishes, self._context.note)
        check(self.name, pod, self._context.note, note.local_config)
        os.makedirs(f"{pod.directory}/stager", mode=0o700, exist_ok=True)
        self.discard(pod.directory)
        replace_file(f"{pod.directory}/stager/remains", f"{self.name}\n".encode())
        replace_file(f"{pod.directory}/{_OUTPUT}", b"")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{pod.directory}/{_COMING}")
        note.write(f"{pod.directory}/{NOTE}")
        try:
            place = self._places.make(pod.uuid)
            try:
                note.write(f"{place.path}/{COPY}")
                pod_files.write_pod(place.path, _at_first(pod), tree)
                pod_files.write_manifest(place.path, _at_first(pod), attachable=note.stage1.attaches)
                place.move(PREPARED)
            finally:
                place.close()
        except OSError as error:
            raise self._host_error("prepare the pod", pod.uuid, error) from None
        self._trees[pod.uuid] = tree

    def _decided(self, pod: PodSetup, tree: HostTree, stdio: Stdio | None = None) -> Decided:
        config = {**self._context.config, **pod.config}
        return decide(self.name, pod, tree, config, self._places.path(RUN, pod.uuid), stdio)

    @hookimpl
    def start(self, pod: PodSetup, stdio: Stdio) -> RunningStage1:
        tree = self._trees.pop(pod.uuid, None) or self._image()
        decided = self._decided(pod, tree, stdio)
        note = decided.note
        try:
            place = self._places.take(pod.uuid)
        except OSError as error:
            raise self._host_error("start the pod", pod.uuid, error) from None
        if place is None or place.state != PREPARED:
            raise StagerError(f"stager {self.name}: pod {pod.uuid} is not prepared in {self._places.root}")
        try:
            if pod.keep and pod.apps:
                # Before another process can find it: that must not take it for complete.
                replace_file(f"{pod.directory}/{_COMING}", b"")
            place.move(RUN)
            if decided.in_front:
                pod_files.write_manifest(
                    place.path, _at_first(pod), attachable=note.stage1.attaches, in_front=True
                )
            roots.make_stage1(place.path, tree.id, tree.path, decided.storage, pod_files.shift(pod))
            pod_files.write_rootfs(place.path, _at_first(pod))
            with pod_files.inside(place.path, "opt/stage2") as stage2:
                for app in _at_first(pod).apps:
                    roots.make_app(place.path, pod, app.name, decided.storage, stage2)
                    pod_files.write_environment(place.path, pod, app)
            with _Output(pod.directory, stdio) as fds:
                started = entrypoints.begin(
                    self._context.start_program,
                    note,
                    place.path,
                    "run",
                    run_arguments(note.stage1, decided.wishes),
                    fds={**fds, _LOCK_FD: place.fd},
                    stdio=stdio,
                    environment={"RKT_LOCK_FD": str(_LOCK_FD)},
                    cgroup=pod.cgroup,
                )
        except OSError as error:
            raise self._host_error("start the pod", pod.uuid, error) from None
        finally:
            # From here on only stage1 holds the lock, which is free when stage1 has ended.
            place.close()
        running = RunningStage1(
            started.identity, started.pidfd, place.path, note.mutable, tree.id, *_files(pod.directory)
        )
        if pod.keep and pod.apps:
            running.add_coming = lambda timeout: self._add_again(pod, running, timeout)
        return running

    def _add_again(self, pod: PodSetup, running: RunningStage1, timeout: float) -> None:
        """Adds the apps that a mutable pod had when it ended: stage1s start such pods without apps."""
        for app in pod.apps:
            alone = replace(pod.manifest, apps=(pod.manifest.app(app.name),))
            self.add_app(replace(pod, apps=(app,), manifest=alone), running)
            self.start_app(pod.directory, running, app.name, timeout)

    @hookimpl
    def attach_to(self, directory: str, identity: Mapping[str, Any]) -> RunningStage1 | None:
        try:
            known = process.ProcessIdentity.from_json(dict(identity))
            mutable, image = bool(identity["mutable"]), str(identity["image"])
        except (ValueError, KeyError, TypeError):
            return None
        fd = known.open()
        if fd is None:
            return None
        return RunningStage1(known, fd, self._run(directory), mutable, image, *_files(directory))

    # -- while it runs --

    @hookimpl
    def status(self, directory: str, running: RunningStagerHooks | None) -> Mapping[str, AppStatus]:
        uuid = os.path.basename(directory)
        state = self._places.find(uuid)
        if state is None:
            return {}
        note = Note.read(directory)
        alive = running is not None and running.alive()
        mutable = note is not None and note.mutable
        return app_statuses(self._places.path(state, uuid), alive=alive, mutable=mutable)

    @hookimpl
    def call(
        self,
        directory: str,
        running: RunningStagerHooks,
        verb: str,
        arguments: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None = None,
    ) -> int:
        note, place, start = self._note(directory), self._run(directory), self._context.start_program
        app, *options = arguments or ("",)
        if verb == "run":
            return enter_attach.enter(start, note, place, app, loads(document or b"{}", own=True), stdio)
        if verb == "attach":
            return enter_attach.attach(start, note, place, app, tuple(options), stdio)
        raise StagerError(f"stager {self.name}: a stage1 cannot be asked for {verb}")

    @hookimpl
    def stop(self, directory: str, running: RunningStagerHooks, force: bool) -> None:
        note = Note.read(directory)
        uuid = os.path.basename(directory)
        asked = note is not None and "stop" in note.stage1.entrypoints and self._asked_to_stop(note, uuid, force)
        if asked and (not force or process.wait_pidfd(running.fileno(), _FORCE_PATIENCE)):
            return
        running.signal(signal.SIGKILL if force else signal.SIGTERM)

    def _asked_to_stop(self, note: Note, uuid: str, force: bool) -> bool:
        """Runs the ``stop`` entrypoint. :returns: False: it has failed, and the caller must send signals."""
        output = os.memfd_create("stop", os.MFD_CLOEXEC)
        words = ("--force", uuid) if force else (uuid,)
        try:
            started = entrypoints.begin(
                self._context.start_program,
                note,
                self._places.path(RUN, uuid),
                "stop",
                words,
                fds={1: output, 2: output},
                cgroup=note.cgroup,
            )
            code = entrypoints.finish(started, note.patience)
        except (StagerError, HostError) as error:
            self._context.note(f"stager {self.name}: {error.message}")
            return False
        else:
            text = entrypoints.said(output)
            if code != 0:
                how = f"did not end within {note.patience} s" if code is None else f"ended with status {code}"
                self._context.note(f"stager {self.name}: its stop entrypoint {how}{text}: signals are sent")
            elif text:
                self._context.note(f"stager {self.name}: its stop entrypoint said{text}")
            return code == 0
        finally:
            os.close(output)

    # -- changes of apps --

    @hookimpl
    def app_verbs(self, directory: str) -> frozenset[str]:
        note = Note.read(directory)
        return VERBS if note is not None and note.mutable else frozenset()

    @hookimpl
    def no_verb(self, directory: str, verb: str) -> StagerError:
        lacking = self._note(directory).stage1.lacking
        if lacking:
            return StagerError(
                f"stage1 image {self._note(directory).stage1.name} keeps pods as they are: {lacking}",
                hint="run the pod with another --stager",
            )
        return StagerError(
            "a stage1 is told at its start whether apps may come and go, and this pod was made with its apps",
            hint="make one without any (`apps: []` in its file), and add them by kurma app add",
        )

    @hookimpl
    def add_app(self, pod: PodSetup, running: RunningStagerHooks) -> None:
        check(self.name, pod, self._context.note)
        with self._changing(pod.directory, f"add app {pod.apps[0].name}") as apps:
            apps.add(pod, self._storage(pod))

    @hookimpl
    def remove_app(self, directory: str, running: RunningStagerHooks, app: str, volumes: tuple[str, ...]) -> None:
        with self._changing(directory, f"remove app {app}") as apps:
            apps.remove(app, volumes)

    @hookimpl
    def start_app(self, directory: str, running: RunningStagerHooks, app: str, timeout: float) -> None:
        with self._changing(directory, f"start app {app}") as apps:
            apps.start(app, timeout)

    @hookimpl
    def stop_app(self, directory: str, running: RunningStagerHooks, app: str, timeout: float | None) -> None:
        with self._changing(directory, f"stop app {app}") as apps:
            apps.stop(app, timeout)

    @contextlib.contextmanager
    def _changing(self, directory: str, what: str) -> Iterator[PodApps]:
        uuid = os.path.basename(directory)
        try:
            start, note = self._context.start_program, self._note(directory)
            yield PodApps(start, note, self._run(directory), uuid, self._context.note)
        except OSError as error:
            raise self._host_error(what, uuid, error) from None

    # -- its end --

    @hookimpl
    def cleanup(self, directory: str, cgroup: str) -> None:
        uuid = os.path.basename(directory)
        CgroupTree(cgroup).kill()
        self._end_strays(uuid)
        state = self._places.find(uuid)
        if state is not None:
            unmount_below(self._places.path(state, uuid))

    def _end_strays(self, uuid: str) -> None:
        """Kills processes that stage1 has taken out of the pod's cgroup."""
        deadline = time.monotonic() + _KILL_PATIENCE
        while end_strays(self._places.path(RUN, uuid)) or self._places.held(uuid):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "a process outside of the pod's cgroup holds its lock", self._run(uuid))
            time.sleep(0.01)

    @hookimpl
    def discard(self, directory: str) -> tuple[str, ...]:
        """See :class:`kurma_core.hookspecs.stager.StagerHooks`."""
        place = self._places.take(os.path.basename(directory))
        notes: tuple[str, ...] = ()
        if place is not None:
            try:
                note = Note.read(directory) or Note.of_file(f"{place.path}/{COPY}")
                notes = tuple(removal.remove(self._context.start_program, place, note))
            finally:
                place.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{directory}/stager/remains")
        return notes

    # -- helpers --

    def _image(self) -> HostTree:
        try:
            return self._context.host_image(self._locator)
        except FetchError as error:
            error.message = f"stager {self.name}: its image: {error.message}"
            raise

    def _storage(self, pod: PodSetup) -> str:
        return settings.read(self.name, {**self._context.config, **pod.config}).storage

    def _run(self, directory: str) -> str:
        return self._places.path(RUN, os.path.basename(directory))

    def _note(self, directory: str) -> Note:
        note = Note.read(directory)
        if note is None:
            raise StagerError(f"stager {self.name}: the record of the pod's stage1 is gone or damaged")
        return note

    def _host_error(self, what: str, uuid: str, error: OSError) -> HostError:
        return HostError(
            f"stager {self.name}: cannot {what}: {removal.why(error)}",
            errno=error.errno,
            path=error.filename,
            pod=uuid,
        )


def _at_first(pod: PodSetup) -> PodSetup:
    """The pod as its stage1 finds it at the start: a mutable pod has no apps yet."""
    return replace(pod, apps=(), manifest=replace(pod.manifest, apps=())) if pod.keep else pod


def _files(directory: str) -> tuple[str, str]:
    """Files in Kurma's directory of a pod: the mark that apps are still to be added; stage1's unseen output."""
    return f"{directory}/{_COMING}", f"{directory}/{_OUTPUT}"


class _Output:
    """Descriptors 0, 1 and 2 of stage1, for a ``with`` statement: the caller's. For a pod in the background,
    output goes to a file that ``kurma logs`` reads."""

    def __init__(self, directory: str, stdio: Stdio) -> None:
        self._path = f"{directory}/{_OUTPUT}"
        self._fds = entrypoints.descriptors(stdio)
        self._file = -1

    def __enter__(self) -> dict[int, int]:
        null = os.stat("/dev/null")
        if any(os.path.samestat(os.fstat(self._fds[number]), null) for number in (1, 2)):
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for number in (1, 2):
            if self._file >= 0 and os.path.samestat(os.fstat(self._fds[number]), null):
                self._fds[number] = self._file
        return self._fds

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
