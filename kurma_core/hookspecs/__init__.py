"""The contracts between the core and its plugins: the hooks, and one module for each kind of plugin.

A plugin is a module named by an entry point of one of six groups. It implements the one hook of its kind with
:func:`hookimpl`; the hook takes no arguments and returns a :class:`.driver.Driver`: a factory, and the options
that the plugin's section of ``kurma.yml`` may hold. The core makes each driver at most once per process, when it
is first needed, and calls drivers one at a time, in configured order, undoing in reverse. Only observers are
called all at once.

This package imports none of its modules, so that a command loads only the kinds that it needs.

====================  =========================  =========================================================
group                 hook                       what the factory makes
====================  =========================  =========================================================
``kurma.fetchers``    ``kurma_fetcher``          :class:`.fetcher.Fetcher`; the entry's name is a locator scheme
``kurma.renderers``   ``kurma_renderer``         :class:`.renderer.Renderer`
``kurma.stagers``     ``kurma_stager``           :class:`.stager.Stager`, :class:`.stager.StagerImageSource` or
                                                 :class:`.stager.StagerOfImages`
``kurma.networks``    ``kurma_network``          :class:`.network.Network`
``kurma.isolators``   ``kurma_isolator``         :class:`.isolator.Isolator`
``kurma.observers``   ``kurma_pod_event``        (the hook itself is the observer)
====================  =========================  =========================================================

A plugin that cannot work on this host raises :class:`kurma_core.errors.PluginSkipped` from its hook or factory.
"""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from kurma_core.hookspecs.driver import Driver
    from kurma_core.hookspecs.fetcher import Fetcher
    from kurma_core.hookspecs.isolator import Isolator
    from kurma_core.hookspecs.network import Network
    from kurma_core.hookspecs.renderer import Renderer
    from kurma_core.hookspecs.stager import Stager, StagerImageSource, StagerOfImages
    from kurma_core.models.pod import PodEvent

    Hook = TypeVar("Hook", bound=Callable[..., Any])

PROJECT = "kurma"
_MARK = "kurma_hook"


def hookimpl(function: Hook) -> Hook:
    """Marks a function of a plugin as its hook.

    It is pluggy's ``HookimplMarker`` without options. It does not import pluggy, nor does a start whose plugins
    have not changed.
    """
    setattr(function, _MARK, True)
    return function


def is_hook(function: object) -> bool:
    """Whether :func:`hookimpl` marked it."""
    return getattr(function, _MARK, None) is True


#: The hook of each entry-point group.
GROUPS: Mapping[str, str] = {
    "kurma.fetchers": "kurma_fetcher",
    "kurma.renderers": "kurma_renderer",
    "kurma.stagers": "kurma_stager",
    "kurma.networks": "kurma_network",
    "kurma.isolators": "kurma_isolator",
    "kurma.observers": "kurma_pod_event",
}


class Hooks:
    """The hook specifications. ``docs/hooks`` documents each; a test compares the signatures."""

    def kurma_fetcher(self) -> Driver[Fetcher]:  # type: ignore[empty-body]
        """A source of images, under the locator scheme that is the entry point's name."""

    def kurma_renderer(self) -> Driver[Renderer]:  # type: ignore[empty-body]
        """A way of turning image graphs into directories."""

    def kurma_stager(self) -> Driver[Stager] | Driver[StagerImageSource] | Driver[StagerOfImages]:  # type: ignore[empty-body]
        """A stager."""

    def kurma_network(self) -> Driver[Network]:  # type: ignore[empty-body]
        """A kind of network."""

    def kurma_isolator(self) -> Driver[Isolator]:  # type: ignore[empty-body]
        """A compiler of isolators."""

    def kurma_pod_event(self, event: PodEvent) -> None:
        """Called after every change of a pod's state, once it is on disk. An exception is noted and does not
        affect the pod. The hook should return quickly, for the pod waits for it."""
