"""The entry points ``http`` and ``https``: App Container archives by URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, Option
from kurma_core.hookspecs.fetcher import FetcherHooks, FetchRequest

if TYPE_CHECKING:
    from kurma_core.hookspecs.fetcher import RemoteArchive

#: Other plugins that use :class:`.transport.Transport` share these options.
OPTIONS = (
    Option(
        "timeout",
        float,
        30.0,
        "seconds to wait for a connection, and for each piece of an answer",
        least=0.01,
        most=86400,
    ),
    Option("retries", int, 4, "how often a broken connection or a 5xx answer is tried again", least=0, most=100),
    Option("ca_file", str, "", "PEM file of further certificate authorities, beside the system's"),
)


class HttpFetcher(FetcherHooks):
    """Resolves ``http://`` and ``https://`` locators. One serves both schemes."""

    def __init__(self, context: DriverContext) -> None:
        self._context = context

    @hookimpl
    def resolve(self, locator: str, request: FetchRequest) -> RemoteArchive:
        """See :meth:`kurma_core.hookspecs.fetcher.FetcherHooks.resolve`. Its signature is looked for beside the
        archive, under the names of :func:`.file_archive.beside`."""
        if not locator.startswith(("http://", "https://")):
            raise UsageError(f"{locator}: not an http or https address", hint="write https://HOST/PATH")
        request.refuse_credentials(locator)
        from kurma_fetch_http.transport import Transport
        from kurma_fetch_http.web_archive import web_archive

        transport = Transport.from_config(self._context, request.insecure)
        transport.check(locator)
        return web_archive(locator, transport, known=request.known)


@hookimpl
def kurma_fetcher() -> Driver:
    """Archives from web servers."""
    return Driver(create=HttpFetcher, options=OPTIONS, example="https://HOST/FILE.aci")
