"""The names that plugins claim: finds those that are claimed twice, and words the error.

A plugin claims its own name within its group (the name of a fetcher is a locator scheme, that of a command its
word), its aliases, its isolators, the prefixes of annotations that it understands, and the running of images.
Kurma itself claims the names of its commands, and the schemes of images that no fetcher brought.
"""

from __future__ import annotations

from kurma_core.config.schema import enabling, singular
from kurma_core.errors import PluginCollisionError
from kurma_core.plugins.calls import called

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from kurma_core.hookspecs.driver import Driver
    from kurma_core.plugins.index import Declaration, Plugin

    #: A plugin, and what it declares.
    Declared = tuple[Plugin, Driver | Declaration]

#: Schemes of images that no fetcher brought.
_SCHEMES = ("archive", "built", "plugin", "upload")
#: The claim of a plugin by ``runs_images``.
IMAGES = "the running of images"
#: The claim for each of its isolators; the isolator's name follows.
ISOLATOR = "isolator "


def alias(group: str, name: str) -> str:
    return f"{singular(group)} alias {name!r}"


def reserved(group: str, name: str) -> str:
    """Returns the reason why no plugin of that group can have the name; empty: one can."""
    if group == "kurma.fetchers" and name in _SCHEMES:
        return f"Kurma calls images of its own {name}:…"
    if group == "kurma.commands":
        from kurma_core.hookspecs.command import RESERVED

        return f"Kurma has a command {name}, or suggests another one for it" if name in RESERVED else ""
    return ""


def claimants(
    group: str, declared: Iterable[Declared], isolators: Mapping[str, tuple[Plugin, ...]]
) -> Mapping[str, tuple[Plugin, ...]]:
    """The plugins that claim each name, beside the names of the plugins themselves.

    :param declared: the plugins of the group.
    :param isolators: the plugins that claim each isolator; without those for which the configuration names
        another.
    """
    declared = tuple(declared)
    found = {ISOLATOR + name: plugins for name, plugins in isolators.items()}
    for plugin, own in declared:
        aliases = (alias(group, name) for name in own.aliases)
        for what in dict.fromkeys((*aliases, *([IMAGES] if own.runs_images else ()))):
            found[what] = (*found.get(what, ()), plugin)
    for prefix in dict.fromkeys(prefix for _, own in declared for prefix in own.annotations):
        found[f"annotation prefix {prefix!r}"] = readers([prefix], declared)
    return found


def readers(annotations: Collection[str], declared: Iterable[Declared]) -> tuple[Plugin, ...]:
    """The fetchers that understand one of these annotations: the first of each distribution."""
    found: dict[str, Plugin] = {}
    for plugin, own in declared:
        if any(name.startswith(tuple(own.annotations)) for name in annotations):
            found.setdefault(plugin.distribution, plugin)
    return tuple(found.values())


def collisions(claims: Mapping[str, tuple[Plugin, ...]]) -> Iterator[PluginCollisionError]:
    """The error of each name that several plugins claim."""
    return (collision(what, plugins) for what, plugins in claims.items() if len(plugins) > 1)


def collision(what: str, plugins: Sequence[Plugin]) -> PluginCollisionError:
    """The error for a name that these plugins claim, and that is not theirs."""
    last = plugins[-1]
    hint = f"disable one: {_disabling(last)}"
    if what.startswith(ISOLATOR):
        one = what.removeprefix(ISOLATOR)
        hint = f"name one in kurma.yml: `isolator_plugins: {{{one}: {plugins[0].name}}}`; or {hint}"
    return _collision(what, [f"{called(one.group, one.name)} of {one}" for one in plugins], hint, plugins)


def name_collision(plugins: Sequence[Plugin]) -> PluginCollisionError | None:
    """The error for the name of plugins itself.

    :param plugins: all of one group and name. None: only one has the name.
    """
    first, who = plugins[0], [str(plugin) for plugin in plugins]
    if reserved(first.group, first.name):
        hint = f"uninstall {first.distribution}, or disable its plugin: {_disabling(first)}"
        return _collision(called(first.group, first.name), [*who, "Kurma itself"], hint, plugins)
    if len(plugins) == 1:
        return None
    hint = f"uninstall one, or disable both: {_disabling(first)}"
    return _collision(called(first.group, first.name), who, hint, plugins)


def _collision(what: str, who: Sequence[str], hint: str, plugins: Sequence[Plugin]) -> PluginCollisionError:
    first = plugins[0]
    return PluginCollisionError(
        f"{what} is claimed by {' and '.join(who)}", hint=hint, plugin=f"{first.group}/{first.name}"
    )


def _disabling(plugin: Plugin) -> str:
    """The line of ``kurma.yml`` that disables it."""
    return f"`{enabling(plugin.group, plugin.name, False)}` in kurma.yml"
