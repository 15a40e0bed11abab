"""Finds all problems of a configuration, for ``kurma config check`` and for a reload of kurmad."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kurma_core import config as configuration
from kurma_core.errors import ConfigError, KurmaError, PluginNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.client.local.managers import Managers
    from kurma_core.config import Config

_NETWORKS, _STAGERS, _ISOLATORS = "kurma.networks", "kurma.stagers", "kurma.isolators"


def problems(managers: Managers) -> tuple[KurmaError, ...]:
    """Finds the problems of the client's configuration; each names its file. Loads every plugin that the
    configuration mentions; makes nothing, and fetches nothing.
    """
    config = managers.config
    found = list(configuration.check(config, managers.registry))
    for problem in found:
        problem.message = _placed(problem, config)
    for further in (_of_networks, _of_isolators, _of_pods):
        told = {word for problem in found for word in (str(problem.data.get("plugin")), problem.message)}
        found += further(managers, told)
    return tuple(found)


def _of_networks(managers: Managers, told: set[str]) -> Iterator[KurmaError]:
    """:param told: plugins and messages of the problems found before."""
    from kurma_core.networking.builtin import DEFAULT, DRIVERS

    config = managers.config
    entries = {entry.name: entry for entry in config.container_networks}
    for network in managers.networks.configured() if entries else ():
        if network.problem is not None and f"{_NETWORKS}/{entries[network.name].plugin}" not in told:
            key = f"container_networks.{network.name}"
            origin = config.origins[key]
            yield ConfigError(f"{origin}: {key}: {network.problem}", file=origin, path=key)
    # What pods join without any configuration.
    others = any(entry.default for entry in config.container_networks)
    for name, driver in DRIVERS.items():
        if name in entries or (name == DEFAULT and others):
            continue
        if driver not in managers.registry.names(_NETWORKS) and f"{_NETWORKS}/{driver}" not in told:
            yield PluginNotFoundError(
                f"built-in network {name}: {_missing(managers, _NETWORKS, driver)}",
                plugin=f"{_NETWORKS}/{driver}",
            )


def _of_isolators(managers: Managers, told: set[str]) -> Iterator[KurmaError]:
    """Checks that an app without isolators of its own has the required ones that have a default."""
    from kurma_core.isolation import Rules, compile_isolators, host_facts, isolator_drivers
    from kurma_core.pods.services import Services

    required = managers.config.required_under(managers.config.stager)
    try:
        host = host_facts(Services.cgroup_versions(), frozenset({"user"}))
        drivers = isolator_drivers(managers.registry)
        known = {name for driver in drivers for name in driver.names}
        having = (driver for driver in drivers if hasattr(driver, "defaults"))
        defaults = {name for driver in having for name, _ in driver.defaults("app", (), host)}
        asked = dict.fromkeys(sorted(required - (known - defaults)), True)
        rules = Rules(required=asked, absent=managers.registry.absent(_ISOLATORS))
        compile_isolators(None, {"*": ()}, drivers, host, rules=rules)
    except KurmaError as error:
        if not any(one.startswith(f"{_ISOLATORS}/") or one in error.message for one in told):
            yield error


def _of_pods(managers: Managers, told: set[str]) -> Iterator[KurmaError]:
    """Finds plugins that the configuration disables and that pods on record need."""
    from kurma_core.pods.records import read_document

    sections = managers.config.plugins
    kinds = ("renderers", "stagers", "networks")
    off = {
        (f"kurma.{kind}", name)
        for kind in kinds
        for name, one in sections.get(kind, {}).items()
        if not one.enabled
    }
    if not off or os.geteuid() != 0 or not os.path.isdir(managers.config.state_dir):
        return
    store = managers.services.store
    for uuid in store.uuids():
        try:
            pod = read_document(store.directory(uuid))
        except KurmaError:
            continue  # gone meanwhile; or damaged: it is never started again
        section = managers.config.stagers.get(pod.stager)
        driver = pod.stager.partition(":")[0] if section is None else section.driver
        used = {("kurma.renderers", pod.renderer), (_STAGERS, driver or "")}
        used |= {(_NETWORKS, attachment.driver) for attachment in pod.attachments}
        for group, name in sorted(used & off):
            if f"{group}/{name}" not in told:
                yield PluginNotFoundError(
                    f"pod {pod.name}: {_missing(managers, group, name)}",
                    hint=f"kurma rm {pod.name}",
                    plugin=f"{group}/{name}",
                    pod=uuid,
                )


def _missing(managers: Managers, group: str, name: str) -> str:
    """Why a plugin cannot be used."""
    try:
        managers.registry.driver(group, name)
    except KurmaError as error:
        return error.message
    return f"{group}/{name}"


def _placed(problem: KurmaError, config: Config) -> str:
    """The problem's message, headed by the file and the key that ask for the plugin, unless it names the file."""
    group, _, name = str(problem.data.get("plugin", "")).partition("/")
    keys = {
        "kurma.renderers": ["renderer"] if name == config.renderer else [],
        "kurma.stagers": [f"stagers.{key}.driver" for key, one in config.stagers.items() if one.driver == name],
        "kurma.networks": [
            f"container_networks.{one.name}.plugin" for one in config.container_networks if one.plugin == name
        ],
    }.get(group, [])
    if group == "kurma.stagers" and name == config.stager and name not in config.stagers:
        keys.insert(0, "stager")
    section = f"plugins.{group.removeprefix('kurma.')}.{name}"
    key = next(iter(keys), section)
    origin = configuration.origin(key, config.origins)
    if origin == "default" or origin in problem.message:
        return problem.message
    return f"{origin}: {key}: {problem.message}"


__all__ = ["problems"]
