"""Resolves ``docker://`` locators: asks the registry or its mirrors, over TLS or, where allowed, plain HTTP."""

from __future__ import annotations

import ipaddress
import threading
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kurma_fetch_http.transport import Transport

from kurma_core.errors import FetchError, FetchTLSError, FetchTruncatedError, UsageError
from kurma_core.hookspecs.driver import DriverContext
from kurma_core.hookspecs.fetcher import FetchRequest, RemoteLayers
from kurma_fetch_docker.conversion import ImageOrigin
from kurma_fetch_docker.layer_blobs import RegistryBlob, UrlBlob
from kurma_fetch_docker.logins import GivenLogin, Logins, login_of
from kurma_fetch_docker.oci_documents import choose
from kurma_fetch_docker.reference import HUB, HUB_NAMES, Reference, is_host, parse_locator, registry_of
from kurma_fetch_docker.registry_client import Client
from kurma_fetch_docker.remote_layers import remote_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kurma_core.hookspecs.fetcher import RemoteBlobHooks
    from kurma_fetch_docker.oci_documents import Descriptor


def resolve_remote(locator: str, request: FetchRequest, context: DriverContext) -> RemoteLayers:
    """Asks the registry's mirrors, in order, and then the registry itself.

    :raises FetchError: the registry's error, one of its subclasses. :raises UsageError: the locator is malformed.
    """
    reference = parse_locator(locator)
    endpoints = Endpoints(context, request, given_login(request, reference.registry, context))
    hosts = (*endpoints.mirrors(reference.registry), reference.registry)
    for place, host in enumerate(hosts[:-1]):
        try:
            return _resolve_at(host, hosts[place + 1 :], locator, reference, request, endpoints)
        except FetchError as error:
            context.note(f"mirror {host} of {reference.registry}: {error}; asking {hosts[place + 1]}")
    return _resolve_at(reference.registry, (), locator, reference, request, endpoints)


def _resolve_at(
    host: str,
    after: Sequence[str],
    locator: str,
    reference: Reference,
    request: FetchRequest,
    endpoints: Endpoints,
) -> RemoteLayers:
    """Resolves the reference at one host. :param after: the hosts to ask for a layer if this host fails on it."""
    client = endpoints.client(host, reference.repository)
    content, digest = client.manifest(reference.wanted, reference.digest)
    url = f"{client.base}/v2/{reference.repository}/manifests/{reference.wanted}"
    manifest = choose(content, digest, url, request, client.load)
    layers = manifest.layers

    def blob(layer: Descriptor, host: str) -> RemoteBlobHooks:
        return RegistryBlob(layer, partial(endpoints.client, host, reference.repository))

    def others(place: int) -> tuple[RemoteBlobHooks, ...]:
        return (*(blob(layers[place], host) for host in after), *endpoints.away(layers[place]))

    return remote_layers(
        locator=locator,
        url=url,
        transport=client.base.partition(":")[0],
        origin=ImageOrigin(reference.registry, reference.repository, reference.tag),
        request=request,
        manifest=manifest,
        config=client.config(manifest.config),
        blobs=[blob(layer, host) for layer in layers],
        digest=digest,
        pinned=reference.digest is not None,
        others=others,
    )


def given_login(request: FetchRequest, registry: str, context: DriverContext) -> Logins | None:
    """The logins of a request with credentials for the registry: they come before those of this machine, at that
    registry alone. None: those of this machine count.

    :raises UsageError: the credentials hold neither a user nor a token, or name no registry.
    """
    given = request.credentials
    if given is None:
        return None
    if given.server:
        # Docker writes https://index.docker.io/v1/
        host = (given.server.partition("://")[2] or given.server).partition("/")[0]
        if registry_of(f"docker://{host}") != registry:
            return None
    if not (given.user or given.identity_token or given.registry_token):
        raise UsageError("the credentials hold neither a user nor a token", hint="give a user and a password")
    return GivenLogin(login_of(given), registry, machine_logins(context))


class Endpoints:
    """Makes the client for each host, over TLS or plain HTTP. Safe to use from several threads.

    Plain HTTP is allowed to registries listed as insecure, to registries on this machine's loopback addresses (as
    with Docker: no other host can intercept the traffic), and to all with ``--insecure-options=http``; even then
    it is used only if the server does not speak TLS, which is tried first. The same rule applies to the targets of
    such a registry's redirects, and to its token server.

    :param logins: None: those of this machine's files.
    """

    def __init__(self, context: DriverContext, request: FetchRequest, logins: Logins | None = None) -> None:
        self._context = context
        self._insecure = request.insecure
        self._listed = {str(host).lower() for host in context.registries.get("insecure", ())}
        self._logins = logins or machine_logins(context)
        self._tls = self._transport()
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Client] = {}

    def mirrors(self, registry: str) -> tuple[str, ...]:
        """Returns the mirrors to ask before the registry."""
        mirrors = self._context.registries.get("mirrors", {})
        names = HUB_NAMES if registry == HUB else (registry,)
        found = (str(host).lower() for name in names for host in mirrors.get(name, ()))
        return tuple(host for host in dict.fromkeys(found) if host != registry)

    def client(self, host: str, repository: str) -> Client:
        """Returns the client for a repository. :raises FetchError: TLS fails, and plain HTTP fails or is not
        allowed."""
        with self._lock:
            client = self._clients.get((host, repository))
            if client is None:
                client = self._clients[host, repository] = self._new_client(host, repository)
            return client

    def _new_client(self, host: str, repository: str) -> Client:
        if not is_host(host):
            raise FetchError(f"{host!r} is not a host[:port]", hint="see registries.mirrors in kurma.yml")
        if self._may_be_plain(host) and not self._speaks_tls(host):
            self._context.note(f"registry {host} is spoken to over plain http ({self._reason(host)})")
            plain = self._transport(plain=True)
            return Client(plain, f"http://{host}", host, repository, self._logins)
        return Client(self._tls, f"https://{host}", host, repository, self._logins)

    def away(self, descriptor: Descriptor) -> tuple[UrlBlob, ...]:
        """Returns the addresses of a layer that registries do not distribute ("foreign", "non-distributable").
        They are fetched without credentials, and over TLS."""
        return tuple(
            UrlBlob(descriptor, self._tls, url) for url in descriptor.urls if urlsplit(url).scheme == "https"
        )

    def _may_be_plain(self, host: str) -> bool:
        return host in self._listed or "http" in self._insecure or is_loopback(host)

    def _reason(self, host: str) -> str:
        if host in self._listed:
            return "it is listed under registries.insecure"
        return "it is on this machine" if is_loopback(host) else "--insecure-options=http"

    def _speaks_tls(self, host: str) -> bool:
        """Whether the server speaks TLS. A server of plain HTTP answers a TLS handshake with garbage, or hangs
        up."""
        probe = self._transport(retries=0)
        try:
            answer, _ = probe.request(f"https://{host}/v2/", accept=range(400, 600))
        except FetchTLSError as error:
            if error.data.get("reason") == "certificate":
                raise
            return False
        except FetchTruncatedError:
            return False
        answer.close()
        return True

    def _transport(self, *, plain: bool = False, retries: int | None = None) -> Transport:
        config = self._context.config
        return Transport(
            timeout=float(config.get("timeout", 30.0)),
            retries=int(config.get("retries", 4)) if retries is None else retries,
            ca_file=str(config.get("ca_file", "")),
            insecure=self._insecure - {"http"},
            note=self._context.note,
            plain=(lambda host: self._may_be_plain(host.lower())) if plain else lambda host: False,
            # Plain HTTP is safe on loopback only because no other host sees it, so no proxy may be used either.
            direct=lambda host: is_loopback(host.lower()),
        )


def machine_logins(context: DriverContext) -> Logins:
    """The logins of this machine's files."""
    return Logins(context.auth_dir, str(context.config.get("docker_config", "")))


def is_loopback(host: str) -> bool:
    """Whether ``host[:port]`` is this machine by its loopback address: ``localhost``, 127.0.0.0/8 or ::1."""
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
