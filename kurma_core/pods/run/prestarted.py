"""Prestarted pods: prepares, before a client asks for a pod, all that does not depend on the request.

A prestarted pod has a UUID, and three things with that name: a cgroup, a network namespace (its loopback interface
is up, and the metadata service's socket is bound in it), and a stager that waits in both. Its directory, which
listings do not show, records them before they are made; a pod that is prepared from it goes on with that record.
The process that made it holds its owner lock. If that process dies, the stager ends by itself, and :func:`sweep`
removes the rest.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from kurma_core.cancellation import shielded
from kurma_core.errors import HostError, KurmaError, PodNotFoundError, StagerError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.isolator import USERNS_ANNOTATION
from kurma_core.networking.network_records import pin_path
from kurma_core.pods.prepare.isolators import NAMESPACES
from kurma_core.pods.record.document import cgroup_of
from kurma_core.pods.record.pod_store import new_uuid
from kurma_core.pods.record.state import PodState
from kurma_core.pods.run import pod_metadata
from kurma_core.pods.run.launch import Launch
from kurma_core.pods.run.owner import NewPod, OwnedPod
from kurma_core.staging.prestarted import PrestartPlace
from kurma_core.staging.stager_process import WAITS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kurma_core.api.pods import PodRequest
    from kurma_core.config import Config
    from kurma_core.metadata.listening import Listener
    from kurma_core.models.image import RenderedImage
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.services import Events, Services
    from kurma_core.staging.prestarted import PrestartedStager

#: The start steps of :mod:`.launch` that are done before the pod is known, and the names of what they make.
PRESTARTED_STEPS, PRESTARTED = ("cgroup", "network-namespace"), ("cgroup", "net")


class PrestartedPod(NewPod):
    """A UUID with a cgroup, a network namespace and a waiting stager. One pod takes it over, or it is discarded.

    :param stager: the stager's name.
    :param directory: becomes the pod's directory; ``lock`` is its owner lock.
    """

    def __init__(
        self,
        services: Services,
        uuid: str,
        stager: str,
        directory: PodDirectory,
        lock: int,
        waiting: PrestartedStager,
        listener: Listener,
    ) -> None:
        super().__init__(services, uuid, directory, lock)
        self.stager = stager
        self.waiting = waiting
        self._listener: Listener | None = listener

    def fileno(self) -> int:
        """Polls readable once its stager has ended."""
        return self.waiting.fileno()

    def alive(self) -> bool:
        return self.waiting.alive()

    def fits(self, document: PodDocument) -> bool:
        """Whether the pod with this UUID can use the stager and the namespaces."""
        return (
            document.stager == self.stager
            and document.network_namespace is not None
            and document.user_namespace is None
            and document.interactive is None
            and self.alive()
        )

    def become(self, name: str) -> PodDirectory:
        """Turns the directory into a pod's, which listings show, and returns it.

        :raises PodExistsError: the UUID or the name is taken. The prestarted pod is then discarded, as after any
            failure.
        """
        try:
            self._directory = self._services.store.publish(self.directory, self.uuid, name)
        except BaseException:
            self.discard()
            raise
        self.waiting.printed_to(self.directory.file("stager"))
        return self.directory

    def fitted(self, document: PodDocument) -> NewPod:
        return self if self.fits(document) else self._withdrawn()

    def record(self, document: PodDocument) -> None:
        # Its state stays "preparing": it is started at once, and the start records its next state.
        self.directory.write_pod(document)

    def owned(
        self,
        document: PodDocument,
        rendered: dict[str, RenderedImage],
        images: AbstractContextManager[None],
        events: Events,
    ) -> OwnedPod:
        listener, self._listener = self._listener, None
        launch = Launch(
            self._services,
            self.directory,
            document,
            # The hand-over moves the stager to the new cgroup, and removes its old one.
            made=PRESTARTED if document.cgroup_parent is None else PRESTARTED[1:],
            waiting=self.waiting,
            listener=listener,
            rendered=rendered,
        )
        return OwnedPod(launch, self._taken(), events.postponed(), images)

    def abandon(self, name: str) -> None:
        self._withdrawn().abandon(name)

    def _withdrawn(self) -> NewPod:
        """Ends the stager and undoes all but the directory, which goes to the pod that is returned.

        :raises HostError: a part could not be removed; it is on record.
        """
        self._end()
        return NewPod(self._services, self.uuid, self.directory, self._taken())

    def _end(self) -> None:
        self.waiting.discard()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.directory.drop_spare()
        undo(self._services, self.uuid)

    @property
    def taken(self) -> bool:
        """Whether a pod has taken it over."""
        return self._lock < 0

    def _taken(self) -> int:
        """Marks it as taken over. :returns: the owner lock, which the caller closes."""
        lock, self._lock = self._lock, -1
        return lock

    def discard(self) -> None:
        """Ends the stager and removes everything. Repeatable; does nothing once a pod has taken it over.

        :raises HostError: a part could not be removed; it is on record, for :func:`sweep`.
        """
        if self.taken:
            return
        try:
            self._end()
            self._services.store.discard(self.directory)
        finally:
            os.close(self._taken())


def can_prestart(services: Services, stager: str) -> bool:
    """Whether the stager can be started before its pod is known. Builds or fetches its image if needed.

    :raises KurmaError: there is no such stager, or its image is not available.
    """
    if services.stagers.engine(stager) is None:
        return False
    return services.stagers.image(stager, files=False).manifest.annotation(WAITS) == "true"


def fits_request(request: PodRequest, config: Config) -> bool:
    """Whether the requested pod can use a prestarted pod of the configured stager, as far as the request alone
    tells; :meth:`PrestartedPod.fits` decides once the images are known."""
    pod = request.template.pod
    if request.networks is not None:
        networks = {one.name for one in request.networks}
    else:
        networks = {text.partition(",")[0].partition(":")[0] for text in request.template.networks or ()}
    given = [*request.isolators, *(pair for one in request.overrides.values() for pair in one.isolators)]
    isolators = {isolator.name for isolator in pod.isolators} | {name for name, _ in given}
    isolators |= {isolator.name for app in pod.apps for isolator in app.own_isolators}
    return (
        request.uuid is None
        and request.interactive is None
        and request.stager in (None, config.stager)
        and (request.userns or pod.annotation(USERNS_ANNOTATION) or config.userns) == "none"
        and "host" not in networks
        and NAMESPACES not in isolators
    )


def prestart(services: Services, stager: str) -> PrestartedPod:
    """Makes a prestarted pod. Its stager may not yet have reached the point at which it waits.

    :raises StagerError: the stager cannot be started before its pod is known.
    :raises KurmaError: it could not be made; nothing of it is left.
    """
    engine = services.stagers.engine(stager)
    if engine is None:
        raise StagerError(f"stager {stager} cannot be prestarted: its plugin runs pods without an image")
    uuid = new_uuid()
    listener: Listener | None = None
    directory, lock = services.store.reserve(uuid, anew=False)
    try:
        directory.write_state(PodState("preparing", PRESTARTED_STEPS))
        directory.spare(PodState("preparing", PRESTARTED_STEPS))
        path, cgroup = pin_path("net", uuid), cgroup_of(uuid)
        services.joined.begin(uuid, "", (), ("net",))
        try:
            CgroupTree(cgroup).create()
        except OSError as error:
            raise _host_error("make the cgroup", uuid, error) from None
        services.spawner.make_namespace(path)
        services.joined.made(uuid, "net")
        listener = pod_metadata.ahead(directory, path)
        _raise_lo(path, uuid)
        for name in ("pod", "stager"):
            os.mkdir(directory.file(name), 0o700)
        waiting = engine.prestart(PrestartPlace(directory.file("stager"), cgroup, path, own=directory.path))
        # Keeps garbage collection from removing the stager's image (see used_images).
        try:
            directory.change_state(stager_image=waiting.image)
        except BaseException:
            waiting.discard()
            raise
    except BaseException:
        if listener is not None:
            listener.close()
        try:
            # A part that cannot be undone stays on record, for :func:`sweep`.
            with shielded(), suppress(KurmaError):
                undo(services, uuid)
                services.store.discard(directory)
        finally:
            os.close(lock)
        raise
    return PrestartedPod(services, uuid, stager, directory, lock, waiting, listener)


def _raise_lo(namespace: str, uuid: str) -> None:
    """Sets the loopback interface up. The network driver does so, too; but done here, no client has to wait for
    the kernel's lock on all interfaces (RTNL)."""
    from kurma_core.linux.namespaces import in_netns, raise_lo

    try:
        with in_netns(namespace):
            raise_lo()
    except OSError as error:
        raise _host_error("set the loopback interface up", uuid, error) from None


def undo(services: Services, uuid: str) -> None:
    """Kills the stager's cgroup and removes everything but the directory. Repeatable.

    :raises HostError: a part could not be removed.
    """
    try:
        tree = CgroupTree(cgroup_of(uuid))
        tree.kill()
        services.joined.release(uuid, "net")
        services.joined.forget(uuid)
        tree.remove()
    except OSError as error:
        raise _host_error("undo what was made", uuid, error) from None


def sweep(services: Services, grace: float) -> None:
    """Removes the prestarted pods of dead processes. The next sweep retries those that cannot be removed.

    :param grace: minimum age of a directory, in seconds.
    """
    for uuid, directory in services.store.reserved().items():
        try:
            if time.time() - os.stat(directory.path).st_ctime < grace:
                continue
            # Raises for a directory that was removed, and for a pod whose preparation has just begun.
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
    return HostError.of(f"cannot {what} for prestarted pod {uuid}", error, pod=uuid)
