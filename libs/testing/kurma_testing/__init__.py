"""Test kit for plugin authors: a contract suite for each kind of plugin, and drivers made without installation.

pytest loads this module and :mod:`.plugin` wherever ``kurma-testing`` is installed, so they import Kurma only when
they are used.

===========================================  ========================================
suite to subclass                            for
===========================================  ========================================
:class:`.fetchers.FetcherContract`           ``kurma.fetchers``
:class:`.renderers.RendererContract`         ``kurma.renderers``
:class:`.stagers.StagerContract`             ``kurma.stagers``: drivers
:class:`.stagers.StagerImageSourceContract`  ``kurma.stagers``: images
:class:`.networks.NetworkContract`           ``kurma.networks``
:class:`.isolators.IsolatorContract`         ``kurma.isolators``
:class:`.observers.ObserverContract`         ``kurma.observers``
:class:`.services.ServiceContract`           ``kurma.services``
:class:`.commands.CommandContract`           ``kurma.commands``
===========================================  ========================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from kurma_core.hookspecs import Hooks
    from kurma_core.hookspecs.driver import Driver, DriverContext

H = TypeVar("H", bound="Hooks")


def driver_context(
    directory: str | os.PathLike[str],
    config: Mapping[str, Any] | None = None,
    **parts: Any,
) -> DriverContext:
    """Makes the arguments of a driver's factory, with state and credentials under ``directory``.

    :param config: the driver's complete configuration: unlike :func:`load_driver`, this fills in no defaults and
        checks nothing.
    :param parts: other fields of the :class:`DriverContext`: ``host_image``, ``note``.
    """
    from kurma_core.hookspecs.driver import DriverContext

    root = os.fspath(directory)
    usual: dict[str, Any] = {
        "state_dir": os.path.join(root, "state"),
        "state_root": root,
        "registries": {"insecure": [], "mirrors": {}},
        "auth_dir": os.path.join(root, "auth.d"),
        "note": lambda text: None,
    }
    return DriverContext(config=dict(config or {}), **{**usual, **parts})


def group_of(module: object) -> str:
    """Returns the entry-point group of the hook that the module implements.

    :raises TypeError: it implements none, or more than one.
    """
    from kurma_core.hookspecs import GROUPS, is_hook

    groups = [group for group, hook in GROUPS.items() if is_hook(getattr(module, hook, None))]
    if len(groups) != 1:
        raise TypeError(f"{module!r} implements {len(groups)} hooks; a plugin implements one")
    return groups[0]


def load_driver(
    what: object | tuple[str, str],
    directory: str | os.PathLike[str],
    config: Mapping[str, Any] | None = None,
    **parts: Any,
) -> Any:
    """Makes the plugin's driver in the same way as Kurma: checks hook and driver against their contract and the
    configuration against the plugin's options, and fills in defaults.

    :param what: the plugin's module, which its entry point names; or group and name of an entry point of an
        installed distribution: ``("kurma.stagers", "solo")``.
    :param directory: see :func:`driver_context`, for ``parts``, too.
    :param config: the plugin's section of the configuration.
    :return: the driver.
    :raises pluggy.PluginValidationError: a hook's name or argument does not exist.
    :raises TypeError: hook, declaration or driver break the contract.
    :raises LookupError: no installed distribution has such an entry point.
    :raises ConfigError: the configuration has a key or a value that the options do not allow.
    """
    from kurma_core.plugins import contract
    from kurma_core.plugins.calls import Source

    module, group = _plugin(what)
    declaration = contract.declared(group, "tested", module)
    values = contract.options(config or {}, declaration.options, "config", {})
    source = Source(group, "tested", getattr(module, "__name__", repr(module)))
    return source.made(declaration, driver_context(directory, values, **parts))


def declaration_of(what: object | tuple[str, str]) -> Driver:
    """Returns what the plugin's hook declares. :param what: as in :func:`load_driver`. :raises TypeError: as
    there."""
    from kurma_core.plugins import contract

    module, group = _plugin(what)
    return contract.declared(group, "tested", module)


def _plugin(what: object | tuple[str, str]) -> tuple[object, str]:
    """The plugin's module, and the group of its hook."""
    module = _installed(*what) if isinstance(what, tuple) else what
    group = group_of(module)
    if isinstance(what, tuple) and group != what[0]:
        raise TypeError(f"entry point {what[1]} of {what[0]} names a module that implements {group}")
    return module, group


def _installed(group: str, name: str) -> object:
    """Imports the module of an installed entry point. :raises LookupError: there is none, or there are several."""
    from importlib.metadata import entry_points

    found = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if len(found) != 1:
        named = ", ".join(sorted({entry.name for entry in entry_points(group=group)})) or "none"
        raise LookupError(f"{len(found)} installed distributions have {name!r} in {group}, which has: {named}")
    (entry,) = found.values()
    return entry.load()


def bound(kind: type[H], driver: object, group: str = "kurma.plugins", name: str = "tested") -> H:
    """Makes the object that stands for a driver in Kurma: checks it against the specification of its kind, names
    it in errors, and checks its answers.

    :param kind: the specification (:class:`kurma_core.hookspecs.network.NetworkHooks`).
    :raises TypeError: the driver breaks the contract.
    """
    from kurma_core.plugins.calls import Source

    return Source(group, name, type(driver).__module__).bound((kind,), driver)
