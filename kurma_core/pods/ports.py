"""Ports of the host that pods publish: each leads to one pod (W9).

A CNI plugin would take the second pod's mapping without a word, and the first would keep the port.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from kurma_core.errors import HostError, KurmaError, NetworkError
from kurma_core.pods.records import read_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kurma_core.models import Attachment, PortMapping
    from kurma_core.pod_store import PodStore

#: States of a pod that holds its ports, or is about to.
_HOLDING = ("starting", "running", "stopping")
_ANY = ("", "0.0.0.0", "::")  # noqa: S104 (addresses to compare with, not to bind)


def published(attachments: Iterable[Attachment]) -> tuple[PortMapping, ...]:
    """The ports of the host that lead to a pod with these attachments."""
    return tuple(port for attachment in attachments for port in attachment.ports)


def check_free(store: PodStore, uuid: str, ports: tuple[PortMapping, ...]) -> None:
    """Compares the ports with each other, and with those of every pod that runs.

    :param uuid: the pod that wants them.
    :raises NetworkError: one is taken; names the pod that has it.
    """
    for place, port in enumerate(ports):
        if any(_clash(port, other) for other in ports[:place]):
            raise NetworkError(f"port {_text(port)} of the host is published twice", pod=uuid)
    if not ports:
        return
    for other in store.uuids():
        if other == uuid:
            continue
        for name, theirs in _held(store, other):
            taken = next((port for port in ports if _clash(port, theirs)), None)
            if taken is not None:
                raise NetworkError(
                    f"port {_text(taken)} of the host leads to pod {name} already",
                    hint=f"choose another port, or: kurma stop {other[:8]}",
                    pod=other,
                )


@contextlib.contextmanager
def claimed(store: PodStore, uuid: str, ports: tuple[PortMapping, ...]) -> Iterator[None]:
    """Checks that the ports are free; no other pod can claim any until the block is left, by when this one must be
    on record as starting.

    :raises NetworkError: see :func:`check_free`.
    """
    if not ports:
        yield
        return
    path = f"{store.root}/.ports.lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HostError(f"cannot open {path}: {error.strerror}", path=path, errno=error.errno) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        check_free(store, uuid, ports)
        yield
    finally:
        os.close(lock)


def _held(store: PodStore, uuid: str) -> Iterator[tuple[str, PortMapping]]:
    """Name of the pod, and each port that leads to it now. What cannot be read holds nothing."""
    directory = store.directory(uuid)
    try:
        state = directory.read_state()
        if state["state"] in _HOLDING or state.get("steps"):
            document = read_document(directory)
            for port in published(document.attachments):
                yield document.name, port
    except KurmaError:
        return


def _clash(one: PortMapping, other: PortMapping) -> bool:
    if (one.protocol, one.host_port) != (other.protocol, other.host_port):
        return False
    return one.host_ip == other.host_ip or one.host_ip in _ANY or other.host_ip in _ANY


def _text(port: PortMapping) -> str:
    address = f"[{port.host_ip}]" if ":" in port.host_ip else port.host_ip
    return f"{address}:{port.host_port}/{port.protocol}" if address else f"{port.host_port}/{port.protocol}"
