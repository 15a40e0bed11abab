"""How many processes and threads there may be: ``kurma.io/pids-limit`` (X5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.hookspecs import Compiled
from kurma_core.models import CgroupSetting, IsolatorPlan
from kurma_isolators_linux.amounts import members, required_limit, told

if TYPE_CHECKING:
    from kurma_core.hookspecs import IsolatorHost

#: Says that an app may have as many as the host.
UNLIMITED = "unlimited"

_EXAMPLE = '{"limit": 100}'
# Of a pod: the stager, its PID 1, what sets an app up, and the app.
_LEAST = {"app": 1, "pod": 8}
# More than the kernel gives numbers to.
_MOST = 4 << 20


def pids_limit(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """{limit}: processes and threads at a time, of an app or of all of a pod; "unlimited"."""
    given = members(name, value, ("limit",), _EXAMPLE)
    if given.get("limit") == UNLIMITED:
        limit, text = None, "max"
    else:
        limit = required_limit(name, given, "count", _EXAMPLE, least=_LEAST[scope])
        text = str(limit) if limit < _MOST else "max"
    if "pids" not in host.cgroups:
        return Compiled(IsolatorPlan(), "ignored", "this host has no cgroup controller pids")
    return Compiled(IsolatorPlan(cgroup=(CgroupSetting("pids", "pids.max", text),)), amounts=told("", limit=limit))
