"""Operations on pods and their apps, done in this process."""

from __future__ import annotations

from kurma_core.errors import KurmaError, PodNotFoundError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any

    from kurma_core.api.operations import Progress
    from kurma_core.api.pods import Collected, EnterRequest, HealthRun, LogLine, PodRequest, Process, Usage
    from kurma_core.client.local.managers import Managers
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.streams import LogText, Stdio
    from kurma_core.models.summary import PodSummary
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.state import PodState
    from kurma_core.pods.run.owner import OwnedPod
    from kurma_core.signals import Signals


class LocalPods:
    """The methods of :class:`kurma_core.api.operations.Api` that are about pods, by their names."""

    def __init__(self, managers: Managers) -> None:
        self._m = managers

    # -- preparing and running --

    def prepare(self, request: PodRequest, progress: Progress | None, start: bool) -> PodRecord:
        """:raises UsageError: it must be started, and there is no kurmad to own it."""
        if start:
            raise UsageError(
                f"cannot run a pod in the background: no kurmad serves {self._m.config.state_dir}",
                hint="start kurmad, or leave --detach out",
            )
        self._m.need_root("prepare a pod")
        self._m.registry.check_required()
        with self._m.signals():
            return self._m.pods.prepare(request, progress)

    def launch(self, pod: str, managed: bool) -> PodRecord:
        """:raises UsageError: always: no kurmad would own it."""
        raise UsageError(
            f"pod {pod} cannot run in the background: no kurmad serves {self._m.config.state_dir}",
            hint="start kurmad, or leave --detach out",
        )

    def run(
        self,
        request: PodRequest,
        stdio: Stdio,
        output: Callable[[LogText], None],
        progress: Progress | None,
        prepared: Callable[[PodRecord], None],
    ) -> PodRecord:
        self._m.need_root("run a pod")
        # The spawner starts while plugins are loaded and images looked for.
        self._m.services.spawner.open()
        self._m.registry.check_required()
        finder = self._m.pods.finder
        with self._m.signals() as signals:
            record, pod = self._m.pods.prepare_to_start(request, progress)
            failure: KurmaError | None = None
            try:
                try:
                    prepared(record)
                except BaseException:
                    pod.close()
                    raise
                start = lambda settled: self._m.pods.start_prepared(pod, stdio, settled)  # noqa: E731
                return self._foreground(record.uuid, start, stdio, output, signals)
            except KurmaError as error:
                failure = error
                if not request.ephemeral:
                    from kurma_core.client.client import add_unstarted_pod

                    # Without recovery, which would fail and tell of it once more.
                    add_unstarted_pod(error, record.uuid, lambda uuid: finder.read(finder.store.find(uuid)))
                raise
            finally:
                signals.settle()
                if request.ephemeral:
                    self._remove_ended(record.uuid, failure)

    def start(self, pod: str, stdio: Stdio, output: Callable[[LogText], None], managed: bool) -> PodRecord:
        self._m.need_root("start a pod")
        self._m.pods.finder.check_manager("start", pod, managed=managed)
        self._m.services.spawner.open()
        with self._m.signals() as signals:
            try:
                start = lambda settled: self._m.pods.start(pod, stdio, settled)  # noqa: E731
                return self._foreground(pod, start, stdio, output, signals)
            finally:
                signals.settle()

    def _remove_ended(self, uuid: str, earlier: KurmaError | None) -> None:
        """Removes an ephemeral pod. Notes a failure, so that an earlier error is not hidden, unless it is the
        same."""
        try:
            self._m.pods.remover.remove(uuid)
        except PodNotFoundError:
            return
        except KurmaError as error:
            if earlier is None or error.message != earlier.message:
                self._m.services.note_error(error)

    def _foreground(
        self,
        reference: str,
        start: Callable[[Callable[[], None]], OwnedPod],
        stdio: Stdio,
        output: Callable[[LogText], None],
        signals: Signals,
    ) -> PodRecord:
        """:param start: starts the pod; calls its argument once the pod is up, or is being taken down."""
        from kurma_core.pods.run.foreground import Shown, run_to_end

        begun: list[bool] = []

        def settled() -> None:
            begun.append(True)
            signals.settle()

        try:
            pod = start(settled)
        except KurmaError:
            shown = Shown(output)
            for text in self._m.logs.of_failed_start(reference) if begun else ():
                shown(text)
            shown.flush()
            raise
        relay = typing = None
        try:
            app = pod.typed_into
            if app is not None:
                from kurma_core.pods.inside.enter_and_attach import type_into
                from kurma_core.staging.relay import CallerRelay

                relay = CallerRelay(stdio, wants_terminal=True, passes_signals=False)
                relay.__enter__()
                typing = type_into(self._m.services, pod, app, relay.stdio)
            record = self._m.pods.finder.record(*pod.records())
            self._m.settings.tell_service(f"READY=1\nSTATUS=pod {record.name} runs")
            ending = lambda: self._m.settings.tell_service("STOPPING=1")  # noqa: E731 - functools is not light
            return run_to_end(pod, self._m.logs.files(record), signals, output, stdio.stdout, ending)
        except BaseException:
            # The output's disk is full, say: a pod in the foreground does not outlive its command.
            pod.abandon()
            raise
        finally:
            if typing is not None:
                typing.end()
            if relay is not None:
                relay.__exit__(None, None, None)
            pod.close()

    # -- looking --

    def pods(self) -> list[PodRecord]:
        self._m.need_root("list pods")
        return self._m.pods.finder.pods()

    def summaries(self) -> list[PodSummary]:
        """No stager is asked."""
        self._m.need_root("list pods")
        waiting: list[str] = []

        def look(document: PodDocument, state: PodState) -> None:
            if self._waits_for_kurmad(document, state):
                waiting.append(document.name)

        found = self._m.store.summaries(lambda directory: self._m.pods.finder.recover(directory), look)
        self._tell_of_waiting(waiting)
        return found

    def pod(self, pod: str) -> PodRecord:
        self._m.need_root("look at a pod")
        finder = self._m.pods.finder
        directory = finder.find(pod)
        document, state = directory.read_records()
        if self._waits_for_kurmad(document, state):
            self._tell_of_waiting([document.name])
        return finder.record(directory, document, state)

    def _waits_for_kurmad(self, document: PodDocument, state: PodState) -> bool:
        if document.restart_policy == "never":
            return False
        from kurma_core.pods.run import pod_restarts  # takes long to import

        return pod_restarts.wanted(document, state, self._m.images.manifest)

    def _tell_of_waiting(self, names: Collection[str]) -> None:
        """Notes that the restart policies of ended pods have no effect, if kurmad does not run."""
        if names and not self._m.services.served():
            pods = f"pod{'s' if len(names) > 1 else ''} {', '.join(sorted(names))}"
            self._m.settings.note(
                f"nothing restarts {pods} until kurmad runs: systemctl start kurmad, or kurma daemon run"
            )

    def wait(self, pod: str, condition: str) -> PodRecord:
        self._m.need_root("wait for a pod")
        if condition == "ended":
            return self._m.pods.finder.wait(pod)
        from kurma_core.pods.inside.health_checks import wait_for

        return wait_for(self._m.pods.finder, pod, condition)

    def healthcheck(self, pod: str, app: str | None) -> HealthRun:
        self._m.need_root("check the health of a pod")
        from kurma_core.api.pods import HealthRun
        from kurma_core.pods.inside.health_checks import run_check

        done = run_check(self._m.pods.finder, self._m.pods.finder.find(pod), app)
        return HealthRun(done.app, done.result, done.health)

    def usage(self, pod: Collection[str], details: bool) -> list[Usage]:
        """:raises PodStateError: one of them does not run."""
        self._m.need_root("measure pods")
        from kurma_core.pods.inside.usage import check_measurable, usage

        if not pod:
            found = self._m.pods.finder.pods()
        else:
            found = [check_measurable(self._m.pods.finder.pod(reference)) for reference in dict.fromkeys(pod)]
        return usage(found, self._m.services.store if details else None)

    def processes(self, pod: str, app: str | None) -> list[Process]:
        self._m.need_root("see the processes of a pod")
        from kurma_core.pods.inside.usage import processes

        return processes(self._m.pods.finder.pod(pod), app)

    def logs(self, pod: str, app: str | None, instance: int | None, **options: Any) -> Iterator[LogText]:
        self._m.need_root("look at a pod")
        from kurma_core.client.local.logs import LogOptions

        return self._m.logs.read(pod, app, instance, LogOptions(**options))

    def log_lines(self, **options: Any) -> Iterator[LogLine]:
        from kurma_core.api.pods import LogLine

        return (LogLine(*text) for text in self.logs(**options))

    # -- reaching in --

    def enter(self, pod: str, request: EnterRequest, stdio: Stdio) -> int:
        self._m.need_root("enter a pod")
        from kurma_core.pods.inside.enter_and_attach import Limit, enter

        said = {key: value for key, value in request.to_json().items() if value not in (None, [], False)}
        for name in ("timeout", "contained"):
            said.pop(name, None)
        limit = Limit(request.timeout) if request.contained or request.timeout is not None else None
        app = said.pop("app", None)
        return enter(self._m.services, self._m.pods.finder.pod(pod), app, said, stdio, limit)

    def attach(self, pod: str, app: str | None, stdio: Stdio, stdin: bool, detach_keys: str | None) -> int:
        self._m.need_root("attach to a pod")
        from kurma_core.pods.inside.enter_and_attach import attach

        return attach(self._m.services, self._m.pods.finder.pod(pod), app, stdio, stdin, detach_keys)

    # -- changing and ending --

    def app_add(
        self, pod: str, request: PodRequest, start: bool, managed: bool, progress: Progress | None
    ) -> PodRecord:
        self._m.need_root("change a pod")
        self._m.pods.finder.check_manager("add an app to", pod, managed=managed)
        self._m.services.spawner.open()
        self._m.registry.check_required()
        with self._m.signals():
            return self._m.pods.apps.add(pod, request, start=start, progress=progress)

    def app_start(self, pod: str, app: str, managed: bool) -> PodRecord:
        self._m.need_root("change a pod")
        self._m.pods.finder.check_manager("start an app of", pod, managed=managed)
        return self._m.pods.apps.start(pod, app)

    def app_stop(self, pod: str, app: str, force: bool, timeout: float | None, managed: bool) -> PodRecord:
        self._m.need_root("change a pod")
        self._m.pods.finder.check_manager("stop an app of", pod, managed=managed)
        return self._m.pods.apps.stop(pod, app, timeout=0.0 if force else timeout)

    def app_reopen_log(self, pod: str, app: str, managed: bool) -> None:
        self._m.need_root("change a pod")
        self._m.pods.finder.check_manager("change the log of an app of", pod, managed=managed)
        self._m.pods.apps.reopen_log(pod, app)

    def app_update(self, pod: str, app: str, isolators: Mapping[str, Any], managed: bool) -> PodRecord:
        """:raises UsageError: nothing is to be changed."""
        self._m.need_root("change a pod")
        self._m.pods.finder.check_manager("change an app of", pod, managed=managed)
        if not isolators:
            raise UsageError("nothing is to be changed", hint="for instance --memory 512Mi")
        self._m.services.spawner.open()
        return self._m.pods.apps.update(pod, app, isolators)

    def app_rm(self, pod: str, app: str, force: bool, managed: bool) -> None:
        self._m.need_root("change a pod")
        self._m.pods.finder.check_manager("remove an app of", pod, managed=managed)
        self._m.pods.apps.remove(pod, app, force=force)

    def pod_annotate(
        self, pod: str, set: Mapping[str, str] | None, remove: Collection[str], app: str | None, managed: bool
    ) -> PodRecord:
        self._m.need_root("change a pod")
        self._m.pods.finder.check_manager("annotate", pod, managed=managed)
        from kurma_core.pods.change.annotate import annotate

        return annotate(self._m.pods.finder, pod, app, set or {}, remove)

    def stop(self, pod: str, force: bool, timeout: float | None, again: bool, managed: bool) -> PodRecord:
        self._m.need_root("stop a pod")
        self._m.pods.finder.check_manager("restart" if again else "stop", pod, managed=managed)
        stop = self._m.pods.stop_to_restart if again else self._m.pods.stopper.stop
        return stop(pod, timeout=timeout, force=force)

    def kill(self, pod: str, signal: int, app: str | None, managed: bool) -> None:
        self._m.need_root("signal a pod")
        self._m.pods.finder.check_manager("signal", pod, managed=managed)
        self._m.pods.stopper.kill(pod, signal, app)

    def rm(self, pod: str, force: bool, managed: bool) -> None:
        self._m.need_root("remove a pod")
        self._m.pods.finder.check_manager("remove", pod, managed=managed)
        self._m.pods.remover.remove(pod, force=force)

    def gc(self, grace: float, dry_run: bool) -> Collected:
        self._m.need_root("collect garbage")
        return self._m.pods.remover.collect(grace=grace, dry_run=dry_run)
