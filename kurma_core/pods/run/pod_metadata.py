"""Runs a pod's metadata service: starts it with the pod, and takes it over after an owner's death."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kurma_core.errors import HostError, PodNotFoundError
from kurma_core.metadata import secrets
from kurma_core.models.pod import MetadataAddress
from kurma_core.pods.record.state import ServiceAddress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.images.manager import ImageManager
    from kurma_core.metadata.api import ImageFacts
    from kurma_core.metadata.listening import Listener
    from kurma_core.metadata.secrets import Secrets
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.record.state import PodState
    from kurma_core.pods.services import Services

Json = Any
#: In the pod's directory: the service's secrets, which only root may read, and no stager.
_PLACE = "metadata"


def ahead(directory: PodDirectory, namespace: str) -> Listener:
    """Makes the metadata service's secrets and socket for a prestarted pod. The secrets are removed with the pod's
    directory.

    :param namespace: path at which its network namespace is pinned.
    :returns: the socket: pass it to :func:`begin`, or close it.
    :raises HostError: they cannot be made.
    """
    from kurma_core.metadata.listening import listen

    _keep(directory)
    return listen(namespace)


def begin(
    services: Services, directory: PodDirectory, document: PodDocument, listener: Listener | None = None
) -> None:
    """Starts the metadata service of a pod that is being started; :func:`settled` waits for its socket.

    :param listener: the socket from :func:`ahead`; closed with the service.
    :raises HostError: its secrets cannot be made.
    """
    _serve(services, directory, document, _keep(directory), None, listener)


def _keep(directory: PodDirectory) -> Secrets:
    try:
        return secrets.keep(directory.file(_PLACE))
    except OSError as error:
        raise _unusable(directory, error) from None


def settled(services: Services, directory: PodDirectory) -> tuple[str, ServiceAddress]:
    """Waits for the socket of a service that :func:`begin` started.

    :returns: the URL, and the address to record (without the token).
    :raises HostError: the socket cannot be made.
    """
    listener = services.metadata.wait(directory.uuid)
    record = ServiceAddress(listener.address, listener.port, listener.early)
    return _url(record, _load(directory)), record


def take_up(services: Services, directory: PodDirectory, document: PodDocument) -> None:
    """Serves the metadata of a running pod whose owner has died, at the same port and with the same token and key.
    The caller holds the owner lock.

    :raises HostError: the port is taken, or the secrets are lost.
    :raises PodNotFoundError: no service is on record: the pod does not run.
    """
    record = directory.read_state().metadata
    if record is None:
        raise PodNotFoundError(f"pod {directory.uuid}: no metadata service is on record", pod=directory.uuid)
    _serve(services, directory, document, _load(directory), record.port)
    try:
        services.metadata.wait(directory.uuid)
    except BaseException:
        services.forget_metadata(directory.uuid)
        raise


def _serve(
    services: Services,
    directory: PodDirectory,
    document: PodDocument,
    own: Secrets,
    port: int | None,
    listener: Listener | None = None,
) -> None:
    """:param port: the port that the service had before; None: any."""
    namespace = document.network_namespace

    def make() -> Listener:
        from kurma_core.metadata.listening import listen

        return listen(namespace, port)

    facts = PodFacts(services, directory)
    services.metadata.serve(make, own.token, facts, early=namespace is not None, listener=listener)


def url_of(directory: PodDirectory) -> str | None:
    """The AC_METADATA_URL of a running pod's apps; None: it has no service."""
    record = directory.read_state().metadata
    return None if record is None else _url(record, _load(directory))


def told_of(directory: PodDirectory, state: PodState) -> MetadataAddress | None:
    """The address of a running pod's service, and the path of its token file; None: the pod does not run."""
    record = state.metadata
    if record is None:
        return None
    return MetadataAddress(record.address, record.port, secrets.token_file(directory.file(_PLACE)))


def notes_of(state: PodState) -> tuple[str, ...]:
    early = state.metadata.early if state.metadata else None
    return (f"metadata service: {early}",) if early else ()


def _url(record: ServiceAddress, own: Secrets) -> str:
    return f"http://{record.address}:{record.port}/{own.token}"


def _load(directory: PodDirectory) -> Secrets:
    try:
        own = secrets.load(directory.file(_PLACE))
    except OSError as error:
        raise _unusable(directory, error) from None
    if own is None:
        raise HostError(
            f"pod {directory.uuid}: the token or the key of its metadata service is lost",
            hint=f"kurma restart {directory.uuid[:8]}",
            path=directory.file(_PLACE),
            pod=directory.uuid,
        )
    return own


def _unusable(directory: PodDirectory, error: OSError) -> HostError:
    what = f"pod {directory.uuid}: the secrets of its metadata service cannot be used"
    return HostError.of(what, error, pod=directory.uuid)


class PodFacts:
    """Implements :class:`kurma_core.metadata.api.Facts`: reads a pod's present files."""

    def __init__(self, services: Services, directory: PodDirectory) -> None:
        self._services = services
        self._directory = directory
        self.uuid = directory.uuid

    def stamp(self) -> object:
        try:
            status = os.stat(self._directory.file("pod.json"))
        except OSError as error:
            raise PodNotFoundError(f"pod {self.uuid}: {error.strerror}", pod=self.uuid) from None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def manifest(self) -> Mapping[str, Json]:
        found: Mapping[str, Json] = self._directory.read_pod()["manifest"]
        return found

    def image(self, image_id: str) -> ImageFacts:
        return image_facts(self._services.images, image_id)

    def key(self, uuid: str) -> bytes | None:
        try:
            return secrets.read_key(self._services.store.directory(uuid).file(_PLACE))
        except OSError as error:
            raise _unusable(self._directory, error) from None


def image_facts(images: ImageManager, image_id: str) -> ImageFacts:
    """The facts of an image that the metadata service tells apps.

    :raises KurmaError: the store has lost it.
    """
    from kurma_core.metadata.api import ImageFacts

    store = images.store
    manifest, originals = store.manifest_bytes(image_id), store.originals(image_id)
    if not originals:
        return ImageFacts(image_id, manifest, manifest)
    return ImageFacts(image_id, manifest, originals.get("app", manifest), store.get(image_id).early_id)
