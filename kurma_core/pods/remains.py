"""What stagers of some designs leave of a pod, until it is removed or started again (``StagerOfRemains``), and
what they have of pods that are gone (``CollectorOfRemains``)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kurma_core.errors import HostError, KurmaError
from kurma_core.pod_store import REMAINS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.hookspecs.stager import CollectorOfRemains
    from kurma_core.pod_store import PodDirectory
    from kurma_core.pods.services import Services


def discard(services: Services, directory: PodDirectory) -> None:
    """Has it freed by the driver that has made it. For who holds the owner lock; the pod does not run. Repeatable.

    :raises HostError: something could not be freed.
    """
    try:
        with open(directory.file(REMAINS), encoding="utf-8") as stream:
            name = stream.read().strip()
    except FileNotFoundError:
        return
    driver = services.stagers.of_pod(name)
    if not hasattr(driver, "discard"):
        services.note(f"pod {directory.uuid}: what stager {name} has left is not freed: its plugin is not there")
        return
    try:
        notes: tuple[str, ...] = driver.discard(directory.path)
    except OSError as error:
        raise HostError(
            f"pod {directory.uuid}: cannot free what stager {name} has left: {error.filename or ''}: "
            f"{error.strerror or error}",
            hint="kurma gc tries again",
            errno=error.errno,
            path=error.filename,
            pod=directory.uuid,
        ) from None
    from kurma_core.pods import ports

    ports.let_go(directory)
    for note in notes:
        services.note(f"pod {directory.uuid}: {note}")


def of_gone_pods(services: Services, *, dry_run: bool) -> Iterator[tuple[str, bool]]:
    """Frees what there is of pods that have no directory any more; a line of each, and whether that has failed."""
    try:
        for collector in services.stagers.collectors():
            # Asked first: a pod has its directory from before there is anything else of it until after that.
            for uuid in sorted(collector.remains()):
                if not os.path.lexists(services.store.directory(uuid).path):
                    yield from _free_gone(services, collector, uuid, dry_run)
    except OSError as error:
        yield f"what stagers have of pods that are gone cannot be listed: {error.filename}: {error.strerror}", True
    except KurmaError as error:
        yield f"what stagers have of pods that are gone is left: {error.message}", True


def _free_gone(
    services: Services, collector: CollectorOfRemains, uuid: str, dry_run: bool
) -> Iterator[tuple[str, bool]]:
    said = f"pod {uuid}: its directory is gone"
    if dry_run:
        yield f"{said}: what its stager has of it would be removed", False
        return
    try:
        notes = collector.discard_gone(uuid)
    except BlockingIOError as error:
        yield f"{said}, and it runs: left: {error.strerror}", False
    except OSError as error:
        why = f"{error.filename or ''}: {error.strerror or error}"
        yield f"{said}: what its stager has of it is left: {why}", True
    else:
        if notes is None:
            return
        for note in notes:
            services.note(f"pod {uuid}: {note}")
        yield f"{said}: what its stager had of it is removed", False
