"""Runs a pod's metadata service: starts it with the pod, and takes it over after an owner's death. Keeps the
service's token and signing key in files that only root can read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kurma_core.errors import HostError, PodNotFoundError
from kurma_core.linux.files import replace_file
from kurma_core.models.pod import MetadataAddress
from kurma_core.pods.record.state import ServiceAddress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.images.manager import ImageManager
    from kurma_core.metadata.api import ImageFacts
    from kurma_core.metadata.listening import Listener
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.record.state import PodState
    from kurma_core.pods.services import Services

Json = Any
#: In the pod's directory: the service's secrets, which only root may read, and no stager.
_PLACE = "metadata"
#: Bytes of randomness in each; the token is written in hexadecimal digits.
_TOKEN_SIZE, _KEY_SIZE = 24, 64
_HEX = frozenset("0123456789abcdef")


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
        return keep_secrets(directory.file(_PLACE))
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


def address_of(directory: PodDirectory, state: PodState) -> MetadataAddress | None:
    """The address of a running pod's service, and the path of its token file; None: the pod does not run."""
    record = state.metadata
    if record is None:
        return None
    return MetadataAddress(record.address, record.port, token_file(directory.file(_PLACE)))


def notes_of(state: PodState) -> tuple[str, ...]:
    early = state.metadata.early if state.metadata else None
    return (f"metadata service: {early}",) if early else ()


def _url(record: ServiceAddress, own: Secrets) -> str:
    return f"http://{record.address}:{record.port}/{own.token}"


def _load(directory: PodDirectory) -> Secrets:
    try:
        own = load_secrets(directory.file(_PLACE))
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


class Secrets:
    """A pod's secrets, which no output shows.

    :param token: part of the service's URL. :param key: signs for the pod.
    """

    __slots__ = ("key", "token")

    def __init__(self, token: str, key: bytes) -> None:
        self.token = token
        self.key = key


def token_file(directory: str) -> str:
    return f"{directory}/token"


def keep_secrets(directory: str) -> Secrets:
    """Returns the pod's secrets; makes them if they are missing or incomplete.

    :param directory: their own directory, which the pod's stager does not see.
    :raises OSError: they cannot be written.
    """
    found = load_secrets(directory)
    if found is not None:
        return found
    os.makedirs(directory, mode=0o700, exist_ok=True)
    made = Secrets(os.urandom(_TOKEN_SIZE).hex(), read_key(directory) or os.urandom(_KEY_SIZE))
    replace_file(token_file(directory), made.token.encode() + b"\n")
    replace_file(f"{directory}/key", made.key.hex().encode() + b"\n")
    return made


def load_secrets(directory: str) -> Secrets | None:
    """Reads the secrets; None: they are missing or incomplete. :raises OSError: they cannot be read."""
    token = _read_hex(token_file(directory), _TOKEN_SIZE)
    key = read_key(directory)
    return None if token is None or key is None else Secrets(token.hex(), key)


def read_key(directory: str) -> bytes | None:
    """Reads the key; None: there is none. :raises OSError: it cannot be read."""
    return _read_hex(f"{directory}/key", _KEY_SIZE)


def _read_hex(path: str, size: int) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        text = os.read(fd, 4 * size).decode("ascii", "replace").removesuffix("\n")
    finally:
        os.close(fd)
    return bytes.fromhex(text) if len(text) == 2 * size and _HEX.issuperset(text) else None


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
            return read_key(self._services.store.directory(uuid).file(_PLACE))
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
