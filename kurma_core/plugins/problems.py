"""Finds errors of the configuration about plugins, for ``kurma config check`` and reloads."""

from __future__ import annotations

from kurma_core.config import Config, origin
from kurma_core.config.schema import REQUIRED_ISOLATORS, kind_of
from kurma_core.errors import ConfigError, KurmaError, PluginCollisionError, PluginNotFoundError
from kurma_core.plugins import contract
from kurma_core.schema import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.plugins.registry import PluginRegistry


def problems_of_plugins(registry: PluginRegistry, config: Config) -> tuple[KurmaError, ...]:
    """Finds errors that :func:`kurma_core.config.load` does not: missing plugins, failing plugins that something
    needs, and options that a plugin does not have. Loads every plugin that the configuration mentions."""
    collisions = tuple(registry.collisions())
    failing = (error for error, needed in _failing(registry, config) if needed)
    return (*collisions, *failing, *_wrong_stagers(registry, config), *_wrong_isolators(registry, config))


def left_out(registry: PluginRegistry, config: Config) -> tuple[KurmaError, ...]:
    """Errors of the plugins that the configuration mentions and nothing needs. The other plugins work without
    them."""
    return tuple(error for error, needed in _failing(registry, config) if not needed)


def _failing(registry: PluginRegistry, config: Config) -> Iterator[tuple[KurmaError, bool]]:
    """The errors of the plugins that the configuration mentions, and whether it is wrong for that reason."""
    used = [("kurma.renderers", config.renderer)]
    if config.stager not in config.stagers:
        used.append(("kurma.stagers", config.stager.partition(":")[0]))
    used += [("kurma.stagers", stager.driver) for stager in config.stagers.values() if stager.driver]
    used += [("kurma.networks", entry.plugin) for entry in config.networks_in_use if entry.plugin]
    sections = [(f"kurma.{kind}", name) for kind, sections in config.plugins.items() for name in sections]
    installed = registry.installed()
    for group, name in dict.fromkeys((*used, *sections)):
        section = config.plugin(group, name)
        needed = section.required or (group, name) in used
        if not section.enabled and not needed and (kind_of(group), name) in installed:
            continue
        try:
            registry.driver(group, name)
        except PluginCollisionError:
            continue  # among the collisions
        except (ConfigError, PluginNotFoundError) as error:
            yield error, True  # the configuration is wrong, whatever the plugin is for
        except KurmaError as error:
            yield error, needed


def _wrong_stagers(registry: PluginRegistry, config: Config) -> Iterator[KurmaError]:
    """Finds sections of ``stagers`` with options that their driver does not know."""
    for name, stager in config.stagers.items():
        if stager.driver is None:
            continue  # the options belong to an image, which declares them nowhere
        try:
            known = registry.options("kurma.stagers", stager.driver)
        except KurmaError:
            continue  # reported already
        try:
            contract.options(stager.config, known, f"stagers.{name}.config", config.origins)
        except ConfigError as error:
            yield error


def _wrong_isolators(registry: PluginRegistry, config: Config) -> Iterator[KurmaError]:
    """Finds isolators in the configuration that no plugin knows."""
    declared = registry.declarations("kurma.isolators")
    names = {plugin.name: own.isolators for plugin, own in declared}
    for isolator, plugin in config.isolator_plugins.items():
        works = registry.status("isolators", plugin)[0] == "ok"
        if not works or isolator not in names[plugin]:
            what = f"isolator plugin {plugin!r} does not know it, or does not work"
            yield _unknown(config, f"isolator_plugins.{isolator}", what, "see `kurma plugins list`", isolator)
    known = {*REQUIRED_ISOLATORS, *(name for some in names.values() for name in some)}
    for isolator in config.required_isolators:
        if isolator not in known:
            near = nearest(isolator, known)
            hint = f"did you mean {near}?" if near else "see `kurma isolators list`"
            what = f"no plugin knows an isolator {isolator!r}"
            yield _unknown(config, "required_isolators", what, hint, isolator)
    for name, grant in config.grants.items():
        for power in grant.isolators:
            found, meant = contract.known_power(power, [own.gated for _, own in declared])
            if not found:
                hint = f"did you mean {meant}?" if meant else "see `kurma isolators list`"
                yield _unknown(config, f"grants.{name}.isolators", f"there is no power {power!r}", hint, power)


def _unknown(config: Config, path: str, what: str, hint: str, isolator: str) -> ConfigError:
    file = origin(path, config.origins)
    return ConfigError(f"{file}: {path}: {what}", hint=hint, file=file, path=path, isolator=isolator)
