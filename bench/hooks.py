"""The cost of one call of a driver's hook, in microseconds: as Kurma calls it, by pluggy, and the bare method.

Prints JSON: by side, the best of five runs for each of 11 rounds. It needs no peers: ``python bench/hooks.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pluggy

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.isolator import Compiled, IsolatorHooks, IsolatorHost
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.plugins import contract
from kurma_core.plugins.calls import Source

ROUNDS, CALLS, BINDINGS = 11, 20_000, 2_000
_COMPILED = Compiled(IsolatorPlan())
_HOST = IsolatorHost(cgroups={}, cpus=1)


class Whole:
    """Takes all arguments."""

    @hookimpl
    def compile(self, name: str, value: object, scope: str, host: IsolatorHost) -> Compiled:
        return _COMPILED


class Part:
    """Leaves one argument out."""

    @hookimpl
    def compile(self, name: str, value: object, scope: str) -> Compiled:
        return _COMPILED


class Rest:
    @hookimpl
    def compile(self) -> Compiled:
        return _COMPILED

    @hookimpl
    def defaults(self) -> tuple[tuple[str, object], ...]:
        return (("example.com/one", 1),)


def sides() -> dict[str, tuple[Callable[[], object], int]]:
    whole = Whole()
    manager = pluggy.PluginManager("kurma")
    manager.add_hookspecs(IsolatorHooks)
    manager.register(whole)
    of_pluggy = manager.hook.compile
    kinds = (IsolatorHooks,)
    source = Source("kurma.isolators", "one", "bench 1")
    bound, part, rest = (source.bound(kinds, driver) for driver in (whole, Part(), Rest()))
    return {
        "kurma": (lambda: bound.compile("a", 1, "app", _HOST), CALLS),
        "kurma, an argument left out": (lambda: part.compile("a", 1, "app", _HOST), CALLS),
        "kurma, an answer of two layers": (lambda: rest.defaults("app", (), _HOST), CALLS),
        "kurma, a hook that the driver lacks": (lambda: bound.powers("a", 1, "app", _HOST), CALLS),
        "the method": (lambda: whole.compile("a", 1, "app", _HOST), CALLS),
        "pluggy": (lambda: of_pluggy(name="a", value=1, scope="app", host=_HOST), CALLS),
        "a driver is bound": (lambda: source.bound(kinds, whole), BINDINGS),
        "a driver is checked": (lambda: contract.taken(kinds, whole), BINDINGS // 100),
    }


def measured() -> dict[str, list[float]]:
    """Microseconds by side; the sides take turns."""
    found: dict[str, list[float]] = {}
    todo = sides()
    for _ in range(ROUNDS):
        for side, (call, times) in todo.items():
            found.setdefault(side, []).append(min(_timed(call, times) for _ in range(5)))
    return found


def _timed(call: Callable[[], object], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begun) / times * 1e6


if __name__ == "__main__":
    print(json.dumps(measured()))
