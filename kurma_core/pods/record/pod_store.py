"""Keeps pods on disk: a directory for each, with records in JSON and locks; only root can read it.

``pods/UUID/`` holds ``pod.json`` (the pod's definition: replaced as a whole when apps are added or removed),
``state.json`` (its state: replaced atomically), ``owner.lock``, ``apps.lock`` and ``op.lock``, ``pod/`` (written
by the stager), ``earlier/`` (logs of earlier runs), ``volumes/`` and ``stager/``. ``pods/names/NAME`` is a
symbolic link that reserves a name.

A process holds the *owner* lock for as long as it owns the pod, from the moment at which the pod's directory
becomes visible; the *apps* lock while it starts the pod or changes its apps; the *op* lock for one change of
``state.json``. Locks are taken in this order. The kernel releases the locks of a process that dies, which is how
other processes notice. The locks are open file description locks (``F_OFD_SETLK``): a process can test whether one
is held without taking it, and so without blocking a process that is about to take it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from _thread import allocate_lock, get_native_id

from kurma_core.errors import (
    AmbiguousReferenceError,
    FormatVersionError,
    HostError,
    KurmaError,
    PodDamagedError,
    PodExistsError,
    PodNotFoundError,
    PodStateError,
)
from kurma_core.json_text import loads
from kurma_core.linux import beneath, files
from kurma_core.linux.files import replace_file, spare_file, use_spare
from kurma_core.pods.record.state import PodState
from kurma_core.schema import SchemaError
from kurma_core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any, TypeVar, cast

    Json = Any
    T = TypeVar("T")
else:
    cast = lambda kind, value: value  # noqa: E731 - typing is not light

VERSION = 1
_HEX = frozenset("0123456789abcdef-")
#: Characters of a UUID prefix that are enough to name a pod.
_SHORTEST = 4
#: ``struct flock``; zeros in it mean the whole file.
_FLOCK = "hhqqi4x"
#: Prefix of a directory that is not yet a pod, or no longer one.
_UNFINISHED = ".half-"
#: Names the stager that has left something of the pod to free (see :mod:`kurma_core.pods.run.recovery`).
REMAINS = "stager/remains"
#: Spare files of a prestarted pod for its first records: two states, and its definition.
_SPARES, _SPARE_POD = ("state.json.spare", "state.json.spare2"), "pod.json.spare"


def new_uuid() -> str:
    """A random UUID (RFC 4122, version 4). The module ``uuid`` takes longer to import than a listing of pods."""
    value = bytearray(os.urandom(16))
    value[6] = value[6] & 0x0F | 0x40
    value[8] = value[8] & 0x3F | 0x80
    text = value.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class _Kept:
    """A cached record, and the identity of its file.

    :param fd: of that file, opened with O_PATH: while it is open, the kernel gives its inode number to no other
        file.
    """

    __slots__ = ("fd", "stamp", "value")

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.stamp = _stamp(os.fstat(self.fd))
        self.value: Any = None


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class PodDirectory:
    """The files of one pod. Cheap to make: it opens nothing by itself.

    Each access to a record reads its file. For the pod's owner, which reads often, :meth:`keep_records` caches
    records until another process replaces their files.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.uuid = os.path.basename(path)
        self._kept: dict[str, _Kept] | None = None
        self._lock = allocate_lock()
        self._spares: list[str] = []
        #: Whether this process has called :meth:`spare`, so that it must call :meth:`drop_spare`.
        self.spared = False

    def moved_to(self, path: str) -> PodDirectory:
        """This directory after its renaming."""
        found = PodDirectory(path)
        found._spares, found.spared = self._spares, self.spared
        return found

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def has_remains(self) -> bool:
        """Whether the stager has left something to free (:mod:`kurma_core.pods.run.recovery`)."""
        return os.path.lexists(self.file(REMAINS))

    # -- records --

    def keep_records(self) -> None:
        """Caches records: reads one again only if its file was replaced. The caller must call :meth:`drop_records`
        later."""
        if self._kept is None:
            self._kept = {}

    def drop_records(self) -> None:
        """Closes the files that :meth:`keep_records` holds open. Repeatable."""
        with self._lock:
            kept, self._kept = self._kept, None
        for one in (kept or {}).values():
            os.close(one.fd)

    def record(self, name: str, read: Callable[[], T]) -> T:
        """The value of a record. :param read: reads the file."""
        if self._kept is None:
            return read()
        with self._lock:
            kept = (self._kept or {}).get(name)
            with contextlib.suppress(OSError):
                if kept is not None and _stamp(os.stat(self.file(name))) == kept.stamp:
                    return cast("T", kept.value)
        # The file is opened before it is read: if it is replaced in between, the next access reads it again.
        return self._keep(name, read)

    def _keep(self, name: str, read: Callable[[], T]) -> T:
        """Reads a record and caches it.

        :param read: gives the value of the record that is there now.
        """
        try:
            found = _Kept(self.file(name))
        except OSError:
            return read()  # it is gone, or damaged
        try:
            found.value = value = read()
        except BaseException:
            os.close(found.fd)
            raise
        with self._lock:
            before: _Kept | None = found
            if self._kept is not None:
                before, self._kept[name] = self._kept.get(name), found
        if before is not None:
            os.close(before.fd)
        return value

    def read_pod(self) -> dict[str, Json]:
        """``pod.json``.

        :raises PodNotFoundError: there is none: the pod was never wholly made, or is gone.
        :raises PodDamagedError: it cannot be parsed.
        :raises FormatVersionError: a newer version wrote it.
        """
        return self._read("pod.json")

    def write_pod(self, value: dict[str, Json], document: object = None) -> None:
        """Replaces ``pod.json``.

        :param document: the same value as a :class:`PodDocument`, for the cache of :meth:`keep_records`.
        """
        with self._writing("pod.json"):
            use_spare(self.file(_SPARE_POD), self.file("pod.json"), _lines(value))
        if self._kept is not None and document is not None:
            self._keep("pod.json", lambda: document)

    def read_state(self) -> PodState:
        """``state.json``. :raises: as :meth:`read_pod`."""
        return self.record("state.json", self._read_state)

    def _read_state(self) -> PodState:
        try:
            return PodState.from_json(self._read("state.json"), "the record")
        except SchemaError as error:
            raise self.damaged("state.json", str(error)) from None

    def raw(self, name: str) -> Json:
        """Content of a record that may be damaged; None: it is not even JSON."""
        try:
            with open(self.file(name), "rb") as stream:
                return loads(stream.read(), own=True)
        except (OSError, ValueError):
            return None

    def read_steps(self) -> list[str]:
        """The steps on record; empty if there is no record yet."""
        try:
            return list(self.read_state().steps)
        except PodNotFoundError:
            return []

    def write_state(self, state: PodState) -> None:
        """Replaces ``state.json``, by a spare file of :meth:`spare` while there is one left.

        The caller holds the op lock, or is the only process that knows of the pod.
        """
        path, lines = self.file("state.json"), _lines(state.to_json())
        with self._writing("state.json"):
            if self._spares:
                use_spare(self.file(self._spares.pop(0)), path, lines)
            else:
                replace_file(path, lines)
        if self._kept is not None:
            self._keep("state.json", lambda: state)

    def spare(self, state: PodState) -> None:
        """Makes files for the pod's first records, so that :meth:`write_state` and :meth:`write_pod` need not make
        new ones then. The caller must call :meth:`drop_spare` later.

        :param state: the present content of ``state.json``.
        """
        with self._writing("state.json"):
            for name in _SPARES:
                spare_file(self.file(name), _lines(state.to_json()))
            # A second link to each file that will be renamed over: otherwise the rename would free the old file,
            # and the start of the pod would wait for that.
            for name in ("state.json", *_SPARES[:-1]):
                os.link(self.file(name), self.file(f"{name}.old"))
        with self._writing("pod.json"):
            spare_file(self.file(_SPARE_POD), b"")
        self._spares, self.spared = list(_SPARES), True

    def drop_spare(self) -> None:
        """Removes the remaining files of :meth:`spare`, also of a process that died. Repeatable."""
        self._spares, self.spared = [], False
        for name in (*_SPARES, *(f"{name}.old" for name in ("state.json", *_SPARES[:-1])), _SPARE_POD):
            with contextlib.suppress(OSError):
                os.unlink(self.file(name))

    def change_state(self, *, only_in: Collection[str] | None = None, **changes: Any) -> PodState:
        """Reads, changes and replaces ``state.json`` under the op lock.

        :param only_in: change nothing unless the pod is in one of these states.
        :param changes: fields of :class:`PodState`.
        :returns: the resulting state.
        """
        with self.op_lock():
            state = self.read_state()
            if only_in is None or state.state in only_in:
                state = replace(state, **changes)
                self.write_state(state)
            return state

    def move_to(self, state: str, *, only_in: Collection[str]) -> bool:
        """Replaces the state under the op lock, if it is one of ``only_in``. :returns: whether it was."""
        with self.op_lock():
            now = self.read_state()
            if now.state not in only_in:
                return False
            self.write_state(replace(now, state=state))
            return True

    def _read(self, name: str) -> dict[str, Json]:
        try:
            with open(self.file(name), "rb") as stream:
                value = loads(stream.read(), own=True)
        except FileNotFoundError:
            raise PodNotFoundError(f"pod {self.uuid}: no {name}", pod=self.uuid) from None
        except ValueError as error:
            raise self.damaged(name, str(error)) from None
        except OSError as error:
            raise self.damaged(name, os.strerror(error.errno or 0)) from None
        version = value.get("version") if isinstance(value, dict) else None
        if type(version) is not int:
            raise self.damaged(name, "it has no version")
        if version > VERSION:
            raise FormatVersionError(
                f"pod {self.uuid}: {name} was written by a newer version of kurma", pod=self.uuid
            )
        return dict(value)

    def damaged(self, name: str, why: str) -> PodDamagedError:
        """Makes the error for a record that cannot be parsed."""
        return PodDamagedError(
            f"pod {self.uuid}: {name} is damaged: {why}", hint=f"kurma rm {self.uuid}", pod=self.uuid
        )

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """:raises HostError: that file cannot be written."""
        try:
            yield
        except OSError as error:
            raise HostError(
                f"pod {self.uuid}: cannot write {name}: {os.strerror(error.errno or 0)}",
                errno=error.errno,
                path=self.file(name),
                pod=self.uuid,
            ) from None

    # -- locks --

    def try_own(self, patience: float = 0.0) -> int | None:
        """Takes the owner lock.

        :param patience: seconds to wait for it: a process that takes it only for a recovery soon releases it.
        :returns: its descriptor (close it to release the lock); None: another process holds it.
        """
        return self._try_lock("owner.lock", patience)

    def _try_lock(self, name: str, patience: float) -> int | None:
        deadline = time.monotonic() + patience
        fd = self._open_lock(name)
        while True:
            try:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
                return fd
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    return None
            time.sleep(0.01)

    def owned(self) -> bool:
        """Whether a living process holds the owner lock. Takes no lock and writes nothing."""
        return self._locked("owner.lock")

    def _locked(self, name: str) -> bool:
        try:
            fd = self._open_lock(name, os.O_RDONLY)
        except PodNotFoundError:
            return False
        try:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
        finally:
            os.close(fd)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)

    @contextlib.contextmanager
    def apps_lock(self, patience: float) -> Iterator[None]:
        """Locks the pod's apps: only the holder may add, remove, start or stop them.

        :param patience: seconds to wait for it.
        :raises PodStateError: another process holds it for longer.
        """
        fd = self._try_lock("apps.lock", patience)
        if fd is None:
            raise PodStateError(
                f"pod {self.uuid}: another process changes its apps", hint="try again in a moment", pod=self.uuid
            )
        try:
            yield
        finally:
            os.close(fd)

    def apps_locked(self) -> bool:
        """Whether a living process holds the apps lock."""
        return self._locked("apps.lock")

    @contextlib.contextmanager
    def op_lock(self) -> Iterator[None]:
        """The short lock around a change of ``state.json``."""
        fd = self._open_lock("op.lock")
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            yield
        finally:
            os.close(fd)

    def _open_lock(self, name: str, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        try:
            return os.open(self.file(name), flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            raise PodNotFoundError(f"pod {self.uuid} is gone", pod=self.uuid) from None
        except OSError as error:
            raise HostError(
                f"pod {self.uuid}: cannot open {name}: {os.strerror(error.errno or 0)}",
                errno=error.errno,
                path=self.file(name),
            ) from None


def _lines(value: dict[str, Json]) -> bytes:
    """A record as JSON with one line for each key: easy for people to read, and the values are written by the
    encoder's C code."""
    import json  # not for a listing, which writes nothing

    lines = [f"{json.dumps(key)}: {json.dumps(part)}" for key, part in {"version": VERSION, **value}.items()]
    return ("{\n " + ",\n ".join(lines) + "\n}\n").encode()


class PodStore:
    """All pods of one state directory.

    :param state_dir: made when the first pod is.
    """

    def __init__(self, state_dir: str) -> None:
        self.root = f"{state_dir}/pods"
        self.names = f"{self.root}/names"

    def make(self) -> None:
        """Makes its directories in an existing state directory. :raises OSError: they cannot be made."""
        for place, mode in ((self.root, 0o777), (self.names, 0o700)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(place, mode)

    def reserve(self, uuid: str, *, anew: bool = True) -> tuple[PodDirectory, int]:
        """Makes a directory for a future pod, hidden from listings.

        :param anew: False: fail if the state directory has been removed meanwhile.
        :returns: it, and its owner lock.
        :raises HostError: it cannot be made.
        """
        path = f"{self.root}/{_UNFINISHED}{uuid}.{get_native_id()}"
        lock: int | None = None
        try:
            if anew:
                os.makedirs(self.names, mode=0o700, exist_ok=True)
            else:
                self.make()
            files.spread(self.root)
            os.mkdir(path, 0o700)
            lock = PodDirectory(path).try_own()
            assert lock is not None
        except OSError as error:
            self._discard(path, lock)
            raise HostError(
                f"cannot make {path}: {os.strerror(error.errno or 0)}", errno=error.errno, path=path
            ) from None
        except BaseException:
            self._discard(path, lock)
            raise
        return PodDirectory(path), lock

    def create(self, uuid: str, name: str) -> tuple[PodDirectory, int]:
        """Makes the pod's directory and reserves its name.

        :returns: the directory, and the owner lock: the pod is never visible without an owner.
        :raises PodExistsError: the UUID or the name is taken.
        """
        new, lock = self.reserve(uuid)
        try:
            return self.publish(new, uuid, name), lock
        except BaseException:
            self._discard(new.path, lock)
            raise

    def publish(self, reserved: PodDirectory, uuid: str, name: str) -> PodDirectory:
        """Turns a directory of :meth:`reserve`, with its contents, into a pod's directory, and reserves the name.

        :raises PodExistsError: the UUID or the name is taken; the directory is unchanged.
        """
        path = f"{self.root}/{uuid}"
        try:
            os.rename(reserved.path, path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise PodExistsError(
                    f"cannot make pod {uuid}: a pod with this UUID exists", hint=f"kurma rm {uuid}", pod=uuid
                ) from None
            raise HostError(
                f"cannot make {path}: {os.strerror(error.errno or 0)}", errno=error.errno, path=path
            ) from None
        try:
            self._reserve(name, uuid)
        except BaseException:
            os.rename(path, reserved.path)
            raise
        return reserved.moved_to(path)

    def reserved(self) -> dict[str, PodDirectory]:
        """By UUID, directories of :meth:`reserve` that did not become pods, whether their owners are alive or
        not."""
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.root):
                if name.startswith(_UNFINISHED):
                    found[name.removeprefix(_UNFINISHED).partition(".")[0]] = PodDirectory(f"{self.root}/{name}")
        return found

    def discard(self, reserved: PodDirectory) -> None:
        """Removes a directory of :meth:`reserve`. The caller holds its lock."""
        self._discard(reserved.path, None)

    def _discard(self, path: str, lock: int | None) -> None:
        """Removes a directory that did not become a pod, or is no longer one."""
        # the caller reports why it did not become one
        with contextlib.suppress(OSError), _opened(self.root) as root:
            beneath.remove_tree(root, os.path.basename(path))
        if lock is not None:
            os.close(lock)

    @contextlib.contextmanager
    def workplace(self) -> Iterator[str]:
        """A directory for this process on the pods' file system; removed at the end of the block, or by
        :meth:`sweep` if the process died.

        :raises HostError: it cannot be made.
        """
        path = f"{self.root}/{_UNFINISHED}work.{os.urandom(8).hex()}"
        try:
            os.makedirs(path, mode=0o700)
        except OSError as error:
            raise HostError(
                f"cannot make {path}: {os.strerror(error.errno or 0)}", errno=error.errno, path=path
            ) from None
        lock = PodDirectory(path).try_own()
        try:
            yield path
        finally:
            self._discard(path, lock)

    def sweep(self, grace: float) -> None:
        """Removes the directories of processes that died while they made or removed a pod, and frees the names of
        pods that are gone.

        :param grace: minimum age in seconds; a living process needs much less.
        """
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.root):
                path = f"{self.root}/{name}"
                if not name.startswith(_UNFINISHED) or PodDirectory(path).owned():
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - os.stat(path).st_ctime >= grace:
                        self._discard(path, None)
            for name in os.listdir(self.names):
                link = f"{self.names}/{name}"
                with contextlib.suppress(OSError):
                    old = time.time() - os.lstat(link).st_ctime >= grace
                    if old and self._name_holder(name) is None:
                        os.unlink(link)

    def _reserve(self, name: str, uuid: str) -> None:
        link = f"{self.names}/{name}"
        for _ in range(3):
            try:
                os.symlink(f"../{uuid}", link)
                return
            except OSError as error:
                if error.errno != errno.EEXIST:
                    raise HostError(
                        f"cannot make {link}: {os.strerror(error.errno or 0)}", errno=error.errno, path=link
                    ) from None
                holder = self._name_holder(name)
                if holder is not None:
                    raise PodExistsError(
                        f"cannot name the pod {name}: pod {holder} has that name",
                        hint=f"choose another --name, or: kurma rm {name}",
                        pod=holder,
                    ) from None
                # A dangling link: a process that died removed the pod, and had not yet freed the name.
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
        """UUIDs of all pods, also of partly made ones, in no order."""
        try:
            with os.scandir(self.root) as entries:
                return [
                    entry.name
                    for entry in entries
                    if entry.name != "names" and not entry.name.startswith(".") and entry.is_dir()
                ]
        except FileNotFoundError:
            return []

    def directory(self, uuid: str) -> PodDirectory:
        return PodDirectory(f"{self.root}/{uuid}")

    def find(self, reference: str) -> PodDirectory:
        """The pod with that UUID, unique prefix of one (4 characters or more), or name.

        :raises PodNotFoundError: there is none.
        :raises AmbiguousReferenceError: several pods have that prefix.
        """
        if not {"/", "\0"} & set(reference) and not reference.startswith(".") and reference not in ("", "names"):
            text = reference.lower()
            if os.path.isdir(f"{self.root}/{text}"):
                return self.directory(text)
            holder = self._name_holder(reference)
            if holder is not None:
                return self.directory(holder)
            if len(text) >= _SHORTEST and set(text) <= _HEX:
                matches = [uuid for uuid in self.uuids() if uuid.startswith(text)]
                if len(matches) == 1:
                    return self.directory(matches[0])
                if matches:
                    raise AmbiguousReferenceError(
                        f"pod {reference}: {len(matches)} pods begin so",
                        hint="give more of the UUID: " + ", ".join(sorted(matches)[:4]),
                        matches=matches,
                    )
        short = 0 < len(reference) < _SHORTEST and set(reference.lower()) <= _HEX
        raise PodNotFoundError(
            f"no pod {reference}",
            hint=f"see: kurma list; of a UUID, {_SHORTEST} characters are needed" if short else "see: kurma list",
        )

    def name_of(self, uuid: str) -> str | None:
        """The name that a pod has reserved, found among the links, for a pod whose own record cannot be read."""
        with contextlib.suppress(OSError), os.scandir(self.names) as entries:
            for entry in entries:
                if os.path.basename(os.readlink(entry.path)) == uuid:
                    return entry.name
        return None

    def delete(self, pod: PodDirectory, name: str | None) -> None:
        """Removes the pod's directory and frees its name. Repeatable. The caller holds the owner lock.

        Its records go last, and all at once by a rename, so that the pod is never visible without some of them.

        :raises HostError: something in it cannot be removed (a mount left in it, say).
        """
        gone = f"{_UNFINISHED}{pod.uuid}.{get_native_id()}"
        try:
            with _opened(pod.path) as directory:
                for entry in os.listdir(directory):
                    if not entry.endswith((".json", ".lock")):
                        beneath.remove_tree(directory, entry)
            with _opened(self.root) as root:
                os.rename(pod.uuid, gone, src_dir_fd=root, dst_dir_fd=root)
                beneath.remove_tree(root, gone)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise HostError(
                    f"pod {pod.uuid}: cannot remove {pod.path}: {os.strerror(error.errno or 0)}",
                    hint="is something still mounted below it? kurma gc tries again",
                    errno=error.errno,
                    path=pod.path,
                ) from None
        if name is not None:
            link = f"{self.names}/{name}"
            with contextlib.suppress(OSError):
                if os.path.basename(os.readlink(link)) == pod.uuid:
                    os.unlink(link)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def unwritable(error: KurmaError) -> bool:
    """Whether the write failed because the disk or a quota is full, or the file system is read-only."""
    return error.data.get("errno") in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
