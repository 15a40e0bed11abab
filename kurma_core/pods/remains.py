"""What stagers of some designs leave of a pod, until it is removed or started again (``StagerOfRemains``)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kurma_core.errors import HostError

if TYPE_CHECKING:
    from kurma_core.pod_store import PodDirectory
    from kurma_core.pods.services import Services

_MARK = "stager/remains"


def left(directory: PodDirectory) -> bool:
    """Whether there is any."""
    return os.path.lexists(directory.file(_MARK))


def discard(services: Services, directory: PodDirectory) -> None:
    """Has it freed by the driver that has made it. For who holds the owner lock; the pod does not run. Repeatable.

    :raises HostError: something could not be freed.
    """
    try:
        with open(directory.file(_MARK), encoding="utf-8") as stream:
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
    for note in notes:
        services.note(f"pod {directory.uuid}: {note}")
