"""Claims ports of the host for pods that publish them, so that each port leads to one pod.

Without a claim, a network would accept a second pod's mapping of the same port without an error, while the port
still led to the first pod. A program that listens on the host would likewise lose its port to a pod.

A claim is the file ``/run/kurma/ports/UUID:HASH`` (HASH is of the pod's directory), one line of JSON. All state
directories of the host share it. It exists from before a pod with published ports is started until the pod is
taken down; a process that dies leaves it behind. A claim is valid while the pod's own record says that the pod is
up, starting or partly torn down, or that its stager has left something to free, which may be rules for the port
(stage1 images keep them until their ``gc``). If that record is gone, the claim is valid while the pod's network
namespace is pinned. The next pod that claims ports removes claims that are no longer valid.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from kurma_core.errors import HostError, KurmaError, NetworkError, PodNotFoundError
from kurma_core.json_text import loads
from kurma_core.linux.files import lock_file, replace_file
from kurma_core.linux.process import boot_id
from kurma_core.models.network import PortMapping
from kurma_core.models.pod import ENDED_STATES
from kurma_core.networking.network_records import pin_path
from kurma_core.pods.record.pod_directory import PodDirectory
from kurma_core.schema import COUNT, fit
from kurma_core.value import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kurma_core.models.network import Attachment, PortMapping
    from kurma_core.pods.network.port_listeners import Listener
    from kurma_core.pods.record.pod_store import PodStore


#: Addresses that stand for all: of both families, of IPv4, of IPv6.
_ANY = ("", "0.0.0.0", "::")  # noqa: S104 (addresses to compare with, not to bind)


def _listener(protocol: str, port: int, address: str) -> Listener | None:
    from kurma_core.pods.network.port_listeners import find_listener

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
    """Checks that the ports differ from each other, from those of every running pod of any state directory, and
    from the ports on which programs of the host listen.

    :param uuid: the pod that wants them.
    :param listener: finds the program that listens at a protocol, port and address of the host.
    :param claims: None: those of the host.
    :param sweep: remove claims that are no longer valid; the caller must hold their lock.
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
    for claim in (claims or Claims()).others(store.directory(uuid).path, sweep=sweep):
        taken = next((port for port in ports if any(_clash(port, theirs) for theirs in claim.ports)), None)
        if taken is not None:
            raise _claimed_by(claim, taken, store.directory(uuid).path)
    for port in ports:
        found = listener(port.protocol, port.host_port, port.host_ip)
        if found is not None:
            raise NetworkError(
                f"port {_text(port)} of the host is in use by {found}",
                hint="choose another port, or end that process",
                pod=uuid,
            )


def _held_by(directory: PodDirectory, name: str, port: PortMapping) -> NetworkError:
    what, verb = _how(directory)
    return NetworkError(
        f"port {_text(port)} of the host leads to pod {name} {what}",
        hint=f"choose another port, or: kurma {verb} {directory.uuid[:8]}",
        pod=directory.uuid,
    )


def _how(directory: PodDirectory) -> tuple[str, str]:
    """How a pod has its ports, and the command that frees them."""
    try:
        ended = keeps_ports(directory, directory.read_state().state)
    except KurmaError:
        ended = False
    return ("still, which has ended", "rm") if ended else ("already", "stop")


def _claimed_by(claim: Claim, port: PortMapping, wanting: str) -> NetworkError:
    """The error for a port that a pod has which is not in the list of pods: it is of another state directory, or
    its own has lost it, or it was made after the list was read.

    :param wanting: the directory of the pod that wants the port.
    """
    command = f"kurma --dir {claim.state_dir}"
    known = os.path.isdir(claim.directory)
    if known and os.path.dirname(claim.directory) == os.path.dirname(os.path.realpath(wanting)):
        return _held_by(PodDirectory(claim.directory), claim.name, port)
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
    """Checks that the ports are free, and claims them for a pod. No other pod of the host can claim ports until
    the block is left; by then this pod must be recorded as starting.

    :param directory: of the pod.
    :param name: the pod's.
    :raises NetworkError: see :func:`check_free`.
    """
    if not ports:
        yield
        return

    claims = claims or Claims()
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
    """Checks that the host has the address: otherwise no packet would ever reach the pod. The sysctl
    ``ip_nonlocal_bind`` allows addresses that the host gets later, for pods as for programs.

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
                f"port {_text(port)} of the host cannot be published: no interface of the host has "
                f"the address {port.host_ip}",
                hint="leave the address out to publish on all addresses; for an address that appears "
                "later, set sysctl "
                f"net.ipv{6 if v6 else 4}.ip_nonlocal_bind",
                pod=pod,
            ) from None


def let_go(directory: PodDirectory) -> None:
    """Removes the claim of a pod that is taken down, unless its stager has left something to free. Repeatable."""
    if not directory.has_remains():
        Claims().drop(directory.path)


def _held(store: PodStore, uuid: str) -> Iterator[tuple[str, PortMapping]]:
    """The pod's name with each port that leads to it now; nothing if its record cannot be read."""
    directory = store.directory(uuid)
    try:
        if holds_ports(directory):
            document = directory.read_document()
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
    """The address in binary, since one IPv6 address has many spellings."""
    import socket

    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def _text(port: PortMapping) -> str:
    address = f"[{port.host_ip}]" if ":" in port.host_ip else port.host_ip
    return f"{address}:{port.host_port}/{port.protocol}" if address else f"{port.host_port}/{port.protocol}"


OF_THE_HOST = "/run/kurma/ports"
VERSION = 1
_SHAPE = {
    "version": COUNT,
    "directory": str,
    "name": str,
    "boot": str,
    "network": COUNT,
    "ports": [PortMapping],
}
_LOCK = ".lock"


@frozen
class Claim:
    """:param directory: of the pod. :param name: the pod's."""

    directory: str
    name: str
    ports: tuple[PortMapping, ...]

    @property
    def uuid(self) -> str:
        return os.path.basename(self.directory)

    @property
    def state_dir(self) -> str:
        return os.path.dirname(os.path.dirname(self.directory))


def holds_ports(directory: PodDirectory) -> bool:
    """Whether that pod holds its ports: it is up, starting, or not wholly taken down. A pod claims its ports when
    it starts: while it is prepared, it holds none, though a prestarted pod has steps on record.

    :raises KurmaError: its record is gone, or cannot be read.
    """
    state = directory.read_state()
    return state.live or (state.state in ENDED_STATES and bool(state.steps)) or keeps_ports(directory, state.state)


def keeps_ports(directory: PodDirectory, state: str) -> bool:
    """Whether the pod has ended and keeps its ports until it is removed or started again."""
    return state in ENDED_STATES and directory.has_remains()


class Claims:
    """The claims on the host's ports.

    :param place: the directory of the claims; a seam for tests.
    """

    def __init__(self, place: str = OF_THE_HOST) -> None:
        self._place = place

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the claims for all processes of the host. :raises HostError: the directory cannot be written
        to."""
        path = f"{self._place}/{_LOCK}"
        try:
            lock = lock_file(path)
        except OSError as error:
            raise HostError(f"cannot open {path}: {error.strerror}", path=path, errno=error.errno) from None
        try:
            yield
        finally:
            os.close(lock)

    def make(self, claim: Claim) -> None:
        """Writes a claim. The caller holds the lock. :raises HostError: it cannot be written."""
        path = self._path(claim.directory)
        value = {
            "version": VERSION,
            "directory": os.path.realpath(claim.directory),
            "name": claim.name,
            "boot": boot_id(),
            "network": _network_inode(),
            "ports": [port.to_json() for port in claim.ports],
        }
        try:
            replace_file(path, json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise HostError(f"cannot write {path}: {error.strerror}", path=path, errno=error.errno) from None

    def drop(self, directory: str) -> None:
        """Removes that pod's claim, if there is one. An error is ignored: without a running pod the claim is not
        valid."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(directory))

    def others(self, directory: str, *, sweep: bool = False) -> Iterator[Claim]:
        """Valid claims of all pods but the one with this directory.

        :param sweep: remove claims that are no longer valid; the caller must hold the lock.
        """
        try:
            names = sorted(os.listdir(self._place))
        except FileNotFoundError:
            return
        own = os.path.realpath(directory)
        for name in names:
            path = f"{self._place}/{name}"
            if name.startswith(".") or path == self._path(directory):
                continue
            claim = _read_claim(path)
            if claim is None:
                continue
            if not _holds(claim):
                if sweep:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
            elif claim.directory != own and not (
                not os.path.isdir(claim.directory) and claim.uuid == os.path.basename(own)
            ):
                yield claim

    def _path(self, directory: str) -> str:
        import hashlib

        digest = hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:8]
        return f"{self._place}/{os.path.basename(directory)}:{digest}"


def _read_claim(path: str) -> Claim | None:
    """A claim; None: it is of another network namespace, or a newer Kurma wrote it. A damaged file gives an empty
    claim, which is never valid."""
    try:
        with open(path, "rb") as file:
            value = loads(file.read(), own=True)
        fit(value, _SHAPE, "the claim")
        if value["version"] > VERSION or value["network"] != _network_inode():
            return None
        ports = tuple(PortMapping.from_json(one) for one in value["ports"])
        claim = Claim(value["directory"], value["name"], ports)
        return claim if value["boot"] == boot_id() else Claim("", "", ())
    except OSError:
        return None
    except ValueError:
        return Claim("", "", ())


def _holds(claim: Claim) -> bool:
    if not claim.directory:
        return False
    try:
        return holds_ports(PodDirectory(claim.directory))
    except PodNotFoundError:
        pass
    except KurmaError:
        return True  # damaged, or of a newer version: counted as valid, to be on the safe side
    pin = pin_path("net", claim.uuid)
    try:
        return os.stat(pin).st_dev == os.stat("/proc/self/ns/net").st_dev
    except OSError:
        return False


def _network_inode() -> int:
    """Inode of our network namespace. Ports belong to a network namespace, and Kurma may run in several of one
    machine."""
    return os.stat("/proc/self/ns/net").st_ino
