"""Plans as plain lists and dicts, in which they cross to the spawner's program."""

from __future__ import annotations

from collections.abc import Mapping

from kurma_core.spawn_plan import (
    Bind,
    Directory,
    EnterPlan,
    File,
    FileSystemMount,
    Operation,
    Overlay,
    SpawnPlan,
    Symlink,
)
from kurma_core.value import fields

_KINDS: dict[type, str] = {
    Overlay: "overlay",
    Bind: "bind",
    FileSystemMount: "filesystem",
    Directory: "directory",
    File: "file",
    Symlink: "symlink",
}


def encode(plan: SpawnPlan | EnterPlan) -> tuple[dict[str, object], list[int]]:
    """A plan as plain values, and the descriptors to be passed along (in the order of ``message["fds"]``)."""
    message = _plain(plan)
    message["fds"] = sorted(plan.fds)
    message["namespaces"] = sorted(plan.namespaces)
    fds = [plan.fds[target] for target in sorted(plan.fds)]
    if isinstance(plan, SpawnPlan):
        message["root"] = None if plan.root is None else encode_operations(plan.root.operations)
        message["action"] = "start"
    else:
        message["action"] = "enter"
        message["pidfd"] = plan.pidfd is not None
        if plan.pidfd is not None:
            fds.append(plan.pidfd)
    return message, fds


def encode_operations(operations: tuple[Operation, ...]) -> list[dict[str, object]]:
    """Mount operations as plain values."""
    return [{"kind": _KINDS[type(operation)], **_plain(operation)} for operation in operations]


def _plain(value: SpawnPlan | EnterPlan | Operation) -> dict[str, object]:
    plain: dict[str, object] = {}
    for one in fields(value):
        item = getattr(value, one.name)
        if isinstance(item, Mapping):
            item = dict(item)
        elif isinstance(item, int) and not isinstance(item, bool):
            item = int(item)  # a signal's number may come as an enumeration's member
        plain[one.name] = item
    return plain
