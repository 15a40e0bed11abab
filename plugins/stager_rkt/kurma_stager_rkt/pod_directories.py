"""The pods' directories on disk, with locks and renames as in rkt.

A pod's state is the directory that it is in, and whether its lock is held:

=================  =====================  ==================================
directory          locked                 free
=================  =====================  ==================================
``embryo``         being made             its maker has died
``prepare``        preparing              aborted
``prepared``                              prepared
``run``            running                exited
``exited-garbage`` being removed          exited, and marked to be removed
``garbage``        being removed          never run, marked to be removed
=================  =====================  ==================================
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

from kurma_core.linux import files
from kurma_core.linux.beneath import remove_tree

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import DriverContext

EMBRYO, PREPARE, PREPARED, RUN = "embryo", "prepare", "prepared", "run"
EXITED_GARBAGE, GARBAGE = "exited-garbage", "garbage"
STATES = (EMBRYO, PREPARE, PREPARED, RUN, EXITED_GARBAGE, GARBAGE)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PodPlace:
    """One pod's directory, locked by this process, and by those that inherit :attr:`fd`, until :meth:`close`."""

    def __init__(self, places: Places, uuid: str, state: str, fd: int) -> None:
        self._places = places
        self.uuid = uuid
        self.state = state
        self.fd = fd

    @property
    def path(self) -> str:
        return self._places.path(self.state, self.uuid)

    def move(self, state: str) -> None:
        """Moves the pod to another state; it is synced to disk on return."""
        old, self.state = self.path, state
        try:
            os.rename(old, self.path)
        except OSError:
            self.state = os.path.basename(os.path.dirname(old))
            raise
        for directory in (os.path.dirname(self.path), os.path.dirname(old)):
            _sync(directory)

    def remove(self) -> None:
        """Removes the pod's directory. :raises OSError: there is a mount below it."""
        parent = os.open(os.path.dirname(self.path), _DIRECTORY)
        try:
            remove_tree(parent, self.uuid)
        finally:
            os.close(parent)

    def close(self) -> None:
        """Closes the descriptor. The lock is free when all processes that have inherited it have closed it,
        too."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Places:
    """The directories of all pods. :param root: ``…/pods``; made with the first pod."""

    def __init__(self, root: str) -> None:
        self.root = root

    @classmethod
    def of(cls, context: DriverContext) -> Places:
        """The plugin's directories, which all its stagers share."""
        return cls(f"{context.state_dir}/pods")

    def uuids(self) -> set[str]:
        """The UUIDs of all pods, in any state. Entries with other names are ignored.

        :raises OSError: the pods cannot be listed.
        """
        found: set[str] = set()
        for state in STATES:
            try:
                found.update(filter(_is_uuid, os.listdir(f"{self.root}/{state}")))
            except FileNotFoundError:
                continue
        return found

    def path(self, state: str, uuid: str) -> str:
        return f"{self.root}/{state}/{uuid}"

    def find(self, uuid: str) -> str | None:
        """The pod's state, which another process may change at any time; None: there is no such pod."""
        return next((state for state in STATES if os.path.isdir(self.path(state, uuid))), None)

    def make(self, uuid: str) -> PodPlace:
        """Makes a pod's directory: as an embryo, which other programs ignore, until it is locked; then as
        ``prepare``.

        :raises OSError: it cannot be made.
        """
        for state in STATES:
            os.makedirs(f"{self.root}/{state}", 0o700, exist_ok=True)
        files.spread(f"{self.root}/{EMBRYO}")
        os.mkdir(self.path(EMBRYO, uuid), 0o750)
        place = self._locked(uuid, EMBRYO)
        try:
            place.move(PREPARE)
        except BaseException:
            place.close()
            raise
        return place

    def take(self, uuid: str, how: int = fcntl.LOCK_EX) -> PodPlace | None:
        """The pod's directory, wherever it is, locked. None: there is none.

        :param how: ``LOCK_SH`` for a caller that only looks, and that others who look must not take for a holder.
        :raises BlockingIOError: another process holds the lock.
        """
        for _ in range(16):
            state = self.find(uuid)
            if state is None:
                return None
            try:
                place = self._locked(uuid, state, how)
            except FileNotFoundError:
                continue  # moved meanwhile
            if os.path.isdir(place.path) and os.path.samestat(os.fstat(place.fd), os.stat(place.path)):
                return place
            place.close()
        raise OSError(errno.EBUSY, "it is moved about", self.root)

    def held(self, uuid: str) -> bool:
        """Whether a process holds the pod's lock."""
        try:
            place = self.take(uuid, fcntl.LOCK_SH)
        except BlockingIOError:
            return True
        if place is not None:
            place.close()
        return False

    def _locked(self, uuid: str, state: str, how: int = fcntl.LOCK_EX) -> PodPlace:
        fd = os.open(self.path(state, uuid), _DIRECTORY)
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return PodPlace(self, uuid, state, fd)


def _is_uuid(name: str) -> bool:
    import uuid

    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def _sync(directory: str) -> None:
    fd = os.open(directory, _DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
