"""Reads and writes the records of one pod, and takes its locks; only root can read them.

``pods/UUID/`` holds ``pod.json`` (the pod's definition: replaced as a whole when apps are added or removed),
``state.json`` (its state: replaced atomically), ``owner.lock``, ``apps.lock`` and ``op.lock``, ``pod/`` (written
by the stager), ``earlier/`` (logs of earlier runs), ``volumes/`` and ``stager/``.

A process holds the *owner* lock for as long as it owns the pod, from the moment at which the pod's directory
becomes visible; the *apps* lock while it starts a pod that was prepared or ran before, or changes a pod's apps;
the *op* lock for one change of ``state.json``. Locks are taken in this order. The kernel releases the locks of a
process that dies, which is how other processes notice. The locks are open file description locks
(``F_OFD_SETLK``): a process can test whether one is held without taking it, and so without blocking a process that
is about to take it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from _thread import allocate_lock

from kurma_core.errors import (
    FormatVersionError,
    HostError,
    KurmaError,
    ManifestError,
    PodDamagedError,
    PodNotFoundError,
    PodStateError,
)
from kurma_core.json_text import loads
from kurma_core.linux.files import replace_file, spare_file, use_spare
from kurma_core.pods.record.document import PodDocument
from kurma_core.pods.record.state import PodState
from kurma_core.schema import SchemaError
from kurma_core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any, TypeVar, cast

    Json = Any
    T = TypeVar("T")
    Recover = Callable[["PodDirectory"], None]
else:
    cast = lambda kind, value: value  # noqa: E731 - typing is not light

VERSION = 1
#: ``struct flock``; zeros in it mean the whole file.
_FLOCK = "hhqqi4x"
#: Names the stager that has left something of the pod to free (see :mod:`kurma_core.pods.run.recovery`).
REMAINS = "stager/remains"
#: Parsed records that are kept.
_MOST_PARSED = 64
#: Errors of reading a record that say nothing about it: this process has too many open files, for example.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: Spare files of a prestarted pod for its first records: two states, and its definition.
_SPARES, _SPARE_POD = ("state.json.spare", "state.json.spare2"), "pod.json.spare"


class _Parsed:
    """The values of the records that this process has read or written last.

    The text of a record is read each time, since other processes replace the files, too. Only a text that differs
    from the last one is parsed: that takes a hundred times as long.
    """

    def __init__(self) -> None:
        self._lock = allocate_lock()
        #: Text and value by path, the least recently used first.
        self._values: dict[str, tuple[bytes, Any]] = {}

    def find(self, path: str, text: bytes) -> Any:
        """The value of that text; None: it is not here."""
        with self._lock:
            known = self._values.pop(path, None)
            if known is None or known[0] != text:
                return None
            self._values[path] = known
        return known[1]

    def keep(self, path: str, text: bytes, value: object) -> None:
        with self._lock:
            self._values.pop(path, None)
            self._values[path] = (text, value)
            if len(self._values) > _MOST_PARSED:
                del self._values[next(iter(self._values))]


_parsed = _Parsed()


class PodDirectory:
    """The files of one pod. Cheap to make: it opens nothing by itself. Each access to a record reads its file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.uuid = os.path.basename(path)
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

    def read_pod(self) -> dict[str, Json]:
        """``pod.json`` as JSON.

        :raises PodNotFoundError: there is none: the pod was never wholly made, or is gone.
        :raises PodDamagedError: it cannot be parsed.
        :raises FormatVersionError: a newer version wrote it.
        :raises HostError: it cannot be read for want of descriptors or memory.
        """
        return self._json("pod.json", self._text("pod.json"))

    def write_pod(self, document: PodDocument) -> None:
        """Replaces ``pod.json``."""
        path, text = self.file("pod.json"), _lines(document.to_json())
        with self._writing("pod.json"):
            use_spare(self.file(_SPARE_POD), path, text)
        _parsed.keep(path, text, document)

    def read_document(self) -> PodDocument:
        """``pod.json`` as a :class:`PodDocument`. :raises: as :meth:`read_pod`."""
        return self._record("pod.json", self._document)

    def _document(self, value: dict[str, Json]) -> PodDocument:
        try:
            document = PodDocument.from_json(value)
        except (ValueError, ManifestError) as error:
            raise self.damaged("pod.json", str(error)) from None
        if document.uuid != self.uuid:
            raise self.damaged("pod.json", f"it is of pod {document.uuid[:36]!a}")
        return document

    def read_records(self, recover: Recover | None = None) -> tuple[PodDocument, PodState]:
        """The pod's definition and its state.

        :param recover: takes down a dead pod that has no owner; None: dead pods are left as they are.
        :raises PodNotFoundError: it does not exist, or is not wholly made.
        :raises KurmaError: its records cannot be read.
        """
        try:
            state = self.read_state()
        except PodNotFoundError:
            if recover is None or self.owned():
                raise
            recover(self)
            state = self.read_state()
        else:
            if recover is not None and state.unsettled and not self.owned():
                recover(self)
                state = self.read_state()
        return self.read_document(), state

    def read_state(self) -> PodState:
        """``state.json``. :raises: as :meth:`read_pod`."""
        return self._record("state.json", self._state)

    def _state(self, value: dict[str, Json]) -> PodState:
        try:
            return PodState.from_json(value, "the record")
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
        _parsed.keep(path, lines, state)

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

    def _record(self, name: str, parse: Callable[[dict[str, Json]], T]) -> T:
        """The value of a record. :param parse: makes it of the record's JSON."""
        path, text = self.file(name), self._text(name)
        value = _parsed.find(path, text)
        if value is None:
            value = parse(self._json(name, text))
            _parsed.keep(path, text, value)
        return cast("T", value)

    def _text(self, name: str) -> bytes:
        try:
            with open(self.file(name), "rb") as stream:
                return stream.read()
        except FileNotFoundError:
            raise PodNotFoundError(f"pod {self.uuid}: no {name}", pod=self.uuid) from None
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise HostError.of(f"pod {self.uuid}: cannot read {name}", error) from None
            raise self.damaged(name, os.strerror(error.errno or 0)) from None

    def _json(self, name: str, text: bytes) -> dict[str, Json]:
        try:
            value = loads(text, own=True)
        except ValueError as error:
            raise self.damaged(name, str(error)) from None
        version = value.get("version") if isinstance(value, dict) else None
        if type(version) is not int:
            raise self.damaged(name, "it has no version")
        if version > VERSION:
            raise FormatVersionError(
                f"pod {self.uuid}: {name} was written by a newer version of kurma",
                hint=f"install that version again, or give the pod up: kurma rm --force {self.uuid}",
                pod=self.uuid,
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

    def half_changed(self) -> bool:
        """Whether a process that died has left a change of the running pod's apps unfinished."""
        state = self.read_state()
        return state.state == "running" and state.change is not None and not self.apps_locked()

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


def unwritable(error: KurmaError) -> bool:
    """Whether the write failed because the disk or a quota is full, or the file system is read-only."""
    return error.data.get("errno") in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
