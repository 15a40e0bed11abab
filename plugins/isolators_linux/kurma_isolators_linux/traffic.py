"""What may go over a pod's network in a second: ``resource/network-bandwidth``,
``kurma.io/network-read-bandwidth``, ``kurma.io/network-write-bandwidth`` (X3).

The network belongs to the pod, so that an app's limit is the pod's. Of several the lowest holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled
from kurma_core.models.isolator import IsolatorPlan, TrafficLimit
from kurma_core.schema import describe
from kurma_isolators_linux.amounts import default_limit, members, required_limit, told

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

BANDWIDTH = "resource/network-bandwidth"
READ, WRITE = "kurma.io/network-read-bandwidth", "kurma.io/network-write-bandwidth"
#: Name → directions, as the pod sees them.
NAMES = {BANDWIDTH: ("in", "out"), READ: ("in",), WRITE: ("out",)}

_EXAMPLE = '{"default": true, "limit": "1M"}'
_DEVICE_EXAMPLE = '{"device": "eth0", "limit": "1M"}'
# Bytes per second: less does not carry a packet in a second or two; more the kernel's shaper does not take.
_LEAST, _MOST = 1000, (1 << 32) - 1
_LONGEST_NAME = 15


def network(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles any of :data:`NAMES`."""
    if name == BANDWIDTH:
        interface = ""
        rate = default_limit(name, value, "bytes", _EXAMPLE, least=_LEAST)
    else:
        given = members(name, value, ("device", "limit"), _DEVICE_EXAMPLE)
        interface = _interface(name, given.get("device"))
        rate = required_limit(name, given, "bytes", _DEVICE_EXAMPLE, least=_LEAST)
    if host.host_network:
        return Compiled(IsolatorPlan(), "ignored", "the pod is in the host's network, which is not its to limit")
    amounts = told("bytes/s", limit=rate)
    notes = []
    if scope == "app":
        notes.append("applied to the pod, whose apps share one network")
    if rate > _MOST:
        notes.append(f"held to {_MOST} bytes per second, the most that the kernel's shaper takes")
        rate = _MOST
    limits = tuple(TrafficLimit(direction, rate, interface) for direction in NAMES[name])
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
