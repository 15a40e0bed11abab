"""Lists the isolators of all plugins and whether this host enforces each (``kurma isolators list``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.api.host import IsolatorInfo
from kurma_core.errors import KurmaError, PluginCollisionError
from kurma_core.value import replace

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import Isolator, IsolatorHost, Power

    Json = Any


def isolator_list(
    drivers: Mapping[str, Isolator],
    host: IsolatorHost,
    claims: Mapping[str, tuple[str, ...]],
    collision: Callable[[str, tuple[str, ...]], PluginCollisionError],
) -> tuple[IsolatorInfo, ...]:
    """The isolators, sorted by name.

    :param drivers: by the plugin's name.
    :param claims: the plugins that compile each isolator.
    :param collision: makes the error for an isolator that several plugins claim.
    """
    defaults = {plugin: _defaults(driver, host) for plugin, driver in drivers.items()}
    found = []
    for name, plugins in sorted(claims.items()):
        if len(plugins) > 1:
            note = collision(name, plugins).message
            found.append(IsolatorInfo(name, ", ".join(plugins), outcome="refused", note=note))
        else:
            (plugin,) = plugins
            found.append(_info(name, plugin, drivers[plugin], host, defaults[plugin].get(name)))
    return tuple(found)


def _defaults(driver: Isolator, host: IsolatorHost) -> dict[str, Json]:
    of = getattr(driver, "defaults", None)
    pairs: Iterable[tuple[str, Json]] = () if of is None else (*of("pod", (), host), *of("app", (), host))
    return dict(pairs)


def _info(name: str, plugin: str, driver: Isolator, host: IsolatorHost, default: Json) -> IsolatorInfo:
    told = getattr(driver, "about", None)
    if told is None:
        return IsolatorInfo(name, plugin, default=default)
    about = told(name)
    try:
        # Compiled as if it were granted and the core had made the namespaces that it needs.
        powers = getattr(driver, "powers", None)
        asked: Iterable[Power] = () if powers is None else powers(name, about.example, about.scopes[0], host)
        shared = frozenset(power.namespace for power in asked if power.namespace is not None)
        compiled = driver.compile(name, about.example, about.scopes[0], replace(host, shared=host.shared | shared))
        outcome, note = compiled.outcome, compiled.note
    except KurmaError as error:
        outcome, note = "refused", error.message
    return IsolatorInfo(name, plugin, about.scopes, about.value, about.example, outcome, note, default)
