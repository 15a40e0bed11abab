"""Records of each pod's network attachments and pinned namespaces, written before these are made.

``networks/pods/UUID`` in the state directory: a line of JSON with the attachments, then a line for each namespace
that was made (``net 4026532567``: its kind and inode). All state directories of a host pin namespaces in the same
places; a namespace without a record here belongs to another program and stays. The record outlives the pod's own
directory.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from kurma_core.errors import HostError
from kurma_core.json_text import loads
from kurma_core.linux import namespaces
from kurma_core.linux.process import boot_id
from kurma_core.models.network import Attachment
from kurma_core.schema import fit
from kurma_core.value import frozen, replace

Json = Any
VERSION = 1
#: Where a namespace of each kind is pinned, and the kind's name for people.
PINS: Mapping[str, tuple[str, str]] = {
    "net": ("/run/netns/kurma-{}", "network namespace"),
    "user": ("/run/kurma/userns/{}", "user namespace"),
}
#: Schema of the record.
_RECORD = {"name": str, "boot": str, "attachments": [dict]}


def pin_path(kind: str, uuid: str) -> str:
    """Where that pod's namespace is pinned. :param kind: ``net`` or ``user``."""
    return PINS[kind][0].format(uuid)


@frozen
class JoinRecord:
    """The record of one pod.

    :param boot: ID of the boot in which the namespaces were made.
    :param attachments: the planned attachments.
    :param made: the inodes of the namespaces that were made, by kind. One that is missing may be in the making.
    """

    uuid: str
    name: str
    boot: str
    attachments: tuple[Attachment, ...]
    made: Mapping[str, int]


class JoinRecords:
    """The records of one state directory. Cheap to make."""

    def __init__(self, state_dir: str) -> None:
        self._directory = os.path.join(state_dir, "networks", "pods")
        # Records that this process wrote, in case the state directory is removed or moved meanwhile.
        self._own: dict[str, JoinRecord] = {}

    def path(self, uuid: str) -> str:
        return f"{self._directory}/{uuid}"

    # -- a pod's start and end --

    def begin(
        self,
        uuid: str,
        name: str,
        attachments: Iterable[Attachment],
        kinds: Iterable[str],
        *,
        kept: Collection[str] = (),
    ) -> Collection[str]:
        """Records the namespaces that will be made, and clears their places: of an earlier run's namespaces, and
        of empty files, as after a reboot that has not emptied /run.

        :param kinds: of the namespaces to be made.
        :param kept: those of them that this process has made before, for a prestarted pod.
        :returns: those of ``kept`` that still exist; the caller makes the others.
        :raises HostError: a place is in use by another program; or the record cannot be written.
        """
        wanted = tuple(kinds)
        own = self._own.get(uuid)
        made = {} if own is None else {kind: own.made[kind] for kind in kept if _is_there(own, kind)}
        # A process that prestarted this pod has cleared its places already.
        if not made and self.read(uuid) is not None:
            for kind in PINS:
                self.release(uuid, kind)
        for kind in wanted:
            if kind not in made:
                clear(kind, pin_path(kind, uuid))
        record = JoinRecord(uuid, name, boot_id(), tuple(attachments), made)
        value = {
            "version": VERSION,
            "name": name,
            "boot": record.boot,
            "attachments": [attachment.to_json() for attachment in record.attachments],
        }
        lines = [json.dumps(value), *(f"{kind} {inode}" for kind, inode in made.items())]
        # Without O_TRUNC if namespaces exist: after a kill during the write, the record still names them as ours.
        self._write(uuid, 0 if made else os.O_TRUNC, "\n".join(lines))
        self._own[uuid] = record
        return tuple(made)

    def made(self, uuid: str, kind: str) -> None:
        """Records that the namespace was made and pinned. :raises HostError: the record cannot be written."""
        inode = os.stat(pin_path(kind, uuid)).st_ino
        record = self._own[uuid]
        self._own[uuid] = replace(record, made={**record.made, kind: inode})
        self._write(uuid, os.O_APPEND, f"{kind} {inode}")

    def _write(self, uuid: str, flag: int, line: str) -> None:
        # Written in place: a torn record belongs to a pod that has no namespaces yet.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flag
        path = self.path(uuid)
        try:
            try:
                fd = os.open(path, flags, 0o600)
            except FileNotFoundError:
                os.makedirs(self._directory, 0o700, exist_ok=True)
                fd = os.open(path, flags, 0o600)
            try:
                text = line.encode() + b"\n"
                if os.write(fd, text) != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(fd)
        except OSError as error:
            raise HostError(
                f"pod {uuid}: cannot write {path}: {error.strerror}", errno=error.errno, path=path, pod=uuid
            ) from None

    def release(self, uuid: str, kind: str) -> None:
        """Unpins the pod's namespace, if this state directory has made it, with all mounts over it. With the
        host's last user namespace, their directory is removed, too. It can be repeated.

        :raises OSError: it cannot be unmounted.
        """
        if self.holds(uuid, kind):
            namespaces.unpin(pin_path(kind, uuid))
        if kind == "user":
            self.tidy()

    @staticmethod
    def tidy() -> None:
        """Removes Kurma's directory of user namespaces, if it is empty. It can be repeated.

        :raises OSError: it cannot be unmounted.
        """
        namespaces.unshare_directory(os.path.dirname(pin_path("user", "")))

    def forget(self, uuid: str) -> None:
        """Removes the record, when everything is undone. If that fails, the check for leaks finds the record."""
        self._own.pop(uuid, None)
        with suppress(OSError):
            os.unlink(self.path(uuid))

    # -- looking --

    def uuids(self) -> list[str]:
        """The UUIDs of all pods that have a record, in no order."""
        try:
            return os.listdir(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, uuid: str) -> JoinRecord | None:
        """Reads a record; None: there is none. A torn or damaged record counts as one without namespaces."""
        try:
            with open(self.path(uuid), "rb") as file:
                head, *lines = file.read().decode(errors="replace").splitlines() or [""]
        except OSError:
            return None
        made = {}
        for line in lines:
            kind, _, inode = line.partition(" ")
            if kind in PINS and inode.isdecimal() and len(inode) < 20:
                made[kind] = int(inode)
        try:
            value = loads(head, own=True)
            fit(value, _RECORD, "the record")
            attachments = tuple(Attachment.from_json(one) for one in value["attachments"])
            return JoinRecord(uuid, value["name"], value["boot"], attachments, made)
        except ValueError:
            return JoinRecord(uuid, "", "", (), made)

    def holds(self, uuid: str, kind: str) -> bool:
        """Whether the pod's place for that namespace is ours: it has our namespace, or an empty file to pin it
        on."""
        record = self.read(uuid) or self._own.get(uuid)
        if record is None:
            return False
        path = pin_path(kind, uuid)
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return False
        inode = record.made.get(kind)
        this_boot = record.boot == boot_id()
        if found.st_dev == _device_of_namespaces() and this_boot and inode in (None, found.st_ino):
            return True
        on_it = namespaces.mounted_on(path)
        if not on_it:
            return _is_empty_file(found)
        # Another mount is on top of it.
        return this_boot and f"{kind}:[{inode}]" in on_it


def _is_there(record: JoinRecord, kind: str) -> bool:
    """Whether the namespace that this process has made is still pinned."""
    try:
        found = os.lstat(pin_path(kind, record.uuid))
    except OSError:
        return False
    return found.st_dev == _device_of_namespaces() and found.st_ino == record.made.get(kind)


def clear(kind: str, path: str) -> None:
    """Clears the place for a pod's namespace: removes an empty file.

    :raises HostError: the place is in use.
    """
    what = PINS[kind][1]
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    try:
        if _is_empty_file(found) and not namespaces.mounted_on(path):
            os.unlink(path)
            return
    except OSError as error:
        raise HostError(f"cannot make the {what} {path}: {error.strerror}", path=path, errno=error.errno) from None
    raise HostError(
        f"cannot make the {what} {path}: something that is not this pod's exists there",
        hint="does a pod of another state directory have the same UUID? else look, and remove it: umount and rm",
        path=path,
        errno=errno.EEXIST,
    )


def _is_empty_file(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and not found.st_size and found.st_dev != _device_of_namespaces()


def _device_of_namespaces() -> int:
    return os.stat("/proc/self/ns/net").st_dev
