"""The entry point ``appc``: archives and keys by an image's name (App Container Image Discovery)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_core.hookspecs.fetcher import FetcherHooks, FetchRequest
from kurma_fetch_http.plugin import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Collection

    from kurma_core.hookspecs.fetcher import PublicKey, RemoteArchive
    from kurma_fetch_http.discovery import Discovery


class NameFetcher(FetcherHooks):
    """Resolves ``NAME[:VERSION][,label=value…]`` by asking the host that the name begins with."""

    def __init__(self, context: DriverContext) -> None:
        self._context = context

    @hookimpl
    def resolve(self, locator: str, request: FetchRequest) -> RemoteArchive:
        """See :meth:`kurma_core.hookspecs.fetcher.FetcherHooks.resolve`."""
        from kurma_core.appc.image_name import parse_image_name

        request.refuse_credentials(locator)
        wanted = parse_image_name(locator)
        return self._discovery(request.insecure).image(wanted, locator, request)

    @hookimpl
    def public_keys(self, name: str, request: FetchRequest) -> tuple[PublicKey, ...]:
        """With the relaxation ``pubkey``, as with ``http``, keys may come over plain HTTP."""
        from kurma_core.appc.image_name import parse_image_name
        from kurma_fetch_http.key_discovery import discover_keys

        plain = {"http"} if "pubkey" in request.insecure else set()
        return discover_keys(self._discovery(request.insecure | plain), parse_image_name(name).name)

    def _discovery(self, insecure: Collection[str]) -> Discovery:
        from kurma_fetch_http.discovery import Discovery
        from kurma_fetch_http.transport import Transport

        schemes = ("https", "http") if "http" in insecure else ("https",)
        return Discovery(Transport.from_config(self._context, insecure), schemes, self._context.note)


@hookimpl
def kurma_fetcher() -> Driver:
    """Archives by name, from the addresses that the name's owner publishes."""
    return Driver(create=NameFetcher, options=OPTIONS, locators="name")
