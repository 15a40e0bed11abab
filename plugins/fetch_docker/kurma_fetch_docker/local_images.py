"""The entry points ``oci``, ``oci-archive`` and ``docker-archive``: images in files of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_core.hookspecs.fetcher import FetcherHooks, FetchRequest
from kurma_core.schema import describe, writable
from kurma_fetch_docker.plugin import ANNOTATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.appc.image import ImageManifest
    from kurma_core.hookspecs.fetcher import ImageFiles, RemoteLayers, StoredImage
    from kurma_core.models.image import Conventions


class LocalImageFetcher(FetcherHooks):
    """Resolves ``oci:``, ``oci-archive:`` and ``docker-archive:`` locators. One serves all three schemes."""

    def __init__(self, context: DriverContext) -> None:
        self._context = context

    @hookimpl
    def resolve(self, locator: str, request: FetchRequest) -> RemoteLayers:
        """Reads the manifest and the configuration, both checked against their digests, and no layer.

        If the image's configuration names a user and no group, the manifest's ``app.group`` is empty: the
        user's own groups are in the image's files.
        """
        scheme, _, path = locator.partition(":")
        if "\0" in path or not writable(path):
            raise UsageError(f"{scheme}: no file can have the path {describe(path)}")
        request.refuse_credentials(locator)
        if scheme == "oci":
            from kurma_fetch_docker.oci_layout import resolve_layout

            return resolve_layout(locator, path, request)
        if scheme in ("oci-archive", "docker-archive"):
            from kurma_fetch_docker.docker_archive import resolve_archive

            return resolve_archive(locator, path, request, self._context.state_dir)
        raise UsageError(f"{locator}: not an oci, oci-archive or docker-archive address")

    @hookimpl
    def push(self, locator: str, image: StoredImage, request: FetchRequest) -> str:
        from kurma_fetch_docker.pushing.local_files import push_local

        return push_local(locator, image, request, self._context)

    @hookimpl
    def complete_manifest(self, manifest: ImageManifest, files: ImageFiles) -> ImageManifest:
        from kurma_fetch_docker.conversion import complete_manifest

        return complete_manifest(manifest, files)

    @hookimpl
    def conventions(self, annotations: Mapping[str, str]) -> Conventions:
        from kurma_fetch_docker.conversion import conventions

        return conventions(annotations)


@hookimpl
def kurma_fetcher() -> Driver:
    """Docker and OCI images from files of this machine."""
    return Driver(create=LocalImageFetcher, locators="path", annotations=ANNOTATIONS)
