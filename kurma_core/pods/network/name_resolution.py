"""Lets pods find each other by name: keeps the members of each network, and updates the hosts files of pods.

One record per state directory lists all pods that can be found by name. The process that starts or ends a pod
changes this record, then the hosts files of the pods that share a network with it, all under one lock. If that
process dies in between, the record is already right; the hosts files are corrected at the next change, at the
latest when the dead process's pod is torn down. There is no polling and no daemon: for a pod that is alone on its
networks, all of this costs one lock and one small file.

A pod can be found only while its network namespace exists. So whatever a crash or a reboot leaves in the record,
no name resolves to an address that another machine or pod may have by now.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from kurma_core.json_text import loads
from kurma_core.linux.files import locked, replace_file
from kurma_core.pods.network import hosts_and_resolv_conf
from kurma_core.schema import SchemaError, fit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kurma_core.models.network import Attachment
    from kurma_core.pods.record.document import PodDocument

Json = Any
#: Directory in ``pod/`` of the pod's directory, which its stager sees as ``/pod``: it has a hosts file for each
#: app, and the file ``.names`` with the lines that each of them must contain.
DIRECTORY, LINES = "hosts", ".names"
_VERSION = 1
_MEMBER = {
    "namespace": str,
    "name": (str, None),
    "hostname": (str, None),
    "own": [str],
    "networks": {str: [str]},
}


class Names:
    """The names of the pods of one state directory. Usable from any process and thread.

    :param pods: path of the directory that holds the pods' directories.
    :param note: called with what could not be done for a pod other than the caller's.
    """

    def __init__(self, state_dir: str, pods: str, note: Callable[[str], None]) -> None:
        self._record = f"{state_dir}/networks/names.json"
        self._lock_file = f"{state_dir}/networks/names.lock"
        self._pods = pods
        self._note = note

    def join(self, document: PodDocument, attachments: Collection[Attachment]) -> None:
        """Records the pod, and updates its hosts files and those of the pods that share a network with it.

        :param attachments: with their results.
        :raises OSError: the record cannot be written.
        """
        networks = {
            one.network: hosts_and_resolv_conf.addresses_of(one)
            for one in hosts_and_resolv_conf.findable(attachments)
        }
        own = [document.hostname, document.name, *[name for _, names in document.hosts for name in names]]
        member = {
            "namespace": document.network_namespace,
            "name": document.name if hosts_and_resolv_conf.is_host_name(document.name) else None,
            "hostname": document.hostname if hosts_and_resolv_conf.is_host_name(document.hostname) else None,
            "own": sorted({name.lower() for name in own}),
            "networks": networks,
        }
        self._make_place(document)
        with locked(self._lock_file):
            members, changed = self._members(document.uuid)
            members[document.uuid] = member
            self._write(members)
            self._tell(members, changed.union(networks))

    def leave(self, uuid: str, attachments: Collection[Attachment] | None) -> None:
        """Removes the pod from the record and from other pods' hosts files. Repeatable; does nothing for a pod
        that never joined.

        :param attachments: None: they are not known any more.
        :raises OSError: the record cannot be written.
        """
        networks = [one.network for one in hosts_and_resolv_conf.findable(attachments or ())]
        if (attachments is not None and not networks) or not os.path.exists(self._record):
            return
        with locked(self._lock_file):
            members, changed = self._members(uuid)
            try:
                self._write(members)
            finally:
                # Also on a full disk: removing lines needs no space.
                self._tell(members, changed.union(networks))

    # -- the record --

    def _members(self, leaving: str) -> tuple[dict[str, Json], set[str]]:
        """Reads the record, without ``leaving`` and without pods whose network namespace is gone.

        :returns: the members by UUID, in the order in which they joined; and the networks of the pods left out.
        """
        try:
            with open(self._record, "rb") as stream:
                value = loads(stream.read(), own=True)
            members = dict(value["pods"]) if value["version"] == _VERSION else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}, set()  # no pod yet; or a damaged record, which the next starts rewrite
        # A pod whose entry is damaged cannot be found until its next start; the others still can.
        members = {uuid: member for uuid, member in members.items() if _is_member(member)}
        gone = {
            uuid for uuid, member in members.items() if uuid == leaving or not os.path.exists(member["namespace"])
        }
        changed = {network for uuid in gone for network in members[uuid]["networks"]}
        return {uuid: member for uuid, member in members.items() if uuid not in gone}, changed

    def _write(self, members: Mapping[str, Json]) -> None:
        if members:
            text = json.dumps({"version": _VERSION, "pods": members}, separators=(",", ":"))
            replace_file(self._record, text.encode(), alone=True)
            return
        for path in (self._record, f"{self._record}.tmp"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    # -- the files --

    def _make_place(self, document: PodDocument) -> None:
        """Makes an empty directory for hosts files; files of the pod's last run are removed, so that they are not
        updated."""
        from kurma_core.linux.beneath import remove_tree

        path = f"{self._pods}/{document.uuid}/pod"
        os.makedirs(path, mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            with contextlib.suppress(FileNotFoundError):
                remove_tree(fd, DIRECTORY)
            os.mkdir(DIRECTORY, 0o700, dir_fd=fd)
            place = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        try:
            os.close(os.open(LINES, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=place))
        finally:
            os.close(place)

    def _tell(self, members: Mapping[str, Json], networks: Collection[str]) -> None:
        """Updates the hosts files of all pods on these networks."""
        told = [uuid for uuid, member in members.items() if any(net in member["networks"] for net in networks)]
        if not told:
            return
        lines = Lines(members)
        for uuid in told:
            try:
                _update(f"{self._pods}/{uuid}/pod/{DIRECTORY}", lines.of(uuid))
            except FileNotFoundError:
                # the pod's directory was removed; the next process that finds the pod tears the rest down
                continue
            except OSError as error:
                self._note(
                    f"pod {uuid}: its hosts files do not know all pods by name: "
                    f"{error.filename or ''}: {error.strerror}"
                )


def _is_member(value: Json) -> bool:
    try:
        fit(value, _MEMBER, "")
    except SchemaError:
        return False
    return "\0" not in value["namespace"]


class Lines:
    """The lines about other pods in each pod's hosts file. A pod's name wins over another pod's host name; the
    reader's own names, and those that its user added, win over both."""

    def __init__(self, members: Mapping[str, Json]) -> None:
        self._members = members
        self._networks: dict[str, _Network] = {}

    def of(self, uuid: str) -> bytes:
        """The lines for that pod's files: all other pods of its networks."""
        member = self._members[uuid]
        return b"".join([self._network(name).told(uuid, member["own"]) for name in member["networks"]])

    def _network(self, name: str) -> _Network:
        if name not in self._networks:
            joined = {uuid: one for uuid, one in self._members.items() if name in one["networks"]}
            self._networks[name] = _Network(name, joined)
        return self._networks[name]


class _Network:
    """The lines of all pods of a network, made once, since the lines for each reader differ little."""

    def __init__(self, name: str, joined: Mapping[str, Json]) -> None:
        names = {one["name"].lower() for one in joined.values() if one["name"]}
        self._addresses = {uuid: one["networks"][name] for uuid, one in joined.items()}
        self._names = {uuid: _names(one, names) for uuid, one in joined.items()}
        self._count = Counter([name.lower() for of in self._names.values() for name in of])
        self._places: dict[str, tuple[int, int]] = {}
        text, end = [], 0
        for uuid in joined:
            line = self._lines(uuid, ())
            text.append(line)
            self._places[uuid] = (end, end + len(line))
            end += len(line)
        self._text = b"".join(text)

    def told(self, uuid: str, own: Collection[str]) -> bytes:
        """The lines for the pod ``uuid``, of all other pods of the network.

        :param own: the reader's own names, in lower case; lines of other pods leave them out.
        """
        mine = [name.lower() for name in self._names[uuid]]
        taken = {name for name in own if self._count[name] > (name in mine)}
        if taken:
            return b"".join([self._lines(other, taken) for other in self._names if other != uuid])
        start, end = self._places[uuid]
        return self._text[:start] + self._text[end:]

    def _lines(self, uuid: str, taken: Collection[str]) -> bytes:
        """One line for each address of that pod, without the names in ``taken``."""
        names = " ".join([name for name in self._names[uuid] if name.lower() not in taken])
        if not names:
            return b""
        tag = hosts_and_resolv_conf.TAG.decode()
        return "".join([f"{address}\t{names}\t{tag}\n" for address in self._addresses[uuid]]).encode()


def _names(member: Mapping[str, Json], names: Collection[str]) -> list[str]:
    """The names by which a pod is found: its name, and its host name unless a pod has that as its name.

    :param names: names of all pods of the network, in lower case.
    """
    name, host = member["name"], member["hostname"]
    found = [name] if name else []
    if host and host != name and host.lower() not in names:
        found.append(host)
    return found


def _update(path: str, lines: bytes) -> None:
    """Updates the hosts files of one pod. :data:`LINES` comes first: a stager that makes an app's hosts file
    meanwhile reads it again (docs/reference/stager_protocol.md)."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        before = hosts_and_resolv_conf.update(directory, LINES, lines, None)
        for name in os.listdir(directory):
            if not name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    hosts_and_resolv_conf.update(directory, name, lines, before)
    finally:
        os.close(directory)
