"""The entry points ``oci``, ``oci-archive`` and ``docker-archive``: images in files of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_core.hookspecs.fetcher import FetcherHooks, FetchRequest

if TYPE_CHECKING:
    from kurma_core.hookspecs.fetcher import RemoteLayers


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
        if scheme == "oci":
            from kurma_fetch_docker.oci_layout import resolve_layout

            return resolve_layout(locator, path, request)
        if scheme in ("oci-archive", "docker-archive"):
            from kurma_fetch_docker.docker_archive import resolve_archive

            return resolve_archive(locator, path, request, self._context.state_dir)
        raise UsageError(f"{locator}: not an oci, oci-archive or docker-archive address")


@hookimpl
def kurma_fetcher() -> Driver:
    """Docker and OCI images from files of this machine."""
    return Driver(create=LocalImageFetcher, locators="path")
