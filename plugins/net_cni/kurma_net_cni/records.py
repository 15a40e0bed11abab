"""Records of attachments on disk, for a later DEL by any process; and locks for the runs of plugins."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from kurma_core.errors import FormatVersionError, NetworkError
from kurma_core.hookspecs.network import AttachmentContext
from kurma_core.json_text import loads
from kurma_core.linux.files import lock_file, replace_file
from kurma_core.models.network import Attachment, NetworkRequest
from kurma_core.schema import COUNT, fit
from kurma_core.value import frozen, replace

Json = Any
VERSION = 1
_SHAPE = {
    "version": COUNT,
    "network": str,
    "pod": str,
    "interface": str,
    "result": object,
    "joined": bool,
    "leaving": bool,
    "left": [COUNT],
    "refused": (str, None),
    "cni_version": str,
    "pod_name": str,
    "namespace": str,
    "attachment": object,
}


@frozen
class Record:
    """One attachment, from before its ADD until after its DEL.

    :param network: the network's name as CNI's plugins get it (:func:`network_of`).
    :param result: of the last plugin of the chain that succeeded; None: none has yet.
    :param joined: ADD has ended, with or without success: none of its plugins runs any more.
    :param leaving: a DEL has begun, and may have been interrupted.
    :param left: indices in the chain of the plugins whose DEL has succeeded. They are not called again: they free
        addresses, and a freed address may be another pod's by then.
    :param refused: the error text with which the chain's first plugin has refused the ADD; None: it has not.
    :param version: the CNI version of ADD, and of the later DEL. "": the record is torn.
    :param pod_name, namespace, attachment: the arguments of ADD, for a DEL without the pod's own record.
        ``attachment`` is the JSON form of a :class:`~kurma_core.models.network.Attachment`; None: the record is
        torn.
    """

    network: str
    pod: str
    interface: str
    result: Json = None
    leaving: bool = False
    left: tuple[int, ...] = ()
    refused: str | None = None
    version: str = ""
    pod_name: str = ""
    namespace: str = ""
    attachment: Json = None
    joined: bool = False

    def context(self, config: Mapping[str, Json] | None = None) -> AttachmentContext | None:
        """The context for its DEL; None: the record does not contain it.

        :param config: of the network, for a record that is torn.
        """
        if self.attachment is not None:
            try:
                attachment = Attachment.from_json(self.attachment)
            except ValueError:  # damaged
                return replace(self, attachment=None).context(config)
        elif config is not None:
            attachment = Attachment(self.network, "", self.interface, config, NetworkRequest(self.network))
        else:
            return None
        namespace = self.namespace or f"/run/netns/kurma-{self.pod}"
        return AttachmentContext(self.pod, self.pod_name, namespace, self.interface, attachment)


def network_of(context: AttachmentContext) -> str:
    """The network's name as CNI's plugins get it. A network that is chosen from a directory of files has two: this
    one, and the name by which pods request it."""
    return str(context.attachment.config.get("name") or context.attachment.network)


class Records:
    """The records of one driver. ``POD:INTERFACE:NETWORK.json`` under ``results/``, root's alone."""

    def __init__(self, state_dir: str) -> None:
        self.state_dir = state_dir
        self._directory = os.path.join(state_dir, "results")

    def write(self, record: Record) -> None:
        """Writes a record. :raises NetworkError: it cannot be written, for example on a full disk."""
        value = {
            "version": VERSION,
            "network": record.network,
            "pod": record.pod,
            "interface": record.interface,
            "joined": record.joined,
            "leaving": record.leaving,
            "left": list(record.left),
            "refused": record.refused,
            "cni_version": record.version,
            "pod_name": record.pod_name,
            "namespace": record.namespace,
            "attachment": record.attachment,
            "result": record.result,
        }
        path = self._path(record.network, record.pod, record.interface)
        try:
            os.makedirs(self._directory, 0o700, exist_ok=True)
            replace_file(path, json.dumps(value).encode(), 0o600)
        except OSError as error:
            raise NetworkError(
                f'network "{record.network}": cannot write {path}: {error.strerror}',
                network=record.network,
                path=path,
                errno=error.errno,
            ) from error

    def read(self, context: AttachmentContext) -> Record | None:
        """Reads a record; None: there was no ADD, or everything was deleted; or the record is torn, which must not
        prevent a pod's end.

        :raises FormatVersionError: a newer version of this plugin wrote it.
        """
        return _read(self._path(network_of(context), context.pod, context.interface))

    def all(self) -> list[Record]:
        """All records; a torn one has only the fields of its file name.

        :raises FormatVersionError: a newer version of this plugin wrote one.
        """
        found = []
        for network, pod, interface in self.attachments():
            path = self._path(network, pod, interface)
            record = _read(path) or Record(network, pod, interface)
            if os.path.lexists(path):  # it may have been removed meanwhile
                found.append(record)
        return found

    def exists(self, context: AttachmentContext) -> bool:
        """Whether an ADD has begun that no DEL has undone, torn or newer records included."""
        return os.path.lexists(self._path(network_of(context), context.pod, context.interface))

    def remove(self, context: AttachmentContext) -> None:
        """Removes a record; succeeds if there is none."""
        with suppress(FileNotFoundError):
            os.unlink(self._path(network_of(context), context.pod, context.interface))

    def attachments(self) -> list[tuple[str, str, str]]:
        """Network, pod and interface of each record, without reading any."""
        return attachments_in(self._directory)

    def pods(self, network: str) -> tuple[str, ...]:
        """UUIDs of the pods with an attachment to a network, complete or not."""
        return tuple(sorted(pod for name, pod, _ in self.attachments() if name == network))

    @contextmanager
    def lock(self, *, alone: bool = False, name: str = "lock") -> Iterator[None]:
        """Holds a lock while plugins run: shared to add and delete, exclusive (``alone``) to remove shared
        resources."""
        try:
            fd = lock_file(os.path.join(self.state_dir, name), alone=alone)
        except OSError as error:
            raise NetworkError(
                f"cannot write to {self.state_dir}: {error.strerror}", path=self.state_dir, errno=error.errno
            ) from error
        try:
            yield
        finally:
            os.close(fd)

    def _path(self, network: str, pod: str, interface: str) -> str:
        return os.path.join(self._directory, f"{pod}:{interface}:{network}.json")


def _read(path: str) -> Record | None:
    try:
        with open(path, encoding="utf-8") as file:
            value = loads(file.read(), own=True)
        fit(value, _SHAPE, "the record")
        if value["version"] > VERSION:
            raise FormatVersionError(f"{path} has version {value['version']}, this plugin knows {VERSION}")
        return Record(
            network=value["network"],
            pod=value["pod"],
            interface=value["interface"],
            result=value["result"],
            joined=value["joined"],
            leaving=value["leaving"],
            left=tuple(value["left"]),
            refused=value["refused"],
            version=value["cni_version"],
            pod_name=value["pod_name"],
            namespace=value["namespace"],
            attachment=value["attachment"],
        )
    except (FileNotFoundError, ValueError):
        return None


def attachments_in(directory: str) -> list[tuple[str, str, str]]:
    """Network, pod and interface of each record in a directory of records, sorted."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        pod, colon, rest = name.removesuffix(".json").partition(":")
        # An interface's name may contain colons, a network's cannot.
        interface, _, network = rest.rpartition(":")
        if name.endswith(".json") and colon:
            found.append((network, pod, interface))
    return sorted(found)


# --- other state directories of this host --------------------------------------------------------------------
#
# Their pods may be in a network of the same name. GC passes a plugin the valid attachments, and the plugin removes
# all others (CNI specification, GC). So the list must have all attachments of the host, and none may be added or
# deleted meanwhile. Therefore an ADD to a network with GC leaves a link to its records in a common directory of
# the host.

#: The directory of the links. It is empty after a boot, and so are the networks.
OF_THE_HOST = "/run/kurma/cni"


def enrol(state_dir: str, directory: str = OF_THE_HOST) -> None:
    """Makes the link. It can be repeated.

    :raises NetworkError: it cannot be made.
    """
    place = os.path.realpath(state_dir)
    link = os.path.join(directory, hashlib.sha256(os.fsencode(place)).hexdigest()[:16])
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.symlink(place, link)
    except OSError as error:
        raise NetworkError(f"cannot write {link}: {error.strerror}", path=link, errno=error.errno) from error


@contextmanager
def alone(directory: str = OF_THE_HOST) -> Iterator[None]:
    """Holds a lock that all state directories of this host share.

    :raises NetworkError: the lock cannot be taken.
    """
    path = os.path.join(directory, ".chains")
    try:
        lock = lock_file(path)
    except OSError as error:
        raise NetworkError(f"cannot lock {path}: {error.strerror}", path=path, errno=error.errno) from error
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def everybody(state_dir: str, directory: str = OF_THE_HOST) -> Iterator[list[Records]]:
    """The records of all state directories, the own one first. Their locks are held, so that no attachment is
    added or deleted."""
    own = os.path.realpath(state_dir)
    places = {own}
    with suppress(FileNotFoundError):
        for name in os.listdir(directory):
            with suppress(OSError):
                places.add(os.readlink(os.path.join(directory, name)))
    with ExitStack() as stack:
        found = {}
        for place in sorted(places):  # always in this order, so that two processes do not deadlock
            if place == own or os.path.isdir(place):
                found[place] = Records(place)
                stack.enter_context(found[place].lock(alone=True))
        yield [found.pop(own), *found.values()]
