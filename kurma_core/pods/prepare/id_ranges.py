"""Chooses the range of user and group ids of a pod's user namespace; no two pods share ids.

A range is claimed by a symbolic link named ``FIRST:COUNT`` to the pod's directory: one link in ``pods/.ids/`` of
the state directory, where the claim lasts until the pod is removed, and one in ``/run/kurma/ids/``, which all
state directories of the host share. A dangling link claims nothing, since its pod is gone. A reboot empties the
second directory; a pod claims its range there again when it is started.

A manager (annotation ``kurma.io/manager``) chooses the ranges of its pods itself, and may give one range to
several, for example to a pod that has ended and to its replacement. So pods with a manager may share ids with one
another, and never with other pods. Their links are named ``FIRST:COUNT:UUID``.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from kurma_core.errors import HostError, IdRangeError, ManifestError
from kurma_core.linux.files import lock_file
from kurma_core.models.isolator import USERNS_ANNOTATION, USERNS_WORDS, IdRange, userns_word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.appc.pod import PodManifest
    from kurma_core.config import UsernsPoolConfig
    from kurma_core.pods.record.pod_store import PodStore

#: The directory that all state directories of the host share.
OF_THE_HOST = "/run/kurma/ids"
#: Ids that belong to users of the host (subuid(5), subgid(5)).
_SUBORDINATE = ("/etc/subuid", "/etc/subgid")


def wanted(asked: str | None, pod: PodManifest, usual: str) -> str:
    """``none``, ``auto`` or ``UID:COUNT``: by the request, else the pod's annotation, else the default ``usual``.

    :raises ManifestError: the annotation has another value.
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


class _Claim(NamedTuple):
    """A range of another pod. :ivar directory: that pod's. :ivar managed: that pod has a manager."""

    ids: IdRange
    directory: str
    managed: bool


def _refuse(uuid: str, ids: IdRange, taken: list[_Claim], *, managed: bool) -> None:
    for claim in taken:
        if ids.overlaps(claim.ids) and not (managed and claim.managed):
            raise IdRangeError(
                f"pod {uuid}: user namespace {ids}: pod {os.path.basename(claim.directory)} "
                f"has the ids {claim.ids} of the host",
                hint=f"choose other IDs, or auto; the directory of that pod is {claim.directory}",
                pod=uuid,
            )


class IdRanges:
    """The ranges of one state directory's pods.

    :param pool: the ids from which ``auto`` chooses.
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

    def claim(self, uuid: str, word: str, *, managed: bool = False) -> IdRange:
        """Claims a range for a pod with an existing directory, until that directory is gone.

        :param word: ``auto``, or ``UID:COUNT``. :param managed: the pod has a manager.
        :raises IdRangeError: the whole pool is taken; or another pod has some of these ids.
        """
        with self._locked():
            taken = self._taken(uuid)
            if word == "auto":
                ids = self._free([claim.ids for claim in taken])
            else:
                ids = IdRange.parse(word)
                _refuse(uuid, ids, taken, managed=managed)
            self._record(uuid, ids, managed=managed)
        return ids

    def hold(self, uuid: str, ids: IdRange, *, managed: bool = False) -> None:
        """Claims a pod's range on the whole host again, as the pod starts.

        :param managed: the pod has a manager.
        :raises IdRangeError: meanwhile a pod of another state directory has some of these ids.
        """
        with self._locked():
            _refuse(uuid, ids, self._taken(uuid), managed=managed)
            self._record(uuid, ids, managed=managed)

    def _free(self, taken: list[IdRange]) -> IdRange:
        """A free range. The search starts at a random place, so that files which a removed pod left on volumes do
        not at once belong to the next pod."""
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
                continue  # this host gives its users no ranges
            for line in lines:
                with contextlib.suppress(ValueError):
                    yield IdRange.parse(line.decode(errors="replace").partition(":")[2])

    def _taken(self, uuid: str) -> list[_Claim]:
        """The ranges of other pods. Links of pods that are gone are removed.

        A pod is identified by its directory's inode: another state directory may have a pod of the same UUID, and
        this state directory may have two paths.
        """
        found: list[_Claim] = []
        ours = os.stat(f"{self._store.root}/{uuid}")
        for place in (self._own, self._host):
            for name in os.listdir(place):
                link = f"{place}/{name}"
                try:
                    text, _, owner = name.partition(":")[2].partition(":")
                    ids = IdRange.parse(f"{name.partition(':')[0]}:{text}")
                    directory = os.path.normpath(os.path.join(place, os.readlink(link)))
                except (ValueError, OSError):
                    continue  # the lock, or a foreign file
                try:
                    same = os.path.samestat(os.stat(directory), ours)
                except (FileNotFoundError, NotADirectoryError):
                    os.unlink(link)
                    continue
                except OSError:
                    same = False  # a disk error does not prove that the pod is gone
                if not same:
                    found.append(_Claim(ids, directory, bool(owner)))
        return found

    def _record(self, uuid: str, ids: IdRange, *, managed: bool) -> None:
        name = f"{ids}:{uuid}" if managed else str(ids)
        for place, target in (
            (self._own, f"../{uuid}"),
            (self._host, f"{os.path.abspath(self._store.root)}/{uuid}"),
        ):
            with contextlib.suppress(FileExistsError):
                os.symlink(target, f"{place}/{name}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks the ranges for all processes of the host."""
        lock = -1
        try:
            for place in (self._own, self._host):
                os.makedirs(place, mode=0o700, exist_ok=True)
            lock = lock_file(f"{self._host}/.lock")
            yield
        except OSError as error:
            raise HostError.of("cannot record the pod's range of ids", error) from None
        finally:
            if lock >= 0:
                os.close(lock)
