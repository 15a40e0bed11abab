"""Capabilities: what an app's processes may hold of root's rights (X2).

Implements App Container Executor, Linux Isolators, ``os/linux/capabilities-remove-set`` and ``-retain-set``. Both
say what the bounding set is. Root holds all of it. A plain user holds nothing of a set that only takes away; what
a retain set names it was given, so it holds that, by way of the ambient set (docs/isolators.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.appc.types import describe
from kurma_core.errors import IsolatorError
from kurma_core.hookspecs import Compiled
from kurma_core.linux import capabilities as linux
from kurma_core.models import IsolatorPlan
from kurma_isolators_linux import machine

if TYPE_CHECKING:
    from kurma_core.hookspecs import IsolatorHost


def remove_set(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """The default fourteen without these; what is none of the fourteen is not there anyway."""
    left = linux.DEFAULT_SET - _read(name, value)
    return Compiled(IsolatorPlan(capabilities=tuple(linux.names(left))))


def retain_set(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Exactly these."""
    wanted = _read(name, value)
    kept = wanted & available(host)
    names = tuple(linux.names(kept))
    plan = IsolatorPlan(capabilities=names, ambient=names)
    if kept == wanted:
        return Compiled(plan)
    lacking = " ".join(linux.names(wanted - kept))
    return Compiled(plan, "modified", f"without {lacking}, which Kurma does not have here itself")


def _read(name: str, value: Any) -> frozenset[int]:
    found = value.get("set") if isinstance(value, dict) else None
    if not isinstance(found, list) or len(value) != 1:
        got = f"an object of {', '.join(map(describe, value))}" if isinstance(value, dict) else describe(value)
        raise IsolatorError(
            f'isolator {name}: expected {{"set": [capabilities]}}, got {got}',
            hint='for instance {"set": ["CAP_NET_BIND_SERVICE"]}',
        )
    return frozenset([_bit(name, each) for each in found])


def _bit(name: str, word: Any) -> int:
    try:
        if isinstance(word, str):
            return linux.parse(word)
    except ValueError:
        pass
    hint = "they are named as in capabilities(7): CAP_CHOWN"
    if isinstance(word, str):
        import difflib

        # What all of them begin with makes none of them alike.
        upper = word.upper().removeprefix("CAP_")
        near = difflib.get_close_matches(upper[:40], [each.removeprefix("CAP_") for each in linux.NAMES], 1)
        hint = f"did you mean CAP_{near[0]}?" if near else hint
        if upper == "ALL":
            hint = (
                "there is no word for all of them: name each, or give os/linux/privileged"
                if name.endswith("retain-set")
                else "to remove all, keep none: --isolator 'os/linux/capabilities-retain-set={\"set\": []}'"
            )
    raise IsolatorError(f"isolator {name}: no such capability: {describe(word)}", hint=hint)


def available(host: IsolatorHost) -> frozenset[int]:
    """What can be given here: what we have, or, in a user namespace, all that the kernel knows."""
    if not host.userns:
        return machine.capabilities(host)
    return frozenset(range(machine.number(host, "proc/sys/kernel/cap_last_cap", len(linux.NAMES) - 1) + 1))
