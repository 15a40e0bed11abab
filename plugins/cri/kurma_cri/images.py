"""The images of the node: those of Kurma's store as the Container Runtime Interface names them.

An image's ID there is the digest of its configuration, from whatever registry and by whatever tag it came. Kurma's
store has an image for each name that brought it: those with one configuration are one image of the node.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import AmbiguousReferenceError, ImageNotFoundError
from kurma_core.linux.process import signal_number
from kurma_core.value import frozen
from kurma_cri import references
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import RpcError
from kurma_cri.sandbox_request import MANAGER

if TYPE_CHECKING:
    from kurma_core.api.images import ListedImage
    from kurma_core.api.operations import Api
    from kurma_core.appc.image import ImageManifest
    from kurma_core.models.image import ImageRecord, Provenance

Json = Any
#: Annotations of converted images.
_DOCKER, _KURMA = "appc.io/docker", "kurma.io/docker"
#: The annotation of a converted image with its stop signal.
STOP_SIGNAL = f"{_KURMA}/stopsignal"
_ADDRESS = "docker://"
#: Digits that the beginning of an ID must have.
_SHORTEST = 3
_HEX = frozenset("0123456789abcdef")


@frozen
class RunImage:
    """An image that a container runs.

    :param id: its ID in the Container Runtime Interface. :param reference: name and digest, else the ID.
    :param locator: the image in Kurma's store. :param stop_signal: the image's, by its name in the enum.
    """

    id: str
    reference: str
    locator: str
    stop_signal: str = "SIGNAL_SIGTERM"


@frozen
class ImageFacts:
    """The part of an image that its manifest determines.

    :param id: of the node's image. :param user: name or number; empty: it names none.
    :param names: whole names by its own account, for an image that came from a file.
    :param config: the configuration, as registries have it.
    """

    id: str
    user: str
    names: tuple[str, ...]
    config: Mapping[str, Json]


@frozen
class NodeImage:
    """An image of the node.

    :param records: the images of Kurma's store that it consists of, the newest first.
    :param tags: whole names with tags. :param digests: whole names with digests of manifests.
    :param pinned: kubelet must not remove it: it did not fetch the image, or pods of others use it.
    """

    id: str
    records: tuple[ImageRecord, ...]
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    pinned: bool
    facts: ImageFacts

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return max((record.size + record.archive_size for record in self.records), default=0) or 1


class Images:
    """:param client: has the images."""

    def __init__(self, client: Api) -> None:
        self._client = client
        #: By ID of Kurma's: an image never changes.
        self._facts: dict[str, ImageFacts] = {}
        #: By ID, the node's or the store's, as they were last listed.
        self._run: dict[str, RunImage] = {}

    def all(self) -> list[NodeImage]:
        """The images of the node, in order of their first name.

        Images that kubelet has removed while containers run them are left out, and so are those of stagers.
        """
        listed = sorted(self._client.images_list().images, key=lambda one: one.record.age_order, reverse=True)
        known = {one.record.id for one in listed}
        self._facts = {key: facts for key, facts in self._facts.items() if key in known}
        others = _used_by_others(self._client)
        newest = _newest(listed)
        groups: dict[str, list[ImageRecord]] = {}
        for record in (one.record for one in listed):
            if record.released or all(came.trust == "built" for came in record.provenance):
                continue
            try:
                groups.setdefault(self.facts(record).id, []).append(record)
            except ImageNotFoundError:
                continue  # it was removed meanwhile
        found = [self._image(id, group, newest, others) for id, group in groups.items()]
        self._run = {
            id: RunImage(
                image.id,
                (image.digests or (image.id,))[0],
                image.records[0].id,
                enum_name(image.facts.config.get("StopSignal", "")),
            )
            for image in found
            for id in (image.id, *(record.id for record in image.records))
        }
        return sorted(found, key=lambda one: (one.tags or one.digests or (one.id,))[0])

    def _image(
        self, id: str, group: list[ImageRecord], newest: Mapping[str, str], others: frozenset[str]
    ) -> NodeImage:
        tags, digests = [], []
        for record in group:
            tags += [name for name, holder in newest.items() if holder == record.id]
            tags += self.facts(record).names
            digests += [f"{name.name}@{came.digest}" for came, name in _names(record) if came.digest]
        kubelets = any(MANAGER in record.managers for record in group)
        return NodeImage(
            id,
            tuple(group),
            tuple(dict.fromkeys(tags)),
            tuple(dict.fromkeys(digests)),
            not kubelets or not others.isdisjoint(record.id for record in group),
            self.facts(group[0]),
        )

    def facts(self, record: ImageRecord) -> ImageFacts:
        """:raises ImageNotFoundError: it was removed."""
        found = self._facts.get(record.id)
        if found is None:
            found = self._facts[record.id] = _facts(record, self._client.image(record.id).manifest)
        return found

    def find(self, reference: str) -> NodeImage | None:
        """The image that a name with tag or digest, an ID, or the beginning of one names; None: there is none.

        :raises RpcError: it is none of these. :raises AmbiguousReferenceError: the beginning of several IDs.
        """
        images = self.all()
        if not references.is_id(reference) and not reference.startswith(("sha256:", "sha512-")):
            try:
                name = str(references.parse(reference))
            except RpcError:
                name = ""
            for image in images:
                if name in image.tags or name in image.digests:
                    return image
        elif reference.startswith("sha512-"):
            return next((one for one in images if any(reference == record.id for record in one.records)), None)
        return _by_id(images, reference.removeprefix("sha256:"))

    def run_image(self, reference: str) -> RunImage:
        """:param reference: see :meth:`find`.

        :raises ImageNotFoundError: the node has no such image.
        """
        known = self._run.get(reference)
        if known is not None:
            # Kubelet names an image by its ID, and often the same. It may be removed since.
            with contextlib.suppress(ImageNotFoundError):
                if not self._client.image(known.locator).record.released:
                    return known
        image = self.find(reference)
        if image is None:
            raise ImageNotFoundError(f"the node has no image {reference}", hint="pull it first")
        return self._run[image.id]


def _by_id(images: Iterable[NodeImage], digits: str) -> NodeImage | None:
    if len(digits) < _SHORTEST or not _HEX.issuperset(digits):
        return None
    found = [image for image in images if image.id.removeprefix("sha256:").startswith(digits)]
    if len(found) > 1:
        raise AmbiguousReferenceError(f"{len(found)} images have an ID that starts with {digits}")
    return found[0] if found else None


def _used_by_others(client: Api) -> frozenset[str]:
    """IDs of the images that pods of others than kubelet run or mount."""
    return frozenset(images_in_use(client, outside=True))


def images_in_use(client: Api, *, outside: bool = False) -> dict[str, str]:
    """The images that pods run or mount: by their IDs, the name of a pod.

    :param outside: only pods of others than kubelet.
    """
    return {
        image: pod.name
        for pod in client.summaries()
        if not outside or pod.manager != MANAGER
        for image in (*pod.images.values(), *pod.volume_images)
    }


def _names(record: ImageRecord) -> list[tuple[Provenance, references.Reference]]:
    """The whole names by which an image was fetched from registries."""
    found = [(came, _name(came.locator)) for came in record.provenance]
    return [(came, name) for came, name in found if name is not None]


def _newest(images: Iterable[ListedImage]) -> dict[str, str]:
    """By whole name with a tag, the ID of the image that came last by it.

    :param images: the newest first.
    """
    newest: dict[str, str] = {}
    for one in images:
        for locator in one.locators:
            name = _name(locator)
            if name is not None and name.tag:
                newest.setdefault(str(name), one.record.id)
    return newest


def _name(locator: str) -> references.Reference | None:
    """The whole name that the address of a registry's image has; None: it is none."""
    if not locator.startswith(_ADDRESS):
        return None
    try:
        return references.parse(locator.removeprefix(_ADDRESS).removeprefix("/"))
    except RpcError:
        return None


def _facts(record: ImageRecord, manifest: ImageManifest) -> ImageFacts:
    annotations = {one.name: one.value for one in manifest.annotations}
    id = annotations.get(f"{_DOCKER}/imageid", "")
    if not id:
        # An App Container image has no configuration. Its older ID is a digest of the same kind.
        early = (record.early_id or "").removeprefix("sha256-")
        id = f"sha256:{early or hashlib.sha256(record.id.encode()).hexdigest()}"
    user = "" if manifest.app is None else manifest.app.user
    if user == "0" and f"{_DOCKER}/imageid" in annotations and f"{_KURMA}/user" not in annotations:
        user = ""
    return ImageFacts(id, user, _own_names(record, annotations), _config(user, manifest, annotations))


def _own_names(record: ImageRecord, annotations: Mapping[str, str]) -> tuple[str, ...]:
    if any(came.locator.startswith(_ADDRESS) for came in record.provenance):
        return ()
    text = f"{record.name}:{record.version}" if record.version else record.name
    if f"{_DOCKER}/imageid" in annotations:
        parts = [annotations.get(f"{_DOCKER}/{key}", "") for key in ("registryurl", "repository", "tag")]
        if not all(parts):
            return ()
        text = f"{parts[0]}/{parts[1]}:{parts[2]}"
    try:
        return (str(references.parse(text)),)
    except RpcError:
        return ()


def _config(user: str, manifest: ImageManifest, annotations: Mapping[str, str]) -> dict[str, Json]:
    """The image's configuration, for people who look at it."""
    app = manifest.app
    if app is None:
        return {}
    words = {key: annotations.get(f"{_DOCKER}/{key.lower()}") for key in ("Entrypoint", "Cmd")}
    config = {
        "User": user,
        "Env": [f"{one.name}={one.value}" for one in app.environment],
        **{key: _list(value) for key, value in words.items() if value is not None},
        "WorkingDir": app.working_directory or "",
        "Labels": dict(app.user_labels),
        "StopSignal": annotations.get(STOP_SIGNAL, ""),
        "ExposedPorts": {f"{port.port}/{port.protocol}": {} for port in app.ports},
        "Volumes": {point.path: {} for point in app.mount_points},
    }
    if not any(value is not None for value in words.values()):
        config["Entrypoint"] = list(app.exec)
    return {key: value for key, value in config.items() if value}


def _list(text: str) -> Json:
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text.split()


@functools.lru_cache(maxsize=256)
def enum_name(text: str) -> str:
    """The name in the enum Signal of a signal's name or number; that of SIGTERM if there is none."""
    number = signal_number(text)
    found = [name for name in cri.Signal.keys() if signal_number(signal_name(name)) == number]  # noqa: SIM118
    return found[0] if found and number else "SIGNAL_SIGTERM"


def signal_name(name: str) -> str:
    """``SIGRTMIN+3`` for the enum's ``SIGNAL_SIGRTMINPLUS3``."""
    return name.removeprefix("SIGNAL_").replace("PLUS", "+").replace("MINUS", "-")
