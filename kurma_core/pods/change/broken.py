"""Pods whose records cannot be read: found by their UUID, and taken down as far as anything of them is known."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from kurma_core.errors import HostError, PodStateError
from kurma_core.linux.cgroups import CgroupTree

if TYPE_CHECKING:
    from kurma_core.models.network import Attachment
    from kurma_core.pods.record.pod_store import PodDirectory
    from kurma_core.pods.services import Services


def take_down(services: Services, directory: PodDirectory, *, force: bool) -> None:
    """Ends its processes, leaves its networks, removes its namespace and cgroup. The caller has the owner lock.

    :raises PodStateError: processes of it run, and ``force`` is not given.
    :raises KurmaError: something of it cannot be undone.
    """
    from kurma_core.networking.network_records import PINS
    from kurma_core.pods.network import port_claims

    uuid = directory.uuid
    tree = CgroupTree(f"kurma/{uuid}")
    namespace = f"/run/netns/kurma-{uuid}"
    try:
        if tree.pids() and not force:
            raise PodStateError(
                f"cannot remove pod {uuid}: its record is damaged, and processes of it run",
                hint=f"kurma rm --force {uuid}",
                pod=uuid,
            )
        tree.kill()
        joined = _attachments(directory) or _recorded(services, uuid)
        services.names.leave(uuid, joined or None)
        if joined:
            services.networking.delete_all(joined, pod=uuid, pod_name=uuid, namespace=namespace)
        for kind in PINS:
            services.joined.release(uuid, kind)
        port_claims.let_go(directory)
        services.joined.forget(uuid)
        tree.remove()
    except OSError as error:
        raise HostError(
            f"cannot take down pod {uuid}: {error.filename or ''}: {os.strerror(error.errno or 0)}",
            errno=error.errno,
            path=error.filename,
            pod=uuid,
        ) from None


def _recorded(services: Services, uuid: str) -> tuple[Attachment, ...]:
    """As they stand outside of the pod's own directory."""
    record = services.joined.read(uuid)
    return () if record is None else record.attachments


def _attachments(directory: PodDirectory) -> tuple[Attachment, ...]:
    """The networks that it may have joined, from whichever of its records can be read."""
    from kurma_core.models.network import Attachment

    for name in ("state.json", "pod.json"):
        record = directory.raw(name)
        listed = record.get("attachments") if isinstance(record, dict) else None
        found = []
        for one in listed if isinstance(listed, list) else ():
            with contextlib.suppress(ValueError):
                found.append(Attachment.from_json(one))
        if found:
            return tuple(found)
    return ()
