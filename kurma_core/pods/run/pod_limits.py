"""Holds a pod to its traffic limits, and keeps the memory that it requests for it (``resource/memory``).

The network is the pod's, whatever app a limit came from: the lowest of all holds.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kurma_core.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kurma_core.linux.cgroups import CgroupTree
    from kurma_core.models.isolator import IsolatorPlan, TrafficLimit
    from kurma_core.pods.record.document import PodDocument


def traffic_limits(document: PodDocument) -> tuple[TrafficLimit, ...]:
    """Of the pod and of each of its apps."""
    plans = (document.pod_plan, *document.plans.values())
    return tuple(limit for plan in plans for limit in plan.traffic)


def lasting_limits(pod: IsolatorPlan, apps: Mapping[str, IsolatorPlan]) -> tuple[TrafficLimit, ...]:
    """Those that hold as long as the pod runs, and which a network may be given to hold it to: the pod's own, and
    those of an only app. Of several apps, each takes its limits with it.
    """
    plans = (pod, *(apps.values() if len(apps) == 1 else ()))
    return tuple(limit for plan in plans for limit in plan.traffic)


def hold_traffic(document: PodDocument, note: Callable[[str], None]) -> None:
    """Holds the pod's network, which is there, to its limits and no others. Where a network holds the pod itself
    (CNI's ``bandwidth``), only what is stricter is left to do.

    :raises NetworkError: the kernel refuses.
    """
    if document.network_namespace is None:
        return
    from kurma_core.networking.traffic import RATES, limit_traffic

    limits = traffic_limits(document)
    own = {}
    for one in document.attachments:
        given = one.capabilities.get("bandwidth")
        if given:
            held = {direction: given.get(rate) for direction, rate in RATES.items()}
            own[one.interface] = [
                limit for limit in limits if not (rate := held[limit.direction]) or limit.rate * 8 < rate
            ]
    for name in limit_traffic(document.network_namespace, limits, own):
        note(f"pod {document.name} has no interface {name}, whose traffic was to be limited")


_FILE = "memory.low"
_MOST = (1 << 63) - 1


def requested_memory(document: PodDocument) -> int:
    """Bytes: the pod's own request, else what its apps request together; 0 on cgroup v1, which has soft limits."""
    of_pod = _of(document.pod_plan)
    return of_pod if of_pod is not None else sum(_of(plan) or 0 for plan in document.plans.values())


def keep_memory(document: PodDocument) -> None:
    """Once the pod's cgroup is there; and again when it has gone, or its apps have changed.

    :raises HostError: the kernel refuses.
    """
    from kurma_core.linux.cgroups import CgroupTree

    try:
        keep_low(CgroupTree(document.cgroup), requested_memory(document))
    except OSError as error:
        raise HostError(
            f"pod {document.uuid}: cannot keep the memory that it requests: {error.filename}: {error.strerror}",
            errno=error.errno,
            path=error.filename,
            pod=document.uuid,
        ) from error


def _of(plan: IsolatorPlan) -> int | None:
    for setting in plan.cgroup:
        if setting.controller == "memory" and setting.file == _FILE:
            return int(setting.value)
    return None


def keep_low(tree: CgroupTree, amount: int) -> None:
    """Sets ``memory.low``: the tree keeps that many bytes, and a cgroup above it that is shared with others as
    many as all in it.

    Nothing is done where there is no v2 memory controller; once the tree is gone, what is above it is put right.

    A cgroup keeps no more than the one above it does, which by itself keeps nothing. So what is shared by all pods
    keeps the sum of theirs.

    :raises OSError: the kernel refuses.
    """
    import fcntl

    hierarchy = tree.layout.of("memory")
    if hierarchy is None or hierarchy.version != 2:
        return
    path = f"{hierarchy.directory}/{tree.name}"
    _write(path, amount)
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
    """0 for what is no cgroup, has gone, or has no such file."""
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
