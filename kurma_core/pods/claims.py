"""Ports of the host that pods have claimed, told to all state directories of the host (W9).

``/run/kurma/ports/UUID:HASH`` is a line of JSON, from before a pod with published ports is started until it is
taken down; HASH is of its directory. Who dies leaves it behind, and nobody has to notice: a claim holds as long as
its pod's own record says that the pod is up, or half so, or that its stager has left something, which may be
rules that lead to it (stage1 images keep them until their ``gc``); where that record is gone, moved or removed by
hand, as long as the pod's network namespace is pinned. One that holds no longer is removed by the next pod that
claims.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from kurma_core.errors import HostError, KurmaError, PodNotFoundError
from kurma_core.json_text import loads
from kurma_core.linux.files import replace_file
from kurma_core.linux.lockfile import lock_file
from kurma_core.linux.process import boot_id
from kurma_core.models.network import PortMapping
from kurma_core.models.pod import ENDED_STATES
from kurma_core.networking.network_records import pin_path
from kurma_core.pod_store import PodDirectory
from kurma_core.schema import COUNT, fit
from kurma_core.value import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = Any
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
#: States of a pod that holds its ports, or is about to.
_HOLDING = ("starting", "running", "stopping")


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


def holds(directory: PodDirectory) -> bool:
    """Whether that pod holds its ports: it is up, on its way, or not wholly taken down.

    :raises KurmaError: its record is gone, or cannot be read.
    """
    state = directory.read_state()
    return state["state"] in _HOLDING or bool(state.get("steps")) or over(directory, state["state"])


def over(directory: PodDirectory, state: str) -> bool:
    """Whether it has ended, and only its removal, or its next start, lets its ports go."""
    return state in ENDED_STATES and directory.has_remains()


class Claims:
    """:param place: the directory of the claims; a seam for tests."""

    def __init__(self, place: str = OF_THE_HOST) -> None:
        self._place = place

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One at a time on the whole host. :raises HostError: the place cannot be written to."""
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
        """For who holds the lock. :raises HostError: it cannot be written."""
        path = self._path(claim.directory)
        value = {
            "version": VERSION,
            "directory": os.path.realpath(claim.directory),
            "name": claim.name,
            "boot": boot_id(),
            "network": _network(),
            "ports": [port.to_json() for port in claim.ports],
        }
        try:
            replace_file(path, json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise HostError(f"cannot write {path}: {error.strerror}", path=path, errno=error.errno) from None

    def drop(self, directory: str) -> None:
        """That pod's claim. None there is success; where that cannot be done, it holds no longer all the same."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(directory))

    def others(self, directory: str, *, sweep: bool = False) -> Iterator[Claim]:
        """Claims that hold, of all pods but the one with this directory.

        :param sweep: remove those that hold no longer; for who holds the lock.
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
            claim = _read(path)
            if claim is None:
                continue
            if not _holds(claim):
                if sweep:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
            elif claim.directory != own and not (_gone(claim.directory) and claim.uuid == os.path.basename(own)):
                yield claim

    def _path(self, directory: str) -> str:
        import hashlib

        digest = hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:8]
        return f"{self._place}/{os.path.basename(directory)}:{digest}"


def _read(path: str) -> Claim | None:
    """None: it is of another network namespace, or of a newer Kurma. What is torn is a claim of nothing."""
    try:
        with open(path, "rb") as file:
            value = loads(file.read(), own=True)
        fit(value, _SHAPE, "the claim")
        if value["version"] > VERSION or value["network"] != _network():
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
        return holds(PodDirectory(claim.directory))
    except PodNotFoundError:
        pass
    except KurmaError:
        return True  # damaged, or of a newer version: not for us to judge
    pin = pin_path("net", claim.uuid)
    try:
        return os.stat(pin).st_dev == os.stat("/proc/self/ns/net").st_dev
    except OSError:
        return False


def _gone(directory: str) -> bool:
    return not os.path.isdir(directory)


def _network() -> int:
    """Ports are a network namespace's; a machine may have several in which Kurma works."""
    return os.stat("/proc/self/ns/net").st_ino
