"""Pods on disk: one directory each, root's alone, that ``cat`` is enough to understand.

``pods/UUID/`` holds ``pod.json`` (what the pod is: written once), ``state.json`` (how it is: replaced
atomically), ``owner.lock`` and ``op.lock`` (flocks), ``pod/`` (what the stager writes), ``volumes/`` and
``stager/``. ``pods/names/NAME`` is a symbolic link that reserves a name.

The *owner* lock is held for as long as one process looks after the pod; the *op* lock for one change of
``state.json``. A lock's holder that dies frees it, which is how others learn of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from typing import Any

from kurma_core.errors import (
    AmbiguousReferenceError,
    FormatVersionError,
    HostError,
    PodExistsError,
    PodNotFoundError,
)
from kurma_core.linux import beneath
from kurma_core.linux.files import replace_file

Json = Any
VERSION = 1
_HEX = frozenset("0123456789abcdef-")


class PodDirectory:
    """The files of one pod. Cheap to make: it opens nothing by itself."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.uuid = os.path.basename(path)

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    # -- records --

    def read_pod(self) -> dict[str, Json]:
        """``pod.json``. :raises PodNotFoundError: there is none (the pod was never wholly made, or is gone)."""
        return self._read("pod.json")

    def write_pod(self, value: dict[str, Json]) -> None:
        self._write("pod.json", value)

    def read_state(self) -> dict[str, Json]:
        """``state.json``. :raises PodNotFoundError: as :meth:`read_pod`."""
        return self._read("state.json")

    def write_state(self, value: dict[str, Json]) -> None:
        self._write("state.json", value)

    def change_state(self, **changes: Json) -> dict[str, Json]:
        """Reads, changes and replaces ``state.json`` under the op lock; returns the new state."""
        with self.op_lock():
            state = self.read_state()
            state.update(changes)
            self.write_state(state)
            return state

    def _read(self, name: str) -> dict[str, Json]:
        try:
            with open(self.file(name), "rb") as stream:
                value = json.load(stream)
        except FileNotFoundError:
            raise PodNotFoundError(f"pod {self.uuid}: no {name}", pod=self.uuid) from None
        except ValueError as error:
            raise PodNotFoundError(
                f"pod {self.uuid}: {name} is damaged: {error}", hint=f"kurma rm {self.uuid}", pod=self.uuid
            ) from None
        if not isinstance(value, dict) or value.get("version", 0) > VERSION:
            raise FormatVersionError(
                f"pod {self.uuid}: {name} was written by a newer version of kurma", pod=self.uuid
            )
        return value

    def _write(self, name: str, value: dict[str, Json]) -> None:
        try:
            text = json.dumps({"version": VERSION, **value}, indent=1)
            replace_file(self.file(name), text.encode() + b"\n")
        except OSError as error:
            raise HostError(
                f"pod {self.uuid}: cannot write {name}: {os.strerror(error.errno or 0)}",
                errno=error.errno,
                path=self.file(name),
                pod=self.uuid,
            ) from None

    # -- locks --

    def try_own(self) -> int | None:
        """Takes the owner lock. Returns its descriptor (close it to give it up), or None: somebody holds it."""
        fd = self._open_lock("owner.lock")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def owned(self) -> bool:
        """Whether a living process holds the owner lock."""
        try:
            fd = self.try_own()
        except PodNotFoundError:
            return False
        if fd is None:
            return True
        os.close(fd)
        return False

    @contextlib.contextmanager
    def op_lock(self) -> Iterator[None]:
        """The short lock around a change of ``state.json``."""
        fd = self._open_lock("op.lock")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _open_lock(self, name: str) -> int:
        try:
            return os.open(self.file(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            raise PodNotFoundError(f"pod {self.uuid} is gone", pod=self.uuid) from None
        except OSError as error:
            raise HostError(
                f"pod {self.uuid}: cannot open {name}: {os.strerror(error.errno or 0)}",
                errno=error.errno,
                path=self.file(name),
            ) from None


class PodStore:
    """All pods of one state directory.

    :param state_dir: made when the first pod is.
    """

    def __init__(self, state_dir: str) -> None:
        self.root = f"{state_dir}/pods"
        self.names = f"{self.root}/names"

    def create(self, uuid: str, name: str) -> PodDirectory:
        """Makes the pod's directory and reserves its name.

        :raises PodExistsError: the UUID (G11) or the name is taken.
        """
        path = f"{self.root}/{uuid}"
        try:
            os.makedirs(self.names, mode=0o700, exist_ok=True)
            os.mkdir(path, 0o700)
        except FileExistsError:
            raise PodExistsError(
                f"cannot make pod {uuid}: a pod with this UUID exists", hint=f"kurma rm {uuid}", pod=uuid
            ) from None
        except OSError as error:
            raise HostError(
                f"cannot make {path}: {os.strerror(error.errno or 0)}", errno=error.errno, path=path
            ) from None
        try:
            self._reserve(name, uuid)
        except BaseException:
            os.rmdir(path)
            raise
        return PodDirectory(path)

    def _reserve(self, name: str, uuid: str) -> None:
        link = f"{self.names}/{name}"
        for _ in range(3):
            try:
                os.symlink(f"../{uuid}", link)
                return
            except FileExistsError:
                holder = self._name_holder(name)
                if holder is not None:
                    raise PodExistsError(
                        f"cannot name the pod {name}: pod {holder} has that name",
                        hint=f"choose another --name, or: kurma rm {name}",
                        pod=holder,
                    ) from None
                # A dangling link: its pod was removed by a process that died before it freed the name.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(link)
        raise PodExistsError(f"cannot name the pod {name}: the name changes hands too fast")

    def _name_holder(self, name: str) -> str | None:
        try:
            uuid = os.path.basename(os.readlink(f"{self.names}/{name}"))
        except OSError:
            return None
        return uuid if os.path.isdir(f"{self.root}/{uuid}") else None

    def uuids(self) -> list[str]:
        """UUIDs of all pods, wholly made or not, in no order."""
        try:
            with os.scandir(self.root) as entries:
                return [entry.name for entry in entries if entry.name != "names" and entry.is_dir()]
        except FileNotFoundError:
            return []

    def directory(self, uuid: str) -> PodDirectory:
        return PodDirectory(f"{self.root}/{uuid}")

    def find(self, reference: str) -> PodDirectory:
        """The pod of that UUID, unique prefix of one (4 characters or more), or name.

        :raises PodNotFoundError: there is none.
        :raises AmbiguousReferenceError: a prefix fits several.
        """
        if "/" not in reference and reference not in ("", ".", "..", "names"):
            text = reference.lower()
            if os.path.isdir(f"{self.root}/{text}"):
                return self.directory(text)
            holder = self._name_holder(reference)
            if holder is not None:
                return self.directory(holder)
            if len(text) >= 4 and set(text) <= _HEX:
                matches = [uuid for uuid in self.uuids() if uuid.startswith(text)]
                if len(matches) == 1:
                    return self.directory(matches[0])
                if matches:
                    raise AmbiguousReferenceError(
                        f"pod {reference}: {len(matches)} pods begin so",
                        hint="give more of the UUID: " + ", ".join(sorted(matches)[:4]),
                        matches=matches,
                    )
        raise PodNotFoundError(f"no pod {reference}", hint="see: kurma list")

    def delete(self, pod: PodDirectory, name: str | None) -> None:
        """Removes the pod's directory and frees its name. Repeatable. The caller holds the owner lock.

        :raises HostError: something in it cannot be removed (a mount left in it, say).
        """
        try:
            parent = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            beneath.remove_tree(parent, pod.uuid)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise HostError(
                    f"pod {pod.uuid}: cannot remove {pod.path}: {os.strerror(error.errno or 0)}",
                    hint="is something still mounted below it? kurma gc tries again",
                    errno=error.errno,
                    path=pod.path,
                ) from None
        finally:
            os.close(parent)
        if name is not None:
            link = f"{self.names}/{name}"
            with contextlib.suppress(OSError):
                if os.path.basename(os.readlink(link)) == pod.uuid:
                    os.unlink(link)
