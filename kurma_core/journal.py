"""The event journal of a state directory: appends events, reads them by their numbers, follows them.

Every process appends to one file of lines, under its lock. So it has the events of foreground pods, too, and of
ends while no daemon ran, and numbers go on over restarts. It is bounded: a full file is renamed, and replaces the
one before it. An event that cannot be written, as on a full disk, is lost, and no operation fails.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.api.host import Event
from kurma_core.errors import HostError
from kurma_core.formats.timestamps import timestamp
from kurma_core.json_text import loads

if TYPE_CHECKING:
    from kurma_core.linux.inotify import SharedWatch

Json = Any
#: Bytes at which a file is renamed; the most bytes of a line.
FULL, LONGEST = 1 << 20, 16384
#: Seconds to wait for the lock: its holder needs microseconds, unless it is stopped (SIGSTOP).
_PATIENCE = 0.5
_FLOCK = "hhqqi4x"
_FILE, _ASIDE = "events", "events.1"


class Journal:
    """:param state_dir: its journal is in ``events`` there; made with the first event."""

    def __init__(self, state_dir: str) -> None:
        self.directory = f"{state_dir}/events"

    def tell(
        self,
        subject: str,
        kind: str,
        id: str | None,
        name: str,
        detail: Mapping[str, Json] | None = None,
        at: str | None = None,
    ) -> None:
        """Appends an event. Never fails."""
        value = {"at": at or timestamp(), "subject": subject, "kind": kind, "id": id, "name": name}
        line = json.dumps({**value, "detail": detail or {}}, default=str)
        if len(line) > LONGEST:
            line = json.dumps({**value, "detail": {}})
        try:
            self._append(line)
        except OSError:
            return  # a full disk, or one that is read-only

    def _append(self, line: str) -> None:
        for _ in range(3):
            file = self._open()
            try:
                if not _locked(file):
                    return
                status = os.fstat(file)
                if status.st_nlink == 0 or not self._is_current(status):
                    continue  # it was renamed meanwhile
                if not stat.S_ISREG(status.st_mode):
                    return
                size = status.st_size
                last, whole = _last(file, size)
                if size == 0:
                    last = self.last()
                text = f'{"" if whole else chr(10)}{{"seq": {last + 1}, {line[1:]}\n'.encode()
                try:
                    done = os.write(file, text)
                except OSError:
                    os.ftruncate(file, size)
                    raise
                if done < len(text):
                    os.ftruncate(file, size)
                elif size + done >= FULL:
                    os.rename(f"{self.directory}/{_FILE}", f"{self.directory}/{_ASIDE}")
                return
            finally:
                os.close(file)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        path = f"{self.directory}/{_FILE}"
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            try:  # noqa: SIM105 - contextlib is not light
                os.mkdir(self.directory, 0o700)
            except FileExistsError:
                pass
            return os.open(path, flags, 0o600)

    def _is_current(self, status: os.stat_result) -> bool:
        try:
            there = os.stat(f"{self.directory}/{_FILE}", follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (there.st_ino, there.st_dev) == (status.st_ino, status.st_dev)

    def last(self) -> int:
        """The number of the last event; 0: there was none."""
        for name in (_FILE, _ASIDE):
            try:
                file = os.open(f"{self.directory}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                continue  # there is none, or something else lies in its place
            try:
                found, _ = _last(file, os.fstat(file).st_size)
            finally:
                os.close(file)
            if found:
                return found
        return 0

    def watch(self) -> SharedWatch:
        """Polls readable when there may be more events. :raises HostError: the kernel allows no more watches."""
        from kurma_core.linux.inotify import SharedWatch

        # There is none yet, in a state directory to which nothing has happened; but for the directory itself, say.
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            return SharedWatch(self.directory)
        except OSError as error:
            raise HostError(f"events cannot be followed: {error.strerror}", errno=error.errno) from None


class Cursor:
    """A place in a journal.

    :param since: events behind that number are to be read; all, if there is no such number yet: it is of another
        journal. None: those from now on.
    """

    def __init__(self, journal: Journal, since: int | None) -> None:
        self._directory = journal.directory
        self._file = -1
        self._rest = b""
        last = journal.last()
        self.since = last if since is None else since if since <= last else 0
        if self.since == last:
            self._file = self._opened(_FILE)
            if self._file >= 0:
                # A line from before the last number is passed over, and so may be the half of one.
                os.lseek(self._file, max(0, os.fstat(self._file).st_size - LONGEST), os.SEEK_SET)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()

    def read(self) -> Iterator[Event]:
        """All that there are by now."""
        while True:
            if self._file < 0:
                # The renamed file may have events that are not shown yet.
                yield from self._whole(_ASIDE)
                self._file = self._opened(_FILE)
                if self._file < 0:
                    return
            yield from self._more()
            if self._current():
                return
            # It was put aside: there may be more behind what was read, and there is a new one.
            yield from self._more()
            self.close()
            self._rest = b""

    def _opened(self, name: str) -> int:
        try:
            return os.open(f"{self._directory}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return -1  # there is none, or something else lies in its place

    def _current(self) -> bool:
        own = os.fstat(self._file)
        try:
            there = os.stat(f"{self._directory}/{_FILE}", follow_symlinks=False)
        except FileNotFoundError:
            # Put aside, and nothing has happened since; or all of it is gone.
            return own.st_nlink > 0
        return (there.st_ino, there.st_dev) == (own.st_ino, own.st_dev)

    def _whole(self, name: str) -> Iterator[Event]:
        file = self._opened(name)
        if file < 0:
            return
        try:
            with open(file, "rb", closefd=False) as lines:
                for line in lines:
                    yield from self._event(line)
        finally:
            os.close(file)

    def _more(self) -> Iterator[Event]:
        while data := os.read(self._file, 65536):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                yield from self._event(line)

    def _event(self, line: bytes) -> Iterator[Event]:
        event = _parsed(line)
        if event is not None and event.seq > self.since:
            self.since = event.seq
            yield event


def _parsed(line: bytes) -> Event | None:
    """None: half of one, as of a process that died while it wrote."""
    try:
        return Event.from_json(loads(line, own=True))
    except ValueError:
        return None


def _last(file: int, size: int) -> tuple[int, bool]:
    """The last number in it; and whether the last line is whole."""
    if size == 0:
        return 0, True
    reach = min(size, 1024)
    while True:
        data = os.pread(file, reach, size - reach)
        end = len(data)
        while (start := data.rfind(b"\n", 0, end - 1) + 1) or reach == size:
            event = _parsed(data[start:end])
            if event is not None:
                return event.seq, data.endswith(b"\n")
            if start == 0:
                return 0, data.endswith(b"\n")
            end = start
        reach = min(size, 64 * reach)


def _locked(file: int) -> bool:
    """Whether the lock was to be had."""
    deadline = 0.0
    while True:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            return True
        except BlockingIOError:
            now = time.monotonic()
            deadline = deadline or now + _PATIENCE
            if now >= deadline:
                return False
        time.sleep(0.0005)
