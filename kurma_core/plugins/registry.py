"""The plugin registry: makes and keeps the drivers of this process, by the ``plugins`` section of ``kurma.yml``.

The index (:mod:`kurma_core.plugins.index`) says which plugins are installed. A plugin's module is imported when
its driver is first needed, or when a listing shows whether it works. The error of a broken plugin is kept, raised
whenever that plugin is needed, and shown by ``kurma plugins list``. The other plugins work on, unless the
configuration says that the broken one is ``required``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from kurma_core.config import Config, origin
from kurma_core.config.schema import OPT_IN, enabling, kind_of, singular
from kurma_core.errors import ConfigError, KurmaError, PluginCollisionError, PluginError, PluginNotFoundError
from kurma_core.errors import PluginSkipped as Skipped
from kurma_core.hookspecs import CONTRACT, GROUPS, NEEDED, OLDEST
from kurma_core.hookspecs.driver import Driver, DriverContext, HostProgram, HostTree, Option, Started
from kurma_core.plugins import contract
from kurma_core.plugins.calls import (
    SlowCalls,
    Source,
    called,
    class_key,
    interrupts,
    line,
    log_failure,
    mistake,
    said,
)
from kurma_core.plugins.index import Declaration, Plugin, PluginIndex, follow_path_files
from kurma_core.schema import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, NoReturn, overload

    from kurma_core.api.host import PluginInfo
    from kurma_core.hookspecs import Hooks
    from kurma_core.hookspecs.driver import HostCheck
    from kurma_core.hookspecs.fetcher import FetcherHooks
    from kurma_core.hookspecs.isolator import IsolatorHooks
    from kurma_core.hookspecs.network import NetworkHooks
    from kurma_core.hookspecs.observer import ObserverHooks
    from kurma_core.hookspecs.renderer import RendererHooks
    from kurma_core.hookspecs.stager import AnyStagerHooks
    from kurma_core.models.pod import AppEvent, PodEvent
    from kurma_core.plugins.calls import Taken
    from kurma_core.plugins.claims import Declared
    from kurma_core.plugins.observing import Observing

    Json = Any

_FETCHERS = "kurma.fetchers"
_OBSERVERS = "kurma.observers"
_COMMANDS = "kurma.commands"
#: Groups in which Kurma itself claims names.
_RESERVING = (_FETCHERS, _COMMANDS)
#: Groups whose plugins no pod needs.
_NOT_FOR_PODS = ("kurma.services", _COMMANDS)
#: Groups whose plugins a pod needs to its end.
_OF_RUNNING_PODS = ("kurma.networks", "kurma.stagers")
#: Groups whose hooks do nothing that takes long by its nature, as fetching does.
_QUICK = ("kurma.networks",)
#: Held while a plugin is imported. A plugin may load another one while it is imported.
_IMPORTS = threading.RLock()
#: Seconds in which another import usually ends.
_IMPORT_WAIT = 2.0


class _Loaded:
    """A plugin that this process has loaded, or tried to load."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.source: Source | None = None
        self.declared: Driver | None = None
        #: Held while it is imported and its driver is made, so that a slow plugin delays only its users.
        self.lock = threading.RLock()
        self.begun = False
        #: The object of its entry point, once that was imported.
        self.module: object = None
        self.driver: Any = None
        self.error: KurmaError | None = None
        self.skipped = False
        #: A driver without the options that are wrong, to take down what pods have.
        self.teardown: Any = None

    @property
    def misconfigured(self) -> bool:
        """Whether nothing but its options is wrong."""
        return self.declared is not None and isinstance(self.error, ConfigError)


@contextmanager
def _one_import() -> Iterator[None]:
    """Waits until no other thread imports a plugin. Two threads that begin at two modules which import each other
    wait for each other: Python ends that by an exception in one of them.

    An import that hangs must not stop other plugins: the wait is short.
    """
    alone = _IMPORTS.acquire(timeout=_IMPORT_WAIT)
    try:
        yield
    finally:
        if alone:
            _IMPORTS.release()


def _declared(loaded: _Loaded) -> Driver:
    assert loaded.declared is not None, "a plugin without an error was declared"
    return loaded.declared


class PluginRegistry:
    """Finds and makes the plugins' drivers.

    :param config: its ``plugins`` section enables, requires and configures plugins.
    :param note: shows one line to the user.
    :param trace: gets a line for each call of a driver; None: calls are not traced.
    :param host_image: passed to drivers, as are ``start_program`` and ``daemon``: see :class:`DriverContext`.
    """

    def __init__(
        self,
        config: Config,
        note: Callable[[str], None] = lambda text: None,
        host_image: Callable[[str], HostTree] | None = None,
        daemon: bool = False,
        start_program: Callable[[HostProgram], Started] | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._trace = trace
        self._slow = SlowCalls(note, note if daemon else None)
        self._start_program = start_program
        self._config = config
        self._note = note
        self._host_image = host_image
        self._daemon = daemon
        self._index = PluginIndex(config.state_dir)
        self._installed: Mapping[str, tuple[Plugin, ...]] | None = None
        self._loaded: dict[tuple[str, str], _Loaded] = {}
        self._told: set[tuple[str, str]] = set()
        self._observing: dict[str, Observing] = {}
        #: Drivers of the registries before this one: see :meth:`look_up_anew`.
        self._earlier: dict[tuple[str, str], Any] = {}
        self._lock = threading.RLock()

    # --- asking ------------------------------------------------------------------------------------------------

    if TYPE_CHECKING:

        @overload
        def driver(self, group: Literal["kurma.fetchers"], name: str, *, teardown: bool = ...) -> FetcherHooks: ...
        @overload
        def driver(
            self, group: Literal["kurma.renderers"], name: str, *, teardown: bool = ...
        ) -> RendererHooks: ...
        @overload
        def driver(
            self, group: Literal["kurma.stagers"], name: str, *, teardown: bool = ...
        ) -> AnyStagerHooks: ...
        @overload
        def driver(self, group: Literal["kurma.networks"], name: str, *, teardown: bool = ...) -> NetworkHooks: ...
        @overload
        def driver(
            self, group: Literal["kurma.isolators"], name: str, *, teardown: bool = ...
        ) -> IsolatorHooks: ...
        @overload
        def driver(
            self, group: Literal["kurma.observers"], name: str, *, teardown: bool = ...
        ) -> ObserverHooks: ...
        @overload
        def driver(self, group: str, name: str, *, teardown: bool = ..., again: bool = ...) -> Any: ...

    def driver(self, group: str, name: str, *, teardown: bool = False, again: bool = False) -> Any:
        """The driver; the first call loads its plugin, and no other one.

        :param group: with its prefix: ``kurma.networks``.
        :param teardown: to take down what a pod has of it: it may be disabled. If it is no longer installed, the
            driver that this process has made before a reload is used. Instead of wrong options, the defaults are.
        :param again: try again if it could not be made before.
        :raises PluginNotFoundError: no plugin of that name is installed, or it is disabled.
        :raises PluginCollisionError: two distributions have a plugin of that name.
        :raises PluginError: it is broken, or this host lacks something that it needs.
        :raises ConfigError: its section has an unknown key, or a value of a wrong type.
        """
        if teardown and not any(plugin.name == name for plugin in self._group(group)):
            kept = self._earlier.get((group, name))
            if kept is not None:
                return kept
        if again:
            with self._lock:
                if (known := self._loaded.get((group, name))) is not None and known.error is not None:
                    del self._loaded[group, name]
        loaded = self._load(group, name, teardown=teardown)
        with loaded.lock:
            try:
                if loaded.error is not None:
                    raise loaded.error
                if loaded.driver is None:
                    self._attempt(loaded, lambda: self._create(loaded))
                return loaded.driver
            except ConfigError:
                if not (teardown and loaded.misconfigured):
                    raise
                if loaded.teardown is None:
                    self._create_without_wrong_options(loaded)
                return loaded.teardown

    if TYPE_CHECKING:

        @overload
        def drivers(
            self, group: Literal["kurma.renderers"], *, tell: bool = ...
        ) -> Mapping[str, RendererHooks]: ...
        @overload
        def drivers(
            self, group: Literal["kurma.isolators"], *, tell: bool = ...
        ) -> Mapping[str, IsolatorHooks]: ...
        @overload
        def drivers(self, group: str, *, tell: bool = ...) -> Mapping[str, Any]: ...

    def drivers(self, group: str, *, tell: bool = True) -> Mapping[str, Any]:
        """Every enabled driver of the group that works, in the configuration's order, then by name.

        :param tell: note each plugin that does not work, once.
        :raises PluginCollisionError: two distributions claim one name.
        :raises KurmaError: a required plugin does not work.
        """
        found = ((name, self._or_note(group, name, tell=tell)) for name in self.names(group))
        return {name: driver for name, driver in found if driver is not None}

    def absent(self, group: str) -> tuple[str, ...]:
        """The reasons why plugins of the group declare nothing, one line each: disabled, skipped, broken, or none
        installed. Loads the plugins that are not in the index.

        :raises PluginCollisionError: two distributions claim one name.
        """
        installed = self._group(group)
        if not installed:
            install = self._config.install_hint(group)
            return (f"no {singular(group)} plugin is installed" + (f" ({install})" if install else ""),)
        names = (*self._config.plugins.get(kind_of(group), {}), *(plugin.name for plugin in installed))
        found = []
        for name in dict.fromkeys(names):
            try:
                self.declaration(group, name)
            except PluginCollisionError:
                raise
            except KurmaError as error:
                found.append(error.message)
        return tuple(found)

    def tell_broken(self, group: str) -> None:
        """Notes each plugin of the group that this process has tried to load and that does not work, once."""
        for name in self.enabled(group):
            loaded = self._loaded.get((group, name))
            if loaded is not None and loaded.error is not None:
                self._tell(group, name, loaded.error)

    def declarations(self, group: str, *, tell: bool = False, load: bool = True) -> tuple[Declared, ...]:
        """The enabled plugins of the group that can be loaded, in the order of :meth:`names`, each with what it
        declares: from the index; the plugins that are not in it are loaded.

        :param tell: note each plugin that cannot be loaded, once.
        :param load: False: leave out the plugins of which nothing is known yet.
        """
        found: list[Declared] = []
        for name in self.enabled(group):
            try:
                plugin = self._plugin(group, name)
                loaded = self._loaded.get((group, name))
                declared: Driver | Declaration | None = None if loaded is None else loaded.declared
                if declared is None:
                    declared = self._index.declaration(plugin)
                if declared is None and load:
                    declared = _declared(self._load(group, name))
            except KurmaError as error:
                if tell:
                    self._tell(group, name, error)
                continue
            if declared is not None:
                found.append((plugin, declared))
        return tuple(found)

    def implementing(self, group: str, *hooks: str) -> tuple[str, ...]:
        """Names of the enabled plugins of the group that have one of these hooks, as the index knows; and of those
        of which it does not know that. Loads nothing.

        :raises PluginCollisionError: two distributions claim one name.
        """
        return tuple(name for name in self.names(group) if self._may_implement(group, name, hooks))

    def _may_implement(self, group: str, name: str, hooks: tuple[str, ...]) -> bool:
        has_options = bool(self._config.plugin(group, name).config)
        known = None if has_options else self._index.implements(self._plugin(group, name), hooks)
        return known is not False

    def isolator_claims(self, *, load: bool = True) -> Mapping[str, tuple[Plugin, ...]]:
        """The plugins that compile each isolator, by the isolator's name. If several know an isolator, and
        ``isolator_plugins`` of the configuration names one of them, only that one; otherwise they collide.

        :param load: as :meth:`declarations`.
        """
        claims: dict[str, tuple[Plugin, ...]] = {}
        for plugin, declared in self.declarations("kurma.isolators", load=load):
            for isolator in dict.fromkeys(declared.isolators):
                if self._config.isolator_plugins.get(isolator, plugin.name) == plugin.name:
                    claims[isolator] = (*claims.get(isolator, ()), plugin)
        return claims

    def _claims(self, group: str, *, tell: bool = False, load: bool = True) -> Mapping[str, tuple[Plugin, ...]]:
        from kurma_core.plugins import claims

        isolators = self.isolator_claims(load=load) if group == "kurma.isolators" else {}
        return claims.claimants(group, self.declarations(group, tell=tell, load=load), isolators)

    def collisions(self) -> Iterator[PluginCollisionError]:
        """The names that several enabled plugins claim, or a plugin and Kurma itself. Loads the plugins that are
        not in the index."""
        from kurma_core.plugins import claims

        for group in GROUPS:
            for name in self.enabled(group):
                error = claims.name_collision(self._named(group, name))
                if error is not None:
                    yield error
            yield from claims.collisions(self._claims(group))

    def names(self, group: str) -> tuple[str, ...]:
        """Names of the enabled plugins of the group, in the configuration's order, then by name; loads nothing.

        :raises PluginCollisionError: two distributions claim one name.
        """
        enabled = self.enabled(group)
        for name in enabled:
            if len(self._named(group, name)) > 1:
                self._plugin(group, name)
        return enabled

    def enabled(self, group: str) -> tuple[str, ...]:
        """As :meth:`names`, with the names that are claimed twice."""
        found = dict.fromkeys(plugin.name for plugin in self._group(group))
        configured = self._config.plugins.get(kind_of(group), {})
        order = [name for name in configured if name in found] + [name for name in found if name not in configured]
        return tuple(name for name in order if self._config.plugin(group, name).enabled)

    def look_up_anew(self, earlier: PluginRegistry) -> None:
        """Reads every installed distribution, also what was installed since this process has begun.

        :param earlier: its drivers take down what pods have of plugins that are no longer installed.
        """
        follow_path_files()
        with self._lock, earlier._lock:
            self._installed = self._index.find(anew=True)
            made = {key: loaded.driver for key, loaded in earlier._loaded.items() if loaded.driver is not None}
            kept = {key: driver for key, driver in made.items() if key[0] in _OF_RUNNING_PODS}
            self._earlier = {**earlier._earlier, **kept}

    def installed(self) -> Mapping[tuple[str, str], str]:
        """Distributions and versions of all installed plugins, by kind and name, disabled ones too."""
        found: dict[tuple[str, str], str] = {}
        for group in GROUPS:
            for plugin in self._group(group):
                key = (kind_of(group), plugin.name)
                found[key] = f"{found[key]} and {plugin}" if key in found else str(plugin)
        return found

    def outdated(self, kind: str, name: str) -> str | None:
        """How an installed plugin differs from the one that this process has loaded; None: it does not."""
        plugins = (plugin for plugin in self._group(f"kurma.{kind}") if plugin.name == name)
        return next(filter(None, map(self._index.outdated, plugins)), None)

    def options(self, group: str, name: str) -> tuple[Option, ...]:
        """The keys that the plugin's section may hold; its module is loaded, no driver is made.

        :raises KurmaError: as :meth:`driver`.
        """
        return _declared(self._load(group, name)).options

    def declaration(self, group: str, name: str) -> Driver | Declaration:
        """The declaration of the plugin, from the index; if the index lacks it, the plugin's module is loaded.

        :raises KurmaError: as :meth:`driver`.
        """
        return self._index.declaration(self._plugin(group, name)) or _declared(self._load(group, name))

    def locator_kind(self, scheme: str) -> str | None:
        """Returns the kind of a scheme's locators (:attr:`Driver.locators`); None: no fetcher has that name.

        A fetcher that does not work counts as one of addresses: its error is raised when it is needed.
        """
        if scheme not in self.names(_FETCHERS):
            return None
        try:
            declared = self.declaration(_FETCHERS, scheme)
        except KurmaError:
            return "address"
        return declared.locators

    def locator_examples(self) -> Iterator[str]:
        """A locator for hints of each fetcher that works and declares one."""
        self.names(_FETCHERS)
        return (declared.example for _, declared in self.declarations(_FETCHERS) if declared.example)

    def settings(self, group: str, name: str) -> Mapping[str, Json]:
        """The plugin's options with the administrator's values; its module is loaded, no driver is made. A
        driver that could not be made does not matter.

        :raises KurmaError: as :meth:`driver`.
        """
        known = self._loaded.get((group, name))
        return self._values(known if known is not None and known.declared is not None else self._load(group, name))

    def host_checks(self, group: str, name: str) -> Sequence[HostCheck]:
        """Calls the plugin's ``kurma_checks``; empty: it has no such hook. Its module is imported, no driver is
        made; a plugin that skips itself is asked, too.

        :raises KurmaError: the plugin cannot be imported, or breaks its contract, or the hook fails.
        """
        error = None
        try:
            loaded = self._load(group, name)
        except KurmaError as found:
            if (group, name) not in self._loaded or not self._loaded[group, name].skipped:
                raise
            error, loaded = found, self._loaded[group, name]
        checks = loaded.source.checks(loaded.module) if loaded.source is not None else None
        if checks is None:
            if error is not None:
                raise error
            return ()
        values = self._values(loaded) if loaded.declared is not None else {}
        return checks(self._context(loaded.plugin, values))

    def resolve_alias(self, group: str, alias: str) -> str | None:
        """The plugin that declares that alias; None: no plugin does. Loads the plugins that are not in the index.

        :raises PluginCollisionError: two plugins declare it, or claim one name.
        """
        from kurma_core.plugins import claims

        return self._only(group, claims.alias(group, alias))

    def image_runner(self, group: str) -> str | None:
        """The plugin that runs images (:attr:`Driver.runs_images`); None: none does. Loads as
        :meth:`resolve_alias`.

        :raises PluginCollisionError: two plugins do, or claim one name.
        """
        from kurma_core.plugins import claims

        return self._only(group, claims.IMAGES)

    def _only(self, group: str, what: str) -> str | None:
        from kurma_core.plugins import claims

        self.names(group)
        plugins = self._claims(group, tell=True).get(what, ())
        if len(plugins) > 1:
            raise claims.collision(what, plugins)
        return plugins[0].name if plugins else None

    def annotation_reader(self, names: Collection[str]) -> str | None:
        """The fetcher that understands one of these annotations (:attr:`Driver.annotations`); None: none does. If
        one distribution has several, the first of them. Loads as :meth:`resolve_alias`.

        :raises PluginCollisionError: fetchers of two distributions do.
        """
        from kurma_core.plugins import claims

        self.names(_FETCHERS)
        declared = self.declarations(_FETCHERS, tell=True)
        plugins = claims.readers(names, declared)
        if len(plugins) > 1:
            name = next(name for name in names if claims.readers([name], declared))
            raise claims.collision(f"annotation {name!r}", plugins)
        return plugins[0].name if plugins else None

    def emit(self, event: PodEvent | AppEvent) -> None:
        """Queues the event for every observer; none delays the caller."""
        for name in self.names(_OBSERVERS):
            with self._lock:
                if name not in self._observing:
                    self._observing[name] = self._observe(name)
            self._observing[name].tell(event)

    def _observe(self, name: str) -> Observing:
        from kurma_core.plugins.observing import Observing

        def make() -> ObserverHooks | None:
            try:
                return self.driver("kurma.observers", name)
            except KurmaError as error:
                self._tell(_OBSERVERS, name, error)
                return None

        return Observing(name, make, self._note)

    def close(self) -> None:
        """Waits for observers to take the events that are queued: a command for a second, kurmad for five."""
        if self._observing:
            from kurma_core.plugins import observing

            observing.close(self._observing.values(), 5.0 if self._daemon else 1.0)
            self._observing.clear()

    # --- the whole ---------------------------------------------------------------------------------------------

    def check_required(self) -> None:
        """Checks the required plugins of pods, and that no name is claimed twice, before anything is done for a
        pod.

        :raises PluginCollisionError: two distributions claim one name, whatever its kind.
        :raises KurmaError: a required plugin is missing, disabled, skipped or broken.
        """
        for group in GROUPS:
            if group in _NOT_FOR_PODS:
                continue
            self.names(group)
            for name in self._required(group):
                try:
                    self.driver(group, name)
                except KurmaError as error:
                    if isinstance(error, ConfigError | PluginCollisionError):
                        raise
                    kind = PluginNotFoundError if isinstance(error, PluginNotFoundError) else PluginError
                    message = f"{error.message}, and {self._origin(group, name, 'required')} requires it"
                    raise kind(message, hint=error.hint, plugin=f"{group}/{name}") from error

    def listing(self, load: bool = True) -> tuple[PluginInfo, ...]:
        """One row per entry point, by kind and name, and one per required plugin that is not installed. A plugin's
        error is not raised but shown in its row.

        Reads every installed distribution, unless this process has done so: that also corrects a wrong index.

        :param load: import and make each, to know whether it works. False: only of those that this process uses
            already it is known.
        """
        from kurma_core.api.host import PluginInfo

        with self._lock:
            if self._installed is None:
                self._installed = self._index.find(anew=True)
        rows, process = [], "kurmad" if self._daemon else "this command"
        for group in GROUPS:
            installed = self._group(group)
            for plugin in installed:
                status, reason = self._status(group, plugin.name, load)
                outdated = self._index.outdated(plugin) if self._daemon and status in ("ok", "found") else None
                if outdated is not None:
                    status, reason = "outdated", f"{outdated}: restart kurmad"
                rows.append(
                    PluginInfo(
                        kind_of(group),
                        plugin.name,
                        plugin.distribution,
                        plugin.version or "?",
                        status,
                        reason,
                        enable=enabling(group, plugin.name) if status == "disabled" else "",
                        loaded=self._index.loaded_version(plugin),
                        process=process,
                    )
                )
            present = {plugin.name for plugin in installed}
            for name in self._required(group):
                if name not in present:
                    reason = f"not installed, and {self._origin(group, name, 'required')} requires it"
                    rows.append(PluginInfo(kind_of(group), name, None, None, "failed", reason, process=process))
        for plugin, reason in self._unknown_groups():
            distribution, version = plugin.distribution, plugin.version or "?"
            kind = kind_of(plugin.group)
            rows.append(PluginInfo(kind, plugin.name, distribution, version, "failed", reason, process=process))
        return tuple(rows)

    # --- one plugin --------------------------------------------------------------------------------------------

    def _group(self, group: str) -> tuple[Plugin, ...]:
        with self._lock:
            if self._installed is None:
                self._installed = self._index.find()
        return self._installed.get(group, ())

    def _named(self, group: str, name: str) -> list[Plugin]:
        return [plugin for plugin in self._group(group) if plugin.name == name]

    def _newer(self, group: str, name: str) -> list[Plugin]:
        """The plugins of that name in kurmad that were installed since it has looked: a reload uses them."""
        if not self._daemon:
            return []
        with self._lock:
            follow_path_files()
            return [plugin for plugin in self._index.find().get(group, ()) if plugin.name == name]

    def _plugin(self, group: str, name: str, *, teardown: bool = False) -> Plugin:
        """:param teardown: find also what only a reload would use.

        :raises PluginNotFoundError, PluginCollisionError:"""
        plugins = self._named(group, name)
        newer = [] if plugins else self._newer(group, name)
        if teardown:
            plugins = plugins or newer
        if not plugins:
            astray = next((one for one in self._unknown_groups() if one[0].name == name), None)
            _not_found(group, name, self._group(group), newer, astray, self._config.install_hint(group, name))
        if not teardown and not self._config.plugin(group, name).enabled:
            raise PluginNotFoundError(
                f"{called(group, name)} is {self._why_disabled(group, name)}",
                hint=f"enable it: kurma plugins enable {kind_of(group)} {name}",
                plugin=f"{group}/{name}",
            )
        if len(plugins) > 1 or group in _RESERVING:
            from kurma_core.plugins.claims import name_collision

            collision = name_collision(plugins)
            if collision is not None:
                raise collision
        return plugins[0]

    def _load(self, group: str, name: str, *, teardown: bool = False) -> _Loaded:
        """Imports the plugin and calls its hook, if this process has not done so yet."""
        with self._lock:
            loaded = self._loaded.get((group, name))
            usable = self._named(group, name) and self._config.plugin(group, name).enabled
            if loaded is None or not (teardown or usable):
                plugin = self._plugin(group, name, teardown=teardown)
                loaded = self._loaded[group, name] = _Loaded(plugin)
        with loaded.lock:
            if not loaded.begun:
                loaded.begun = True
                self._attempt(loaded, lambda: self._declare(loaded))
            if loaded.error is not None and not (teardown and loaded.misconfigured):
                raise loaded.error
        return loaded

    def _declare(self, loaded: _Loaded) -> None:
        plugin = loaded.plugin
        self._check_contract(plugin)
        with _one_import():
            loaded.module, classes = self._index.load(plugin)

        def keep(cls: type, kind: type[Hooks], taken: Taken) -> None:
            with self._lock:
                self._index.remember_class(plugin, class_key(cls, kind), cls, kind, taken)

        more = (self._trace, self._daemon, self._slow if plugin.group in _QUICK else None)
        loaded.source = Source(plugin.group, plugin.name, str(plugin), classes, keep, *more)
        checked = classes is not None
        loaded.declared = contract.declared(plugin.group, plugin.name, loaded.module, checked=checked)
        if not checked:
            with self._lock:
                self._index.remember(plugin, loaded.declared)

    def _check_contract(self, plugin: Plugin) -> None:
        """:raises PluginError: the plugin's distribution needs another version of the contract."""
        known = plugin in self._group(plugin.group)
        for entry in self._group(NEEDED) if known else self._index.find().get(NEEDED, ()):
            if (entry.distribution, entry.directory) != (plugin.distribution, plugin.directory):
                continue
            who, error = _whole(plugin), {"plugin": f"{plugin.group}/{plugin.name}"}
            if not entry.name.isdecimal():
                raise PluginError(f"{who}: its entry of {NEEDED} is {entry.name!r}, not a number", **error)
            needed = int(entry.name)
            if needed > CONTRACT:
                what = f"needs Kurma's plugin contract {needed}, this is {CONTRACT}"
                raise PluginError(f"{who} {what}", hint="upgrade kurma-core", **error)
            if needed < OLDEST:
                what = f"was made for Kurma's plugin contract {needed}; this Kurma serves {OLDEST} and later"
                raise PluginError(f"{who} {what}", hint=f"upgrade {plugin.distribution}", **error)

    def _unknown_groups(self) -> Iterator[tuple[Plugin, str]]:
        """Entries of groups that Kurma does not have, each with the reason."""
        for group, plugins in sorted((self._installed or {}).items()):
            if group not in GROUPS and group != NEEDED:
                near = nearest(kind_of(group), map(kind_of, GROUPS))
                reason = f"there is no group {group}" + (f"; the nearest is kurma.{near}" if near else "")
                yield from ((plugin, reason) for plugin in plugins)

    def _create(self, loaded: _Loaded) -> None:
        plugin, values = loaded.plugin, self._values(loaded)
        assert loaded.source is not None
        loaded.driver = loaded.source.made(_declared(loaded), self._context(plugin, values))
        if not self._config.plugin(plugin.group, plugin.name).config:
            key = class_key(type(vars(loaded.driver)["_driver"]), type(loaded.driver))
            with self._lock:
                self._index.remember_driver(plugin, key)

    def _create_without_wrong_options(self, loaded: _Loaded) -> None:
        """Makes the driver with the options that are right by themselves; if it refuses these, with the defaults.

        :raises ConfigError: it refuses the defaults, too.
        """
        plugin, error = loaded.plugin, loaded.error
        assert loaded.source is not None
        assert error is not None
        right: dict[str, Json] = {}
        for name, value in self._config.plugin(plugin.group, plugin.name).config.items():
            with suppress(ConfigError):
                self._values(loaded, {name: value})
                right[name] = value
        for section in (right, {}):
            with suppress(Exception):  # a stranger's code may raise anything; the caller gets the error above
                values = self._values(loaded, section)
                loaded.teardown = loaded.source.made(_declared(loaded), self._context(plugin, values))
                who = called(plugin.group, plugin.name)
                self._note(f"{error.message}; {who} cleans up after pods with default options")
                return
        raise error

    def _context(self, plugin: Plugin, values: Mapping[str, Json]) -> DriverContext:
        given: dict[str, Any] = {"host_image": self._host_image, "start_program": self._start_program}
        return DriverContext(
            config=values,
            state_dir=os.path.join(self._config.state_dir, "plugins", plugin.group, plugin.name),
            state_root=self._config.state_dir,
            registries=self._config.registries.to_json(),
            auth_dir=self._config.auth_dir,
            note=self._note,
            daemon=self._daemon,
            **{key: value for key, value in given.items() if value is not None},
        )

    def _values(self, loaded: _Loaded, section: Mapping[str, Json] | None = None) -> dict[str, Json]:
        plugin = loaded.plugin
        if section is None:
            section = self._config.plugin(plugin.group, plugin.name).config
        place = f"plugins.{kind_of(plugin.group)}.{plugin.name}.config"
        return contract.options(section, _declared(loaded).options, place, self._config.origins)

    def _attempt(self, loaded: _Loaded, step: Callable[[], None]) -> None:
        """Runs code of the plugin. An exception becomes the plugin's error, which is kept and raised."""
        try:
            self._slow.watch(f"{_whole(loaded.plugin)}: its import", step)
            return
        except KurmaError as error:
            loaded.error = error
            if not isinstance(error, ConfigError) and "plugin" not in error.data:
                loaded.error = _plugin_error(loaded.plugin, f"is broken: {line(error)}", error)
        except Skipped as error:
            loaded.skipped = True
            loaded.error = _plugin_error(loaded.plugin, f"cannot work on this host: {line(error)}", error)
        except BaseException as error:  # a stranger's code may raise anything
            if interrupts(error):
                loaded.begun = loaded.declared is not None  # not broken: the next call loads it
                raise
            loaded.error = _plugin_error(loaded.plugin, f"is broken: {said(error)}", error)
            loaded.error.hint = mistake(error, self._daemon)
            if self._daemon:
                log_failure(loaded.error.message, error)
            if self._daemon and isinstance(error, ModuleNotFoundError):
                loaded.error.hint = f"if {error.name} is installed, restart kurmad"
        raise loaded.error

    def _status(self, group: str, name: str, load: bool) -> tuple[str, str]:
        if not self._config.plugin(group, name).enabled:
            return "disabled", self._why_disabled(group, name)
        loaded, others = self._loaded.get((group, name)), load
        load = load or (loaded is not None and (loaded.driver is not None or loaded.error is not None))
        try:
            if load:
                self.driver(group, name)
            else:
                self._plugin(group, name)
        except KurmaError as error:
            loaded = self._loaded.get((group, name))
            return "skipped" if loaded is not None and loaded.skipped else "failed", error.message
        if group == _OBSERVERS and name in self._observing:
            problem = self._observing[name].problem()
            if problem:
                return "behind", problem
        return ("ok", self._shared(group, name, others)) if load else ("found", "")

    def _shared(self, group: str, name: str, load: bool) -> str:
        """Tells the names that the plugin and another one claim. :param load: as :meth:`declarations`."""
        from kurma_core.plugins.claims import collisions

        claims = self._claims(group, load=load).items()
        mine = {what: plugins for what, plugins in claims if any(plugin.name == name for plugin in plugins)}
        return "; ".join(error.message for error in collisions(mine))

    def status(self, kind: str, name: str) -> tuple[str, str]:
        """Status and reason of a plugin, as in :meth:`listing`; loads it, and the others of its kind of which
        nothing is known."""
        return self._status(f"kurma.{kind}", name, True)

    def failures(self) -> Mapping[tuple[str, str], str]:
        """Why plugins that this process has tried to load do not work, by kind and name."""
        with self._lock:
            tried = tuple(self._loaded.items())
        return {
            (kind_of(group), name): loaded.error.message
            for (group, name), loaded in tried
            if loaded.error is not None
        }

    def _or_note(self, group: str, name: str, *, tell: bool = True) -> Any:
        try:
            return self.driver(group, name)
        except KurmaError as error:
            if self._config.plugin(group, name).required:
                raise
            if tell:
                self._tell(group, name, error)
            return None

    def _tell(self, group: str, name: str, error: KurmaError) -> None:
        loaded = self._loaded.get((group, name))
        if (group, name) not in self._told and not (loaded is not None and loaded.skipped):
            self._told.add((group, name))
            self._note(error.message)

    def _required(self, group: str) -> Iterator[str]:
        sections = self._config.plugins.get(kind_of(group), {})
        return (name for name, section in sections.items() if section.required)

    def _why_disabled(self, group: str, name: str) -> str:
        if name in self._config.plugins.get(kind_of(group), {}):
            return f"disabled in {self._origin(group, name, 'enabled')}"
        if kind_of(group) in OPT_IN and self._config.enable == "all":
            return "not enabled in the configuration, as each of its kind has to be"
        return (
            f"not listed in `plugins`, and {origin('plugins.enable', self._config.origins)} says `enable: listed`"
        )

    def _origin(self, group: str, name: str, key: str) -> str:
        return self._config.origins.get(f"plugins.{kind_of(group)}.{name}.{key}", "the configuration")


# --- words -----------------------------------------------------------------------------------------------------


def _whole(plugin: Plugin) -> str:
    """A plugin with its distribution: ``network plugin 'NAME' of DISTRIBUTION 1.0``."""
    return f"{called(plugin.group, plugin.name)} of {plugin}"


def _plugin_error(plugin: Plugin, what: str, cause: BaseException) -> PluginError:
    error = PluginError(f"{_whole(plugin)} {what}", plugin=f"{plugin.group}/{plugin.name}")
    error.__cause__ = cause
    return error


def _not_found(
    group: str,
    name: str,
    plugins: Collection[Plugin],
    newer: Collection[Plugin],
    astray: tuple[Plugin, str] | None,
    install: str | None,
) -> NoReturn:
    """:param plugins: of that group. :param newer: those of that name that a reload of kurmad would use.

    :param astray: a plugin of that name in a group that Kurma does not know, and the reason.
    :param install: how to install it, if a package is known to bring it."""
    installed = sorted({plugin.name for plugin in plugins})
    hint = f"installed: {', '.join(installed)}" if installed else f"no distribution brings any {group} plugin"
    hint = install or hint
    if astray is not None:
        hint = f"{astray[0]} has one of that name, but {astray[1]}"
    if newer:
        what = f"{_whole(next(iter(newer)))} was installed since kurmad has looked"
        raise PluginNotFoundError(what, hint="kurma daemon reload", plugin=f"{group}/{name}")
    raise PluginNotFoundError(f"no {called(group, name)} is installed", hint=hint, plugin=f"{group}/{name}")
