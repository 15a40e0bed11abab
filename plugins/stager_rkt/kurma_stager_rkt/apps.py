"""Adds, starts, stops and removes apps of a running mutable pod: its files, and the entrypoints ``app/…``.

``appsinfo/APP/stage1`` records what stage1 was asked. An app that stage1 may not know, because the process that
added or removed it died or failed half-way, is removed whatever its entrypoint answers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kurma_core.errors import StagerError
from kurma_core.json_text import loads
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.files import replace_file
from kurma_core.linux.inotify import Watch
from kurma_stager_rkt import entrypoints, pod_files, roots
from kurma_stager_rkt.records import app_statuses
from kurma_stager_rkt.settings import LIFTED
from kurma_stager_rkt.unmount import unmount_below

if TYPE_CHECKING:
    from kurma_core.hookspecs.pod_setup import PodSetup
    from kurma_stager_rkt.records import Note

Json = Any
VERBS = frozenset(("add", "start", "stop", "rm"))
#: Contents of ``appsinfo/APP/stage1``.
_ASKED, _ADDED, _REMOVING = "asked", "added", "removing"
#: Seconds that ``app/stop`` may take in addition to the app's timeout.
_SLACK = 10.0
#: Seconds to wait for the exit code of a stopped app, and for the lock of the manifest.
_CODE, _LOCK = 2.0, 10.0
_TURN = 0.1
#: Exit status of ``app/stop`` of rkt's own stage1s when the app does not run.
_NOT_THERE = 5


class PodApps:
    """The apps of one running pod.

    :param place: its directory among rkt's pods.
    :param tell: given messages for the user.
    """

    def __init__(
        self, start: entrypoints.Start, note: Note, place: str, uuid: str, tell: Callable[[str], None]
    ) -> None:
        self._start = start
        self._note = note
        self._place = place
        self._uuid = uuid
        self._tell = tell

    def add(self, pod: PodSetup, storage: str) -> None:
        """See :class:`kurma_core.hookspecs.stager.StagerHooks`. :raises OSError: its files cannot be made."""
        (app,) = pod.apps
        pod_files.write_app_info(self._place, pod, app)
        with pod_files.inside(self._place, "opt/stage2") as stage2:
            pod_files.write_app(stage2, pod, app)
            roots.make_app(self._place, pod, app.name, storage, stage2)
        pod_files.write_environment(self._place, pod, app)
        with pod_files.inside(self._place, "rkt/status") as status:
            _touch(f"{status}/{app.name}-created")
        document = pod_files.pod_manifest(pod, attachable=self._note.stage1.attaches)
        with self._manifest() as manifest:
            _drop(manifest, app.name)
            manifest["apps"] += document["apps"]
            manifest["volumes"] = document.get("volumes", [])
        self._remember(app.name, _ASKED)
        self._ask("app/add", app.name, self._note.patience, f"--uuid={self._uuid}", *self._walls(pod, app.name))
        self._remember(app.name, _ADDED)

    def _walls(self, pod: PodSetup, app: str) -> Iterator[str]:
        """Arguments of ``app/add`` for lifted restrictions (all, for a privileged app) and for users."""
        for name, argument in LIFTED.items():
            if name in self._note.lifted or pod.plans[app].privileged:
                yield argument
        if self._note.private_users is not None:
            yield "--private-users={}:{}".format(*self._note.private_users)

    def remove(self, app: str, volumes: tuple[str, ...]) -> None:
        """See :class:`kurma_core.hookspecs.stager.StagerHooks`. :raises OSError: its files cannot be removed."""
        known = self._known(app)
        if known:
            self._remember(app, _REMOVING)
            try:
                # As rkt does, whether it runs or not.
                self._ask_to_stop(app, self._note.patience)
                self._ask("app/rm", app, self._note.patience)
            except StagerError as error:
                if known == _ADDED:
                    self._remember(app, _ADDED)
                    raise
                self._tell(f"app {app}, which was half there: {error.message}; it is removed all the same")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._memory(app))
        self._end_what_is_left(app)
        with pod_files.inside(self._place, "opt/stage2") as stage2:
            unmount_below(f"{os.readlink(stage2)}/{app}")
            roots.remove_in(stage2, app)
        roots.forget_app(self._place, app)
        with (
            pod_files.inside(self._place, "rkt/env") as env,
            pod_files.inside(self._place, "rkt/status") as status,
        ):
            roots.remove_in(env, app)
            for name in (f"{app}-created", f"{app}-started", app):
                roots.remove_in(status, name)
        with self._manifest() as manifest:
            _drop(manifest, app)
            manifest["volumes"] = [one for one in manifest.get("volumes", []) if one["name"] not in volumes]
        if os.path.isdir(f"{self._place}/appsinfo"):
            roots.remove_in(f"{self._place}/appsinfo", app)

    def _end_what_is_left(self, app: str) -> None:
        """Kills the processes that the entrypoints of an app that does not run have left."""
        group = CgroupTree(self._cgroup(app))
        if group.exists():
            group.kill()
            group.remove()

    def start(self, app: str, timeout: float) -> None:
        """See :class:`kurma_core.hookspecs.stager.StagerHooks`. The app's earlier changes to its root stay, as in
        rkt."""
        with pod_files.inside(self._place, "rkt/status") as status:
            for name in (f"{app}-started", app):
                roots.remove_in(status, name)
            _touch(f"{status}/{app}-started")
            try:
                self._ask("app/start", app, timeout)
            except BaseException:
                roots.remove_in(status, f"{app}-started")
                raise

    def stop(self, app: str, timeout: float | None) -> None:
        """See :class:`kurma_core.hookspecs.stager.StagerHooks`. The interface cannot pass a timeout to stage1."""
        if not self._runs(app):
            return
        self._ask_to_stop(app, self._note.patience if timeout is None else timeout + _SLACK)
        with pod_files.inside(self._place, "rkt/status") as status:
            if not self._ends(app, status):
                # stage1 says that it has ended; its exit code is unknown.
                roots.remove_in(status, f"{app}-started")

    def _ask_to_stop(self, app: str, timeout: float) -> None:
        try:
            self._ask("app/stop", app, timeout)
        except StagerError as error:
            if error.data.get("status") != _NOT_THERE:
                raise

    def _ends(self, app: str, status: str) -> bool:
        deadline = time.monotonic() + _CODE
        watch = Watch(status)
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        try:
            while self._runs(app):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                poll.poll(min(left, _TURN) * 1000)
                watch.drain()
            return True
        finally:
            watch.close()

    def _runs(self, app: str) -> bool:
        found = app_statuses(self._place, alive=True, mutable=True).get(app)
        return found is not None and found.started_at is not None and not found.exited

    def _ask(self, entrypoint: str, app: str, timeout: float, *more: str) -> None:
        words = (f"--app={app}", *(["--debug"] if self._note.debug else []), *more)
        cgroup = f"{self._cgroup(app)}/{os.path.basename(entrypoint)}"
        entrypoints.ask(self._start, self._note, self._place, entrypoint, words, timeout, cgroup)

    def _cgroup(self, app: str) -> str:
        """In which that app's entrypoints are, each in a child of it."""
        return f"{self._note.cgroup}/apps/{app}"

    # -- records --

    def _memory(self, app: str) -> str:
        return f"{self._place}/appsinfo/{app}/stage1"

    def _remember(self, app: str, what: str) -> None:
        replace_file(self._memory(app), what.encode(), 0o640)

    def _known(self, app: str) -> str:
        try:
            with open(self._memory(app), encoding="ascii") as stream:
                return stream.read()
        except FileNotFoundError:
            return ""

    @contextlib.contextmanager
    def _manifest(self) -> Iterator[dict[str, Json]]:
        """The pod's manifest, to be changed in the block, under rkt's lock for it. At the end, the file is
        replaced."""
        lock = os.open(f"{self._place}/pod.lck", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            _lock(lock, f"{self._place}/pod.lck")
            with open(f"{self._place}/pod", "rb") as stream:
                value = loads(stream.read(), own=True)
            yield value
            replace_file(f"{self._place}/pod", (json.dumps(value) + "\n").encode(), 0o640)
        finally:
            os.close(lock)


def _lock(fd: int, path: str) -> None:
    deadline = time.monotonic() + _LOCK
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StagerError(f"{path} is locked by another program", hint="try again in a moment") from None
            time.sleep(_TURN)


def _drop(manifest: dict[str, Json], app: str) -> None:
    manifest["apps"] = [one for one in manifest["apps"] if one["name"] != app]


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640))
