"""Gives this process the resource limits, scheduling, I/O priority and memory policy of an isolator plan.

The process is still the host's root: the kernel lets no root of a user namespace raise a hard limit or a priority.
"""

from __future__ import annotations

import errno
import resource

from kurma_core.linux import libc
from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_stager_default.inside.manifest import Plan

# The kernel's resource limits, each at its number; the standard library lacks some.
_RLIMITS = (
    *("cpu", "fsize", "data", "stack", "core", "rss", "nproc", "nofile"),
    *("memlock", "as", "locks", "sigpending", "msgqueue", "nice", "rtprio", "rttime"),
)
_UNLIMITED = resource.RLIM_INFINITY
_POLICIES = {"other": 0, "fifo": 1, "rr": 2, "batch": 3, "idle": 5, "deadline": 6}
_RESET_ON_FORK = 1
_ATTRIBUTES_SIZE = 48
_IO_CLASSES = {"realtime": 1, "best-effort": 2, "idle": 3}
_IO_CLASS_SHIFT = 13
_WHO_PROCESS = 1
_MODES = {"preferred": 1, "bind": 2, "interleave": 3, "local": 4, "preferred-many": 5}
_STATIC, _RELATIVE = 1 << 15, 1 << 14
#: The kernel takes at most a page of node bits, and ignores the last bit of those it is given.
_NODES = 1024


def apply(plan: Plan) -> None:
    """Sets all but the resource limits, of which it only raises the hard ones: see :func:`limit`.

    :raises SetupError: the plan has a wrong value, or the kernel refuses one.
    """
    for name, (soft, hard) in plan.rlimits.items():
        _raise_hard(name, soft, hard)
    if plan.memory_policy is not None:
        _place(plan.memory_policy)
    if plan.io_priority is not None:
        _order_io(plan.io_priority)
    if plan.scheduling is not None:
        _schedule(plan.scheduling)


def limit(rlimits: dict[str, list[int]]) -> None:
    """Sets the resource limits. Call it last: the set-up of an app needs memory, stack and some dozen files.

    :raises SetupError: the kernel refuses one.
    """
    for name, (soft, hard) in rlimits.items():
        try:
            resource.setrlimit(_RLIMITS.index(name), (soft, hard))
        except (OSError, ValueError, OverflowError) as error:
            raise _refused(name, soft, hard, error) from None


def _raise_hard(name: str, soft: int, hard: int) -> None:
    """Raises the hard limit where the app gets a higher one; the soft one stays."""
    if name not in _RLIMITS:
        raise SetupError(f"there is no resource limit {name!r}")
    number = _RLIMITS.index(name)
    try:
        present, most = resource.getrlimit(number)
        if most != _UNLIMITED and (hard == _UNLIMITED or hard > most):
            resource.setrlimit(number, (present, hard))
    except (OSError, ValueError, OverflowError) as error:
        raise _refused(name, soft, hard, error) from None


def _refused(name: str, soft: int, hard: int, error: Exception) -> SetupError:
    why = ""
    if "not allowed" in str(error):  # EPERM, as the standard library words it
        why = "; more than Kurma's own limit needs CAP_SYS_RESOURCE"
        if name == "nofile":
            why += ", and /proc/sys/fs/nr_open is the most"
    return SetupError(f"cannot set the limit {name} to {soft}:{hard}: {error}{why}")


def _schedule(value: dict[str, Any]) -> None:
    policy, priority, nice = value["policy"], value.get("priority", 0), value.get("nice", 0)
    times = [value.get(key, 0) for key in ("runtime", "deadline", "period")]
    # A process with a deadline cannot fork, unless its children have none.
    flags = _RESET_ON_FORK if policy == "deadline" else 0
    head = libc.words(_ATTRIBUTES_SIZE, _number(_POLICIES, "scheduling policy", policy), size=4)
    attributes = head + libc.words(flags) + libc.words(nice, priority, size=4) + libc.words(*times)
    what = f"the scheduling {policy}" + (f" {priority}" if priority else f", nice {nice}" if nice else "")
    why = ""
    if policy in ("fifo", "rr"):
        why = "; with cgroup v1, the pod's and the app's cgroups need a cpu.rt_runtime_us"
    elif policy == "deadline":
        why = "; a process with a deadline needs all processors of the host, and time that no other has taken"
    _call("sched_setattr", what, why, 0, attributes, 0)


def _order_io(value: dict[str, Any]) -> None:
    kind, level = value["kind"], value.get("level", 4)
    priority = _number(_IO_CLASSES, "class of I/O", kind) << _IO_CLASS_SHIFT | level
    _call("ioprio_set", f"the I/O priority {kind} {level}", "", _WHO_PROCESS, 0, priority)


def _place(value: dict[str, Any]) -> None:
    mode, nodes = value["mode"], value.get("nodes", "")
    number = _number(_MODES, "memory policy", mode)
    number |= (_STATIC if value.get("static") else 0) | (_RELATIVE if value.get("relative") else 0)
    mask = 0
    for part in nodes.split(",") if nodes else ():
        first, _, last = part.partition("-")
        mask |= (2 << int(last or first)) - (1 << int(first))
    what = f"the memory policy {mode}" + (f" of the nodes {nodes}" if nodes else "")
    bits = None if mode == "local" else mask.to_bytes(_NODES // 8, "little")
    _call("set_mempolicy", what, "; see /sys/devices/system/node", number, bits, 0 if bits is None else _NODES + 1)


def _number(known: dict[str, int], what: str, word: str) -> int:
    if word not in known:
        raise SetupError(f"there is no {what} {word!r}")
    return known[word]


def _call(name: str, what: str, why: str, *args: int | bytes | None) -> None:
    try:
        libc.syscall(name, *args)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL, errno.EBUSY):
            why = ""
        raise SetupError(f"cannot set {what}: {error.strerror}{why}") from None
