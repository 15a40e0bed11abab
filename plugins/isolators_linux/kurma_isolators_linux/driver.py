"""Every isolator of this package: its name, and the function that compiles it.

A family of isolators is a module, imported when one of its isolators is compiled: most pods have none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError

if TYPE_CHECKING:
    from collections.abc import Collection

    from kurma_core.hookspecs import Compiled, IsolatorAbout, IsolatorHost

#: Name → module and function: ``function(name, value, scope, host) -> Compiled``.
_COMPILERS = {
    "os/linux/no-new-privileges": "simple:no_new_privileges",
}
#: In which scopes an isolator has a meaning; those that are not here: an app's.
_SCOPES: dict[str, tuple[str, ...]] = {}


class LinuxIsolators:
    """Implements :class:`kurma_core.hookspecs.Isolator`."""

    names = tuple(_COMPILERS)
    exclusive: tuple[frozenset[str], ...] = ()

    def defaults(self, scope: str, names: Collection[str], host: IsolatorHost) -> tuple[tuple[str, Any], ...]:
        return ()

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        """:raises IsolatorError: the value is wrong, or the isolator has no meaning in that scope."""
        scopes = _SCOPES.get(name, ("app",))
        if scope not in scopes:
            raise IsolatorError(
                f"isolator {name} has no meaning for {_a(scope)}", hint=f"give it to {_a(scopes[0])}"
            )
        module, function = _COMPILERS[name].split(":")
        compiled: Compiled = getattr(import_module(f"kurma_isolators_linux.{module}"), function)(
            name, value, scope, host
        )
        return compiled

    def about(self, name: str) -> IsolatorAbout:
        from kurma_core.hookspecs import IsolatorAbout
        from kurma_isolators_linux.about import ABOUT

        return IsolatorAbout(_SCOPES.get(name, ("app",)), *ABOUT[name])


def _a(scope: str) -> str:
    return "an app" if scope == "app" else "a pod"
