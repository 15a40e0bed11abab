"""Keeps all pods of one state directory: makes, names, finds, lists and deletes their directories.

``pods/UUID/`` is the directory of a pod (:mod:`kurma_core.pods.record.pod_directory`); ``pods/names/NAME`` is a
symbolic link that reserves a name.

Start-up latency matters most for listings: a table of pods is made without importing the code that starts and ends
pods, and without asking a stager. The code that takes down dead pods is imported only if there is a dead pod.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from _thread import get_native_id

from kurma_core.errors import (
    AmbiguousReferenceError,
    FormatVersionError,
    HostError,
    KurmaError,
    PodExistsError,
    PodNotFoundError,
)
from kurma_core.formats.small_json import encode
from kurma_core.linux import beneath, files
from kurma_core.models import LIVE_STATES
from kurma_core.models.summary import NetworkSummary, PodSummary
from kurma_core.pods.record import health
from kurma_core.pods.record.pod_directory import PodDirectory
from kurma_core.schema import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from kurma_core.models.network import Attachment
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import Recover
    from kurma_core.pods.record.state import PodState

    T = TypeVar("T")

_HEX = frozenset("0123456789abcdef-")
#: Characters of a UUID prefix that are enough to name a pod.
_SHORTEST = 4
#: Prefix of a directory that is not yet a pod, or no longer one.
_UNFINISHED = ".half-"


def new_uuid() -> str:
    """A random UUID (RFC 4122, version 4). The module ``uuid`` takes longer to import than a listing of pods."""
    value = bytearray(os.urandom(16))
    value[6] = value[6] & 0x0F | 0x40
    value[8] = value[8] & 0x3F | 0x80
    text = value.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


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
        pods that are gone. A directory with steps on record stays: they are undone first
        (:func:`kurma_core.pods.run.prestarted.sweep`).

        :param grace: minimum age in seconds; a living process needs much less.
        """
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.root):
                path = f"{self.root}/{name}"
                if not name.startswith(_UNFINISHED) or PodDirectory(path).owned():
                    continue
                try:
                    if PodDirectory(path).read_steps():
                        continue
                except FormatVersionError:
                    continue  # the newer version knows its steps
                except KurmaError:
                    pass  # of a damaged record, no step is known
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
        raise PodExistsError(f"cannot name the pod {name}: other processes take and release it too fast")

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

    def each(
        self,
        recover: Recover,
        tell: Callable[[PodDirectory, Recover | None], T],
        broken: Callable[[PodDirectory, str, str], T],
    ) -> Iterator[T]:
        """Calls ``tell`` for every pod, in no order; a broken pod never hides the others.

        :param tell: its second argument is for :meth:`PodDirectory.read_records`.
        :param broken: called instead for a pod whose records cannot be read, with its state and the reason.
        """
        for uuid in self.uuids():
            directory = self.directory(uuid)
            try:
                yield tell(directory, recover)
                continue
            except KurmaError as first:
                error = first
            try:
                # Another process may have finished or removed it meanwhile.
                yield tell(directory, None)
            except KurmaError:
                if os.path.isdir(directory.path) and not _unmade(directory, error):
                    yield broken(directory, "preparing" if directory.owned() else "errored", error.message)

    def summaries(
        self, recover: Recover, look: Callable[[PodDocument, PodState], None] = lambda *_: None
    ) -> list[PodSummary]:
        """Summaries of all pods, oldest first, for a table. Dead pods are taken down on the way.

        :param recover: takes down a dead pod, and raises nothing.
        :param look: called with the records of each pod.
        """

        def tell(directory: PodDirectory, recover: Recover | None) -> PodSummary:
            document, state = directory.read_records(recover)
            look(document, state)
            return summary(directory, document, state)

        return sorted(self.each(recover, tell, broken_summary), key=lambda one: one.created_at)

    def directory(self, uuid: str) -> PodDirectory:
        return PodDirectory(f"{self.root}/{uuid}")

    def find(self, reference: str) -> PodDirectory:
        """The pod with that UUID, unique prefix of one (4 characters or more), name, or display name.

        Of several pods with a display name, it is the only live one.

        :raises PodNotFoundError: there is none.
        :raises AmbiguousReferenceError: several pods have that prefix or display name.
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
                        f"pod {reference}: {len(matches)} pods match",
                        hint="give more characters of the UUID: " + ", ".join(sorted(matches)[:4]),
                        matches=matches,
                    )
        displayed = self._displayed(reference)
        if displayed is not None:
            return displayed
        short = 0 < len(reference) < _SHORTEST and set(reference.lower()) <= _HEX
        hint = f"see: kurma list; a UUID needs at least {_SHORTEST} characters" if short else "see: kurma list"
        with contextlib.suppress(OSError):
            near = nearest(reference, sorted(os.listdir(self.names)))
            hint = hint if near is None else f"did you mean {near}? {hint}"
        raise PodNotFoundError(f"no pod {reference}", hint=hint)

    def _displayed(self, display_name: str) -> PodDirectory | None:
        """The pod with that display name; None: no pod has it. Records that cannot be read are ignored."""
        found, live = [], []
        text = encode(display_name).encode()
        for uuid in self.uuids():
            directory = self.directory(uuid)
            with contextlib.suppress(KurmaError, OSError):
                with open(directory.file("pod.json"), "rb") as file:
                    if text not in file.read():
                        continue
                if directory.read_document().display_name == display_name:
                    found.append(directory)
                    if directory.read_state().state in LIVE_STATES:
                        live.append(directory)
        if len(found) > 1 and len(live) != 1:
            uuids = sorted(directory.uuid for directory in found)
            raise AmbiguousReferenceError(
                f"pod {display_name}: {len(found)} pods have this display name",
                hint="give a UUID: " + ", ".join(uuids[:4]),
                matches=uuids,
            )
        return (live if len(found) > 1 else found)[0] if found else None

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
        from kurma_core import cancellation  # kurma list does without it

        gone = f"{_UNFINISHED}{pod.uuid}.{get_native_id()}"
        try:
            with cancellation.phase(f"removing pod {name or pod.uuid}"):
                with _opened(pod.path) as directory:
                    for entry in os.listdir(directory):
                        if not entry.endswith((".json", ".lock")):
                            beneath.remove_tree(directory, entry, cancellation.step)
                with _opened(self.root) as root:
                    os.rename(pod.uuid, gone, src_dir_fd=root, dst_dir_fd=root)
                    beneath.remove_tree(root, gone)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise HostError(
                    f"pod {pod.uuid}: cannot remove {pod.path}: {os.strerror(error.errno or 0)}",
                    hint="unmount what is mounted below it, then: kurma gc",
                    errno=error.errno,
                    path=pod.path,
                ) from None
        if name is not None:
            link = f"{self.names}/{name}"
            with contextlib.suppress(OSError):
                if os.path.basename(os.readlink(link)) == pod.uuid:
                    os.unlink(link)


def _unmade(directory: PodDirectory, error: KurmaError) -> bool:
    """Whether a living process is about to make the pod: it has no record yet, and was never started."""
    return isinstance(error, PodNotFoundError) and directory.owned() and not os.path.lexists(directory.file("pod"))


def summary(directory: PodDirectory, document: PodDocument, state: PodState) -> PodSummary:
    attachments = state.attachments or document.attachments
    networks = [_network(one) for one in state.attachments]
    if not networks:
        networks = [NetworkSummary(one.network, one.interface, (), one.base) for one in document.attachments]
    return PodSummary(
        uuid=document.uuid,
        name=document.name,
        state=state.state,
        created_at=document.created_at,
        apps=tuple(document.app_names),
        networks=tuple(networks),
        images=document.images,
        image_names=document.image_names,
        volume_images=document.volume_images,
        ports=tuple([port.text for one in attachments for port in one.ports]),
        exit_code=state.exit_code,
        started_at=state.started_at,
        finished_at=state.finished_at,
        restarts=0 if state.restart is None else state.restart.count,
        labels=document.manifest.user_labels,
        manager=document.manager,
        display_name=document.display_name,
        health=health.word(directory, document, state),
    )


def _network(attachment: Attachment) -> NetworkSummary:
    addresses = () if attachment.result is None else attachment.result.addresses
    given = tuple([one.address for one in addresses])
    return NetworkSummary(attachment.network, attachment.interface, given, attachment.base)


def broken_summary(directory: PodDirectory, state: str, why: str) -> PodSummary:
    """The summary of a pod whose records cannot be read."""
    return PodSummary(uuid=directory.uuid, name="-", state=state, created_at="")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
