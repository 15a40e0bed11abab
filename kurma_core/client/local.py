"""The client that works in process. Everything it needs is made when it is first needed."""

from __future__ import annotations

import os

from kurma_core.client.images import ImageCalls
from kurma_core.client.trust import TrustCalls
from kurma_core.errors import AppNotFoundError, KurmaError, PodNotFoundError, UsageError
from kurma_core.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import Any, BinaryIO, Unpack

    from kurma_core.api.host import CheckLine, Event, IsolatorInfo, NetworkFinding, NetworkInfo, PluginInfo
    from kurma_core.api.images import HostImage
    from kurma_core.api.pods import Collected, PodRequest, Process, Usage
    from kurma_core.client.options import LogOptions, TextOptions
    from kurma_core.config import Config
    from kurma_core.hookspecs.stager import RunningStager
    from kurma_core.journal import Journal
    from kurma_core.models.log import LogText
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.stdio import Stdio
    from kurma_core.models.summary import PodSummary
    from kurma_core.pods.foreground import Signals
    from kurma_core.progress import Progress

    Json = Any


class LocalClient(ImageCalls, TrustCalls):
    """Use it as a context manager: leaving it ends what it started for itself (never a pod)."""

    def successor(self, config: Config) -> LocalClient:
        """A client of the same state directory by another configuration, used and closed in place of this one.
        What runs goes on with what it has: spawner and metadata service are the same.
        """
        client = LocalClient(self.settings, config)
        client._services.share(self._services)
        return client

    # -- pods --

    def prepare(self, request: PodRequest, progress: Progress | None = None) -> PodRecord:
        """Makes a pod that :meth:`start` can start; see :meth:`PodManager.prepare`."""
        self._need_root("prepare a pod")

        self.registry.check_required()
        with self._signals():
            return self._pods.prepare(request, progress)

    def run(
        self,
        request: PodRequest,
        stdio: Stdio,
        output: Callable[[LogText], None],
        progress: Progress | None = None,
        prepared: Callable[[PodRecord], None] = lambda _: None,
    ) -> PodRecord:
        """Prepares and runs a pod in the foreground, to its end. SIGINT, SIGTERM and SIGHUP stop it; a second one
        ends it by force. An ephemeral pod is removed at the end.

        :param output: gets each line of the apps' logs as it comes.
        :param prepared: told of the pod before it is started.
        :raises KurmaError: it could not be prepared (nothing is left) or started (it is recorded as errored, or,
            ephemeral, removed).
        """
        self._need_root("run a pod")

        # Its start-up goes on while plugins are loaded and images looked for.
        self._services.spawner.open()
        self.registry.check_required()
        with self._signals() as signals:
            record = self._pods.prepare(request, progress)
            try:
                prepared(record)
                return self._foreground(record.uuid, stdio, output, signals)
            except KurmaError as error:
                if not request.ephemeral:
                    from kurma_core.client.left import tell_left

                    tell_left(self, error, record.uuid)
                raise
            finally:
                signals.settle()
                if request.ephemeral:
                    self._remove_ended(record.uuid)

    def start(self, reference: str, stdio: Stdio, output: Callable[[LogText], None]) -> PodRecord:
        """Runs a prepared pod, or an ended one again from a clean copy, in the foreground, to its end."""
        self._need_root("start a pod")

        self._services.spawner.open()
        with self._signals() as signals:
            try:
                return self._foreground(reference, stdio, output, signals)
            finally:
                signals.settle()

    def _remove_ended(self, uuid: str) -> None:
        """An ephemeral pod at its end; what hinders that is told, and hides nothing else that went wrong."""
        try:
            self._pods.remove(uuid)
        except PodNotFoundError:
            return
        except KurmaError as error:
            self.settings.note(error.message)

    def launch(self, reference: str) -> PodRecord:
        """Starts a prepared pod, or an ended one again, that runs on by itself: the daemon's; once it is up.

        :raises UsageError: there is no daemon.
        """
        raise UsageError(
            f"pod {reference} cannot run on by itself: no kurmad serves {self.config.state_dir}",
            hint="start kurmad, or leave --detach away",
        )

    def run_on(self, request: PodRequest, progress: Progress | None = None) -> PodRecord:
        """Prepares a pod and starts it as :meth:`launch` does, at once. What does not come up is as after that; an
        ephemeral one is removed.

        :raises UsageError: there is no daemon.
        """
        raise UsageError(
            f"no pod can run on by itself: no kurmad serves {self.config.state_dir}",
            hint="start kurmad, or leave --detach away",
        )

    def restart(self, reference: str, stdio: Stdio, output: Callable[[LogText], None]) -> PodRecord:
        """Stops the pod if it runs, and runs it again as :meth:`start` does."""
        self._need_root("restart a pod")
        record = self.stop(reference, again=True)
        return self.start(record.uuid, stdio, output)

    def _signals(self) -> Signals:
        from kurma_core.pods.foreground import Signals

        return Signals(taken=self.settings.signals)

    def _foreground(
        self, reference: str, stdio: Stdio, output: Callable[[LogText], None], signals: Any
    ) -> PodRecord:
        from kurma_core.pods.foreground import Shown, run_to_end

        begun: list[bool] = []

        def settled() -> None:
            begun.append(True)
            signals.settle()

        try:
            pod = self._pods.start(reference, stdio, settled)
        except KurmaError:
            shown = Shown(output)
            for text in self.last_words(reference) if begun else ():
                shown(text)
            shown.flush()
            raise
        relay = typing = None
        try:
            app = pod.typed_into
            if app is not None:
                from kurma_core.pods.attach import type_into
                from kurma_core.staging.relay import CallerRelay

                relay = CallerRelay(stdio, wants_terminal=True, passes_signals=False)
                relay.__enter__()
                typing = type_into(self._services, pod, app, relay.stdio)
            record = self._pods.pod(pod.uuid)
            self._tell_service(f"READY=1\nSTATUS=pod {record.name} runs")
            ending = lambda: self._tell_service("STOPPING=1")  # noqa: E731 - functools is not light
            return run_to_end(pod, self._logs_of(record), signals, output, stdio.stdout, ending)
        except BaseException:
            # The output's disk is full, say. Who runs a pod in the foreground is not left with one behind it.
            pod.abandon()
            raise
        finally:
            if typing is not None:
                typing.end()
            if relay is not None:
                relay.__exit__(None, None, None)
            pod.close()

    def _tell_service(self, text: str) -> None:
        if self.settings.service is not None:
            from kurma_core.linux import service_manager

            service_manager.tell(self.settings.service, text)

    def last_words(self, reference: str) -> Iterator[LogText]:
        """What the apps of a pod that has failed to come up had written, such as their pre-start handlers."""
        from kurma_core.pods.logs import LogReader

        try:
            record = self._pods.pod(reference)
            path = self._services.store.directory(record.uuid).path
            with LogReader(path, self._logs_of(record)) as reader:
                if reader.kept:  # else it is its stager's own, which the error tells
                    yield from reader.rest()
        except KurmaError:
            return  # the pod has gone, or its logs cannot be read

    def log_files(self, reference: str) -> list[tuple[str, str]]:
        """The logs of a pod's apps: (app, name of the file)."""
        return self._logs_of(self._pods.pod(reference))

    @staticmethod
    def _logs_of(record: PodRecord, app: str | None = None) -> list[tuple[str, str]]:
        if app is not None:
            from kurma_core.pods.apps import the_app

            the_app(record, app)
        return [(each.name, each.log or f"{each.name}.log") for each in record.apps if app in (None, each.name)]

    @staticmethod
    def _log_of(record: PodRecord, app: str | None, instance: int) -> tuple[list[tuple[str, str]], str]:
        """The log of one execution of an app, and where it is."""
        from kurma_core.pods import executions
        from kurma_core.pods.apps import the_app

        status = the_app(record, app)
        found = executions.find(record.name, status, instance)
        return [(status.name, found.log or f"{status.name}.log")], executions.log_directory(status, found)

    def pods(self) -> list[PodRecord]:
        self._need_root("list pods")
        return self._pods.pods()

    def pods_json(self) -> list[Json]:
        """As :meth:`pods`, for who prints it."""
        return [record.to_json() for record in self.pods()]

    def summaries(self) -> list[PodSummary]:
        """As :meth:`pods`, of each what a table shows. No stager is asked."""
        self._need_root("list pods")
        from kurma_core.pods import listing

        return listing.summaries(self._store, self._recover)

    def pod(self, reference: str) -> PodRecord:
        self._need_root("look at a pod")
        return self._pods.pod(reference)

    def status(self, reference: str, *, wait: bool = False) -> PodRecord:
        """The pod's record; with ``wait``, once it has ended."""
        return self.wait(reference) if wait else self.pod(reference)

    def wait(self, reference: str) -> PodRecord:
        self._need_root("wait for a pod")
        return self._pods.wait(reference)

    def usage(self, references: Sequence[str] = ()) -> list[Usage]:
        """What pods use by now.

        :param references: empty: of all that run.
        :raises PodStateError: one of them does not.
        """
        self._need_root("measure pods")
        from kurma_core.pods.usage import check_measurable, usage

        if not references:
            return usage(self._pods.pods())
        return usage([check_measurable(self._pods.pod(reference)) for reference in dict.fromkeys(references)])

    def processes(self, reference: str, app: str | None = None) -> list[Process]:
        """The processes of a pod that runs. :param app: only of that one."""
        self._need_root("see the processes of a pod")
        from kurma_core.pods.processes import processes

        return processes(self._pods.pod(reference), app)

    def logs(self, reference: str, app: str | None = None, **options: Unpack[LogOptions]) -> Iterator[LogText]:
        """What the apps have written; all of it, where the options say nothing else.

        :raises KurmaError: at once: there is no such pod, app or execution.
        """
        return self.read_logs(reference, app, options.pop("instance", None), options)

    def read_logs(
        self,
        reference: str,
        app: str | None,
        instance: int | None,
        options: TextOptions,
        idle: Callable[[], None] = lambda: None,
    ) -> Iterator[LogText]:
        """As :meth:`logs`. :param idle: called before more is waited for."""
        record = self.pod(reference)
        if instance is None:
            apps, place = self._logs_of(record, app), None
        else:
            apps, place = self._log_of(record, app, instance)
        return self._read_logs(record, app, apps, place, options, idle)

    def _read_logs(
        self,
        record: PodRecord,
        app: str | None,
        apps: list[tuple[str, str]],
        place: str | None,
        options: TextOptions,
        idle: Callable[[], None],
    ) -> Iterator[LogText]:
        """:param place: of the execution that is asked for; None: of all that are."""
        from kurma_core.linux import crilog
        from kurma_core.models.log import LogText
        from kurma_core.pods import recovery
        from kurma_core.pods.logs import LogReader
        from kurma_core.staging.callin import has_call_in

        wanted = crilog.Filter(options.get("since"), options.get("stream"))

        def then(found: Iterator[LogText]) -> Iterator[LogText]:
            return filter(wanted, found)

        def first(found: Iterator[LogText]) -> Iterator[LogText]:
            return crilog.tail(then(found), options.get("tail"), LogText)

        directory = self._services.store.directory(record.uuid)
        ongoing = place in (None, "pod/logs")
        stager = recovery.find_stager(self._services, directory) if ongoing else None
        try:
            with LogReader(directory.path, apps, place, newcomers=app is None) as reader:
                called = place is None and not reader.kept and record.state != "starting"
                if called and stager is not None and has_call_in(stager, "logs"):
                    yield from self._called_logs(record, app, stager, options, idle)
                elif stager is None or not options.get("follow"):
                    yield from first(reader.rest())
                else:
                    yield from reader.follow(stager.fileno(), first, then, idle)
            if place is None:
                self._tell_lost(record.uuid, app)
        finally:
            if stager is not None:
                stager.close()

    def _tell_lost(self, reference: str, app: str | None) -> None:
        """What the logs lack, since a disk was full."""
        try:
            apps = self._pods.pod(reference).apps
        except PodNotFoundError:
            return  # an ephemeral pod, that was followed to its end
        for each in apps:
            if each.lost and app in (None, each.name):
                self.settings.note(each.lost)

    def _called_logs(
        self,
        record: PodRecord,
        app: str | None,
        stager: RunningStager,
        options: TextOptions,
        idle: Callable[[], None],
    ) -> Iterator[LogText]:
        """Of a pod whose stager keeps no logs in files: what its ``logs`` call-in prints, app by app."""
        from kurma_core.pods.calledlogs import arguments, called_logs

        names = [name for name, _ in self._logs_of(record, app)]
        if options.get("follow") and len(names) > 1:
            raise AppNotFoundError(
                f"the stager of pod {record.name} shows the log of one app at a time",
                hint="name one of " + ", ".join(names),
            )
        driver = self._services.stagers.of_pod(record.stager)
        path = self._services.store.directory(record.uuid).path
        for name in names:
            yield from called_logs(driver, path, stager, arguments(name, **options), idle)

    @property
    def journal(self) -> Journal:
        return self._services.journal

    def events(
        self,
        since: int | None = None,
        *,
        follow: bool = False,
        pod: str | None = None,
        subjects: Collection[str] = (),
        kinds: Collection[str] = (),
    ) -> Iterator[Event]:
        """What has happened in the state directory, whoever did it.

        :param since: only events behind that number; None: those that come from now on.
        :param follow: and those that come.
        :param pod: only of pods of that name, UUID or beginning of one.
        :param subjects: only of such: see :data:`kurma_core.journal.SUBJECTS`.
        :param kinds: only such: see :data:`kurma_core.journal.KINDS`.
        """
        self._need_root("see what happens")
        from kurma_core.client import happenings

        found = happenings.read(self.journal, since, follow=follow)
        return filter(happenings.wanted(pod, subjects, kinds), found)

    def enter(
        self,
        reference: str,
        app: str | None,
        command: tuple[str, ...],
        stdio: Stdio,
        *,
        user: str | None = None,
        group: str | None = None,
        environment: tuple[tuple[str, str], ...] = (),
        working_directory: str | None = None,
        terminal: bool = False,
    ) -> int:
        """Runs a command inside an app of a running pod; its exit code.

        :param app: may be left out where the pod has one.
        :param terminal: the command gets a terminal of its own.
        """
        self._need_root("enter a pod")
        from kurma_core.pods.enter import enter

        document: dict[str, Json] = {"exec": list(command)}
        if user is not None:
            document["user"] = user
        if group is not None:
            document["group"] = group
        if working_directory is not None:
            document["workingDirectory"] = working_directory
        if environment:
            document["environment"] = [{"name": name, "value": value} for name, value in environment]
        if terminal:
            document["tty"] = True
        return enter(self._services, self._pods.pod(reference), app, document, stdio)

    def attach(
        self,
        reference: str,
        app: str | None,
        stdio: Stdio,
        *,
        stdin: bool = True,
        detach_keys: str | None = None,
    ) -> int:
        """Joins a running app: what it writes from now on, and its standard input.

        :param app: may be left out where the pod has one.
        :param detach_keys: ``ctrl-p,ctrl-q``; empty: none; None: the stager's own.
        :returns: the app's exit code if it ends meanwhile, 0 if the person left it.
        """
        self._need_root("attach to a pod")
        from kurma_core.pods.attach import attach

        return attach(self._services, self._pods.pod(reference), app, stdio, stdin, detach_keys)

    def copy_out(
        self,
        reference: str,
        app: str | None,
        path: str,
        target: str | BinaryIO,
        *,
        whole: bool = False,
        follow: bool = False,
    ) -> None:
        """Copies from an app that runs; see :func:`kurma_core.pods.copying.copy_out`."""
        self._need_root("copy from a pod")
        from kurma_core.pods.copying import copy_out

        copy_out(self.pod(reference), app, path, target, self.settings.note, whole=whole, follow=follow)

    def copy_in(
        self,
        reference: str,
        app: str | None,
        source: str | BinaryIO,
        path: str,
        *,
        whole: bool = False,
        follow: bool = False,
    ) -> None:
        """Copies to an app that runs; see :func:`kurma_core.pods.copying.copy_in`."""
        self._need_root("copy to a pod")
        from kurma_core.pods.copying import copy_in

        copy_in(self.pod(reference), app, source, path, self.settings.note, whole=whole, follow=follow)

    def app_add(
        self, reference: str, request: PodRequest, *, start: bool = False, progress: Progress | None = None
    ) -> PodRecord:
        """A running pod gets an app; see :meth:`PodManager.app_add`."""
        self._need_root("change a pod")

        self._services.spawner.open()
        self.registry.check_required()
        with self._signals():
            return self._pods.app_add(reference, request, start=start, progress=progress)

    def app_start(self, reference: str, app: str) -> PodRecord:
        self._need_root("change a pod")
        return self._pods.app_start(reference, app)

    def app_stop(
        self, reference: str, app: str, *, timeout: float | None = None, force: bool = False
    ) -> PodRecord:
        """:param force: end it at once."""
        self._need_root("change a pod")
        return self._pods.app_stop(reference, app, timeout=0.0 if force else timeout)

    def app_rm(self, reference: str, app: str, *, force: bool = False) -> None:
        self._need_root("change a pod")
        self._pods.app_rm(reference, app, force=force)

    def stop(
        self, reference: str, *, timeout: float | None = None, force: bool = False, again: bool = False
    ) -> PodRecord:
        """:param again: it is to be started again; where it may not be, it is left as it is."""
        self._need_root("stop a pod")
        stop = self._pods.stop_to_restart if again else self._pods.stop
        return stop(reference, timeout=timeout, force=force)

    def kill(self, reference: str, signal: int, app: str | None = None) -> None:
        self._need_root("signal a pod")
        self._pods.kill(reference, signal, app)

    def rm(self, reference: str, *, force: bool = False) -> None:
        self._need_root("remove a pod")
        self._pods.remove(reference, force=force)

    def gc(self, *, grace: float, dry_run: bool = False) -> Collected:
        """See :meth:`PodManager.collect`."""
        self._need_root("collect garbage")
        return self._pods.collect(grace=grace, dry_run=dry_run)

    # -- the rest --

    def networks_list(self) -> list[NetworkInfo]:
        """Every network that a pod may name."""
        return list(self.networks.listing())

    def network(self, name: str) -> NetworkInfo:
        """:raises NetworkError: there is none of that name."""
        return self.networks.show(name)

    def network_rm(self, name: str) -> None:
        """Removes what the network shares among pods.

        :raises NetworkError: pods are joined to it.
        """
        self._need_root("remove a network")
        self.networks.remove(name, self._pods.network_users(name))

    def network_check(self, names: Sequence[str] = (), *, repair: bool = False) -> list[NetworkFinding]:
        """What is wrong with networks, and with what pods have on the host by way of them (W12).

        :param names: of networks: only what concerns these; empty: all.
        :param repair: mend what can be mended.
        :raises NetworkError: there is no network of such a name.
        """
        self._need_root("check networks")
        caretaker = self._pods.caretaker
        return caretaker.mend(names) if repair else caretaker.check(names)

    def stagers(self) -> list[Mapping[str, Json]]:
        """Every stager that ``--stager`` accepts: name, where it comes from, its configuration."""
        known = self._services.stagers
        listing: list[Mapping[str, Json]] = []
        for name in known.names():
            section = self.config.stagers.get(name)
            image = None if section is None else section.image
            listing.append(
                {
                    "name": name,
                    "kind": "plugin" if image is None else "image",
                    "image": image,
                    "default": name == self.config.stager,
                    "config": dict(known.config(name)),
                }
            )
        return listing

    def stager_build(self, name: str, *, force: bool = False) -> HostImage:
        """The stager's image, built (or fetched) and verified.

        :param force: build it anew.
        """
        self._need_root("build a stager")
        return self._services.stagers.image(name, rebuild=force)

    def stager_export(self, path: str, *, format: str, name: str | None = None) -> str:
        """Writes a stager as an image for others to run pods with; the image's ID. Nothing comes into the store.

        :param path: the archive; whole, or not at all.
        :param format: by which contract it is called.
        :param name: of the stager; None: the configured one.
        :raises StagerError: it cannot be exported as that. :raises HostError: the file cannot be written.
        """
        import tempfile

        from kurma_core.image_store.store import guard

        name = name or self.config.stager
        with (
            guard(f"cannot export stager {name}"),
            tempfile.TemporaryDirectory(prefix="kurma-export-") as directory,
        ):
            rootfs = f"{directory}/rootfs"
            os.mkdir(rootfs)
            manifest = self._services.stagers.export(name, format, rootfs)
            # It runs as root, whoever has written it here.
            return self.images.files.build(rootfs, manifest, path, owner=(0, 0))

    def stager_check(self, reference: str, tell: Callable[[CheckLine], None]) -> Sequence[CheckLine]:
        """Runs the contract suite; every line, in the suite's order.

        :param reference: a name that ``--stager`` accepts, or the locator of an image.
        :param tell: told each line as soon as it is known.
        :raises StagerError: that stager is no image.
        """
        self._need_root("check a stager")
        from kurma_core.stager_check.suite import check

        self._services.spawner.open()
        with self._signals() as signals:
            try:
                return check(self._services, reference, tell).ordered()
            finally:
                signals.settle()

    def plugins(self, *, load: bool = True) -> tuple[PluginInfo, ...]:
        return self.registry.listing(load)

    def isolators(self) -> tuple[IsolatorInfo, ...]:
        """Every isolator that a plugin looks after, and what this host makes of it."""
        from kurma_core.isolation import host_facts
        from kurma_core.isolator_list import isolator_list
        from kurma_core.pods.services import Services

        registry, host = self.registry, host_facts(Services.cgroup_versions(), frozenset({"user"}))
        drivers: Any = registry.drivers("kurma.isolators")
        return isolator_list(drivers, host, registry.isolator_claims(), registry.isolator_collision)

    def _not_required(self) -> list[str]:
        """What the configuration says that apps may run without."""
        without = [name for name, stager in self.config.stagers.items() if stager.without_isolators]
        return [
            *(name for name, required in self.config.required_isolators.items() if not required),
            *(f"any under stager {name}" for name in without),
        ]

    def info(self) -> dict[str, Json]:
        """What this host and this installation are, for people and bug reports."""
        from kurma_core.pods.services import Services

        uname = os.uname()
        return {
            "version": VERSION,
            "kernel": uname.release,
            "machine": uname.machine,
            "stateDirectory": self.config.state_dir,
            "configuration": list(self.config.config_files),
            "cgroups": dict(Services.cgroup_versions()),
            "renderer": self.config.renderer,
            "stager": self.config.stager,
            "requiredIsolators": [name for name, required in self.config.required_isolators.items() if required],
            "notRequiredIsolators": self._not_required(),
            "pods": len(self._services.store.uuids()) if os.geteuid() == 0 else None,
            "daemon": None,
            "plugins": {
                group: list(self.registry.names(group))
                for group in (
                    "kurma.fetchers",
                    "kurma.renderers",
                    "kurma.stagers",
                    "kurma.networks",
                    "kurma.isolators",
                    "kurma.observers",
                )
            },
        }


__all__ = ["LocalClient"]
