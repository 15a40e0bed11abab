"""Isolators of an app's processes: their limit, no_new_privileges, the OOM score, and environment variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import CgroupSetting, IsolatorPlan
from kurma_core.schema import describe

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

#: The limit of an app that may have as many processes as the host.
UNLIMITED = "unlimited"

_EXAMPLE = '{"limit": 100}'
# A pod needs the stager, its PID 1, the processes that set an app up, and the app.
_LEAST = {"app": 1, "pod": 8}
# The kernel's largest number of PIDs.
_MOST = 4 << 20


def pids_limit(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles {limit}: the most processes and threads of an app, or of all of a pod; or "unlimited"."""
    limit = _limit(name, value, scope)
    if "pids" not in host.cgroups:
        return Compiled(IsolatorPlan(), "ignored", "this host has no cgroup controller pids")
    if _decided_elsewhere(host):
        return Compiled(IsolatorPlan(), note="kurma.io/linux-resources decides on it")
    text = str(limit) if limit is not None and limit < _MOST else "max"
    plan = IsolatorPlan(cgroup=(CgroupSetting("pids", "pids.max", text),))
    return Compiled(plan, amounts="" if limit is None else f"limit {limit}")


def _decided_elsewhere(host: IsolatorHost) -> bool:
    """Whether ``kurma.io/linux-resources`` of the same scope has a limit of processes."""
    others = host.siblings.get("kurma.io/linux-resources")
    if not isinstance(others, dict):
        return False
    return bool(others.get("pidsLimit")) or "pids.max" in (others.get("unified") or ())


def pids_limit_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for an app's limit above the default. A pod has no limit of its own by default."""
    from kurma_isolators_linux.driver import PIDS

    limit = _limit(name, value, scope)
    return (Power(name),) if scope == "app" and (limit is None or limit > PIDS) else ()


def _limit(name: str, value: Any, scope: str) -> int | None:
    """Reads the limit; None: unlimited. :raises IsolatorError: the value is wrong."""
    limit = _plain(value, _LEAST[scope])
    if limit is None and value != {"limit": UNLIMITED}:
        # Most apps have the default, a plain number: the reader of other forms is imported only for these.
        from kurma_isolators_linux.amounts import members, required_limit

        given = members(name, value, ("limit",), _EXAMPLE)
        limit = required_limit(name, given, "count", _EXAMPLE, least=_LEAST[scope])
    return limit


def _plain(value: Any, least: int) -> int | None:
    """Returns the limit if it is a valid whole number; else None."""
    if isinstance(value, dict) and len(value) == 1:
        limit = value.get("limit")
        if isinstance(limit, int) and not isinstance(limit, bool) and least <= limit < _MOST:
            return limit
    return None


def no_new_privileges(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """``true``: no program gives the app more than it has, a setuid one neither."""
    if not isinstance(value, bool):
        raise IsolatorError(f"isolator {name}: expected true or false, got {describe(value)}")
    return Compiled(IsolatorPlan(no_new_privileges=value))


def oom_score_adj(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """How soon the kernel ends the app's processes when the machine is out of memory, from -1000 to 1000.

    Less than Kurma itself has takes CAP_SYS_RESOURCE on the host, in a user namespace, too.
    """
    from kurma_core.linux.capabilities import BITS
    from kurma_isolators_linux import procfs
    from kurma_isolators_linux.amounts import whole_number

    score = whole_number(name, value, -1000, 1000)
    own = procfs.number(host, "proc/self/oom_score_adj", 0)
    if score < own and BITS["CAP_SYS_RESOURCE"] not in procfs.capabilities(host):
        note = f"{own} instead of {score}: less than its own Kurma cannot give without CAP_SYS_RESOURCE"
        return Compiled(IsolatorPlan(oom_score_adj=own), "modified", note)
    return Compiled(IsolatorPlan(oom_score_adj=score))


def oom_score_adj_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """A score below the one with which apps begin: Kurma's own, but for kurmad, whose own is lower than that."""
    from kurma_isolators_linux import procfs
    from kurma_isolators_linux.amounts import whole_number

    usual = max(procfs.number(host, "proc/self/oom_score_adj", 0), 0)
    return (Power(name),) if whole_number(name, value, -1000, 1000) < usual else ()


def environment(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles {environment}: a list of names and values, for names that an app's manifest does not allow."""
    given = value.get("environment") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(given, list) or not all(map(_is_variable, given)):
        # Values may be secrets, and are not repeated.
        raise IsolatorError(
            f"isolator {name}: expected a list of variables whose names are printable ASCII characters except =",
            hint='for instance {"environment": [{"name": "my:variable", "value": "1"}]}',
        )
    return Compiled(IsolatorPlan(environment={one["name"]: one["value"] for one in given}))


def _is_variable(one: Any) -> bool:
    if not isinstance(one, dict) or one.keys() != {"name", "value"}:
        return False
    name, value = one["name"], one["value"]
    if not isinstance(name, str) or not isinstance(value, str) or "\0" in value:
        return False
    return bool(name) and name.isascii() and name.isprintable() and "=" not in name
