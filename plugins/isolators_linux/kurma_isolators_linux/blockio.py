"""What may be read from and written to block devices in a second: ``resource/block-bandwidth``,
``resource/block-iops``, ``kurma.io/block-read-bandwidth``, ``kurma.io/block-write-bandwidth`` (X3).

Limits of several isolators meet on one device; the lowest holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.appc.quantity import format_quantity
from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled
from kurma_core.models.isolator import CgroupSetting, IsolatorPlan
from kurma_core.schema import describe
from kurma_isolators_linux import blockdevices
from kurma_isolators_linux.amounts import default_limit, members, required_limit, told

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

BANDWIDTH, IOPS = "resource/block-bandwidth", "resource/block-iops"
READ, WRITE = "kurma.io/block-read-bandwidth", "kurma.io/block-write-bandwidth"
#: Name → what it limits, in v2's words.
NAMES = {BANDWIDTH: ("rbps", "wbps"), IOPS: ("riops", "wiops"), READ: ("rbps",), WRITE: ("wbps",)}

_UNITS = {BANDWIDTH: "bytes", IOPS: "count", READ: "bytes", WRITE: "bytes"}
_EXAMPLES = {
    BANDWIDTH: '{"default": true, "limit": "2M"}',
    IOPS: '{"default": true, "limit": "1000"}',
    READ: '{"path": "/data", "limit": "2M"}',
    WRITE: '{"path": "/data", "limit": "2M"}',
}
_V1_FILES = {
    "rbps": "blkio.throttle.read_bps_device",
    "wbps": "blkio.throttle.write_bps_device",
    "riops": "blkio.throttle.read_iops_device",
    "wiops": "blkio.throttle.write_iops_device",
}
_FLAT = "cgroup v1 knows no limit for a pod as a whole: each app is held to it"
_BUFFERED = "cgroup v1 does not hold back what is written by way of the cache"

#: Device and what is limited → the most of it in a second.
_Limits = dict[tuple[str, str], int]


def block(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles any of :data:`NAMES`."""
    limits, why = _limits(name, value, host)
    amounts = told("operations/s" if name == IOPS else "bytes/s", limit=max(limits.values(), default=None))
    version = host.cgroups.get("blkio") if host.cgroups.get("blkio") == 1 else host.cgroups.get("io")
    if version is None:
        return Compiled(IsolatorPlan(), "ignored", "this host has no cgroup controller for block devices")
    if why:
        return Compiled(IsolatorPlan(), "ignored", why)
    effective = _lowest(limits, _of_all(host.siblings, host))
    if version == 2:
        return Compiled(IsolatorPlan(cgroup=_v2_settings(effective)), amounts=amounts)
    notes = [_BUFFERED] if name != READ else []
    if scope == "pod":
        return Compiled(IsolatorPlan(), "modified", "; ".join([_FLAT, *notes]), amounts)
    if name in host.pod:
        effective = {**_limits(name, host.pod[name], host)[0], **effective}
    held = _lowest(effective, _of_all(host.pod, host))
    lower = [limit for key, limit in held.items() if limit < effective[key]]
    if lower:
        notes.insert(0, f"held to the pod's limit, {format_quantity(min(lower), _UNITS[name])}")
    settings = tuple(
        CgroupSetting("blkio", _V1_FILES[what], f"{device} {limit}") for (device, what), limit in held.items()
    )
    return Compiled(IsolatorPlan(cgroup=settings), "modified" if notes else "enforced", "; ".join(notes), amounts)


def pod_limits(names: Collection[str], host: IsolatorHost) -> tuple[tuple[str, Any], ...]:
    """The pod's limits that an app without such has on v1, where the pod's own cgroup cannot bound it."""
    if host.cgroups.get("blkio") != 1:
        return ()
    return tuple((name, host.pod[name]) for name in NAMES if name in host.pod and name not in names)


def _limits(name: str, value: Any, host: IsolatorHost) -> tuple[_Limits, str]:
    """What the isolator says, device by device; or why it says nothing here."""
    unit, example = _UNITS[name], _EXAMPLES[name]
    if name in (BANDWIDTH, IOPS):
        limit = default_limit(name, value, unit, example)
        devices = blockdevices.all_of(host.root)
        why = "" if devices else "this host has no block devices"
    else:
        given = members(name, value, ("path", "limit"), example)
        path = given.get("path")
        if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
            raise IsolatorError(
                f"isolator {name}: path: expected an absolute path, got {describe(path)}",
                hint=f"a value is such as {example}; the path is one of the host",
            )
        limit = required_limit(name, given, unit, example)
        device, why = blockdevices.under(path, host.root)
        devices = (device,) if device else ()
    return {(device, what): limit for device in devices for what in NAMES[name]}, why


def _of_all(isolators: Mapping[str, Any], host: IsolatorHost) -> _Limits:
    """What all of a scope say, the lowest of each."""
    found: _Limits = {}
    for name in NAMES:
        if name in isolators:
            for key, limit in _limits(name, isolators[name], host)[0].items():
                found[key] = min(limit, found.get(key, limit))
    return found


def _lowest(limits: _Limits, others: _Limits) -> _Limits:
    return {key: min(limit, others.get(key, limit)) for key, limit in limits.items()}


def _v2_settings(limits: _Limits) -> tuple[CgroupSetting, ...]:
    """One line for a device: what it does not name stays as it was."""
    lines: dict[str, str] = {}
    for (device, what), limit in limits.items():
        lines[device] = f"{lines.get(device, device)} {what}={limit}"
    return tuple(CgroupSetting("io", "io.max", line) for line in lines.values())
