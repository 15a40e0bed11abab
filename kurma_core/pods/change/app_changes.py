"""Adds, starts, stops, updates and removes apps of a running pod.

One process at a time changes a pod's apps: it holds the pod's *apps* lock. Before each change it records its
intention in ``state.json`` (``change``); the new definition then replaces ``pod.json`` in one step. If the process
dies, the next one finds ``pod.json`` either unchanged, and undoes the rest, or already replaced, and completes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import (
    CommandNotExecutableError,
    CommandNotFoundError,
    KurmaError,
    PodStateError,
    StagerError,
    UsageError,
)
from kurma_core.models.pod import ENDED_STATES
from kurma_core.pods import log_places
from kurma_core.pods.finder import APPS_PATIENCE
from kurma_core.pods.prepare import pid_modes, volumes
from kurma_core.pods.prepare.app_settings import pod_setup, secret_values
from kurma_core.pods.record import health
from kurma_core.pods.record.pod_record import forget_executions, forget_last_run
from kurma_core.pods.record.state import AppChange
from kurma_core.pods.run import app_events, pod_limits, pod_metadata, recovery
from kurma_core.value import frozen, replace

if TYPE_CHECKING:
    from kurma_core.api.operations import Progress
    from kurma_core.api.pods import PodRequest
    from kurma_core.hookspecs.stager import RunningStagerHooks, StagerHooks
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.change.new_app import NewApp
    from kurma_core.pods.finder import PodFinder
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory

Json = Any
#: Seconds for the start of one app, including its pre-start handler.
_START = 60.0


@frozen
class Changeable:
    """A running pod whose apps lock we hold. :param identity: of its stager, as recorded."""

    directory: PodDirectory
    document: PodDocument
    driver: StagerHooks
    stager: RunningStagerHooks
    identity: Json


class PodApps:
    """Adds, starts, stops and removes apps of running pods."""

    def __init__(self, finder: PodFinder) -> None:
        self._finder = finder
        self._services = finder.services

    def add(
        self, reference: str, request: PodRequest, *, start: bool = False, progress: Progress | None = None
    ) -> PodRecord:
        """Adds an app to a running pod. The app runs once it is started.

        :param request: of a pod with that app alone; volumes that it names are the pod's, or new ones.
        :param start: start it, too. If that fails, the app stays in the pod, with the reason in its status.
        :raises PodStateError: the pod does not run, or has an app of that name.
        :raises StagerError: its stager does not support adding apps, or refuses this one.
        :raises KurmaError: see :func:`kurma_core.pods.change.new_app.new_app`; everything is undone.
        """
        from kurma_core.pods.change import new_app
        from kurma_core.pods.prepare.prepare_pod import with_found_volumes

        directory = self._finder.find(reference)
        name = new_app.wanted_app(request).name
        document = directory.read_document()
        # Errors that can be known early are raised before an image is fetched.
        new_app.check_name(document, name)
        with self._stager_of(directory, document, "add") as (driver, _):
            # app-rm is required, too: it undoes an addition that fails half-way.
            self._check_verbs(document, driver, directory, "add", "rm", *(("start",) if start else ()))
        with self._services.images.keeping():
            image = new_app.find_image(self._services, request, progress)
            request = with_found_volumes(request, self._services, progress)
            with self._changeable(directory, "add") as pod:
                app = new_app.new_app(self._services, pod.document, request, image)
                self._add(pod, app)
        if start:
            self.start(directory.uuid, name)
        return self._finder.read(directory)

    def _add(self, pod: Changeable, app: NewApp) -> None:
        directory = pod.directory
        named = app.part.manifest.named_volumes
        change = AppChange("add", app.name, app.volumes, *_of_the_pod(app.part), named)
        rendered = app.rendered.values()
        in_use = tuple(sorted({part for one in rendered for part in (*one.images, *one.manifests)}))
        _change_state(pod, change=change, layers={**directory.read_state().layers, app.name: in_use})
        try:
            volumes.make_empty(app.document.manifest, directory.path, app.document.ids)
            if named:
                from kurma_core.pods.prepare import named_volumes

                named_volumes.make_ready(self._services, app.part, lambda: app.rendered)
            self._services.api_changed(app.document, directory.path)
            if change.traffic:
                self._hold_traffic(app.document)
            if change.memory:
                pod_limits.keep_memory(app.document)
            attachments = directory.read_state().attachments or app.part.attachments
            url = pod_metadata.url_of(directory)
            apps, state_dir = app.part.manifest.apps, self._services.config.state_dir
            values = secret_values(apps, app.part.ids, state_dir)
            setup = pod_setup(self._services, app.part, directory.path, app.rendered, attachments, url, values)
            log_places.check_stager(pod.driver, pod.document.stager, app.part.manifest)
            pid_modes.check_stager(pod.driver, pod.document.stager, setup.manifest.apps)
            pod.driver.add_app(setup, pod.stager)
            self._commit(pod, app.document)
        except BaseException:
            # If this fails, too, the change stays on record, and the next change of the pod's apps undoes it.
            with contextlib.suppress(KurmaError, OSError):
                self._finish_change(pod, change)
            raise
        self._finish_change(pod, change)

    def start(self, reference: str, app: str) -> PodRecord:
        """Starts an app that was added, or has ended, from a clean root; returns once it runs.

        :raises PodStateError: the pod does not run, or the app already runs.
        :raises CommandNotFoundError, CommandNotExecutableError: its program could not be executed.
        :raises StagerError: it could not be started.
        """
        directory = self._finder.find(reference)
        with self._changeable(directory, "start", app) as pod:
            if self._runs(directory, app):
                raise PodStateError(f"app {app} of pod {pod.document.name} already runs")
            from kurma_core.pods.prepare import isolators

            isolators.check_start(self._services, pod.document, app)
            if pod.document.needs:
                from kurma_core.pods.prepare import grants

                grants.check_again(pod.document, self._services, app)
            self._renew_volumes(pod, app)
            patience = max(_START, self._services.config.start_timeout)
            try:
                pod.driver.start_app(directory.path, pod.stager, app, patience)
            except StagerError:
                self._say_of_program(directory, app)
                raise
        return self._finder.read(directory)

    def _renew_volumes(self, pod: Changeable, app: str) -> None:
        """Makes sources of the app's volumes that have vanished, if the volumes say so, and mounts those anew that
        have been replaced since.

        :raises VolumeError: a source is missing, or may not be mounted any more.
        """
        from kurma_core.staging.aci_stager import AciStager

        document = pod.document
        mounted = {mount.volume for mount in document.mounts[app]}
        found = {one.name: one for one in document.manifest.volumes if one.name in mounted and one.kind == "host"}
        if not found or not isinstance(pod.driver, AciStager):
            return
        # The kernel mounts no directory that was removed.
        volumes.check_sources(found.values(), allow_links=document.volume_links)
        if any(one.sub_path for one in found.values()):
            from kurma_core.pods.prepare import named_volumes

            named_volumes.make_parts(self._services.volumes, found.values())
        setups = [one for one in volumes.setups(document.manifest, pod.directory.path) if one.name in found]
        pod.driver.renew_volumes(setups, pod.stager, links=document.volume_links)

    def _say_of_program(self, directory: PodDirectory, app: str) -> None:
        """:raises CommandNotFoundError, CommandNotExecutableError: this is the reason why the app does not run."""
        for one in self._finder.read(directory).unstarted:
            kind = {127: CommandNotFoundError, 126: CommandNotExecutableError}.get(one.exit_code or 0)
            if one.name == app and kind is not None:
                raise kind(f"app {app}: {one.told}") from None

    def stop(self, reference: str, app: str, *, timeout: float | None = None) -> PodRecord:
        """Stops an app and waits until it has ended; does nothing if it does not run.

        It holds no lock, so that apps of one pod can be stopped at the same time. If the same app is stopped
        several times, it ends at the earliest time-out. After a cancellation the app is still stopped.

        :param timeout: seconds between its stop signal and SIGKILL; None: as for the pod.
        """
        directory = self._finder.find(reference)
        if timeout is None:
            timeout = directory.read_document().stop_timeout
        with self._running(directory, "stop", app) as (driver, stager):
            try:
                driver.stop_app(directory.path, stager, app, timeout)
            except StagerError:
                # Not an error if the pod has ended with its last app.
                if stager.alive():
                    raise
        return self._finder.read(directory)

    def reopen_log(self, reference: str, app: str) -> None:
        """Goes on with a new log file, after the caller has renamed the present one in the pod's log directory.

        :raises PodStateError: the pod does not run. :raises StagerError: the app does not run, or the file cannot
            be made. :raises UsageError: the pod has no log directory.
        """
        directory = self._finder.find(reference)
        with self._running(directory, "reopen-log", app) as (driver, stager):
            manifest = directory.read_document().manifest
            if log_places.log_path(manifest, manifest.app(app)) is None:
                raise UsageError(
                    f"the log of app {app} is in the pod's own directory, and Kurma rotates it",
                    hint="for logs that other programs rotate, make the pod with --log-dir",
                )
            driver.reopen_log(directory.path, stager, app)

    def update(self, reference: str, app: str, isolators: Mapping[str, Json]) -> PodRecord:
        """Changes the resources of an app: of one that runs at once; of a pod that does not run, for its start.

        :param isolators: by name.
        :raises StagerError: the kernel refuses a value, or the stager cannot change it; all is as before.
        :raises KurmaError: see :func:`kurma_core.pods.change.app_update.updated`.
        """
        from kurma_core.pods.change.app_update import updated

        directory = self._finder.find(reference)
        if directory.read_state().startable:
            with directory.apps_lock(APPS_PATIENCE):
                if directory.read_state().startable:
                    document = updated(self._services, directory.read_document(), app, isolators)
                    directory.write_pod(document)
                    return self._finder.read(directory)
        with self._changeable(directory, "update", app) as pod:
            document = updated(self._services, pod.document, app, isolators)
            change = AppChange("update", app)
            _change_state(pod, change=change)
            try:
                pod.driver.update_app(directory.path, pod.stager, app, document.plans[app])
                self._commit(pod, document)
            except BaseException:
                # If this fails, too, the change stays on record, and the next change of the pod's apps undoes it.
                with contextlib.suppress(KurmaError, OSError):
                    self._finish_change(pod, change)
                raise
            self._finish_update(pod, document, pod.document)
        return self._finder.read(directory)

    def _finish_update(self, pod: Changeable, document: PodDocument, before: PodDocument) -> None:
        if pod_limits.requested_memory(document) != pod_limits.requested_memory(before):
            pod_limits.keep_memory(document)
        pod.directory.change_state(change=None)

    def remove(self, reference: str, app: str, *, force: bool = False) -> None:
        """Removes an app that does not run: its root, its logs, and the volumes that came with it. The pod may
        have ended.

        :param force: stop it first, at once.
        :raises PodStateError: it runs.
        """
        from kurma_core.pods.change import new_app

        directory = self._finder.find(reference)
        if directory.read_state().state in ENDED_STATES:
            self._remove_ended(directory, app)
            return
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
                # The stager refuses, so that the app is still there; or the pod has ended.
                directory.change_state(change=None)
                raise

    def _remove_ended(self, directory: PodDirectory, app: str) -> None:
        """Removes an app of a pod that has ended: its status, its logs, its root and its volumes.

        :raises PodStateError: the pod was started meanwhile. :raises AppNotFoundError: it has no such app.
        """
        from kurma_core.pods.change.new_app import without

        with directory.apps_lock(APPS_PATIENCE):  # a start takes this lock, too
            state, document = directory.read_state(), directory.read_document()
            if state.state not in ENDED_STATES:
                raise PodStateError(
                    f"cannot remove app {app} of pod {document.name}: the pod is {state.state}", pod=document.uuid
                )
            if state.change is not None and state.change.app not in document.app_names:
                self._forget_ended(directory, state.change)  # a process died at it
            document.manifest.app(app)
            document, gone = without(document, app)
            # Recorded first, so that the next removal completes this one if the process dies.
            change = AppChange("rm", app, tuple(gone))
            directory.change_state(change=change)
            directory.write_pod(document)
            self._forget_ended(directory, change)

    def _forget_ended(self, directory: PodDirectory, change: AppChange) -> None:
        """Removes what an ended pod has of an app that is no longer in its definition. Repeatable."""
        forget_executions(directory, change.app)
        forget_last_run(directory, change.app)
        volumes.remove_empty(change.volumes, directory.path)
        state = directory.read_state()
        directory.change_state(
            change=None,
            layers={name: found for name, found in state.layers.items() if name != change.app},
            apps=None if state.apps is None else {k: one for k, one in state.apps.items() if k != change.app},
        )
        self._tell_removed(directory, directory.read_document(), change.app)

    # -- shared steps --

    @contextlib.contextmanager
    def _running(
        self, directory: PodDirectory, verb: str, app: str
    ) -> Iterator[tuple[StagerHooks, RunningStagerHooks]]:
        """The stager of a running pod that has that app, for a request that does not change the pod's
        definition."""
        document = directory.read_document()
        with self._stager_of(directory, document, verb) as (driver, stager):
            self._check_verbs(document, driver, directory, verb)
            document.manifest.app(app)
            yield driver, stager

    @contextlib.contextmanager
    def _changeable(self, directory: PodDirectory, verb: str, app: str | None = None) -> Iterator[Changeable]:
        """Takes the apps lock of a running pod, and finishes the unfinished change of a process that died.

        :param app: an app that the pod must have.
        :raises PodStateError: it does not run, or another process holds the lock for too long.
        """
        with directory.apps_lock(APPS_PATIENCE):
            document = directory.read_document()
            with self._stager_of(directory, document, verb) as (driver, stager):
                self._check_verbs(document, driver, directory, verb)
                pod = Changeable(directory, document, driver, stager, directory.read_state().stager)
                change = directory.read_state().change
                if change is not None:
                    self._finish_change(pod, change)
                    pod = replace(pod, document=directory.read_document())
                if app is not None:
                    pod.document.manifest.app(app)
                yield pod

    @contextlib.contextmanager
    def _stager_of(
        self, directory: PodDirectory, document: PodDocument, verb: str
    ) -> Iterator[tuple[StagerHooks, RunningStagerHooks]]:
        what = f"{_WORDS[verb]} pod {document.name}"
        state = directory.read_state().state
        stager = recovery.find_stager(self._services, directory) if state == "running" else None
        if stager is None:
            hint = f"kurma start {document.name}" if state in ("prepared", "stopped", "errored") else None
            how = "has just ended" if state == "running" else f"is {state}"
            raise PodStateError(f"cannot {what}: it {how}", hint=hint, pod=document.uuid)
        try:
            driver = self._services.stagers.of_pod(document)
            from kurma_core.hookspecs import implements
            from kurma_core.hookspecs.stager import StagerHooks

            if not implements(driver, StagerHooks.app_verbs):
                raise StagerError(f"cannot {what}: its stager {document.stager} cannot change a pod that runs")
            yield driver, stager
        finally:
            stager.close()

    @staticmethod
    def _check_verbs(document: PodDocument, driver: StagerHooks, directory: PodDirectory, *verbs: str) -> None:
        offered = driver.app_verbs(directory.path)
        for verb in verbs:
            if verb not in offered:
                error = driver.no_verb(directory.path, verb)
                raise StagerError(f"cannot {_WORDS[verb]} pod {document.name}: {error.message}", hint=error.hint)

    def _runs(self, directory: PodDirectory, app: str) -> bool:
        for one in self._finder.read(directory).apps:
            if one.name == app:
                # Some stagers report no PIDs.
                return not one.exited and (one.pid is not None or one.started_at is not None)
        return False

    def _commit(self, pod: Changeable, document: PodDocument) -> None:
        """Makes the change permanent: from here on a process that finds it completes it instead of undoing it."""
        _change_state(pod)
        pod.directory.write_pod(document)

    def _finish_change(self, pod: Changeable, change: AppChange) -> None:
        """Removes an app whose addition was not completed, or completes the removal of one. Repeatable.

        :raises StagerError: the stager could not remove the app.
        """
        from kurma_core.pods.change.new_app import without

        directory, app = pod.directory, change.app
        document = directory.read_document()
        there = app in document.app_names
        if there and change.do == "add":
            directory.change_state(change=None)
            self._finder.events.tell_app("created", document, app)
            return
        if not pod.stager.alive():
            # The rest of the app is removed with the pod.
            raise StagerError(f"pod {document.name} has ended")
        if change.do == "update":
            if there:
                pod.driver.update_app(directory.path, pod.stager, app, document.plans[app])
            directory.change_state(change=None)
            return
        gone = change.volumes
        if there:
            document, gone = without(document, app)
            # Recorded before the definition loses them, so that they are known if we die in between.
            directory.change_state(change=replace(change, volumes=tuple(gone)))
        self._services.api_changed(document, directory.path)
        pod.driver.remove_app(directory.path, pod.stager, app, gone)
        if there:
            self._commit(pod, document)
        volumes.remove_empty(gone, directory.path)
        try:
            if change.traffic:
                self._hold_traffic(document)
            if change.memory:
                pod_limits.keep_memory(document)
        except KurmaError as error:
            # Limits that are not lowered must not keep the pod from being changed.
            self._services.note(f"{error.message}; what app {app} has asked for stays")
        forget_executions(directory, app)
        layers = dict(directory.read_state().layers)
        layers.pop(app, None)
        directory.change_state(change=None, layers=layers)
        if change.do == "rm":
            self._tell_removed(directory, document, app)

    def _tell_removed(self, directory: PodDirectory, document: PodDocument, app: str) -> None:
        app_events.forget(directory, app)
        health.forget(directory, app)
        self._finder.events.tell_app("removed", document, app)

    def _hold_traffic(self, document: PodDocument) -> None:
        pod_limits.hold_traffic(document, self._services.traffic_limiters(), self._services.note)

    def finish_change(self, directory: PodDirectory) -> bool:
        """Finishes the change of a running pod's apps that a process left unfinished when it died.

        :returns: whether there was one.
        :raises KurmaError: it could not be finished; it stays on record.
        """
        if not directory.half_changed():
            return False
        with self._changeable(directory, "rm"):
            return True


def _change_state(pod: Changeable, **changes: Any) -> None:
    """Without changes it only looks at the state.

    :raises PodStateError: the pod has ended, or was started again meanwhile.
    """
    with pod.directory.op_lock():
        state = pod.directory.read_state()
        if state.state != "running" or state.stager != pod.identity:
            raise PodStateError(
                f"pod {pod.document.name}: cannot change its apps: it is {state.state}",
                pod=pod.document.uuid,
            )
        if changes:
            pod.directory.write_state(replace(state, **changes))


def _of_the_pod(part: PodDocument) -> tuple[bool, bool]:
    """Whether an app has traffic limits, and whether it requests memory. :param part: the pod with that app
    alone."""
    return bool(pod_limits.traffic_limits(part)), pod_limits.requested_memory(part) > 0


_WORDS = {
    "add": "add an app to",
    "start": "start an app of",
    "stop": "stop an app of",
    "rm": "remove an app of",
    "reopen-log": "reopen the log of an app of",
    "update": "change an app of",
}
