"""What pods use, and each of their apps, as cgroups and network interfaces say."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from kurma_core.api.pods import Usage
from kurma_core.errors import PodStateError
from kurma_core.linux.cgroup_layout import Layout
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.pods.cgroup_figures import figures, groups_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kurma_core.models.pod import PodRecord

_RUN = ("starting", "running", "stopping")


def usage(records: Iterable[PodRecord]) -> list[Usage]:
    """Of those of the pods that run."""
    layout = Layout.detect()
    versions = layout.versions()
    found = []
    for record in records:
        if record.state in _RUN:
            tree = CgroupTree(f"kurma/{record.uuid}", layout)
            if tree.exists():
                found.append(_usage(record, tree, versions))
    return found


def check_measurable(record: PodRecord) -> PodRecord:
    """:raises PodStateError: it does not run."""
    if record.state not in _RUN:
        raise PodStateError(f"pod {record.name} uses nothing: it is {record.state}", pod=record.uuid)
    return record


def _usage(record: PodRecord, tree: CgroupTree, versions: dict[str, int]) -> Usage:
    received, sent = _traffic(record)
    return Usage(
        record.uuid,
        record.name,
        time.monotonic(),
        figures(tree, versions),
        received,
        sent,
        {
            name: figures(CgroupTree(f"{tree.name}/{group}", tree.layout), versions)
            for group, name in app_groups(record).items()
        },
    )


def app_groups(record: PodRecord) -> dict[str, str]:
    """Apps that run by their cgroup, a child of the pod's: of those that have one to themselves, whatever the
    stager calls it."""
    owners: dict[str, set[str]] = {}
    for app in record.apps:
        if app.pid is not None:
            for group in set(groups_of(app.pid, f"kurma/{record.uuid}")):
                owners.setdefault(group, set()).add(app.name)
    return {group: next(iter(names)) for group, names in owners.items() if len(names) == 1}


def _traffic(record: PodRecord) -> tuple[int | None, int | None]:
    """Bytes received and sent, as its stager sees them, which is in its network namespace."""
    if record.network_namespace is None or record.stager_pid is None:
        return None, None
    names = {attachment.interface for attachment in record.attachments} - {"lo"}
    try:
        # By descriptor: another process that gets the number is not taken for it.
        process = os.open(f"/proc/{record.stager_pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            inside, pinned = os.stat("ns/net", dir_fd=process), os.stat(record.network_namespace)
            if (inside.st_dev, inside.st_ino) != (pinned.st_dev, pinned.st_ino):
                return None, None
            with open("net/dev", opener=lambda path, flags: os.open(path, flags, dir_fd=process)) as file:
                lines = [line.partition(":") for line in file]
        finally:
            os.close(process)
    except OSError:
        return None, None  # it has just ended
    counts = [values.split() for name, _, values in lines if name.strip() in names]
    return sum(int(one[0]) for one in counts), sum(int(one[8]) for one in counts)
