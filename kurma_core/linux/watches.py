"""Watches on directories that share one inotify instance of this process: a host gives a user few (128 is usual),
and whoever follows many logs at once would leave none to others."""

from __future__ import annotations

import errno
import itertools
import os
import select
import threading

from kurma_core.linux.inotify import (
    IN_CLOSE_WRITE,
    IN_CREATE,
    IN_IGNORED,
    IN_MODIFY,
    IN_MOVED_TO,
    IN_Q_OVERFLOW,
    Watch,
)

_IN_MASK_ADD = 0x20000000
#: Seconds between two looks of those that there is no instance for.
_LOOK_AGAIN = 0.5


class SharedWatch:
    """Polls readable when something in a directory changes: as :class:`Watch`, and there may be any number.

    Where other programs have used up the host's instances, it does so twice a second.

    :raises OSError: ``ENOENT``; ``ENOSPC`` when the host's watches are used up; ``EAGAIN`` for want of a thread.
    """

    def __init__(self, directory: str, mask: int = IN_MODIFY | IN_CLOSE_WRITE | IN_CREATE | IN_MOVED_TO) -> None:
        self.mask = mask
        #: What has happened, and nobody has asked for yet; under the lock.
        self._kinds = 0
        self._number: int | None = None
        self._hub: _Hub | None = None
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            with _LOCK:
                self._hub, self._number = _Hub.joined(self, directory)
        except BaseException:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        return self._fd

    def drain(self) -> int:
        """Forgets what has happened; its kinds, or-ed together."""
        with _LOCK:
            kinds, self._kinds = self._kinds, 0
            try:
                os.eventfd_read(self._fd)
            except BlockingIOError:
                return kinds
        return kinds

    def tell(self, kinds: int) -> None:
        """By the thread that reads, under the lock."""
        self._kinds |= kinds
        os.eventfd_write(self._fd, 1)

    def forget(self) -> None:
        """Watches nothing any more. May be repeated."""
        with _LOCK:
            if self._hub is not None and self._number is not None:
                self._hub.leave(self, self._number)
            self._hub = self._number = None

    def close(self) -> None:
        self.forget()
        os.close(self._fd)


#: Over all that follows: who is told of what.
_LOCK = threading.Lock()


class _Hub:
    """The instance, and the thread that reads it; both end with the last watch."""

    _there: _Hub | None = None

    def __init__(self, directory: str, mask: int) -> None:
        self._watch: Watch | None = None
        try:
            self._watch = Watch(directory, mask)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        self._numbers = itertools.count()
        #: By the number of a directory's watch.
        self._told: dict[int, list[SharedWatch]] = {}
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
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
        # A directory that is watched already is watched for this, too; it has one number.
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
        # The kernel takes some time for it: nobody waits for this thread.
        self._close()

    def _tell(self, events: list[tuple[int, int, str]]) -> None:
        for number, kinds, _ in events:
            if kinds & IN_Q_OVERFLOW:
                self._tell_all()
            for watch in self._told.get(number, ()):
                # That the directory is gone, everybody hears.
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
