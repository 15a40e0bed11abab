"""The entry point ``docker``: Docker and OCI images from registries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_fetch_http.plugin import OPTIONS as HTTP_OPTIONS

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, HostCheck, Option
from kurma_core.hookspecs.fetcher import FetcherHooks, FetchRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kurma_core.appc.image import ImageManifest
    from kurma_core.hookspecs.fetcher import ImageFiles, RemoteLayers, StoredImage
    from kurma_core.models.image import Conventions

#: Prefixes of the annotations that :mod:`.conversion` reads and writes.
ANNOTATIONS = ("appc.io/docker/", "kurma.io/docker/")
OPTIONS = (
    *HTTP_OPTIONS,
    Option("docker_config", str, "", "file with credentials; empty: where podman and Docker keep theirs"),
)


class DockerFetcher(FetcherHooks):
    """Resolves ``docker://`` locators."""

    def __init__(self, context: DriverContext) -> None:
        self._context = context

    @hookimpl
    def resolve(self, locator: str, request: FetchRequest) -> RemoteLayers:
        """Reads the manifest and the configuration, both checked against their digests, and no layer.

        If the image's configuration names a user and no group, the manifest's ``app.group`` is empty: the
        user's own groups are in the image's files.
        """
        from kurma_fetch_docker.registries import resolve_remote

        return resolve_remote(locator, request, self._context)

    @hookimpl
    def push(self, locator: str, image: StoredImage, request: FetchRequest) -> str:
        from kurma_fetch_docker.pushing.registry_upload import push_remote

        return push_remote(locator, image, request, self._context)

    @hookimpl
    def expand_name(self, name: str, registry: str) -> tuple[str, ...]:
        """``alpine:3`` is an image of the registry, or in a hint of Docker Hub. ``quay.io/team/app`` may be an
        image of App Container: it is one of a registry if ``registry`` is that host, or in a hint.
        """
        from kurma_fetch_docker.reference import short_name

        address = short_name(name, registry)
        return () if address is None else (address,)

    @hookimpl
    def log_in(self, locator: str, user: str, secret: str, request: FetchRequest) -> str:
        from kurma_fetch_docker.registry_login import log_in

        return log_in(locator, user, secret, request, self._context)

    @hookimpl
    def log_out(self, locator: str) -> str:
        from kurma_fetch_docker.registry_login import log_out

        return log_out(locator, self._context)

    @hookimpl
    def complete_manifest(self, manifest: ImageManifest, files: ImageFiles) -> ImageManifest:
        from kurma_fetch_docker.conversion import complete_manifest

        return complete_manifest(manifest, files)

    @hookimpl
    def conventions(self, annotations: Mapping[str, str]) -> Conventions:
        from kurma_fetch_docker.conversion import conventions

        return conventions(annotations)


@hookimpl
def kurma_checks() -> Sequence[HostCheck]:
    """The certificates of authorities, by which registries are known."""
    import os
    import ssl

    # The paths that apply: SSL_CERT_FILE and SSL_CERT_DIR, or OpenSSL's own.
    paths = ssl.get_default_verify_paths()
    there = bool(paths.cafile) or (bool(paths.capath) and any(os.scandir(paths.capath)))
    lacks = "" if there else "no authorities of TLS are installed, so that no registry can be verified"
    return (HostCheck("certificates", there, lacks, lacks and "apt-get install ca-certificates"),)


@hookimpl
def kurma_fetcher() -> Driver:
    """Docker and OCI images from registries."""
    return Driver(create=DockerFetcher, options=OPTIONS, example="docker://HOST/NAME:TAG", annotations=ANNOTATIONS)
