"""The isolator ``example.com/nofile``: how many files an app may have open.

Its value is ``{"limit": N}``: what the soft and the hard limit become.
"""

from __future__ import annotations

from typing import Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, Option
from kurma_core.hookspecs.isolator import Compiled
from kurma_core.models.isolator import IsolatorPlan

NAME = "example.com/nofile"


class Nofile:
    def __init__(self, context: DriverContext) -> None:
        self._most = context.config["most"]

    @hookimpl
    def compile(self, name: str, value: Any, scope: str) -> Compiled:  # the facts of the host are left out
        limit = value.get("limit") if isinstance(value, dict) else None
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise IsolatorError(f'isolator {name}: expected {{"limit": N}} with N from 1 on, found {value!r}')
        if scope == "pod":
            return Compiled(IsolatorPlan(), "ignored", "a limit on open files is an app's, not a pod's")
        if limit > self._most:
            return Compiled(self._plan(self._most), "modified", f"lowered to {self._most}, the most allowed here")
        return Compiled(self._plan(limit))

    def _plan(self, limit: int) -> IsolatorPlan:
        return IsolatorPlan(rlimits={"nofile": (limit, limit)})


@hookimpl
def kurma_isolator() -> Driver:
    most = Option("most", int, 65536, "the largest limit that may be asked for")
    return Driver(Nofile, options=(most,), isolators=(NAME,))
