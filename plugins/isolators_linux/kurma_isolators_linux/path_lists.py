"""Compiles ``kurma.io/masked-paths`` and ``kurma.io/read-only-paths``: lists in place of Kurma's own ones.

Kurma's own lists protect the host's data in ``/proc`` and ``/sys``, so a list without one of these paths is a
power.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import IsolatorPlan, inner_path
from kurma_core.schema import SchemaError, describe
from kurma_isolators_linux.host_access import wanted

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

#: Paths that a list must contain, or paths above them, to be no power: the default lists of container engines.
_USUAL = {
    "kurma.io/masked-paths": (
        *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
        *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"),
        *("/sys/devices/virtual/powercap", "/sys/firmware"),
    ),
    "kurma.io/read-only-paths": ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"),
}


def masked_paths(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles the list of paths that are hidden from the app."""
    paths = _paths(name, value)
    return _ignored() if _privileged(host) else Compiled(IsolatorPlan(masked_paths=paths))


def read_only_paths(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles the list of paths that the app cannot write to."""
    paths = _paths(name, value)
    return _ignored() if _privileged(host) else Compiled(IsolatorPlan(read_only_paths=paths))


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for a list that leaves a part of Kurma's own open."""
    paths = [path.rstrip("/") for path in _paths(name, value)]
    if _privileged(host):
        return ()
    closed = all(any(usual == path or usual.startswith(f"{path}/") for path in paths) for usual in _USUAL[name])
    return () if closed else (Power(name),)


def _ignored() -> Compiled:
    return Compiled(IsolatorPlan(), "modified", "a privileged app sees everything")


def _privileged(host: IsolatorHost) -> bool:
    name = "os/linux/privileged"
    return any(name in some and wanted(name, some[name]) for some in (host.siblings, host.pod))


def _paths(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise IsolatorError(
            f"isolator {name}: expected a list of paths, got {describe(value)}", hint='for instance ["/proc/keys"]'
        )
    try:
        return tuple(dict.fromkeys([inner_path(path, "a path") for path in value]))
    except SchemaError as error:
        raise IsolatorError(f"isolator {name}: {error}") from None
