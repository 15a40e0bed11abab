"""Entry points of the fetcher plugins ``docker``, ``oci``, ``oci-archive`` and ``docker-archive``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_fetch_http.plugin import OPTIONS as HTTP_OPTIONS

from kurma_core.errors import UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, Option
from kurma_core.hookspecs.fetcher import Fetcher, FetchRequest

if TYPE_CHECKING:
    from kurma_core.hookspecs.fetcher import RemoteLayers

OPTIONS = (
    *HTTP_OPTIONS,
    Option("docker_config", str, "", "file with credentials; empty: where podman and Docker keep theirs"),
)


class DockerFetcher:
    """Resolves Docker and OCI images, for all four schemes."""

    def __init__(self, context: DriverContext) -> None:
        self._context = context

    def resolve(self, locator: str, request: FetchRequest) -> RemoteLayers:
        """See :meth:`kurma_core.hookspecs.fetcher.Fetcher.resolve`. Reads the manifest and the configuration, both
        checked against their digests, and no layer.

        If the image's configuration names a user and no group, the manifest's ``app.group`` is empty: the
        user's own groups are in the image's files.
        """
        scheme, _, rest = locator.partition(":")
        if scheme == "docker":
            from kurma_fetch_docker.registries import resolve_remote

            return resolve_remote(locator, request, self._context)
        if scheme == "oci":
            from kurma_fetch_docker.oci_layout import resolve_layout

            return resolve_layout(locator, rest, request)
        if scheme in ("oci-archive", "docker-archive"):
            from kurma_fetch_docker.docker_archive import resolve_archive

            return resolve_archive(locator, rest, request, self._context.state_dir)
        raise UsageError(f"{locator}: not a docker, oci, oci-archive or docker-archive address")


@hookimpl
def kurma_fetcher() -> Driver[Fetcher]:
    """Docker and OCI images, from registries and from files."""
    return Driver(create=DockerFetcher, options=OPTIONS)
