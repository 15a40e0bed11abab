"""The plugins of this process: found, enabled, loaded when first needed, listed.

Entry points are looked up once; a plugin's module is imported when its driver, an alias of its group, or a full
listing is asked for. What goes wrong with one plugin stays with it: it is remembered, told to whoever asks for
that plugin, and shown by ``kurma plugins list``; the others work on, unless the admin said that it is
``required``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kurma_core.api.host import PluginInfo
from kurma_core.config import Config, origin
from kurma_core.config.schema import REQUIRED_ISOLATORS
from kurma_core.errors import ConfigError, KurmaError, PluginCollisionError, PluginError, PluginNotFoundError
from kurma_core.errors import PluginSkipped as Skipped
from kurma_core.hookspecs.driver import Driver, DriverContext, HostProgram, HostTree, Option, Started
from kurma_core.hookspecs.hooks import GROUPS
from kurma_core.plugins import contract, index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from typing import Any, NoReturn

    from kurma_core.models.pod import PodEvent

    Json = Any

_OBSERVERS = "kurma.observers"
#: Characters of a stranger's message that are shown.
_LONGEST = 500


@dataclass(slots=True)
class _Plugin:
    """A plugin that was asked for: the one entry point, and what became of it."""

    entry: EntryPoint
    declared: Driver[Any] | None = None
    hook: Callable[..., Any] | None = None
    driver: object | None = None
    error: KurmaError | None = None
    skipped: bool = False


class PluginRegistry:
    """:param config: whose ``plugins`` section enables, requires and configures.
    :param note: tells the user something in one line.
    :param host_image: what drivers get images by (:class:`DriverContext`).
    :param start_program: how drivers start programs of the host (:class:`DriverContext`).
    :param daemon: what drivers are told of this process (:class:`DriverContext`).
    """

    def __init__(
        self,
        config: Config,
        note: Callable[[str], None] = lambda text: None,
        host_image: Callable[[str], HostTree] | None = None,
        daemon: bool = False,
        start_program: Callable[[HostProgram], Started] | None = None,
    ) -> None:
        self._start_program = start_program
        self._config = config
        self._note = note
        self._host_image = host_image
        self._daemon = daemon
        self._entries: Mapping[str, tuple[EntryPoint, ...]] | None = None
        self._plugins: dict[tuple[str, str], _Plugin] = {}
        self._told: set[tuple[str, str]] = set()
        self._lock = threading.RLock()  # a driver is made once, also where several threads ask for it

    # --- asking ------------------------------------------------------------------------------------------------

    def driver(self, group: str, name: str) -> object:
        """The driver; loaded now if it was not, and no other plugin with it.

        :param group: with its prefix: ``kurma.networks``.
        :raises PluginNotFoundError: none of that name is installed, or it is disabled.
        :raises PluginCollisionError: two distributions bring one.
        :raises PluginError: it is broken, or this host lacks what it needs.
        :raises ConfigError: its section has a key that it does not know, or a value of a wrong type.
        """
        with self._lock:
            plugin = self._declared(group, name)
            if plugin.driver is None:
                self._attempt(group, name, plugin, lambda: self._create(group, name, plugin))
            return plugin.driver

    def drivers(self, group: str, *, tell: bool = True) -> Mapping[str, object]:
        """Every enabled driver of the group that works, in the configuration's order, then by name.

        :param tell: note each that does not work, once.
        :raises PluginCollisionError: two distributions claim one name.
        :raises KurmaError: a required one does not work.
        """
        found = ((name, self._or_note(group, name, tell=tell)) for name in self.names(group))
        return {name: driver for name, driver in found if driver is not None}

    def absent(self, group: str) -> tuple[str, ...]:
        """Why plugins of the group do not work, one line each: disabled, skipped, broken; or none is installed.

        :raises PluginCollisionError: two distributions claim one name.
        """
        entries = self._group(group)
        if not entries:
            return (f"no {_kind(group).removesuffix('s')} plugin is installed",)
        names = (*self._config.plugins.get(_kind(group), {}), *(entry.name for entry in entries))
        found = []
        for name in dict.fromkeys(names):
            try:
                self.driver(group, name)
            except PluginCollisionError:
                raise
            except KurmaError as error:
                found.append(error.message)
        return tuple(found)

    def isolator_claims(self) -> Mapping[str, tuple[str, ...]]:
        """Plugins that look after each isolator, by the isolator's name: of those that know it the one that
        ``isolator_plugins`` of the configuration names, if it names one. Several collide.
        """
        claims: dict[str, tuple[str, ...]] = {}
        for plugin, driver in self.drivers("kurma.isolators", tell=False).items():
            for isolator in dict.fromkeys(driver.names):  # type: ignore[attr-defined]
                if self._config.isolator_plugins.get(isolator, plugin) == plugin:
                    claims[isolator] = (*claims.get(isolator, ()), plugin)
        return claims

    def isolator_collision(self, isolator: str, plugins: tuple[str, ...]) -> PluginCollisionError:
        """What is told of an isolator that several plugins claim."""
        both = " and ".join(
            f"{name!r} of {index.described(self._entry('kurma.isolators', name))}" for name in plugins
        )
        return PluginCollisionError(
            f"isolator {isolator} is claimed by the plugins {both}",
            hint=f"name one in kurma.yml: `isolator_plugins: {{{isolator}: {plugins[0]}}}`; or disable one: "
            + _disabling("kurma.isolators", plugins[-1]),
            plugin=f"kurma.isolators/{plugins[0]}",
        )

    def names(self, group: str) -> tuple[str, ...]:
        """Names of the enabled plugins of the group, in the configuration's order, then by name; loads nothing.

        :raises PluginCollisionError: two distributions claim one name.
        """
        found = dict.fromkeys(entry.name for entry in self._group(group))
        configured = self._config.plugins.get(_kind(group), {})
        order = [name for name in configured if name in found] + [name for name in found if name not in configured]
        enabled = tuple(name for name in order if self._config.plugin(group, name).enabled)
        for name in enabled:
            self._entry(group, name)
        return enabled

    def options(self, group: str, name: str) -> tuple[Option, ...]:
        """The keys that the plugin's section may hold; its module is loaded, no driver is made.

        :raises KurmaError: as :meth:`driver`.
        """
        with self._lock:
            declaration = self._declared(group, name).declared
        return declaration.options if declaration is not None else ()

    def resolve_alias(self, group: str, alias: str) -> str | None:
        """The plugin that declares that alias; None: no plugin does. May load the whole group.

        :raises PluginCollisionError: two plugins declare it, or claim one name.
        """
        return self._only(group, lambda declared: alias in declared.aliases, f"answer to {alias!r}")

    def image_runner(self, group: str) -> str | None:
        """The plugin that runs images (:attr:`Driver.runs_images`); None: none does. May load the whole group.

        :raises PluginCollisionError: two plugins do, or claim one name.
        """
        return self._only(group, lambda declared: declared.runs_images, "run images")

    def _only(self, group: str, fits: Callable[[Driver[Any]], bool], what: str) -> str | None:
        claims = []
        for name in self.names(group):
            try:
                with self._lock:
                    plugin = self._declared(group, name)
            except KurmaError as error:
                self._tell(group, name, error)
                continue
            if plugin.declared is not None and fits(plugin.declared):
                claims.append((name, plugin.entry))
        if len(claims) > 1:
            both = " and ".join(f"{name!r} of {index.described(entry)}" for name, entry in claims)
            raise PluginCollisionError(
                f"two plugins of {group} {what}: {both}",
                hint=f"disable one: {_disabling(group, claims[0][0])}",
                plugin=f"{group}/{claims[0][0]}",
            )
        return claims[0][0] if claims else None

    def emit(self, event: PodEvent) -> None:
        """Tells every observer. Whatever one raises is noted and goes no further."""
        for name in self.names(_OBSERVERS):
            hook = self._or_note(_OBSERVERS, name)
            if hook is None:
                continue
            try:
                hook(event=event)  # type: ignore[operator]
            except BaseException as error:  # an observer cannot break a pod
                if _interrupts(error):
                    raise
                self._note(f"observer {name!r} failed at {event.kind!r} of pod {event.pod}: {_said(error)}")

    # --- the whole ---------------------------------------------------------------------------------------------

    def check_required(self) -> None:
        """What must hold before anything is done for a pod.

        :raises PluginCollisionError: two distributions claim one name, whatever its kind.
        :raises KurmaError: a required plugin is missing, disabled, skipped or broken.
        """
        for group in GROUPS:
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
        """One row per entry point, by kind and name, and one per required plugin that is not there. Raises nothing
        for what is wrong with a plugin: the rows tell.

        :param load: import and make each, to know whether it works.
        """
        rows = []
        for group in GROUPS:
            for entry in self._group(group):
                status, reason = self._status(group, entry.name, load)
                distribution = index.distribution_name(entry.dist)
                version = entry.dist.version if entry.dist is not None else None
                rows.append(PluginInfo(_kind(group), entry.name, distribution, version, status, reason))
            present = {entry.name for entry in self._group(group)}
            for name in self._required(group):
                if name not in present:
                    reason = f"not installed, and {self._origin(group, name, 'required')} requires it"
                    rows.append(PluginInfo(_kind(group), name, None, None, "failed", reason))
        return tuple(rows)

    def problems(self) -> tuple[KurmaError, ...]:
        """What is wrong with the plugins that the configuration mentions; loads them. For ``config.check``."""
        config = self._config
        used = [("kurma.renderers", config.renderer)]
        if config.stager not in config.stagers:
            used.append(("kurma.stagers", config.stager.partition(":")[0]))
        used += [("kurma.stagers", stager.driver) for stager in config.stagers.values() if stager.driver]
        used += [("kurma.networks", entry.plugin) for entry in config.container_networks if entry.plugin]
        sections = [(f"kurma.{kind}", name) for kind, sections in config.plugins.items() for name in sections]
        installed = [(group, entry.name) for group in GROUPS for entry in self._group(group)]
        twice = [key for key in dict.fromkeys(installed) if installed.count(key) > 1]
        found: list[KurmaError] = []
        for group, name in dict.fromkeys((*used, *sections, *twice)):
            section = config.plugin(group, name)
            off = not section.enabled and not section.required and (group, name) not in used
            if off and (group, name) in installed:
                continue
            try:
                self.driver(group, name)
            except KurmaError as error:
                found.append(error)
        return (*found, *self._wrong_stagers(), *self._wrong_isolators())

    def _wrong_stagers(self) -> Iterator[KurmaError]:
        """Sections of ``stagers`` with options that their driver does not know."""
        for name, stager in self._config.stagers.items():
            if stager.driver is None:
                continue  # an image's own, which nothing here knows
            try:
                known = self.options("kurma.stagers", stager.driver)
            except KurmaError:
                continue  # told already
            try:
                contract.options(stager.config, known, f"stagers.{name}.config", self._config.origins)
            except ConfigError as error:
                yield error

    def _wrong_isolators(self) -> Iterator[KurmaError]:
        """Isolators that two plugins claim; and those that the configuration names, and that no plugin knows."""
        config = self._config
        try:
            drivers = self.drivers("kurma.isolators", tell=False)
        except KurmaError:
            return  # told already
        names: dict[str, tuple[str, ...]] = {plugin: tuple(driver.names) for plugin, driver in drivers.items()}  # type: ignore[attr-defined]
        for isolator, plugins in self.isolator_claims().items():
            if len(plugins) > 1:
                yield self.isolator_collision(isolator, plugins)
        for isolator, plugin in config.isolator_plugins.items():
            if isolator not in names.get(plugin, ()):
                what = f"isolator plugin {plugin!r} does not know it, or does not work"
                yield self._unknown(f"isolator_plugins.{isolator}", what, "see `kurma plugins list`")
        known = {*REQUIRED_ISOLATORS, *(name for some in names.values() for name in some)}
        for isolator in config.required_isolators:
            if isolator not in known:
                from difflib import get_close_matches

                near = get_close_matches(isolator, known, 1)
                hint = f"did you mean {near[0]}?" if near else "see `kurma isolators list`"
                yield self._unknown("required_isolators", f"no plugin knows an isolator {isolator!r}", hint)
        for name, grant in config.grants.items():
            for power in grant.isolators:
                found, meant = contract.known_power(power, drivers.values())
                if not found:
                    hint = f"did you mean {meant}?" if meant else "see `kurma isolators list`"
                    yield self._unknown(f"grants.{name}.isolators", f"there is no power {power!r}", hint)

    def _unknown(self, path: str, what: str, hint: str) -> ConfigError:
        file = origin(path, self._config.origins)
        return ConfigError(f"{file}: {path}: {what}", hint=hint, file=file, path=path)

    # --- one plugin --------------------------------------------------------------------------------------------

    def _group(self, group: str) -> tuple[EntryPoint, ...]:
        if self._entries is None:
            self._entries = index.find()
        return self._entries.get(group, ())

    def _entry(self, group: str, name: str) -> EntryPoint:
        """:raises PluginNotFoundError, PluginCollisionError:"""
        claims = [entry for entry in self._group(group) if entry.name == name]
        if not claims:
            _not_found(group, name, self._group(group))
        if not self._config.plugin(group, name).enabled:
            raise PluginNotFoundError(
                f"{_called(group, name)} is disabled in {self._origin(group, name, 'enabled')}",
                plugin=f"{group}/{name}",
            )
        if len(claims) > 1:
            who = " and ".join(index.described(entry) for entry in claims)
            raise PluginCollisionError(
                f"{_called(group, name)} is claimed by {who}",
                hint=f"uninstall one, or disable both: {_disabling(group, name)}",
                plugin=f"{group}/{name}",
            )
        return claims[0]

    def _declared(self, group: str, name: str) -> _Plugin:
        """The plugin, imported, its hook asked."""
        plugin = self._plugins.get((group, name))
        if plugin is None:
            plugin = self._plugins[group, name] = _Plugin(self._entry(group, name))
            self._attempt(group, name, plugin, lambda: self._declare(group, name, plugin))
        if plugin.error is not None:
            raise plugin.error
        return plugin

    def _declare(self, group: str, name: str, plugin: _Plugin) -> None:
        module = index.load(plugin.entry)
        if group == _OBSERVERS:
            plugin.hook = contract.hook(group, name, module)
        else:
            plugin.declared = contract.declared(group, name, module)

    def _create(self, group: str, name: str, plugin: _Plugin) -> None:
        section = self._config.plugin(group, name).config
        place = f"plugins.{_kind(group)}.{name}.config"
        options = plugin.declared.options if plugin.declared is not None else ()
        values = contract.options(section, options, place, self._config.origins)
        if plugin.declared is None:
            plugin.driver = plugin.hook
            return
        given: dict[str, Any] = {"host_image": self._host_image, "start_program": self._start_program}
        context = DriverContext(
            config=values,
            state_dir=os.path.join(self._config.state_dir, "plugins", group, name),
            registries=self._config.registries.to_json(),
            auth_dir=self._config.auth_dir,
            note=self._note,
            daemon=self._daemon,
            **{key: value for key, value in given.items() if value is not None},
        )
        plugin.driver = contract.made(group, plugin.declared, context)

    def _attempt(self, group: str, name: str, plugin: _Plugin, step: Callable[[], None]) -> None:
        """Runs code of the plugin; whatever it raises becomes the plugin's error, kept and raised."""
        try:
            step()
            return
        except KurmaError as error:
            plugin.error = error
            if not isinstance(error, ConfigError) and "plugin" not in error.data:
                plugin.error = self._wrapped(group, name, plugin, f"is broken: {_line(error)}", error)
        except Skipped as error:
            plugin.skipped = True
            what = f"cannot work on this host: {_line(error)}"
            plugin.error = self._wrapped(group, name, plugin, what, error)
        except BaseException as error:  # a stranger's code may raise anything
            if _interrupts(error):
                del self._plugins[group, name]  # neither loaded nor broken: it is asked anew
                raise
            plugin.error = self._wrapped(group, name, plugin, f"is broken: {_said(error)}", error)
        raise plugin.error

    def _wrapped(self, group: str, name: str, plugin: _Plugin, what: str, cause: BaseException) -> PluginError:
        text = f"{_called(group, name)} of {index.described(plugin.entry)} {what}"
        error = PluginError(text, plugin=f"{group}/{name}")
        error.__cause__ = cause
        return error

    def _status(self, group: str, name: str, load: bool) -> tuple[str, str]:
        if not self._config.plugin(group, name).enabled:
            return "disabled", f"by {self._origin(group, name, 'enabled')}"
        try:
            if load:
                self.driver(group, name)
            else:
                self._entry(group, name)
        except KurmaError as error:
            plugin = self._plugins.get((group, name))
            return "skipped" if plugin is not None and plugin.skipped else "failed", error.message
        return ("ok" if load else "found"), ""

    def _or_note(self, group: str, name: str, *, tell: bool = True) -> object | None:
        try:
            return self.driver(group, name)
        except KurmaError as error:
            if self._config.plugin(group, name).required:
                raise
            if tell:
                self._tell(group, name, error)
            return None

    def _tell(self, group: str, name: str, error: KurmaError) -> None:
        plugin = self._plugins.get((group, name))
        if (group, name) not in self._told and not (plugin is not None and plugin.skipped):
            self._told.add((group, name))
            self._note(error.message)

    def _required(self, group: str) -> Iterator[str]:
        sections = self._config.plugins.get(_kind(group), {})
        return (name for name, section in sections.items() if section.required)

    def _origin(self, group: str, name: str, key: str) -> str:
        return self._config.origins.get(f"plugins.{_kind(group)}.{name}.{key}", "the configuration")


# --- words -----------------------------------------------------------------------------------------------------


def _kind(group: str) -> str:
    return group.removeprefix("kurma.")


def _called(group: str, name: str) -> str:
    return f"{_kind(group).removesuffix('s')} plugin {name!r}"


def _disabling(group: str, name: str) -> str:
    """The line of ``kurma.yml`` that disables it."""
    return f"`plugins: {{{_kind(group)}: {{{name}: {{enabled: false}}}}}}` in kurma.yml"


def _said(error: BaseException) -> str:
    """The exception in one line."""
    text = _line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line(error: BaseException) -> str:
    """Its words, on one line of bearable length."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 (even that is a stranger's code)
        return ""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _interrupts(error: BaseException) -> bool:
    """Whether it came from without (Ctrl-C, another signal) while the plugin ran, and is no failure of its own."""
    ours = type(error).__module__.partition(".")[0] == "kurma_core" and not isinstance(error, Exception)
    return ours or isinstance(error, KeyboardInterrupt)


def _not_found(group: str, name: str, entries: tuple[EntryPoint, ...]) -> NoReturn:
    installed = sorted({entry.name for entry in entries})
    raise PluginNotFoundError(
        f"no {_called(group, name)} is installed",
        hint=f"installed: {', '.join(installed)}" if installed else f"no distribution brings any {group} plugin",
        plugin=f"{group}/{name}",
    )
