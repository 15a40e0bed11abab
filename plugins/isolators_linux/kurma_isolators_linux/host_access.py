"""Isolators that give apps power over the host: shared namespaces, privileged apps, host files, Kurma's API.

An image gets this power only by a grant of ``kurma.yml``: the ``powers`` functions tell the core what a
value needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import HostMount, IsolatorPlan
from kurma_core.schema import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.hookspecs.isolator import IsolatorHost

KINDS = ("ipc", "net", "pid", "user", "uts")
_WORDS = ("host", "private")
#: Where an app finds the host's files, its ``/proc``, and the directory of all pods (those of Kurma's first life).
HOST = "/host"
#: What an app may ask the daemon for that is to have its API: all, or to look.
RIGHTS = {True: "full", "read": "read"}


# --- os/linux/namespaces -----------------------------------------------------------------------------------------


def namespaces_of(name: str, value: Any) -> Mapping[str, str]:
    """:raises IsolatorError: it is not what this isolator is."""
    got = None
    if not isinstance(value, dict):
        got = describe(value)
    else:
        for kind, word in value.items():
            if kind not in KINDS:
                got = describe(kind)
            elif not isinstance(word, str) or word not in _WORDS:
                got = f"{describe(word)} for {kind}"
    if got is not None:
        raise IsolatorError(
            f'isolator {name}: expected an object with "host" or "private" for some of {", ".join(KINDS)}, '
            f"got {got}",
            hint='for instance {"net": "host", "pid": "private"}',
        )
    found: Mapping[str, str] = value
    return found


def namespaces_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    return tuple(
        Power(f"{name}={kind}", kind) for kind, word in namespaces_of(name, value).items() if word == "host"
    )


def namespaces(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """The core has decided already, and made what is to be made: what came of the wish is told."""
    notes = []
    for kind, word in sorted(namespaces_of(name, value).items()):
        got = "host" if kind in host.shared else "private"
        if word != got:
            notes.append(f"the pod's {kind} namespace is {_OWN[got]}: that was decided for the pod")
    return Compiled(IsolatorPlan(), "ignored" if notes else "enforced", "; ".join(notes))


_OWN = {"host": "the host's", "private": "its own"}


# --- os/linux/privileged -----------------------------------------------------------------------------------------


def wanted(name: str, value: Any) -> bool:
    """:raises IsolatorError: neither true nor false."""
    if not isinstance(value, bool):
        raise IsolatorError(f"isolator {name}: expected true or false, got {describe(value)}")
    return value


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Of isolators that are true or false."""
    return (Power(name),) if wanted(name, value) else ()


def privileged(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Every capability, every device, nothing masked, no filter of system calls by default."""
    if not wanted(name, value):
        return Compiled(IsolatorPlan())
    from kurma_core.linux import capabilities as linux
    from kurma_isolators_linux import procfs
    from kurma_isolators_linux.capabilities import available
    from kurma_isolators_linux.devices import all_devices

    last = procfs.number(host, "proc/sys/kernel/cap_last_cap", len(linux.NAMES) - 1)
    every = frozenset(range(min(last + 1, len(linux.NAMES))))
    kept = every & available(host)
    plan = IsolatorPlan(privileged=True, capabilities=tuple(linux.names(kept)), devices=all_devices(host.root))
    notes = []
    if host.userns:
        notes.append("its power ends with the pod's user namespace: what needs root of the host is refused")
    if kept != every:
        lacking = " ".join(linux.names(every - kept))
        notes.append(f"without {lacking}, which Kurma does not have here itself")
    return _of(scope, plan, "modified" if notes else "enforced", "; ".join(notes))


# --- host/privileged, host/api-access ----------------------------------------------------------------------------


def host_privileged(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """The host's files, processes and pods, below ``/host``."""
    if not wanted(name, value):
        return Compiled(IsolatorPlan())
    shown = {"root": "/", "proc": "/proc", **({"pods": host.pods} if host.pods else {})}
    plan = IsolatorPlan(mounts=tuple(HostMount(source, f"{HOST}/{place}") for place, source in shown.items()))
    if host.userns:
        note = "in the pod's user namespace the host's files are nobody's: it may what everybody may"
        return _of(scope, plan, "modified", note)
    return _of(scope, plan)


def api_rights(name: str, value: Any) -> str | None:
    """``full``, ``read``, or None. :raises IsolatorError: it is none of true, false and "read"."""
    if value is False:
        return None
    if value is not True and value != "read":
        raise IsolatorError(f'isolator {name}: expected true, false or "read", got {describe(value)}')
    return RIGHTS[value]


def api_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Who wants all of it is content with what is granted."""
    rights = api_rights(name, value)
    if rights is None:
        return ()
    return (Power(name, least=f"{name}=read") if rights == "full" else Power(f"{name}=read"),)


def api_access(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """A socket of the daemon's, which the core makes: for as long as there is a daemon."""
    rights = api_rights(name, value)
    if rights is None:
        return Compiled(IsolatorPlan())
    plan = IsolatorPlan(api=rights)
    if host.api:
        return _of(scope, plan)
    return _of(scope, plan, "modified", "no kurmad serves the state directory: nobody answers until one does")


def _of(scope: str, plan: IsolatorPlan, outcome: str = "enforced", note: str = "") -> Compiled:
    """A pod's isolator is one of each of its apps."""
    if scope == "pod":
        return Compiled(IsolatorPlan(), outcome, note, apps=plan)
    return Compiled(plan, outcome, note)
