"""Discovers images by name: reads ``ac-discovery`` meta tags of the name's host, and tries their addresses.

App Container Image Discovery. Keys are found in the same pages: :mod:`.key_discovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from kurma_core.errors import (
    FetchError,
    FetchNotFoundError,
    FetchUnauthorizedError,
    UsageError,
)
from kurma_fetch_http.discovery_templates import Candidate, candidates, simple
from kurma_fetch_http.meta_tags import IMAGES, PAGE_LIMIT, Tag, tags_of
from kurma_fetch_http.transport import content, shown
from kurma_fetch_http.web_archive import web_archive

if TYPE_CHECKING:
    from kurma_core.appc.image_name import ImageName
    from kurma_core.hookspecs.fetcher import FetchRequest, RemoteArchive
    from kurma_fetch_http.transport import Transport

_HOST = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


class Discovery:
    """One search, which fetches each page once.

    :param schemes: schemes for pages, in order: ``https``; plain ``http`` after it, if it is allowed.
    :param note: prints a note for the user, one line.
    :ivar failures: errors at addresses that were tried. :ivar tried: addresses that were asked.
    """

    def __init__(self, transport: Transport, schemes: Collection[str], note: Callable[[str], None]) -> None:
        self.transport = transport
        self._schemes = tuple(schemes)
        self._note = note
        self._pages: dict[str, tuple[Tag, ...]] = {}
        self.failures: list[FetchError] = []
        self.tried: list[str] = []

    def image(self, wanted: ImageName, text: str, request: FetchRequest) -> RemoteArchive:
        """Finds the archive of an image.

        :param text: the name as the user wrote it.
        :raises FetchError: one of its subclasses. :raises UsageError: the name does not begin with a host.
        """
        check_host(wanted.name)
        try:
            for candidate in self._candidates(wanted, request):
                if candidate.image in self.tried:
                    continue
                self.tried.append(candidate.image)
                found = self._at(candidate, text, request.known)
                if found is not None:
                    return found
        except FetchError as error:
            self.failures.append(error)  # the host does not answer, so its pages are not tried either
        raise self.nothing(text)

    def _at(self, candidate: Candidate, text: str, known: str | None) -> RemoteArchive | None:
        """Tries one address. :raises FetchError: the name's host does not answer at all, so its pages will not
        either."""
        try:
            return web_archive(
                text,
                self.transport,
                url=candidate.image,
                signatures=candidate.signatures,
                pages=not candidate.simple,
                known=known,
            )
        except UsageError as error:  # the page, not the user, wrote the malformed address
            self.failures.append(FetchError(error.message, url=candidate.image))
            return None
        except FetchError as error:
            if candidate.simple and not _status(error) and self._schemes == ("https",):
                raise
            self.failures.append(error)
            return None

    # --- possible addresses of an image --------------------------------------------------------------------------

    def _candidates(self, wanted: ImageName, request: FetchRequest) -> Iterator[Candidate]:
        """Yields the possible addresses in order; for a bare name simple discovery comes first, as in early
        drafts."""
        values = {"os": request.os, "arch": request.arch, **wanted.labels}
        if wanted.bare:
            if "/" in wanted.name:  # else NAME.aci would be another host
                yield from (simple(wanted.name, scheme) for scheme in self._schemes)
            for name, version in _early_names(wanted.name):
                yield from self._by_pages(name, {**values, "version": version})
        yield from self._by_pages(wanted.name, {**values, "version": wanted.version or "latest"})

    def _by_pages(self, name: str, values: dict[str, str]) -> Iterator[Candidate]:
        for tag in self.walk(name, IMAGES):
            if self.is_open(tag):
                yield from candidates(tag, name, values)

    def is_open(self, tag: Tag) -> bool:
        """Whether Kurma supports the tag's address; if not, a note says that it is skipped."""
        scheme = tag.target.partition(":")[0].lower()
        torrent = tag.target.lower().endswith("?torrent")
        if scheme in ("http", "https") and not torrent:
            return True
        what = "torrents are" if torrent else f"{scheme[:20]!r} is"
        self._note(f"{tag.prefix}: one of its places is skipped, for {what} not understood: {tag.target}")
        return False

    # --- pages ---------------------------------------------------------------------------------------------------

    def walk(self, name: str, kinds: Collection[str]) -> tuple[Tag, ...]:
        """Returns the matching tags of the nearest page that has any: the name's own page, or one above it."""
        path = name
        while path:
            fitting = tuple(tag for tag in self._page(path) if tag.kind in kinds and tag.covers(name))
            if fitting:
                return fitting
            path = path.rpartition("/")[0]
        return ()

    def _page(self, path: str) -> tuple[Tag, ...]:
        """Returns the tags of a page; an answer 4xx counts as a page without tags.

        :raises FetchError: the host does not answer, or fails.
        """
        if path not in self._pages:
            self._pages[path] = self._ask(path)
        return self._pages[path]

    def _ask(self, path: str) -> tuple[Tag, ...]:
        errors: list[FetchError] = []
        for scheme in self._schemes:
            address = f"{scheme}://{path}?ac-discovery=1"
            try:
                answer, final = self.transport.request(address)
                kind = answer.headers.get("Content-Type", "")
                return tags_of(content(answer, final, PAGE_LIMIT, self.transport.document_seconds), kind)
            except FetchError as error:
                errors.append(error)
        refused = [error for error in errors if _status(error) in range(400, 500) and _status(error) != 429]
        if not refused:
            raise errors[0]
        if not isinstance(refused[0], FetchNotFoundError):
            self.failures.append(refused[0])
        return ()

    # --- errors --------------------------------------------------------------------------------------------------

    def nothing(self, text: str) -> FetchError:
        """Returns the most informative error: missing credentials, then other failures, then "not found"."""
        host = text.partition("/")[0].partition(":")[0].partition(",")[0]
        other = [error for error in self.failures if not isinstance(error, FetchNotFoundError)]
        for error in sorted(other, key=lambda error: not isinstance(error, FetchUnauthorizedError)):
            data = {key: value for key, value in error.data.items() if key != "status"}
            return type(error)(f"{text}: {error.message}", hint=error.hint, **data)
        if not any(self._pages.values()):
            return FetchNotFoundError(
                f"{text}: not in the store, and {host} does not say where its images are",
                hint="name an address: https://HOST/FILE.aci",
                url=f"https://{host}",
            )
        tried = ", ".join(shown(address) for address in self.tried) or "no address that could be asked"
        return FetchNotFoundError(f"{text}: not found: asked {tried}", tried=tuple(self.tried))


def _status(error: FetchError) -> int:
    """Returns the HTTP status of an error; 0: there was no answer."""
    status = error.data.get("status")
    return status if isinstance(status, int) else 0


def _early_names(name: str) -> Iterator[tuple[str, str]]:
    """Splits a name of the early draft that ends with a version: ``x-1.0.0`` → ``x``, ``1.0.0``."""
    directory, slash, last = name.rpartition("/")
    for place, character in enumerate(last):
        if place and character == "-" and last[place + 1 : place + 2].isdigit():
            yield f"{directory}{slash}{last[:place]}", last[place + 1 :]
            return


def check_host(name: str) -> None:
    """Checks that a name begins with a host.

    :raises UsageError: its first part cannot be a host.
    :raises FetchNotFoundError: it is a single word without a domain.
    """
    host = name.partition("/")[0]
    labels = host.split(".")
    if not all(0 < len(label) < 64 and _HOST.issuperset(label) for label in labels) or len(host) > 253:
        raise UsageError(
            f"{name}: cannot be discovered: {host} is not a host",
            hint="the name of an image that can be discovered begins with a domain: example.com/app",
        )
    if len(labels) == 1 and host == name:
        raise FetchNotFoundError(
            f"{name}: not in the store, and a name without a domain cannot be discovered",
            hint=f"add the domain: example.com/{name}",
            url=name,
        )
