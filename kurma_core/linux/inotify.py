"""Waits for files to change, by inotify(7): one watch, or many that share an instance.

A host gives a user few instances (128 is usual): a process that follows many logs must not use one for each.
"""

from __future__ import annotations

import _thread
import errno
import itertools
import os
import select
import struct
import sys

from kurma_core.linux import libc

#: Kinds of events: a file was written, written and closed, renamed away, renamed to this place, made, or removed.
IN_MODIFY = 0x2
IN_CLOSE_WRITE = 0x8
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
#: Events were lost; a watch was removed, for example because its directory was.
IN_Q_OVERFLOW, IN_IGNORED = 0x4000, 0x8000

_NUMBERS = {"x86_64": (294, 254, 255), "aarch64": (26, 27, 28), "arm64": (26, 27, 28)}


class Watch:
    """An inotify instance; it polls readable when a watched directory changes.

    A host allows few instances (128 is usual): use one per command that follows logs, never one per pod; or
    :class:`SharedWatch`.

    :param directory: path of the watched directory. :param mask: kinds of events, ``IN_…`` or-ed together.
    :raises OSError: ``EMFILE`` when the host's instances are used up; ``ENOENT``.
    """

    __slots__ = ("_add", "_remove", "_watches", "fd")

    def __init__(self, directory: str, mask: int = IN_MODIFY | IN_CLOSE_WRITE | IN_CREATE | IN_MOVED_TO) -> None:
        init, self._add, self._remove = _NUMBERS[os.uname().machine]
        self._watches: set[int] = set()
        self.fd = libc.syscall(init, os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self.add(directory, mask)
        except BaseException:
            os.close(self.fd)
            raise

    def add(self, path: str, mask: int) -> int:
        """Adds a watch. :param path: of the directory. :param mask: kinds of events, ``IN_…`` or-ed together.
        :returns: its number, as in :meth:`events`."""
        number = libc.syscall(self._add, self.fd, os.fsencode(path) + b"\0", mask, path=path)
        self._watches.add(number)
        return number

    def numbers(self) -> tuple[int, ...]:
        """The numbers of all its watches."""
        return tuple(self._watches)

    def fileno(self) -> int:
        """The descriptor, for select and poll."""
        return self.fd

    def drain(self) -> int:
        """Reads and drops the pending events. :returns: their kinds, or-ed together."""
        kinds = 0
        try:
            while events := os.read(self.fd, 65536):
                at = 0
                while at < len(events):
                    kinds |= int.from_bytes(events[at + 4 : at + 8], sys.byteorder)
                    at += 16 + int.from_bytes(events[at + 12 : at + 16], sys.byteorder)
        except BlockingIOError:
            pass
        return kinds

    def events(self) -> list[tuple[int, int, str]]:
        """The pending events, without blocking: (number of the watch, kinds, name)."""
        found = []
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return []
        at = 0
        while at < len(data):
            number, kinds, _, length = struct.unpack_from("iIII", data, at)
            name = data[at + 16 : at + 16 + length].rstrip(b"\0")
            found.append((number, kinds, os.fsdecode(name)))
            if kinds & IN_IGNORED:
                self._watches.discard(number)
            at += 16 + length
        return found

    def remove(self, number: int) -> None:
        """Ends one watch. It may have ended already, with its directory. :param number: as from :meth:`add`."""
        self._watches.discard(number)
        try:  # noqa: SIM105 - contextlib is not light
            libc.syscall(self._remove, self.fd, number)
        except OSError:
            pass

    def forget(self) -> None:
        """Ends all watches, for a caller that does other work before :meth:`close`: the kernel takes
        some twenty milliseconds to let go of a watch, and a close waits for that."""
        while self._watches:
            try:  # noqa: SIM105 - contextlib is not light
                libc.syscall(self._remove, self.fd, self._watches.pop())
            except OSError:
                pass  # the directory was removed, and its watch with it

    def close(self) -> None:
        """Closes it."""
        os.close(self.fd)


_IN_MASK_ADD = 0x20000000
#: Seconds between two wake-ups of watches that have no inotify instance.
_LOOK_AGAIN = 0.5


class SharedWatch:
    """Polls readable when something in a directory changes: as :class:`Watch`, and there may be any number.

    If other programs have used up the host's instances, it polls readable twice a second.

    :param directory: path of the watched directory. :param mask: kinds of events, ``IN_…`` or-ed together.
    :raises OSError: ``ENOENT``; ``ENOSPC`` when the host's watches are used up; ``EAGAIN`` for want of a thread.
    """

    def __init__(self, directory: str, mask: int = IN_MODIFY | IN_CLOSE_WRITE | IN_CREATE | IN_MOVED_TO) -> None:
        self.mask = mask
        #: Kinds of events since the last :meth:`drain`; under the lock.
        self._kinds = 0
        self._numbers: dict[str, int] = {}
        self._hub: _Hub | None = None
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            with _LOCK:
                self._hub, self._numbers[directory] = _Hub.joined(self, directory)
        except BaseException:
            os.close(self._fd)
            raise

    def also(self, directory: str) -> None:
        """Watches another directory, too, unless it is watched already. :param directory: its path.

        :raises OSError: as the class does.
        """
        with _LOCK:
            if directory not in self._numbers and self._hub is not None:
                _, self._numbers[directory] = _Hub.joined(self, directory)

    def fileno(self) -> int:
        """The descriptor, for select and poll."""
        return self._fd

    def drain(self) -> int:
        """Drops the events. :returns: their kinds, or-ed together."""
        with _LOCK:
            kinds, self._kinds = self._kinds, 0
            try:
                os.eventfd_read(self._fd)
            except BlockingIOError:
                return kinds
        return kinds

    def tell(self, kinds: int) -> None:
        """Adds events. The reading thread calls it, under the lock. :param kinds: of the events, or-ed
        together."""
        self._kinds |= kinds
        os.eventfd_write(self._fd, 1)

    def forget(self) -> None:
        """Ends the watch. It can be repeated."""
        with _LOCK:
            for number in self._numbers.values():
                if self._hub is not None:
                    self._hub.leave(self, number)
            self._numbers.clear()
            self._hub = None

    def close(self) -> None:
        """Closes it."""
        self.forget()
        os.close(self._fd)


#: Guards the hub and its table of watches.
_LOCK = _thread.allocate_lock()


class _Hub:
    """The shared inotify instance and the thread that reads it; both end with the last watch."""

    _there: _Hub | None = None

    def __init__(self, directory: str, mask: int) -> None:
        self._watch: Watch | None = None
        try:
            self._watch = Watch(directory, mask)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        self._numbers = itertools.count()
        #: The watches of each directory, by the number of its kernel watch.
        self._told: dict[int, list[SharedWatch]] = {}
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        import threading  # not for the call-ins of a stager to load

        try:
            threading.Thread(target=self._run, name="watches", daemon=True).start()
        except RuntimeError as error:
            self._close()
            raise OSError(errno.EAGAIN, str(error)) from None

    @classmethod
    def joined(cls, watch: SharedWatch, directory: str) -> tuple[_Hub, int]:
        hub = cls._there
        if hub is None:
            hub = cls._there = cls(directory, watch.mask)
        # The kernel has one watch per directory: for a watched directory, its number is returned again.
        try:
            number = hub._add(directory, watch.mask)
        except BaseException:
            hub._end_unless_needed()
            raise
        hub._told.setdefault(number, []).append(watch)
        return hub, number

    def _add(self, directory: str, mask: int) -> int:
        if self._watch is not None:
            return self._watch.add(directory, mask | _IN_MASK_ADD)
        os.stat(directory)
        return next(self._numbers)

    def leave(self, watch: SharedWatch, number: int) -> None:
        told = self._told[number]
        told.remove(watch)
        if told:
            return
        del self._told[number]
        if self._watch is not None:
            self._watch.remove(number)
        self._end_unless_needed()

    def _end_unless_needed(self) -> None:
        if not self._told:
            _Hub._there = None
            os.eventfd_write(self._stop, 1)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        if self._watch is not None:
            poll.register(self._watch.fd, select.POLLIN)
        patience = None if self._watch is not None else _LOOK_AGAIN * 1000
        while all(fd != self._stop for fd, _ in poll.poll(patience)):
            with _LOCK:
                if self._watch is None:
                    self._tell_all()
                else:
                    self._tell(self._watch.events())
        # The kernel takes some time for it; no thread joins this one.
        self._close()

    def _tell(self, events: list[tuple[int, int, str]]) -> None:
        for number, kinds, _ in events:
            if kinds & IN_Q_OVERFLOW:
                self._tell_all()
            for watch in self._told.get(number, ()):
                # All watches get the event that the directory was removed.
                if wanted := kinds & (watch.mask | IN_IGNORED):
                    watch.tell(wanted)

    def _tell_all(self) -> None:
        for told in self._told.values():
            for watch in told:
                watch.tell(watch.mask)

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        os.close(self._stop)
