"""Ports of the host that pods publish: each leads to one pod (W9).

A network would take the second pod's mapping without a word, and the first would keep the port. What listens on
the host itself would be cut off from the world by a pod's port, as silently.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError, NetworkError
from kurma_core.pod_store import PodDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kurma_core.models.network import Attachment, PortMapping
    from kurma_core.pod_store import PodStore
    from kurma_core.pods.claims import Claim, Claims
    from kurma_core.pods.listeners import Listener

#: Every address, of either family, of IPv4, of IPv6.
_ANY = ("", "0.0.0.0", "::")  # noqa: S104 (addresses to compare with, not to bind)


def _listener(protocol: str, port: int, address: str) -> Listener | None:
    from kurma_core.pods.listeners import find_listener

    return find_listener(protocol, port, address)


def published(attachments: Iterable[Attachment]) -> tuple[PortMapping, ...]:
    """The ports of the host that lead to a pod with these attachments."""
    return tuple(port for attachment in attachments for port in attachment.ports)


def check_free(
    store: PodStore,
    uuid: str,
    ports: tuple[PortMapping, ...],
    listener: Callable[[str, int, str], Listener | None] = _listener,
    claims: Claims | None = None,
    *,
    sweep: bool = False,
) -> None:
    """Compares the ports with each other, with those of every pod that runs, whatever state directory it is of,
    and with what listens on the host.

    :param uuid: the pod that wants them.
    :param listener: who listens at a protocol, port and address of the host.
    :param claims: None: those of the host.
    :param sweep: remove claims that hold no longer; for who holds their lock.
    :raises NetworkError: one is taken; names the pod that has it, or the process.
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
                raise _held_by(store.directory(other), name, taken)
    for claim in (claims or _of_the_host()).others(store.directory(uuid).path, sweep=sweep):
        taken = next((port for port in ports if any(_clash(port, theirs) for theirs in claim.ports)), None)
        if taken is not None:
            raise _claimed_by(claim, taken)
    for port in ports:
        found = listener(port.protocol, port.host_port, port.host_ip)
        if found is not None:
            raise NetworkError(
                f"port {_text(port)} of the host is in use by {found}",
                hint="choose another port, or end it",
                pod=uuid,
            )


def _of_the_host() -> Claims:
    from kurma_core.pods.claims import Claims

    return Claims()


def _held_by(directory: PodDirectory, name: str, port: PortMapping) -> NetworkError:
    what, verb = _how(directory)
    return NetworkError(
        f"port {_text(port)} of the host leads to pod {name} {what}",
        hint=f"choose another port, or: kurma {verb} {directory.uuid[:8]}",
        pod=directory.uuid,
    )


def _how(directory: PodDirectory) -> tuple[str, str]:
    """How a pod has its ports, and by what command it lets them go."""
    from kurma_core.pods.claims import over

    try:
        ended = over(directory, directory.read_state()["state"])
    except KurmaError:
        ended = False
    return ("still, which has ended", "rm") if ended else ("already", "stop")


def _claimed_by(claim: Claim, port: PortMapping) -> NetworkError:
    """Of another state directory; or its own has lost the pod."""
    command = f"kurma --dir {claim.state_dir}"
    known = os.path.isdir(claim.directory)
    what, verb = _how(PodDirectory(claim.directory))
    pod = f"pod {claim.name} {what}, of the state directory {claim.state_dir}"
    return NetworkError(
        f"port {_text(port)} of the host leads to {pod}",
        hint=f"choose another port, or: {command} {f'{verb} {claim.uuid[:8]}' if known else 'gc'}",
        pod=claim.uuid,
        path=claim.directory,
    )


@contextlib.contextmanager
def claimed(
    directory: PodDirectory,
    store: PodStore,
    name: str,
    ports: tuple[PortMapping, ...],
    claims: Claims | None = None,
) -> Iterator[None]:
    """Checks that the ports are free, and claims them for a pod; no other pod of the host can claim any until the
    block is left, by when this one must be on record as starting.

    :param directory: of the pod. :param name: the pod's.
    :raises NetworkError: see :func:`check_free`.
    """
    if not ports:
        yield
        return
    from kurma_core.pods.claims import Claim

    claims = claims or _of_the_host()
    with claims.locked():
        check_free(store, directory.uuid, ports, claims=claims, sweep=True)
        for port in ports:
            _check_address(port, directory.uuid)
        claims.make(Claim(directory.path, name, ports))
        try:
            yield
        except BaseException:
            claims.drop(directory.path)
            raise


def _check_address(port: PortMapping, pod: str) -> None:
    """Nothing would ever lead to the pod. A host whose addresses come later says so by a sysctl, as to programs.

    :raises NetworkError: the host has no such address.
    """
    import errno
    import socket

    if not port.host_ip:
        return
    v6 = ":" in port.host_ip
    try:
        with socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((port.host_ip, 0))
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise NetworkError(
                f"port {_text(port)} of the host cannot be published: the host has no address {port.host_ip}",
                hint="leave the address away for all that it has; where it comes later, set the sysctl "
                f"net.ipv{6 if v6 else 4}.ip_nonlocal_bind",
                pod=pod,
            ) from None


def let_go(directory: PodDirectory) -> None:
    """The pod is taken down: what it had claimed is free, unless its stager has left something. Repeatable."""
    if not directory.has_remains():
        _of_the_host().drop(directory.path)


def _held(store: PodStore, uuid: str) -> Iterator[tuple[str, PortMapping]]:
    """Name of the pod, and each port that leads to it now. What cannot be read holds nothing."""
    from kurma_core.pods.claims import holds
    from kurma_core.pods.records import read_document

    directory = store.directory(uuid)
    try:
        if holds(directory):
            document = read_document(directory)
            for port in published(document.attachments):
                yield document.name, port
    except KurmaError:
        return


def _clash(one: PortMapping, other: PortMapping) -> bool:
    if (one.protocol, one.host_port) != (other.protocol, other.host_port):
        return False
    here, there = one.host_ip, other.host_ip
    if "" in (here, there):
        return True
    if (":" in here) != (":" in there):
        return False
    return here in _ANY or there in _ANY or _packed(here) == _packed(there)


def _packed(address: str) -> bytes:
    """One IPv6 address has many spellings."""
    import socket

    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def _text(port: PortMapping) -> str:
    address = f"[{port.host_ip}]" if ":" in port.host_ip else port.host_ip
    return f"{address}:{port.host_port}/{port.protocol}" if address else f"{port.host_port}/{port.protocol}"
