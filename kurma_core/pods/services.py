"""Collects the services that the pod manager uses: images, stagers, networks, spawner, metadata; each made when
first needed.

Start-up latency matters: ``kurma list`` loads no plugin, starts no spawner and opens no image store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import KurmaError
from kurma_core.formats.timestamps import timestamp
from kurma_core.models.pod import AppEvent, PodEvent
from kurma_core.pods.record.pod_store import PodStore
from kurma_core.pods.run.stager_drivers import Stagers

if TYPE_CHECKING:
    from kurma_core.api.host import Event
    from kurma_core.config import Config
    from kurma_core.hookspecs.driver import HostProgram, Started
    from kurma_core.hookspecs.isolator import IsolatorHooks
    from kurma_core.images.manager import ImageManager
    from kurma_core.isolation import IsolatorPlugin
    from kurma_core.journal import Journal
    from kurma_core.metadata.service import MetadataService
    from kurma_core.networking.manager import Networking
    from kurma_core.networking.network_records import JoinRecords
    from kurma_core.plugins.registry import PluginRegistry
    from kurma_core.pods.network.name_resolution import Names
    from kurma_core.pods.prepare.id_ranges import IdRanges
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.state import PodEnd
    from kurma_core.spawner.client import Spawner
    from kurma_core.volume_store import VolumeStore


class Services:
    """The services of one state directory.

    :param note: reports one line to the user.
    """

    def __init__(
        self,
        config: Config,
        registry: PluginRegistry,
        images: Callable[[], ImageManager],
        note: Callable[[str], None],
    ) -> None:
        self.config = config
        self.registry = registry
        self._images = images
        self.note = note
        self.store = PodStore(config.state_dir)
        self.stagers = Stagers(config, registry, lambda: self.images, lambda: self.spawner)
        #: Whether a daemon serves the state directory.
        self.served: Callable[[], bool] = lambda: False
        #: Called with a pod and its directory when its apps may have got access to the API
        #: (``prepare/isolators.py``).
        self.api_changed: Callable[[PodDocument, str], None] = lambda document, directory: None

    @property
    def images(self) -> ImageManager:
        return self._images()

    @functools.cached_property
    def networking(self) -> Networking:
        from kurma_core.networking.manager import Networking

        group = "kurma.networks"
        return Networking(
            self.config,
            lambda name: self.registry.driver(group, name),
            lambda alias: self.registry.resolve_alias(group, alias),
            self.note,
            lambda: self.registry.implementing(group, "leaks", "repair"),
            lambda: self.registry.image_runner(group),
            lambda name: self.registry.driver(group, name, teardown=True),
            lambda: self.registry.implementing(group, "discover"),
        )

    @functools.cached_property
    def journal(self) -> Journal:
        from kurma_core.journal import Journal

        return Journal(self.config.state_dir)

    @functools.cached_property
    def volumes(self) -> VolumeStore:
        """The named volumes."""
        from kurma_core.volume_store import VolumeStore

        return VolumeStore(self.config.state_dir)

    @functools.cached_property
    def joined(self) -> JoinRecords:
        """The records of namespaces and networks that pods have on the host."""
        from kurma_core.networking.network_records import JoinRecords

        return JoinRecords(self.config.state_dir)

    @functools.cached_property
    def names(self) -> Names:
        from kurma_core.pods.network.name_resolution import Names

        return Names(self.config.state_dir, self.store.root, self.note)

    @functools.cached_property
    def id_ranges(self) -> IdRanges:
        from kurma_core.pods.prepare.id_ranges import IdRanges

        return IdRanges(self.store, self.config.userns_pool)

    @functools.cached_property
    def spawner(self) -> Spawner:
        from kurma_core.spawner.client import Spawner

        return Spawner()

    @functools.cached_property
    def metadata(self) -> MetadataService:
        from kurma_core.metadata.service import MetadataService

        return MetadataService()

    def note_error(self, error: KurmaError) -> None:
        """Notes an error that does not end the operation, with its hint."""
        self.note(f"{error.message} ({error.hint})" if error.hint else error.message)

    def share(self, other: Services) -> None:
        """Uses the spawner and the metadata service of ``other``; closing either of the two closes them."""
        self.__dict__.update(spawner=other.spawner, metadata=other.metadata)
        self.api_changed = other.api_changed

    def start_program(self, program: HostProgram) -> Started:
        """Starts a program on the host's own root, for a plugin (``DriverContext.start_program``)."""
        from kurma_core.linux.cgroups import CgroupTree
        from kurma_core.spawn_plan import SpawnPlan
        from kurma_core.staging.stager_process import OWN_CGROUP

        return self.spawner.start(
            SpawnPlan(
                argv=program.argv,
                environment=program.environment,
                cwd=program.directory,
                cgroup=tuple(CgroupTree(program.cgroup).leaf(OWN_CGROUP)) if program.cgroup else (),
                fds=program.fds,
                new_session=program.new_session,
                controlling_tty=program.controlling_tty,
                parent_death_signal=program.parent_death_signal,
            )
        )

    def forget_metadata(self, uuid: str) -> None:
        """Stops serving that pod's metadata, if this process did."""
        if "metadata" in self.__dict__:
            self.metadata.forget(uuid)

    @functools.cached_property
    def isolators(self) -> tuple[IsolatorPlugin, ...]:
        """The isolator plugins; see :func:`kurma_core.isolation.isolator_plugins`."""
        from kurma_core.isolation import isolator_plugins

        return isolator_plugins(self.registry)

    def traffic_limiters(self) -> Iterator[IsolatorHooks]:
        """Loads and returns the drivers of isolator plugins that can limit traffic, one at a time, without those
        that do not work."""
        from kurma_core.hookspecs import implements
        from kurma_core.hookspecs.isolator import IsolatorHooks

        for name in self.registry.implementing("kurma.isolators", "limit_traffic"):
            try:
                driver = self.registry.driver("kurma.isolators", name)
            except KurmaError:
                continue
            if implements(driver, IsolatorHooks.limit_traffic):
                yield driver

    @staticmethod
    def cgroup_versions() -> Mapping[str, int]:
        """The cgroup version of each controller of the host."""
        from kurma_core.linux.cgroups import Layout

        return Layout.of_host().versions()

    def close(self) -> None:
        """Waits for observers; ends the spawner, if one was started, and the metadata service. Programs that the
        spawner started keep running."""
        self.registry.close()
        if "metadata" in self.__dict__:
            self.metadata.close()
        if "spawner" in self.__dict__:
            self.spawner.close()


class Events:
    """Sends pod events to the journal and to observers."""

    def __init__(self, registry: PluginRegistry, journal: Journal) -> None:
        self._registry = registry
        self._journal = journal

    def tell(
        self, kind: str, document: PodDocument, detail: Mapping[str, Any] | None = None, at: str | None = None
    ) -> None:
        """Sends an event.

        :param at: when it happened; None: now.
        """
        event = PodEvent(kind, document.uuid, document.name, at or timestamp(), detail or {})
        self._journal.tell("pod", kind, event.pod, event.name, event.detail, event.at)
        self._registry.emit(event)

    def tell_app(
        self,
        kind: str,
        document: PodDocument,
        app: str,
        detail: Mapping[str, Any] | None = None,
        at: str | None = None,
    ) -> None:
        """Sends an event of an app. :param at: when it happened; None: now."""
        event = AppEvent(kind, app, document.uuid, document.name, at or timestamp(), detail or {})
        self._journal.tell("app", kind, event.pod, app, {"pod": event.name, **event.detail}, event.at)
        self._registry.emit(event)

    def last(self) -> int:
        """The number of the last event of the journal."""
        return self._journal.last()

    def since(self, seq: int) -> Iterator[Event]:
        """The events of the journal behind that number."""
        from kurma_core.journal import Cursor

        cursor = Cursor(self._journal, seq)
        try:
            yield from cursor.read()
        finally:
            cursor.close()

    def flush(self) -> None:
        """Sends the events that :class:`PostponedEvents` has held back."""

    def postponed(self) -> PostponedEvents:
        return PostponedEvents(self._registry, self._journal)

    def ended(self, end: PodEnd, document: PodDocument) -> None:
        found = {"exitCode": end.exit_code, "reason": end.reason}
        self.tell(end.state, document, {key: value for key, value in found.items() if value is not None})


class PostponedEvents(Events):
    """Holds events back until :meth:`flush`, so that the start of a pod does not wait for observers."""

    def __init__(self, registry: PluginRegistry, journal: Journal) -> None:
        super().__init__(registry, journal)
        self._waiting: list[Callable[[], None]] | None = []

    def tell(
        self, kind: str, document: PodDocument, detail: Mapping[str, Any] | None = None, at: str | None = None
    ) -> None:
        self._when_due(functools.partial(super().tell, kind, document, detail, at or timestamp()))

    def tell_app(
        self,
        kind: str,
        document: PodDocument,
        app: str,
        detail: Mapping[str, Any] | None = None,
        at: str | None = None,
    ) -> None:
        self._when_due(functools.partial(super().tell_app, kind, document, app, detail, at or timestamp()))

    def _when_due(self, tell: Callable[[], None]) -> None:
        if self._waiting is None:
            tell()
        else:
            self._waiting.append(tell)

    def flush(self) -> None:
        """Sends the held-back events; later ones are sent at once. Repeatable."""
        waiting, self._waiting = self._waiting, None
        for tell in waiting or ():
            tell()
