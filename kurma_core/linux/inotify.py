"""Waiting for files to change, by inotify."""

from __future__ import annotations

import os
import struct
import sys

from kurma_core.linux import libc

IN_MODIFY = 0x2
IN_CLOSE_WRITE = 0x8
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
#: Events were lost; a watch is no more, since what it watched is gone.
IN_Q_OVERFLOW, IN_IGNORED = 0x4000, 0x8000

_NUMBERS = {"x86_64": (294, 254, 255), "aarch64": (26, 27, 28), "arm64": (26, 27, 28)}


class Watch:
    """Polls readable when something in a directory changes.

    A host allows few of these (128 is usual): one per command that follows, never one per pod; see ``watches.py``.

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
        """:returns: the watch's number, as :meth:`events` tells it."""
        number = libc.syscall(self._add, self.fd, os.fsencode(path) + b"\0", mask, path=path)
        self._watches.add(number)
        return number

    def numbers(self) -> tuple[int, ...]:
        """Of all its watches."""
        return tuple(self._watches)

    def fileno(self) -> int:
        return self.fd

    def drain(self) -> int:
        """Forgets the events that are waiting; their kinds, or-ed together."""
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
        """Those that are waiting, without waiting for any: (number of the watch, kinds, name)."""
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
        """Watches that no more. Nothing happens if what it watched is gone."""
        self._watches.discard(number)
        try:  # noqa: SIM105 - contextlib is not light
            libc.syscall(self._remove, self.fd, number)
        except OSError:
            pass

    def forget(self) -> None:
        """Watches nothing any more, for who has yet something else to do before :meth:`close`: the kernel takes
        some twenty milliseconds to let go of a watch, and a close waits for that."""
        while self._watches:
            try:  # noqa: SIM105 - contextlib is not light
                libc.syscall(self._remove, self.fd, self._watches.pop())
            except OSError:
                pass  # the directory is gone, and its watch with it

    def close(self) -> None:
        os.close(self.fd)
