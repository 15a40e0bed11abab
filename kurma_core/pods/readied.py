"""Pods to come: what does not depend on which pod it will be is made before anybody asks for one (G10).

A UUID, and what has its name: a cgroup, a network namespace with its loopback interface up and the metadata
service's socket, and in them a stager that waits. It is on record from before it is made, as what pods have is, in
a directory that no listing shows; a pod that is made of it goes on with that record. Whoever holds one holds its
lock. If he dies, the stager ends by itself, and the rest is nobody's: :func:`sweep`.
"""

from __future__ import annotations

import os
import time
import uuid as uuids
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from kurma_core.errors import HostError, KurmaError, PodNotFoundError, StagerError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.networking.joined import pin_path
from kurma_core.pods import metadata
from kurma_core.pods.id_ranges import ANNOTATION as USERNS
from kurma_core.pods.launch import READIED
from kurma_core.pods.namespaces import NAME as NAMESPACES
from kurma_core.staging.starting import WAITS
from kurma_core.staging.waiting import WaitingPlace

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.config import Config
    from kurma_core.metadata.listening import Listener
    from kurma_core.models.image import RenderedImage
    from kurma_core.pod_store import PodDirectory
    from kurma_core.pods.document import PodDocument
    from kurma_core.pods.request import PodRequest
    from kurma_core.pods.services import Services
    from kurma_core.staging.waiting import WaitingStager


class Readied:
    """What one pod to come has already. It is for one pod: taken over by it, or discarded.

    :param stager: its name.
    :param directory: the pod's own to be; ``lock`` is its owner lock.
    """

    def __init__(
        self,
        services: Services,
        uuid: str,
        stager: str,
        directory: PodDirectory,
        lock: int,
        waiting: WaitingStager,
        listener: Listener,
    ) -> None:
        self.uuid = uuid
        self.stager = stager
        self.directory = directory
        self.lock = lock
        self.waiting = waiting
        #: of the pod that was made of it, which nobody else has had in hand since
        self.document: PodDocument | None = None
        #: What is found of images from the pod's making to its start is held (``ImageManager.keeping``).
        self.holds_images = False
        #: the apps' images; None: they are looked up anew
        self.rendered: dict[str, RenderedImage] | None = None
        self._untold: Callable[[], None] | None = None
        self._listener: Listener | None = listener
        self._services = services

    def fileno(self) -> int:
        """Polls readable once its stager has ended: then it is of no use."""
        return self.waiting.fileno()

    def alive(self) -> bool:
        return self.waiting.alive()

    def take_listener(self) -> Listener | None:
        """The metadata service's socket, the caller's now; None: it was taken before."""
        listener, self._listener = self._listener, None
        return listener

    def close_listener(self) -> None:
        """Where nobody has taken it. May be repeated."""
        listener = self.take_listener()
        if listener is not None:
            listener.close()

    def fits(self, document: PodDocument) -> bool:
        """Whether that pod, which has its UUID, can be made of it."""
        return (
            document.stager == self.stager
            and document.network_namespace is not None
            and document.user_namespace is None
            and document.interactive is None
            and self.alive()
        )

    def become(self, name: str) -> PodDirectory:
        """The pod's directory, from now on one that everybody sees.

        :raises PodExistsError: the UUID or the name is taken. It is discarded, as after any other failure.
        """
        try:
            self.directory = self._services.store.publish(self.directory, self.uuid, name)
        except BaseException:
            self.discard()
            raise
        self.waiting.printed_to(self.directory.file("stager"))
        return self.directory

    def settle(self) -> None:
        """The pod that was prepared of it waits for its start, and is shown as one that does.

        :raises HostError: that cannot be recorded.
        """
        self.directory.change_state(state="prepared")
        self.told()

    def release(self) -> None:
        """The pod that was prepared of it is not started now: it is as any other that was prepared, and nobody's.
        Nothing once it was started.

        :raises KurmaError: something is left; it is on record, and taken away by whoever comes by.
        """
        if self.lock < 0:
            return
        try:
            self._end()
            self.directory.change_state(state="prepared", steps=[])
            self.told()
        finally:
            os.close(self.taken())

    def tell_later(self, tell: Callable[[], None]) -> None:
        """What observers are told of the pod's making: nobody's start waits for that."""
        self._untold = tell

    def told(self) -> None:
        """It is told now, if it was not yet."""
        tell, self._untold = self._untold, None
        if tell is not None:
            tell()

    def withdraw(self) -> int:
        """Ends the stager, and undoes all but the directory. :returns: the lock, the caller's now.

        :raises HostError: something is left, and on record.
        """
        self._end()
        return self.taken()

    def _end(self) -> None:
        self.waiting.discard()
        self.close_listener()
        self.directory.drop_spare()
        undo(self._services, self.uuid)

    def taken(self) -> int:
        """The pod has taken all over. :returns: the lock, the caller's now."""
        lock, self.lock = self.lock, -1
        return lock

    def discard(self) -> None:
        """Ends the stager, and undoes the rest, of a pod that has not come. Repeatable; nothing where it has.

        :raises HostError: something is left; it is on record, for :func:`sweep`.
        """
        if self.lock < 0:
            return
        try:
            self._end()
            self._services.store.discard(self.directory)
        finally:
            os.close(self.taken())


def waits(services: Services, stager: str) -> bool:
    """Whether that stager can wait for its pod; its image is made, or fetched, if need be.

    :raises KurmaError: there is no such stager, or its image cannot be had.
    """
    if not hasattr(services.stagers.get(stager), "start_waiting"):
        return False
    return services.stagers.image(stager, files=False).manifest.annotation(WAITS) == "true"


def fit_for(request: PodRequest, config: Config) -> bool:
    """Whether a pod as it is asked for can be made of one for the configuration's stager, as far as that can be
    told before its images are known (see :meth:`Readied.fits`)."""
    pod = request.template.pod
    if request.networks is not None:
        networks = {one.name for one in request.networks}
    else:
        networks = {text.partition(",")[0].partition(":")[0] for text in request.template.networks or ()}
    given = [*request.isolators, *(pair for one in request.overrides.values() for pair in one.isolators)]
    isolators = {isolator.name for isolator in pod.isolators} | {name for name, _ in given}
    isolators |= {isolator.name for app in pod.apps if app.app for isolator in app.app.isolators}
    return (
        request.uuid is None
        and request.interactive is None
        and request.stager in (None, config.stager)
        and (request.userns or pod.annotation(USERNS) or config.userns) == "none"
        and "host" not in networks
        and NAMESPACES not in isolators
    )


def ready(services: Services, stager: str) -> Readied:
    """Makes one, whose stager may still be on its way to where it waits.

    :raises StagerError: that stager does not wait for its pod.
    :raises KurmaError: it could not be made; nothing of it is left.
    """
    driver: Any = services.stagers.get(stager)
    if not hasattr(driver, "start_waiting"):
        raise StagerError(f"stager {stager} does not wait for its pod: its plugin runs pods by itself")
    uuid = str(uuids.uuid4())
    listener: Listener | None = None
    directory, lock = services.store.reserve(uuid, anew=False)
    try:
        directory.write_state({"state": "preparing", "steps": list(READIED)})
        directory.spare({"state": "preparing", "steps": list(READIED)})
        path, cgroup = pin_path("net", uuid), f"kurma/{uuid}"
        services.joined.begin(uuid, "", (), ("net",))
        try:
            CgroupTree(cgroup).create()
        except OSError as error:
            raise _host_error("make the cgroup", uuid, error) from None
        services.spawner.make_namespace(path)
        services.joined.made(uuid, "net")
        listener = metadata.ahead(directory, path)
        _raise_lo(path, uuid)
        for name in ("pod", "stager"):
            os.mkdir(directory.file(name), 0o700)
        waiting = driver.start_waiting(WaitingPlace(directory.file("stager"), cgroup, path, own=directory.path))
        # Its image is used, as that of a pod's stager (see used_images).
        try:
            directory.change_state(stagerImage=waiting.image)
        except BaseException:
            waiting.discard()
            raise
    except BaseException:
        if listener is not None:
            listener.close()
        # What cannot be undone stays on record.
        with suppress(KurmaError):
            undo(services, uuid)
        services.store.discard(directory)
        os.close(lock)
        raise
    return Readied(services, uuid, stager, directory, lock, cast("WaitingStager", waiting), listener)


def _raise_lo(namespace: str, uuid: str) -> None:
    """Its driver does, too; here nobody waits for the kernel's one lock of all interfaces."""
    from kurma_core.linux.links import raise_lo
    from kurma_core.linux.namespaces import in_netns

    try:
        with in_netns(namespace):
            raise_lo()
    except OSError as error:
        raise _host_error("set the loopback interface up", uuid, error) from None


def undo(services: Services, uuid: str) -> None:
    """Takes away all but the directory, of one whose stager has ended or is to. Repeatable.

    :raises HostError: something of it is left.
    """
    try:
        tree = CgroupTree(f"kurma/{uuid}")
        tree.kill()
        services.joined.release(uuid, "net")
        services.joined.forget(uuid)
        tree.remove()
    except OSError as error:
        raise _host_error("undo what was made", uuid, error) from None


def sweep(services: Services, grace: float) -> None:
    """Takes away those that dead processes have left. What cannot be taken away stays for the next time.

    :param grace: seconds for which its directory must have lain there.
    """
    for uuid, directory in services.store.reserved().items():
        try:
            if time.time() - os.stat(directory.path).st_ctime < grace:
                continue
            # One that was removed, or a pod that was hardly begun, has none.
            directory.read_state()
            lock = directory.try_own()
        except (OSError, KurmaError):
            continue
        if lock is None:
            continue
        try:
            with suppress(PodNotFoundError):
                undo(services, uuid)
                services.store.discard(directory)
        except KurmaError as error:
            services.note(error.message)
        finally:
            os.close(lock)


def _host_error(what: str, uuid: str, error: OSError) -> HostError:
    return HostError(
        f"cannot {what} for pod {uuid}, which is to come: {error.filename or ''}: {error.strerror or error}",
        errno=error.errno,
        path=error.filename,
        pod=uuid,
    )
