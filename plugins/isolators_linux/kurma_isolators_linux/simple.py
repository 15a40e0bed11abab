"""Isolators of one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.schema import describe

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost


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


def oom_score_adj_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """A score below the one with which apps begin: Kurma's own, but for kurmad, whose own is lower than that."""
    from kurma_isolators_linux import machine

    usual = max(machine.number(host, "proc/self/oom_score_adj", 0), 0)
    return (Power(name),) if _whole(name, value, -1000, 1000) < usual else ()


def cpu_shares_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Of a pod: more than other pods have. An app's shares count among the apps of its pod alone."""
    from kurma_isolators_linux.resources import FEWEST_SHARES, MOST_SHARES, USUAL_SHARES

    shares = _whole(name, value, FEWEST_SHARES, MOST_SHARES)
    return (Power(name),) if scope == "pod" and shares > USUAL_SHARES else ()


def cpu_shares(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """The share of processor time beside others who want it too: 1024 is what everybody has."""
    from kurma_isolators_linux.resources import FEWEST_SHARES, MOST_SHARES, USUAL_SHARES, USUAL_WEIGHT, share

    shares = _whole(name, value, FEWEST_SHARES, MOST_SHARES)
    version = host.cgroups.get("cpu")
    if version is None:
        return Compiled(IsolatorPlan(), "ignored", "this host has no cpu controller")
    setting = share(shares, version)
    plan = IsolatorPlan(cgroup=(setting,))
    means = shares if version == 1 else int(setting.value) * USUAL_SHARES / USUAL_WEIGHT
    if abs(means - shares) > shares / 10:
        note = f"cpu.weight {setting.value}, which is worth {means:.0f} shares, is the nearest"
        return Compiled(plan, "modified", note)
    return Compiled(plan)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise IsolatorError(
            f"isolator {name}: expected a whole number from {least} to {most}, got {describe(value)}"
        )
    return value
