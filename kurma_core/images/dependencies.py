"""Resolves an image's dependencies, by ID or by name, to the graph that renderers take."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kurma_core.appc.image_name import ImageName
from kurma_core.errors import (
    AmbiguousReferenceError,
    FetchError,
    ImageError,
    ImageNotFoundError,
    ManifestError,
    RenderError,
    UsageError,
)
from kurma_core.fetching import locator_of
from kurma_core.hookspecs.renderer import ImageNode
from kurma_core.image_store.records import not_found
from kurma_core.images.acquisition import Expectation
from kurma_core.images.trust_policy import ENOUGH_DIGITS, is_only_built_here
from kurma_core.value import replace

if TYPE_CHECKING:
    from kurma_core.appc.image import Dependency, ImageManifest
    from kurma_core.image_store import ImageStore
    from kurma_core.images.acquisition import Acquisition
    from kurma_core.images.trust_policy import TrustPolicy
    from kurma_core.models.image import ImageRecord


Json = Any
#: Limits: levels of dependencies, and number of different images, that one image may need.
_DEPTH = 64
_IMAGES = 1000
_FEWER = "build one image of what several of them hold"


class Graph:
    """Builds the nodes of images and their dependencies from the store, each image once, depth-first.

    :param hold: keeps an image in the store from now on; False: it is gone.
    :param acquisition: fetches the dependencies that the store lacks; None: they count as missing.
    :param pull: ``always`` asks again for dependencies without an ID that once came by discovery.
    :ivar manifests: of all images visited, as JSON values by ID.
    """

    def __init__(
        self,
        store: ImageStore,
        policy: TrustPolicy,
        hold: Callable[[str], bool] = lambda _: True,
        acquisition: Acquisition | None = None,
        pull: str = "new",
    ) -> None:
        self._store = store
        self._acquisition = acquisition
        self._pull = pull
        self._policy = policy
        self._hold = hold
        self._nodes: dict[str, ImageNode] = {}
        self.manifests: dict[str, Json] = {}

    def node(self, image_id: str, way: tuple[str, ...] = ()) -> ImageNode:
        """:param way: IDs of the images that led here, the outermost first.
        :raises RenderError: a dependency is missing, does not match its declaration, or depends on itself.
        """
        if image_id in way:
            names = " → ".join(self.manifests[step]["name"] for step in (*way[way.index(image_id) :], image_id))
            raise RenderError(
                f"images have circular dependencies: {names}",
                hint="build one of them again without that dependency",
                image=image_id,
            )
        if len(way) > _DEPTH:
            raise RenderError(
                f"{self.manifests[way[0]]['name']}: dependencies are nested more than {_DEPTH} levels deep",
                hint=_FEWER,
                image=way[0],
            )
        node = self._nodes.get(image_id)
        if node is None:
            if not self._hold(image_id):
                raise not_found(image_id)
            manifest = self._store.manifest(image_id)
            self.manifests[image_id] = manifest.to_json()
            if len(self.manifests) > _IMAGES:
                first = (*way, image_id)[0]
                raise RenderError(
                    f"{self.manifests[first]['name']}: needs more than {_IMAGES} images", hint=_FEWER, image=first
                )
            node = ImageNode(
                id=image_id,
                manifest=manifest,
                layers=self._store.layers(image_id),
                dependencies=tuple(
                    self._dependency(manifest, dependency, (*way, image_id))
                    for dependency in manifest.dependencies
                ),
            )
            self._nodes[image_id] = node
        return node

    def _dependency(self, manifest: ImageManifest, dependency: Dependency, way: tuple[str, ...]) -> ImageNode:
        record = self._find(manifest, dependency, way)
        if dependency.size is not None:
            _check_size(self._store, manifest, dependency, record)
        try:
            node = self.node(record.id, way)
        except ImageNotFoundError:  # removed just now
            raise _missing(manifest, dependency) from None
        return node if dependency.root == "/" else replace(node, root=dependency.root)

    def _find(self, manifest: ImageManifest, dependency: Dependency, way: tuple[str, ...]) -> ImageRecord:
        """From the store, else fetched."""
        if self._acquisition is None:
            return self._stored(manifest, dependency, way)
        by_name = dependency.image_id is None
        if self._pull == "always" and by_name and self._acquisition.is_known(locator_of(name_of(dependency))):
            return self._fetched(self._acquisition, manifest, dependency)
        try:
            return self._stored(manifest, dependency, way)
        except _MissingError:
            return self._fetched(self._acquisition, manifest, dependency)
        except _UntrustedError as error:
            try:
                return self._fetched(self._acquisition, manifest, dependency)
            except FetchError:
                raise error from None  # the publisher has no better one

    def _fetched(self, acquisition: Acquisition, manifest: ImageManifest, dependency: Dependency) -> ImageRecord:
        try:
            name = name_of(dependency)
            expected = Expectation(name, dependency.image_id, dependency.size)
            return acquisition.get(locator_of(name), self._pull, expected)
        except (ImageError, ManifestError, UsageError) as error:
            error.message = f"{manifest.name} depends on {_named(dependency)}: {error.message}"
            raise

    def _stored(self, manifest: ImageManifest, dependency: Dependency, way: tuple[str, ...]) -> ImageRecord:
        """Finds a dependency in the store. By its whole ID, any image is accepted, since the ID is the hash of its
        content. By name, or by so short an ID that another image could be made to match it, only an image that
        :meth:`TrustPolicy.accepts_for`."""
        if dependency.image_id is not None:
            record = self._by_id(manifest, dependency, dependency.image_id)
            if len(dependency.image_id.partition("-")[2]) >= ENOUGH_DIGITS:
                return record
            fitting = [record]
        else:
            wanted = name_of(dependency)
            fitting = [record for record in self._store.list() if wanted.is_met_by(record.name, record.labels)]
            if not fitting:
                raise _missing(manifest, dependency)
        dependent = self._store.get(way[-1])
        trusted = [record for record in fitting if self._policy.accepts_for(record, dependent)]
        if not trusted:
            raise self._untrusted(manifest, dependency, fitting)
        others = [record for record in trusted if not is_only_built_here(record)]
        return max(others or trusted, key=lambda record: record.age_order)

    def _untrusted(
        self, manifest: ImageManifest, dependency: Dependency, fitting: list[ImageRecord]
    ) -> _UntrustedError:
        newest = max(fitting, key=lambda record: record.age_order)
        if is_only_built_here(newest) and self._policy.publishers(newest):
            return _UntrustedError(
                f"{manifest.name} depends on {self._policy.refusal_by_name(newest).message}",
                hint="fetch the image of that key's owner, or write the whole imageID into the dependency",
                image=newest.id,
            )
        return _UntrustedError(
            f"{manifest.name} depends on {_named(dependency)}: the image of that name in the store is "
            "unverified, or its signer is not trusted for it",
            hint="fetch a signed one, or allow it for this run: --insecure-options=image",
            image=newest.id,
        )

    def _by_id(self, manifest: ImageManifest, dependency: Dependency, ident: str) -> ImageRecord:
        """Early documents have SHA-256 IDs, or the beginning of one."""
        try:
            record = self._store.find_by_id(ident)
        except AmbiguousReferenceError as error:
            raise RenderError(
                f"{manifest.name} depends on {_named(dependency)}: {error.message}",
                hint="remove the image that you do not want",
                **error.data,
            ) from None
        if record is None:
            raise _missing(manifest, dependency)
        if record.name != dependency.image_name:
            raise RenderError(
                f"{manifest.name} depends on {dependency.image_name}, and the image with the ID that it "
                f"gives is {record.name}",
                image=record.id,
            )
        return record


def _check_size(store: ImageStore, manifest: ImageManifest, dependency: Dependency, record: ImageRecord) -> None:
    archive = store.archive_path(record.id)
    if archive is not None and (found := os.stat(archive).st_size) != dependency.size:
        raise RenderError(
            f"{manifest.name} depends on {dependency.image_name} with {dependency.size} bytes; the one in "
            f"the store has {found}",
            image=record.id,
        )


class _MissingError(RenderError):
    """The store has no such image."""


class _UntrustedError(RenderError):
    """The store's image of that name is not trusted enough."""


def _missing(manifest: ImageManifest, dependency: Dependency) -> _MissingError:
    return _MissingError(
        f"{manifest.name} depends on {_named(dependency)}, which is not in the store",
        hint=f"fetch it first: kurma image fetch {name_of(dependency).shown}, or its file or address",
        dependency=dependency.image_name,
    )


def _named(dependency: Dependency) -> str:
    ident = f" ({dependency.image_id[:19]}…)" if dependency.image_id else ""
    return f"{name_of(dependency).shown}{ident}"


def name_of(dependency: Dependency) -> ImageName:
    """The name, labels and ID by which a dependency is looked for."""
    labels = {label.name: label.value for label in dependency.labels}
    return ImageName.of(dependency.image_name, labels, dependency.image_id)
