"""How many processes and threads there may be: ``kurma.io/pids-limit`` (X5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import CgroupSetting, IsolatorPlan

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

#: Says that an app may have as many as the host.
UNLIMITED = "unlimited"

_EXAMPLE = '{"limit": 100}'
# Of a pod: the stager, its PID 1, what sets an app up, and the app.
_LEAST = {"app": 1, "pod": 8}
# More than the kernel gives numbers to.
_MOST = 4 << 20


def pids_limit(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """{limit}: processes and threads at a time, of an app or of all of a pod; "unlimited"."""
    limit = _limit(name, value, scope)
    if "pids" not in host.cgroups:
        return Compiled(IsolatorPlan(), "ignored", "this host has no cgroup controller pids")
    text = str(limit) if limit is not None and limit < _MOST else "max"
    plan = IsolatorPlan(cgroup=(CgroupSetting("pids", "pids.max", text),))
    return Compiled(plan, amounts="" if limit is None else f"limit {limit}")


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Of an app: more than the default. A pod has no limit of its own by default."""
    from kurma_isolators_linux.driver import PIDS

    limit = _limit(name, value, scope)
    return (Power(name),) if scope == "app" and (limit is None or limit > PIDS) else ()


def _limit(name: str, value: Any, scope: str) -> int | None:
    """None: unlimited. :raises IsolatorError: the value is wrong."""
    limit = _plain(value, _LEAST[scope])
    if limit is None and value != {"limit": UNLIMITED}:
        # Most apps have the default, a plain number: what reads all others is imported where there is one.
        from kurma_isolators_linux.amounts import members, required_limit

        given = members(name, value, ("limit",), _EXAMPLE)
        limit = required_limit(name, given, "count", _EXAMPLE, least=_LEAST[scope])
    return limit


def _plain(value: Any, least: int) -> int | None:
    """The limit where it is a whole number that nothing is wrong with."""
    if isinstance(value, dict) and len(value) == 1:
        limit = value.get("limit")
        if isinstance(limit, int) and not isinstance(limit, bool) and least <= limit < _MOST:
            return limit
    return None
