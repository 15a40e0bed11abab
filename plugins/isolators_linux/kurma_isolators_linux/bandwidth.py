"""Limits bandwidth and operations per second of block devices, and bandwidth of a pod's network.

Compiles ``resource/block-bandwidth``, ``resource/block-iops``, ``kurma.io/block-read-bandwidth``,
``kurma.io/block-write-bandwidth``, ``resource/network-bandwidth``, ``kurma.io/network-read-bandwidth`` and
``kurma.io/network-write-bandwidth``. If several limits concern a device, the lowest applies. The network belongs
to the pod, so an app's limit on it is the pod's.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.appc.quantity import format_quantity
from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled
from kurma_core.linux.mounts import Mount
from kurma_core.models.isolator import CgroupSetting, IsolatorPlan, TrafficLimit
from kurma_core.schema import describe
from kurma_isolators_linux.amounts import default_limit, members, required_limit, told

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

BLOCK_BANDWIDTH, BLOCK_IOPS = "resource/block-bandwidth", "resource/block-iops"
BLOCK_READ, BLOCK_WRITE = "kurma.io/block-read-bandwidth", "kurma.io/block-write-bandwidth"
#: Name → the keys of cgroup v2's ``io.max`` that it limits.
BLOCK_NAMES = {
    BLOCK_BANDWIDTH: ("rbps", "wbps"),
    BLOCK_IOPS: ("riops", "wiops"),
    BLOCK_READ: ("rbps",),
    BLOCK_WRITE: ("wbps",),
}

_BLOCK_UNITS = {BLOCK_BANDWIDTH: "bytes", BLOCK_IOPS: "count", BLOCK_READ: "bytes", BLOCK_WRITE: "bytes"}
_BLOCK_EXAMPLES = {
    BLOCK_BANDWIDTH: '{"default": true, "limit": "2M"}',
    BLOCK_IOPS: '{"default": true, "limit": "1000"}',
    BLOCK_READ: '{"path": "/data", "limit": "2M"}',
    BLOCK_WRITE: '{"path": "/data", "limit": "2M"}',
}
_V1_FILES = {
    "rbps": "blkio.throttle.read_bps_device",
    "wbps": "blkio.throttle.write_bps_device",
    "riops": "blkio.throttle.read_iops_device",
    "wiops": "blkio.throttle.write_iops_device",
}
_FLAT = "cgroup v1 knows no limit for a pod as a whole: each app is held to it"
_BUFFERED = "cgroup v1 does not hold back what is written by way of the cache"

#: Device and limited quantity (a key of ``io.max``) → limit per second.
_Limits = dict[tuple[str, str], int]


def block(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles any of :data:`BLOCK_NAMES`."""
    limits, why = _limits(name, value, host)
    amounts = told("operations/s" if name == BLOCK_IOPS else "bytes/s", limit=max(limits.values(), default=None))
    version = host.cgroups.get("blkio") if host.cgroups.get("blkio") == 1 else host.cgroups.get("io")
    if version is None:
        return Compiled(IsolatorPlan(), "ignored", "this host has no cgroup controller for block devices")
    if why:
        return Compiled(IsolatorPlan(), "ignored", why)
    effective = _lowest(limits, _of_all(host.siblings, host))
    if version == 2:
        return Compiled(IsolatorPlan(cgroup=_v2_settings(effective)), amounts=amounts)
    notes = [_BUFFERED] if name != BLOCK_READ else []
    if scope == "pod":
        return Compiled(IsolatorPlan(), "modified", "; ".join([_FLAT, *notes]), amounts)
    if name in host.pod:
        effective = {**_limits(name, host.pod[name], host)[0], **effective}
    held = _lowest(effective, _of_all(host.pod, host))
    lower = [limit for key, limit in held.items() if limit < effective[key]]
    if lower:
        notes.insert(0, f"held to the pod's limit, {format_quantity(min(lower), _BLOCK_UNITS[name])}")
    settings = tuple(
        CgroupSetting("blkio", _V1_FILES[what], f"{device} {limit}") for (device, what), limit in held.items()
    )
    return Compiled(IsolatorPlan(cgroup=settings), "modified" if notes else "enforced", "; ".join(notes), amounts)


def pod_limits(names: Collection[str], host: IsolatorHost) -> tuple[tuple[str, Any], ...]:
    """Returns the pod's limits for an app without limits of its own on v1, where the pod's cgroup cannot limit
    it."""
    if host.cgroups.get("blkio") != 1:
        return ()
    return tuple((name, host.pod[name]) for name in BLOCK_NAMES if name in host.pod and name not in names)


def _limits(name: str, value: Any, host: IsolatorHost) -> tuple[_Limits, str]:
    """Returns the isolator's limit for each device; or the reason why it has no effect on this host."""
    unit, example = _BLOCK_UNITS[name], _BLOCK_EXAMPLES[name]
    if name in (BLOCK_BANDWIDTH, BLOCK_IOPS):
        limit = default_limit(name, value, unit, example)
        devices = block_devices(host.root)
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
        device, why = device_under(path, host.root)
        devices = (device,) if device else ()
    return {(device, what): limit for device in devices for what in BLOCK_NAMES[name]}, why


def _of_all(isolators: Mapping[str, Any], host: IsolatorHost) -> _Limits:
    """Returns the lowest limits of all block isolators of a scope."""
    found: _Limits = {}
    for name in BLOCK_NAMES:
        if name in isolators:
            for key, limit in _limits(name, isolators[name], host)[0].items():
                found[key] = min(limit, found.get(key, limit))
    return found


def _lowest(limits: _Limits, others: _Limits) -> _Limits:
    return {key: min(limit, others.get(key, limit)) for key, limit in limits.items()}


def _v2_settings(limits: _Limits) -> tuple[CgroupSetting, ...]:
    """Returns one line for each device; keys that a line of ``io.max`` does not name keep their values."""
    lines: dict[str, str] = {}
    for (device, what), limit in limits.items():
        lines[device] = f"{lines.get(device, device)} {what}={limit}"
    return tuple(CgroupSetting("io", "io.max", line) for line in lines.values())


def block_devices(root: str) -> tuple[str, ...]:
    """Returns the numbers of the host's block devices, without unused loop devices and empty drives.

    :param root: the directory that holds ``/sys``.
    """
    place = f"{root}/sys/block"
    try:
        names = sorted(os.listdir(place))
    except OSError:
        return ()
    found = [
        _read(f"{place}/{name}/dev")
        for name in names
        if os.path.isdir(f"{place}/{name}/queue") and _read(f"{place}/{name}/size") not in ("", "0")
    ]
    return tuple(filter(None, found))


def device_under(path: str, root: str) -> tuple[str, str]:
    """Finds the block device of a path's file system, or of the device file itself.

    :param path: absolute. It is never opened, since it may come from an untrusted manifest.
    :param root: the directory that holds ``/proc`` and ``/sys``.
    :returns: the device's number, or "" and the reason why there is none.
    """
    try:
        path = os.path.realpath(path)
    except OSError:  # a part of the path was removed meanwhile
        return "", f"there is no {path} on this host"
    if not os.path.lexists(path):
        return "", f"there is no {path} on this host"
    number = _read(f"{root}/sys/class/block/{os.path.basename(path)}/dev") if path.startswith("/dev/") else ""
    if not number:
        number, source = _mounted(path, root)
        if number.startswith("0:"):
            # A file system of several devices, or of none, has a number of its own.
            number = _read(f"{root}/sys/class/block/{os.path.basename(source)}/dev") if source[:1] == "/" else ""
    whole = _whole(number, root) if number else ""
    return (whole, "") if whole else ("", f"{path} is on no block device")


def _mounted(path: str, root: str) -> tuple[str, str]:
    """Returns device number and source of the mount that holds the path."""
    number = source = best = ""
    try:
        with open(f"{root}/proc/self/mountinfo", errors="surrogateescape") as file:
            for mount in map(Mount, file):
                inside = path == mount.target or path.startswith(mount.target.rstrip("/") + "/")
                if inside and len(mount.target) >= len(best):
                    best, number, source = mount.target, mount.device, mount.source
    except OSError:
        pass
    return number, source


def _whole(number: str, root: str) -> str:
    """Returns the number of the whole device that a partition belongs to; other numbers are returned unchanged."""
    place = os.path.realpath(f"{root}/sys/dev/block/{number}")
    if os.path.exists(f"{place}/partition"):
        place = os.path.dirname(place)
    return _read(f"{place}/dev") if os.path.isdir(f"{place}/queue") else ""


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


# --- networks --------------------------------------------------------------------------------------------------


NETWORK_BANDWIDTH = "resource/network-bandwidth"
NETWORK_READ, NETWORK_WRITE = "kurma.io/network-read-bandwidth", "kurma.io/network-write-bandwidth"
#: Name → directions, as the pod sees them.
NETWORK_NAMES = {NETWORK_BANDWIDTH: ("in", "out"), NETWORK_READ: ("in",), NETWORK_WRITE: ("out",)}

_NETWORK_EXAMPLE = '{"default": true, "limit": "1M"}'
_DEVICE_EXAMPLE = '{"device": "eth0", "limit": "1M"}'
# Bytes per second: below the least, a packet takes longer than a second or two; the kernel's shaper has a 32-bit
# rate.
_LEAST_RATE, _MOST_RATE = 1000, (1 << 32) - 1
_LONGEST_NAME = 15


def network(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles any of :data:`NETWORK_NAMES`."""
    if name == NETWORK_BANDWIDTH:
        interface = ""
        rate = default_limit(name, value, "bytes", _NETWORK_EXAMPLE, least=_LEAST_RATE)
    else:
        given = members(name, value, ("device", "limit"), _DEVICE_EXAMPLE)
        interface = _interface(name, given.get("device"))
        rate = required_limit(name, given, "bytes", _DEVICE_EXAMPLE, least=_LEAST_RATE)
    if host.host_network:
        return Compiled(IsolatorPlan(), "ignored", "the pod is in the host's network, which is not its to limit")
    amounts = told("bytes/s", limit=rate)
    notes = []
    if scope == "app":
        notes.append("applied to the pod, whose apps share one network")
    if rate > _MOST_RATE:
        notes.append(f"held to {_MOST_RATE} bytes per second, the most that the kernel's shaper takes")
        rate = _MOST_RATE
    limits = tuple(TrafficLimit(direction, rate, interface) for direction in NETWORK_NAMES[name])
    return Compiled(IsolatorPlan(traffic=limits), "modified" if notes else "enforced", "; ".join(notes), amounts)


def _interface(name: str, value: Any) -> str:
    legal = (
        isinstance(value, str)
        and 0 < len(value) <= _LONGEST_NAME
        and value not in (".", "..")
        and not any(character in "/:" or character.isspace() or character == "\0" for character in value)
    )
    if not legal:
        raise IsolatorError(
            f"isolator {name}: device: expected the name of an interface, got {describe(value)}",
            hint=f"a value is such as {_DEVICE_EXAMPLE}; the interface is the pod's",
        )
    if value == "lo":
        raise IsolatorError(f"isolator {name}: what apps of a pod say to each other, over lo, is never limited")
    return str(value)
