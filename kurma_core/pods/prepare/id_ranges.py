"""Chooses the range of user and group ids of a pod's user namespace: no two pods share one.

A range is claimed by a symbolic link named ``FIRST:COUNT`` that leads to the pod's directory: one in
``pods/.ids/`` of the state directory, which is the pod's until it is removed, and one in ``/run/kurma/ids/``,
which all state directories of the host see. A link that leads nowhere claims nothing: its pod is gone. After a
reboot, a pod takes its place in the second directory when it is started again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from kurma_core.errors import HostError, IdRangeError, ManifestError
from kurma_core.linux.files import lock_file
from kurma_core.models.isolator import USERNS_ANNOTATION, USERNS_WORDS, IdRange, userns_word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.appc.pod import PodManifest
    from kurma_core.config import UsernsPoolConfig
    from kurma_core.pods.record.pod_store import PodStore

#: The pod's annotation that asks for one.
#: What all state directories see.
OF_THE_HOST = "/run/kurma/ids"
#: Ids that belong to users of the host (subuid(5), subgid(5)).
_SUBORDINATE = ("/etc/subuid", "/etc/subgid")


def wanted(asked: str | None, pod: PodManifest, usual: str) -> str:
    """``none``, ``auto`` or ``UID:COUNT``: by the request, else the pod's annotation, else what is usual.

    :raises ManifestError: the annotation is another word.
    """
    if asked is not None:
        return asked
    word = pod.annotation(USERNS_ANNOTATION)
    if word is None:
        return usual
    try:
        return userns_word(word)
    except ValueError:
        raise ManifestError(f"annotation {USERNS_ANNOTATION}", USERNS_WORDS, repr(word)) from None


class IdRanges:
    """The ranges of one state directory's pods.

    :param pool: what ``auto`` is served from.
    :param subordinate: files of ranges that belong to users.
    """

    def __init__(
        self,
        store: PodStore,
        pool: UsernsPoolConfig,
        *,
        host: str = OF_THE_HOST,
        subordinate: tuple[str, ...] = _SUBORDINATE,
    ) -> None:
        self._store = store
        self._pool = pool
        self._own = f"{store.root}/.ids"
        self._host = host
        self._subordinate = subordinate

    def claim(self, uuid: str, word: str) -> IdRange:
        """A range for a pod, whose directory is there: its own from now on, until that directory is gone.

        :param word: ``auto``, or ``UID:COUNT``.
        :raises IdRangeError: all of the pool is taken; or another pod has some of these ids.
        """
        with self._locked():
            taken = self._taken(uuid)
            if word == "auto":
                ids = self._free(list(taken))
            else:
                ids = IdRange.parse(word)
                self._refuse(uuid, ids, taken)
            self._record(uuid, ids)
        return ids

    def hold(self, uuid: str, ids: IdRange) -> None:
        """As a pod starts: what it has claimed is its own on the whole host.

        :raises IdRangeError: a pod of another state directory has some of these ids by now.
        """
        with self._locked():
            self._refuse(uuid, ids, self._taken(uuid))
            self._record(uuid, ids)

    def _refuse(self, uuid: str, ids: IdRange, taken: dict[IdRange, str]) -> None:
        for other, directory in taken.items():
            if ids.overlaps(other):
                raise IdRangeError(
                    f"pod {uuid}: user namespace {ids}: pod {os.path.basename(directory)} "
                    f"has the ids {other} of the host",
                    hint=f"choose others, or say auto; its directory is {directory}",
                    pod=uuid,
                )

    def _free(self, taken: list[IdRange]) -> IdRange:
        """From a place by chance on, so that what a removed pod left on volumes is not the next one's at once."""
        pool = self._pool
        slots = pool.count // pool.size
        taken += self._of_users()
        start = int.from_bytes(os.urandom(4), "little")
        for number in range(slots):
            ids = IdRange(pool.first + (start + number) % slots * pool.size, pool.size)
            if not any(ids.overlaps(other) for other in taken):
                return ids
        raise IdRangeError(
            f"no range of {pool.size} ids is free for the pod's user namespace: all {slots} of the pool are taken",
            hint="remove pods that have ended (kurma rm, kurma gc), or enlarge userns_pool in kurma.yml",
        )

    def _of_users(self) -> Iterator[IdRange]:
        for path in self._subordinate:
            try:
                with open(path, "rb") as file:
                    lines = file.read().splitlines()
            except OSError:
                continue  # this host gives its users none
            for line in lines:
                with contextlib.suppress(ValueError):
                    yield IdRange.parse(line.decode(errors="replace").partition(":")[2])

    def _taken(self, uuid: str) -> dict[IdRange, str]:
        """Ranges of other pods, and their directories. Links of pods that are gone are removed.

        Another state directory may have a pod of the same UUID, and this one may be known by two paths.
        """
        found: dict[IdRange, str] = {}
        ours = os.stat(f"{self._store.root}/{uuid}")
        for place in (self._own, self._host):
            for name in os.listdir(place):
                link = f"{place}/{name}"
                try:
                    ids = IdRange.parse(name)
                    directory = os.path.normpath(os.path.join(place, os.readlink(link)))
                except (ValueError, OSError):
                    continue  # the lock; or nothing of ours
                try:
                    same = os.path.samestat(os.stat(directory), ours)
                except (FileNotFoundError, NotADirectoryError):
                    os.unlink(link)
                    continue
                except OSError:
                    same = False  # a disk that fails: nobody knows that the pod has gone
                if not same:
                    found[ids] = directory
        return found

    def _record(self, uuid: str, ids: IdRange) -> None:
        for place, target in (
            (self._own, f"../{uuid}"),
            (self._host, f"{os.path.abspath(self._store.root)}/{uuid}"),
        ):
            with contextlib.suppress(FileExistsError):
                os.symlink(target, f"{place}/{ids}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One at a time on the whole host."""
        lock = -1
        try:
            for place in (self._own, self._host):
                os.makedirs(place, mode=0o700, exist_ok=True)
            lock = lock_file(f"{self._host}/.lock")
            yield
        except OSError as error:
            raise HostError(
                f"cannot record the pod's range of ids: {error.filename or self._host}: "
                f"{os.strerror(error.errno or errno.EIO)}",
                errno=error.errno,
                path=error.filename,
            ) from None
        finally:
            if lock >= 0:
                os.close(lock)
