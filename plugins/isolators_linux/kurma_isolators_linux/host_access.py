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
#: Directory in the app with the host's files, its ``/proc``, and the directory of all pods, as in early Kurma.
HOST = "/host"
#: Value of ``host/api-access`` → the app's rights to the daemon's API.
RIGHTS = {True: "full", "read": "read"}


# --- os/linux/namespaces -----------------------------------------------------------------------------------------


def namespaces_of(name: str, value: Any) -> Mapping[str, str]:
    """Reads the value. :raises IsolatorError: it has another form."""
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
    """Reports whether the pod got these namespaces. The core has decided and made them before."""
    notes = []
    for kind, word in sorted(namespaces_of(name, value).items()):
        got = "host" if kind in host.shared else "private"
        if word != got:
            notes.append(f"the pod's {kind} namespace is {_OWN[got]}: that was decided for the pod")
    return Compiled(IsolatorPlan(), "ignored" if notes else "enforced", "; ".join(notes))


_OWN = {"host": "the host's", "private": "its own"}


# --- os/linux/privileged -----------------------------------------------------------------------------------------


def wanted(name: str, value: Any) -> bool:
    """Reads true or false. :raises IsolatorError: the value is neither."""
    if not isinstance(value, bool):
        raise IsolatorError(f"isolator {name}: expected true or false, got {describe(value)}")
    return value


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for the value true."""
    return (Power(name),) if wanted(name, value) else ()


def privileged(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles ``os/linux/privileged``: every capability, every device, no masked paths, no default filter of
    system calls."""
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
    """Mounts the host's files, processes and pods below ``/host``."""
    if not wanted(name, value):
        return Compiled(IsolatorPlan())
    shown = {"root": "/", "proc": "/proc", **({"pods": host.pods} if host.pods else {})}
    plan = IsolatorPlan(mounts=tuple(HostMount(source, f"{HOST}/{place}") for place, source in shown.items()))
    if host.userns:
        note = "in the pod's user namespace the host's files belong to no user: the app has the rights of others"
        return _of(scope, plan, "modified", note)
    return _of(scope, plan)


def api_rights(name: str, value: Any) -> str | None:
    """Returns ``full``, ``read``, or None. :raises IsolatorError: the value is none of true, false and "read"."""
    if value is False:
        return None
    if value is not True and value != "read":
        raise IsolatorError(f'isolator {name}: expected true, false or "read", got {describe(value)}')
    return RIGHTS[value]


def api_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant. An app that asks for the whole API also runs with a grant of its read-only part."""
    rights = api_rights(name, value)
    if rights is None:
        return ()
    return (Power(name, least=f"{name}=read") if rights == "full" else Power(f"{name}=read"),)


def api_access(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Gives the app a socket of the daemon. The core makes it, and it exists while a daemon runs."""
    rights = api_rights(name, value)
    if rights is None:
        return Compiled(IsolatorPlan())
    plan = IsolatorPlan(api=rights)
    if host.api:
        return _of(scope, plan)
    note = "no kurmad serves the state directory: connections are refused until one does"
    return _of(scope, plan, "modified", note)


def _of(scope: str, plan: IsolatorPlan, outcome: str = "enforced", note: str = "") -> Compiled:
    """Makes the result; a pod's isolator applies to each of its apps."""
    if scope == "pod":
        return Compiled(IsolatorPlan(), outcome, note, apps=plan)
    return Compiled(plan, outcome, note)
