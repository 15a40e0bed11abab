"""Keeps the named volumes of one state directory: creates, finds, lists and removes them.

::

    volumes/                 root's alone: a program of an app may have set-user-ID bits
        .lock                held while a volume is created, and while one is removed
        .new-NAME            is being created; without the lock's holder, a leftover
        .gone-NAME.RANDOM    is being removed; any process may finish that
        NAME/
            volume.json      its record
            .lock            held while the volume is filled for the first time
            data/            what pods mount
            .filling         files of an image on their way in, incomplete
            .filled          the same, complete: they move to data one by one

``data`` and all above it are Kurma's own, so they are named by path. The files in ``data`` are the apps': no path
is followed there.

A process that dies leaves a volume complete or absent. :meth:`VolumeStore.sweep` removes the leftovers.

A pod's definition is on disk before :meth:`VolumeStore.ensure` creates its volumes at a start, and a volume is
removed under the lock under which the definitions are read. So a pod that starts finds its volumes or creates them
again, and does not lose them afterwards.
"""

from __future__ import annotations

import json
import os
import stat

from kurma_core.appc.types import fits, volume_name
from kurma_core.cancellation import lock
from kurma_core.errors import (
    FormatVersionError,
    HostError,
    ManifestError,
    UsageError,
    VolumeError,
    VolumeNotFoundError,
    VolumeStateError,
)
from kurma_core.formats.timestamps import timestamp
from kurma_core.json_text import loads
from kurma_core.linux import files
from kurma_core.linux.beneath import remove_tree
from kurma_core.schema import COUNT, fit
from kurma_core.value import field, frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VERSION = 1
#: The mode of a volume for which neither its creator nor an image decides.
_MODE = 0o755
_NEW, _GONE, _LOCK, _RECORD = ".new-", ".gone-", ".lock", "volume.json"
#: Entries of a volume's directory while it is filled.
FILLING, FILLED = ".filling", ".filled"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANY_VERSION = {"version": COUNT}
_DOCUMENT = {
    "version": COUNT,
    "createdAt": str,
    "labels": {str: str},
    "uid": (COUNT, None),
    "gid": (COUNT, None),
    "mode": (COUNT, None),
    "filled": bool,
}


@frozen
class Volume:
    """The record of a volume.

    :param owner: user and group that the creator chose for its directory; None: as the first image has it.
    :param mode: bits that the creator chose; None: likewise.
    :param filled: a pod has mounted it over a directory of its image, whose files it has got, if it was empty.
    """

    name: str
    created_at: str
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: tuple[int, int] | None = None
    mode: int | None = None
    filled: bool = False


class VolumeStore:
    """The volumes of one state directory; it is made with the first one."""

    def __init__(self, state_dir: str) -> None:
        self.root = f"{state_dir}/volumes"

    def path(self, name: str) -> str:
        """The directory that pods mount."""
        return f"{self.root}/{name}/data"

    def names(self) -> list[str]:
        """Sorted; files of other names are not volumes."""
        try:
            return sorted(name for name in os.listdir(self.root) if fits(volume_name, name))
        except FileNotFoundError:
            return []

    def get(self, name: str) -> Volume:
        """:raises VolumeNotFoundError: there is none. :raises VolumeError: its record is damaged."""
        _check_possible(name)
        path = f"{self.root}/{name}/{_RECORD}"
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            if os.path.isdir(f"{self.root}/{name}"):
                raise _damaged(name, f"no {path}") from None
            raise _missing(name) from None
        except NotADirectoryError:
            raise _damaged(name, f"{self.root}/{name} is not a directory") from None
        except OSError as error:
            raise HostError.of(f"cannot read volume {name}", error) from None
        try:
            value = loads(content, own=True)
            fit(value, _ANY_VERSION, "the document")
            newer = value["version"] > VERSION
            if not newer:
                fit(value, _DOCUMENT, "the document")
        except ValueError as error:
            raise _damaged(name, f"{path}: {error}") from None
        if newer:
            raise FormatVersionError(
                f"{path} was written by a newer Kurma (version {value['version']})", path=path
            )
        owner = None if value["uid"] is None or value["gid"] is None else (value["uid"], value["gid"])
        return Volume(name, value["createdAt"], value["labels"], owner, value["mode"], value["filled"])

    def directory_status(self, name: str) -> os.stat_result:
        """Of the directory that pods mount.

        :raises VolumeNotFoundError: there is no such volume. :raises VolumeError: the directory is missing.
        """
        try:
            status = os.lstat(self.path(name))
        except OSError as error:
            if not os.path.lexists(f"{self.root}/{name}"):
                raise _missing(name) from None
            raise _damaged(name, f"{self.path(name)}: {(error.strerror or '').lower()}") from None
        if not stat.S_ISDIR(status.st_mode):
            raise _damaged(name, f"{self.path(name)} is not a directory")
        return status

    def create(
        self,
        name: str,
        owner: tuple[int, int] | None = None,
        mode: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> bool:
        """Creates a volume; does nothing if it exists with this owner, mode and labels.

        :returns: whether it is new.
        :raises UsageError: the name is wrong. :raises VolumeStateError: it exists with others.
        """
        check_volume_name(name)
        wanted = Volume(name, timestamp(), dict(labels or {}), owner, mode)
        with _guarded(f"cannot create volume {name}"), self._locked():
            if os.path.lexists(f"{self.root}/{name}"):
                found = self.get(name)
                if (found.owner, found.mode, found.labels) == (owner, mode, wanted.labels):
                    return False
                raise VolumeStateError(
                    f"cannot create volume {name}: it exists with another owner, mode or labels",
                    hint=f"kurma volume show {name}",
                    volume=name,
                )
            self._make(wanted)
        return True

    def ensure(self, names: Sequence[str]) -> list[str]:
        """Creates the missing volumes of these names. :returns: the names of the new ones."""
        made = []
        with _guarded("cannot create volumes"), self._locked():
            for name in names:
                if not os.path.lexists(f"{self.root}/{name}"):
                    check_volume_name(name)
                    self._make(Volume(name, timestamp()))
                    made.append(name)
        return made

    def _make(self, volume: Volume) -> None:
        """The caller holds the lock."""
        new = f"{_NEW}{volume.name}"
        self._remove(new)
        place = f"{self.root}/{new}"
        os.mkdir(place, 0o700)
        os.mkdir(f"{place}/data", 0o700)
        if volume.owner is not None:
            os.chown(f"{place}/data", *volume.owner)
        os.chmod(f"{place}/data", _MODE if volume.mode is None else volume.mode)
        _write(place, volume)
        os.rename(place, f"{self.root}/{volume.name}")

    def remove(self, name: str, users: Callable[[str], Sequence[str]]) -> None:
        """Removes a volume with all of its files.

        :param users: gives the names of the pods that use a volume; called under the lock.
        :raises VolumeNotFoundError: there is none. :raises VolumeStateError: pods use it.
        """
        _check_possible(name)
        what = f"cannot remove volume {name}"
        with _guarded(what), self._locked():
            if not os.path.lexists(f"{self.root}/{name}"):
                raise VolumeNotFoundError(f"no volume {name}", hint="kurma volume list", volume=name)
            if pods := users(name):
                raise VolumeStateError(
                    f"{what}: pods use it: {', '.join(pods)}",
                    hint=f"first remove these pods: kurma rm {' '.join(pods)}",
                    volume=name,
                )
            gone = f"{_GONE}{name}.{os.urandom(6).hex()}"
            os.rename(f"{self.root}/{name}", f"{self.root}/{gone}")
        with _guarded(what):
            self._remove(gone)

    def filling(self, name: str) -> files.locked:
        """The lock, as a context manager, under which the volume gets the files of its first image."""
        return files.locked(f"{self.root}/{name}/{_LOCK}", flock=lock)

    def set_filled(self, volume: Volume) -> None:
        """Records that the volume has the files of its first image; the caller holds its lock."""
        _write(f"{self.root}/{volume.name}", replace(volume, filled=True))

    def sweep(self, *, dry_run: bool = False) -> list[str]:
        """Removes what processes that died have left; while another process creates or removes a volume, nothing.

        :returns: the leftovers, as paths below the store.
        """
        if not os.path.isdir(self.root):
            return []
        with _guarded("cannot remove leftovers of volumes"):
            try:
                held = files.lock_file(f"{self.root}/{_LOCK}", wait=False)
            except BlockingIOError:
                return []
            try:
                entries = sorted(os.listdir(self.root))
                made = [name for name in entries if name.startswith(_NEW)]
                filling = [
                    name for name in entries if name[0] != "." and self._left_filling(name, dry_run=dry_run)
                ]
                for name in () if dry_run else made:
                    self._remove(name)
            finally:
                os.close(held)
            gone = [name for name in entries if name.startswith(_GONE)]
            for name in () if dry_run else gone:
                self._remove(name)
        return [*made, *gone, *(f"{name}/{FILLING}" for name in filling)]

    def _left_filling(self, name: str, *, dry_run: bool) -> bool:
        """Removes incomplete files of an image, unless a living process still copies them. The caller holds the
        store's lock. :returns: whether there were any."""
        directory = f"{self.root}/{name}"
        if not os.path.lexists(f"{directory}/{FILLING}"):
            return False
        try:
            held = files.lock_file(f"{directory}/{_LOCK}", wait=False)
        except BlockingIOError:
            return False
        try:
            if not dry_run:
                self._remove(FILLING, directory)
        finally:
            os.close(held)
        return True

    def _remove(self, name: str, directory: str = "") -> None:
        fd = os.open(directory or self.root, _DIRECTORY)
        try:
            remove_tree(fd, name)
        finally:
            os.close(fd)

    def _locked(self) -> files.locked:
        return files.locked(f"{self.root}/{_LOCK}", flock=lock)


def _write(directory: str, volume: Volume) -> None:
    uid, gid = (None, None) if volume.owner is None else volume.owner
    document = {
        "version": VERSION,
        "createdAt": volume.created_at,
        "labels": dict(volume.labels),
        "uid": uid,
        "gid": gid,
        "mode": volume.mode,
        "filled": volume.filled,
    }
    text = json.dumps(document, indent=1) + "\n"
    files.replace_file(f"{directory}/{_RECORD}", text.encode(), alone=True)


def check_volume_name(name: str) -> None:
    """:raises UsageError: no volume can have that name."""
    try:
        volume_name(name, "")
    except ManifestError as error:
        raise UsageError(
            f"{name[:100]!r} is not the name of a volume", hint=f"write {error.data['expected']}"
        ) from None


def _check_possible(name: str) -> None:
    """:raises VolumeNotFoundError: no volume can have that name."""
    if not fits(volume_name, name):
        raise VolumeNotFoundError(f"no volume {name[:100]!r}", hint="kurma volume list", volume=name)


def _missing(name: str) -> VolumeNotFoundError:
    hint = f"kurma volume list; kurma volume create {name}"
    return VolumeNotFoundError(f"no volume {name}", hint=hint, volume=name)


def _damaged(name: str, why: str) -> VolumeError:
    return VolumeError(f"volume {name} is damaged: {why}", hint="kurma volume rm removes it", volume=name)


class _guarded:
    """Turns an OSError into an error with one clear line, as a context manager. :param what: cannot be done."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError):
            raise HostError.of(self._what, error) from None
