"""Applies a pod's traffic limits, and protects the memory that it requests (``resource/memory``).

All apps share the pod's network, so the lowest limit of all of them applies.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kurma_core.errors import HostError, NetworkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kurma_core.hookspecs.isolator import IsolatorHooks
    from kurma_core.linux.cgroups import CgroupTree
    from kurma_core.models.isolator import IsolatorPlan, TrafficLimit
    from kurma_core.pods.record.document import PodDocument


def traffic_limits(document: PodDocument) -> tuple[TrafficLimit, ...]:
    """The traffic limits of the pod and of each of its apps."""
    plans = (document.pod_plan, *document.plans.values())
    return tuple(limit for plan in plans for limit in plan.traffic)


def lasting_limits(pod: IsolatorPlan, apps: Mapping[str, IsolatorPlan]) -> tuple[TrafficLimit, ...]:
    """The limits that apply as long as the pod runs, which a network may therefore be asked to enforce: the pod's
    own, and those of an only app. In a pod of several apps, each app's limits end with the app."""
    plans = (pod, *(apps.values() if len(apps) == 1 else ()))
    return tuple(limit for plan in plans for limit in plan.traffic)


def hold_traffic(document: PodDocument, limiters: Iterable[IsolatorHooks], note: Callable[[str], None]) -> None:
    """Applies the pod's limits, and no others, to its existing network interfaces. If a network applies limits
    itself, only stricter ones are added.

    :param limiters: the isolator drivers that can limit traffic; the first does.
    :raises NetworkError: no plugin can, or it failed.
    """
    if document.network_namespace is None:
        return
    limits = traffic_limits(document)
    limiter = next(iter(limiters), None)
    if limiter is None:
        if limits:
            raise NetworkError(
                f"cannot limit the traffic of pod {document.name}: no enabled isolator plugin limits traffic",
                hint="see `kurma plugins list`",
                pod=document.uuid,
            )
        return
    held = {one.interface: one.limits for one in document.attachments if one.limits}
    for name in limiter.limit_traffic(document.network_namespace, limits, held):
        note(f"pod {document.name} has no interface {name}, whose traffic cannot be limited")


_FILE = "memory.low"
_MOST = (1 << 63) - 1


def requested_memory(document: PodDocument) -> int:
    """Bytes: the pod's own request, else the sum of its apps' requests; 0 on cgroup v1, which has only soft
    limits."""
    of_pod = _of(document.pod_plan)
    return of_pod if of_pod is not None else sum(_of(plan) or 0 for plan in document.plans.values())


def keep_memory(document: PodDocument) -> None:
    """Sets the memory protection of the pod's cgroup. Called once the cgroup exists, after it was removed, and
    after its apps have changed.

    :raises HostError: the kernel refuses.
    """
    from kurma_core.linux.cgroups import CgroupTree

    try:
        keep_low(CgroupTree(document.cgroup), requested_memory(document))
    except OSError as error:
        what = f"pod {document.uuid}: cannot keep the memory that it requests"
        raise HostError.of(what, error, pod=document.uuid) from error


def _of(plan: IsolatorPlan) -> int | None:
    for setting in plan.cgroup:
        if setting.controller == "memory" and setting.file == _FILE:
            return int(setting.value)
    return None


def keep_low(tree: CgroupTree, amount: int) -> None:
    """Sets ``memory.low`` of the tree to that many bytes, and of each cgroup above it to the sum of its children.

    The kernel protects no more memory in a cgroup than in its parent, and by default a parent protects none: so a
    cgroup that is shared by all pods must protect the sum of theirs. Does nothing without a cgroup v2 memory
    controller. If the tree is gone, only the cgroups above it are updated. Does not change parents that are not
    Kurma's own: their owner decides what they protect.

    :raises OSError: the kernel refuses.
    """
    import fcntl

    from kurma_core.linux.cgroups import GUEST

    hierarchy = tree.layout.of("memory")
    if hierarchy is None or hierarchy.version != 2:
        return
    path = f"{hierarchy.directory}/{tree.name}"
    _write(path, amount)
    if os.path.basename(path).startswith(GUEST):
        return
    while (path := os.path.dirname(path)) != hierarchy.directory:
        try:
            shared = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(shared, fcntl.LOCK_EX)
            _write(path, sum(_read(f"{path}/{name}") for name in os.listdir(path)))
        finally:
            os.close(shared)


def _read(directory: str) -> int:
    """``memory.low`` of a cgroup; 0 if it is not a cgroup, is gone, or has no such file."""
    try:
        with open(f"{directory}/{_FILE}") as file:
            text = file.read().strip()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
            return 0
        raise
    return _MOST if text == "max" else int(text)


def _write(directory: str, amount: int) -> None:
    try:
        fd = os.open(f"{directory}/{_FILE}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.write(fd, str(min(amount, _MOST)).encode())
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise OSError(error.errno, error.strerror, f"{directory}/{_FILE}") from None
    finally:
        os.close(fd)
