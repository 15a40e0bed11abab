"""Adds, starts, stops and removes apps of a pod that runs.

One process at a time changes a pod's apps: it holds the pod's *apps* lock. What it is about to do stands in
``state.json`` (``change``) before it is done; what was decided, in ``pod.json``, replaced at once. So whoever
comes after a death finds either the pod as it was, and takes away the rest, or the pod as it is to be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from kurma_core.errors import (
    CommandNotExecutableError,
    CommandNotFoundError,
    KurmaError,
    PodStateError,
    StagerError,
)
from kurma_core.pods.prepare import volumes
from kurma_core.pods.record.document import read_document
from kurma_core.pods.record.state import AppChange
from kurma_core.pods.run import pod_limits, pod_metadata, recovery
from kurma_core.pods.run.launch import Launch, pod_setup
from kurma_core.value import frozen, replace

if TYPE_CHECKING:
    from kurma_core.api.pods import PodRequest
    from kurma_core.hookspecs.stager import AppChanger, RunningStager
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.change.new_app import NewApp
    from kurma_core.pods.finder import PodFinder
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_store import PodDirectory
    from kurma_core.progress import Progress

Json = Any
#: Seconds to wait for who changes the pod's apps at the moment; call-ins are bounded.
APPS_PATIENCE = 120.0
#: Seconds for the start of one app, its pre-start handler included.
_START = 60.0


@frozen
class Changeable:
    """A running pod whose apps lock we hold. :param identity: of its stager, as the record has it."""

    directory: PodDirectory
    document: PodDocument
    driver: AppChanger
    stager: RunningStager
    identity: Json


class PodApps:
    """Adds, starts, stops and removes apps of running pods."""

    def __init__(self, finder: PodFinder) -> None:
        self._finder = finder
        self._services = finder.services

    def add(
        self, reference: str, request: PodRequest, *, start: bool = False, progress: Progress | None = None
    ) -> PodRecord:
        """The pod gets an app; it runs once it is started.

        :param request: of a pod with that app alone; volumes that it names are the pod's, or new ones.
        :param start: start it, too. Where that fails the app stays, and says why.
        :raises PodStateError: the pod does not run, or has an app of that name.
        :raises StagerError: its stager takes no apps, or refuses.
        :raises KurmaError: see :func:`kurma_core.pods.change.new_app.new_app`; all is undone.
        """
        from kurma_core.pods.change import new_app

        directory = self._finder.find(reference)
        name = new_app.wanted_app(request).name
        document = read_document(directory)
        # What is known to be in vain is said before anything is fetched.
        new_app.check_name(document, name)
        with self._stager_of(directory, document, "add") as (driver, _):
            # Without app-rm, what fails half-way could not be undone.
            self._check_verbs(document, driver, directory, "add", "rm", *(("start",) if start else ()))
        with self._services.images.keeping():
            image = new_app.find_image(self._services, request, progress)
            with self._changeable(directory, "add") as pod:
                app = new_app.new_app(self._services, pod.document, request, image)
                self._add(pod, app)
        if start:
            self.start(directory.uuid, name)
        return self._finder.read(directory)

    def _add(self, pod: Changeable, app: NewApp) -> None:
        directory = pod.directory
        change = AppChange("add", app.name, app.volumes, *_of_the_pod(app.part))
        in_use = tuple(sorted({*app.rendered.images, *app.rendered.manifests}))
        _change_state(pod, change=change, layers={**directory.read_state().layers, app.name: in_use})
        try:
            volumes.make_empty(app.document.manifest, directory.path, app.document.ids)
            self._services.api_changed(app.document, directory.path)
            if change.traffic:
                pod_limits.hold_traffic(app.document, self._services.note)
            if change.memory:
                pod_limits.keep_memory(app.document)
            attachments = directory.read_state().attachments
            url = pod_metadata.url_of(directory)
            launch = Launch(self._services, directory, app.part, attachments=attachments, metadata_url=url)
            pod.driver.add_app(pod_setup(launch, {app.name: app.rendered}), pod.stager)
            self._commit(pod, app.document)
        except BaseException:
            # Where that fails, too, it stays on record, and the next one does it.
            with contextlib.suppress(KurmaError, OSError):
                self._finish_change(pod, change)
            raise
        self._finish_change(pod, change)

    def start(self, reference: str, app: str) -> PodRecord:
        """Starts an app that was added, or has ended, from a clean root; returns once it runs.

        :raises PodStateError: the pod, or already the app, runs or not.
        :raises CommandNotFoundError, CommandNotExecutableError: its program could not be executed.
        :raises StagerError: it could not be started.
        """
        directory = self._finder.find(reference)
        with self._changeable(directory, "start", app) as pod:
            if self._runs(directory, app):
                raise PodStateError(f"app {app} of pod {pod.document.name} runs already")
            from kurma_core.pods.prepare import isolators

            isolators.check_start(self._services, pod.document, app)
            if pod.document.needs:
                from kurma_core.pods.prepare import grants

                grants.check_again(pod.document, self._services, app)
            patience = max(_START, self._services.config.start_timeout)
            try:
                pod.driver.start_app(directory.path, pod.stager, app, patience)
            except StagerError:
                self._say_of_program(directory, app)
                raise
        return self._finder.read(directory)

    def _say_of_program(self, directory: PodDirectory, app: str) -> None:
        """:raises CommandNotFoundError, CommandNotExecutableError: that is why the app does not run."""
        for one in self._finder.read(directory).unstarted:
            kind = {127: CommandNotFoundError, 126: CommandNotExecutableError}.get(one.exit_code or 0)
            if one.name == app and kind is not None:
                raise kind(f"app {app}: {one.told}") from None

    def stop(self, reference: str, app: str, *, timeout: float | None = None) -> PodRecord:
        """Stops an app and waits until it has ended; one that does not run is left as it is.

        :param timeout: seconds between its stop signal and SIGKILL; None: as the pod's.
        """
        directory = self._finder.find(reference)
        with self._changeable(directory, "stop", app) as pod:
            try:
                pod.driver.stop_app(directory.path, pod.stager, app, timeout)
            except StagerError:
                # Its last app has ended, and the pod with it.
                if pod.stager.alive():
                    raise
        return self._finder.read(directory)

    def remove(self, reference: str, app: str, *, force: bool = False) -> None:
        """Removes an app that does not run: its root, its logs, and the volumes that came with it.

        :param force: stop it first, at once.
        :raises PodStateError: it runs.
        """
        from kurma_core.pods.change import new_app

        directory = self._finder.find(reference)
        if force:
            self.stop(reference, app, timeout=0)
        with self._changeable(directory, "rm", app) as pod:
            if self._runs(directory, app):
                raise PodStateError(
                    f"cannot remove app {app} of pod {pod.document.name}: it runs",
                    hint=f"kurma app stop {pod.document.name} {app}, or kurma app rm --force",
                )
            change = AppChange("rm", app, (), *_of_the_pod(new_app.only(pod.document, app)))
            _change_state(pod, change=change)
            try:
                self._finish_change(pod, change)
            except StagerError:
                # It says no, so that the app is still there; or the pod has ended.
                directory.change_state(change=None)
                raise

    # -- what stands behind them --

    @contextlib.contextmanager
    def _changeable(self, directory: PodDirectory, verb: str, app: str | None = None) -> Iterator[Changeable]:
        """The pod, with its apps lock held and whatever a dead process left undone.

        :param app: one that the pod must have.
        :raises PodStateError: it does not run, or somebody else holds the lock for too long.
        """
        with directory.apps_lock(APPS_PATIENCE):
            document = read_document(directory)
            with self._stager_of(directory, document, verb) as (driver, stager):
                self._check_verbs(document, driver, directory, verb)
                pod = Changeable(directory, document, driver, stager, directory.read_state().stager)
                change = directory.read_state().change
                if change is not None:
                    self._finish_change(pod, change)
                    pod = replace(pod, document=read_document(directory))
                if app is not None:
                    pod.document.manifest.app(app)
                yield pod

    @contextlib.contextmanager
    def _stager_of(
        self, directory: PodDirectory, document: PodDocument, verb: str
    ) -> Iterator[tuple[AppChanger, RunningStager]]:
        what = f"{_WORDS[verb]} pod {document.name}"
        state = directory.read_state().state
        stager = recovery.find_stager(self._services, directory) if state == "running" else None
        if stager is None:
            hint = f"kurma start {document.name}" if state in ("prepared", "stopped", "errored") else None
            how = "has just ended" if state == "running" else f"is {state}"
            raise PodStateError(f"cannot {what}: it {how}", hint=hint, pod=document.uuid)
        try:
            driver = self._services.stagers.of_pod(document.stager)
            if not hasattr(driver, "app_verbs"):
                raise StagerError(f"cannot {what}: its stager {document.stager} cannot change a pod that runs")
            yield cast("AppChanger", driver), stager
        finally:
            stager.close()

    @staticmethod
    def _check_verbs(document: PodDocument, driver: AppChanger, directory: PodDirectory, *verbs: str) -> None:
        offered = driver.app_verbs(directory.path)
        for verb in verbs:
            if verb not in offered:
                error = driver.no_verb(directory.path, verb)
                raise StagerError(f"cannot {_WORDS[verb]} pod {document.name}: {error.message}", hint=error.hint)

    def _runs(self, directory: PodDirectory, app: str) -> bool:
        for one in self._finder.read(directory).apps:
            if one.name == app:
                # Not every stager tells of processes.
                return not one.exited and (one.pid is not None or one.started_at is not None)
        return False

    def _commit(self, pod: Changeable, document: PodDocument) -> None:
        """The pod is another one from here on."""
        _change_state(pod)
        pod.directory.write_pod(document.to_json())

    def _finish_change(self, pod: Changeable, change: AppChange) -> None:
        """An app that did not come to be on record is taken away; one that is to go, goes. Repeatable.

        :raises StagerError: the stager does not do its part.
        """
        from kurma_core.pods.change.new_app import without
        from kurma_core.pods.record import executions

        directory, app = pod.directory, change.app
        document = read_document(directory)
        there = app in document.app_names
        if there and change.do == "add":
            directory.change_state(change=None)
            return
        if not pod.stager.alive():
            # What is left of it goes with the pod.
            raise StagerError(f"pod {document.name} has ended")
        gone = change.volumes
        if there:
            document, gone = without(document, app)
            # Known should we die before the end, when the document does not name them any more.
            directory.change_state(change=replace(change, volumes=tuple(gone)))
        self._services.api_changed(document, directory.path)
        pod.driver.remove_app(directory.path, pod.stager, app, gone)
        if there:
            self._commit(pod, document)
        volumes.remove_empty(gone, directory.path)
        try:
            if change.traffic:
                pod_limits.hold_traffic(document, self._services.note)
            if change.memory:
                pod_limits.keep_memory(document)
        except KurmaError as error:
            # What is too much of it keeps nobody from changing the pod.
            self._services.note(f"{error.message}; what app {app} has asked for stays")
        executions.forget(directory, app)
        layers = dict(directory.read_state().layers)
        layers.pop(app, None)
        directory.change_state(change=None, layers=layers)

    @staticmethod
    def half_changed(directory: PodDirectory) -> bool:
        state = directory.read_state()
        return state.state == "running" and state.change is not None and not directory.apps_locked()

    def finish_change(self, directory: PodDirectory) -> bool:
        """Of a running pod, clears away what somebody has left who died while he changed its apps.

        :returns: whether there was something.
        :raises KurmaError: it cannot be, and stays on record.
        """
        if not self.half_changed(directory):
            return False
        with self._changeable(directory, "rm"):
            return True


def _change_state(pod: Changeable, **changes: Any) -> None:
    """:raises PodStateError: the pod is not the run that we know any more."""
    with pod.directory.op_lock():
        state = pod.directory.read_state()
        if state.state != "running" or state.stager != pod.identity:
            raise PodStateError(
                f"pod {pod.document.name}: its apps cannot be changed any more: it is {state.state}",
                pod=pod.document.uuid,
            )
        pod.directory.write_state(replace(state, **changes))


def _of_the_pod(part: PodDocument) -> tuple[bool, bool]:
    """Whether an app has traffic limits, and requests memory. :param part: the pod with that app alone."""
    return bool(pod_limits.traffic_limits(part)), pod_limits.requested_memory(part) > 0


_WORDS = {
    "add": "add an app to",
    "start": "start an app of",
    "stop": "stop an app of",
    "rm": "remove an app of",
}
