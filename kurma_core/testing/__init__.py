"""What plugin authors test with: a contract suite per kind, and ways of making a driver without installing it.

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
===========================================  ========================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kurma_core.hookspecs.driver import DriverContext
from kurma_core.hookspecs.hooks import GROUPS, is_hook

# Before the suites are imported, so that their assertions say what they compared.
pytest.register_assert_rewrite(
    *(f"{__name__}.{kind}" for kind in ("fetchers", "renderers", "stagers", "networks", "isolators", "observers"))
)


def driver_context(
    directory: str | os.PathLike[str],
    config: Mapping[str, Any] | None = None,
    *,
    note: Callable[[str], None] = lambda text: None,
) -> DriverContext:
    """What a driver is made with, keeping its state and looking for credentials under ``directory``.

    :param config: as the driver sees it: :func:`load_driver` fills in defaults and checks it, this does not.
    """
    root = os.fspath(directory)
    return DriverContext(
        config=dict(config or {}),
        state_dir=os.path.join(root, "state"),
        registries={"insecure": [], "mirrors": {}},
        auth_dir=os.path.join(root, "auth.d"),
        note=note,
    )


def group_of(module: object) -> str:
    """The group that the module is a plugin for: whose hook it implements.

    :raises TypeError: it implements none, or more than one.
    """
    groups = [group for group, hook in GROUPS.items() if is_hook(getattr(module, hook, None))]
    if len(groups) != 1:
        raise TypeError(f"{module!r} implements {len(groups)} hooks; a plugin implements one")
    return groups[0]


def load_driver(module: object, directory: str | os.PathLike[str], config: Mapping[str, Any] | None = None) -> Any:
    """The plugin's driver, made just as Kurma makes it: hook and driver checked against their contract, the
    configuration against the plugin's options, defaults filled in.

    :param module: the plugin: what its entry point names.
    :param directory: see :func:`driver_context`.
    :param config: the admin's section for it.
    :return: the driver; of an observer its hook, to be called with ``event=``.
    :raises pluggy.PluginValidationError: a hook has a name or an argument that there is none of.
    :raises TypeError: hook, declaration or driver break the contract.
    :raises ConfigError: the configuration has a key or a value that the options do not allow.
    """
    from kurma_core.plugins import contract

    group = group_of(module)
    if group == "kurma.observers":
        return contract.hook(group, "tested", module)
    declaration = contract.declared(group, "tested", module)
    values = contract.options(config or {}, declaration.options, "config", {})
    return contract.made(group, declaration, driver_context(directory, values))
