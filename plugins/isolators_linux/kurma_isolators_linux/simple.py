"""Isolators of one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.appc.types import describe
from kurma_core.errors import IsolatorError
from kurma_core.hookspecs import Compiled
from kurma_core.models import CgroupSetting, IsolatorPlan

if TYPE_CHECKING:
    from kurma_core.hookspecs import IsolatorHost

_SHARES = (2, 262_144)
_WEIGHTS = (1, 10_000)
#: What everybody has who does not ask: the same in both generations.
_USUAL_SHARES, _USUAL_WEIGHT = 1024, 100


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
    from kurma_isolators_linux import machine

    score = _whole(name, value, -1000, 1000)
    own = machine.number(host, "proc/self/oom_score_adj", 0)
    if score < own and BITS["CAP_SYS_RESOURCE"] not in machine.capabilities(host):
        note = f"{own} instead of {score}: less than its own Kurma cannot give without CAP_SYS_RESOURCE"
        return Compiled(IsolatorPlan(oom_score_adj=own), "modified", note)
    return Compiled(IsolatorPlan(oom_score_adj=score))


def cpu_shares(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """The share of processor time beside others who want it too: 1024 is what everybody has."""
    shares = _whole(name, value, *_SHARES)
    version = host.cgroups.get("cpu")
    if version is None:
        return Compiled(IsolatorPlan(), "ignored", "this host has no cpu controller")
    if version == 1:
        return Compiled(IsolatorPlan(cgroup=(CgroupSetting("cpu", "cpu.shares", str(shares)),)))
    # In proportion, so that who has twice the shares of another has twice its weight.
    least, most = _WEIGHTS
    exact = shares * _USUAL_WEIGHT / _USUAL_SHARES
    weight = min(max(round(exact), least), most)
    plan = IsolatorPlan(cgroup=(CgroupSetting("cpu", "cpu.weight", str(weight)),))
    if abs(weight - exact) > exact / 10:
        means = weight * _USUAL_SHARES / _USUAL_WEIGHT
        return Compiled(
            plan, "modified", f"cpu.weight {weight}, which is worth {means:.0f} shares, is the nearest"
        )
    return Compiled(plan)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise IsolatorError(
            f"isolator {name}: expected a whole number from {least} to {most}, got {describe(value)}"
        )
    return value
