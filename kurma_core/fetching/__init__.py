"""Fetches images: parses a locator, finds its fetcher, resolves the locator, and reads the bytes.

A download is read once, by the code that stores it. On its way it is hashed, counted, and written to a partial
file, so that a later attempt goes on where this one was cut off, also by kill -9. The partial file is locked while
it is written: another process that needs the same bytes waits, and then finds the image in the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kurma_core.appc.image_name import ImageName, parse_image_name
from kurma_core.cancellation import abandoning
from kurma_core.errors import (
    FetchDigestError,
    FetchError,
    FetchNotFoundError,
    HostError,
    KurmaError,
    PluginError,
    StoreError,
    UsageError,
)
from kurma_core.fetching.download import Download, Partial
from kurma_core.models.image import LOCAL, TRANSPORTS
from kurma_core.named_files import absolute_locator, split_locator
from kurma_core.plugins.calls import plugin_error
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.api.operations import Progress
    from kurma_core.appc.image import ImageManifest
    from kurma_core.hookspecs.fetcher import (
        DetachedSignature,
        FetcherHooks,
        FetchRequest,
        ImageFiles,
        PublicKey,
        RemoteArchive,
        RemoteBlobHooks,
        RemoteLayers,
        StoredImage,
    )


@frozen
class Locator:
    """A parsed locator of an image: a path, an address, or a name.

    :param scheme: of the fetcher that serves it; empty for a name: ``fetchers.names`` of ``kurma.yml`` names the
        fetcher.
    :param text: the whole locator, scheme included; a path becomes ``SCHEME:///…`` with the scheme of paths; a
        name stays as written.
    :param name: the parts of a name; None for a path or an address.
    :param path: the absolute path of a file; None for an address or a name.
    """

    scheme: str
    text: str
    name: ImageName | None = None
    path: str | None = None


def parse_locator(
    text: str, kind: Callable[[str], str | None], paths: str = "", directory: str | None = "."
) -> Locator:
    """Tells a path, an address, and a name apart.

    An address is ``SCHEME://…``, or ``SCHEME:…`` where a fetcher of the scheme is installed or a path follows. All
    that is neither a path nor an address is ``NAME[:VERSION][,label=value…]`` (App Container Image Discovery).

    :param kind: see :func:`absolute_locator`, as for ``directory``.
    :param paths: the scheme of paths.
    :raises UsageError: it is none of the three, or a relative path without a directory.
    """
    if not text or "\0" in text:
        raise UsageError("an image's locator is empty" if not text else "an image's locator holds a NUL")
    text = absolute_locator(text, kind, directory)
    if text.startswith("/"):
        from urllib.parse import quote_from_bytes

        return Locator(paths, f"{paths}://" + quote_from_bytes(os.fsencode(text)), path=text)
    scheme, rest = split_locator(text)
    if scheme and (rest.startswith(("//", "/", "./", "../")) or kind(scheme) is not None):
        text = f"{scheme}:{rest}"
        return Locator(scheme, text, path=_path_in(text) if scheme == paths else None)
    return Locator("", text, parse_image_name(text))


def _has_port(text: str) -> bool:
    """Whether the text is ``HOST:PORT/…``."""
    head, slash, _ = text.partition("/")
    host, _, port = head.rpartition(":")
    return bool(slash and host and port.isdecimal())


def _path_in(text: str) -> str:
    from urllib.parse import unquote_to_bytes, urlsplit

    return os.fsdecode(unquote_to_bytes(urlsplit(text).path))


def locator_of(name: ImageName) -> Locator:
    """The locator that looks for an image by its name. :raises UsageError: a label cannot be written."""
    return Locator("", name.text, name)


class Fetching:
    """Finds and reads images through the fetcher plugins.

    :param driver: returns the fetcher of a scheme; raises PluginNotFoundError if there is none.
    :param partial_dir: directory of unfinished downloads; made when first needed.
    :param kind: see :func:`absolute_locator`.
    :param examples: returns locators of the installed fetchers, for hints.
    :param paths: scheme of the fetcher that serves bare paths. :param names: of the one that finds bare names.
    :param short_names: ``short_names`` of ``kurma.yml``: the host that short names mean, or ``SCHEME://HOST``;
        None: it is not set.
    :param having: returns the schemes of the fetchers that may have the hook of that name.
    :param install: returns the hint how to install the fetcher of that scheme; None: there is no such hint.
    :param directory: the directory that relative paths start from; None: they are refused.
    :param note: prints a note for the user, one line.
    """

    def __init__(
        self,
        driver: Callable[[str], FetcherHooks],
        partial_dir: str,
        *,
        kind: Callable[[str], str | None] = lambda scheme: None,
        examples: Callable[[], Iterable[str]] = tuple,
        paths: str = "",
        names: str = "",
        short_names: str | None = None,
        having: Callable[[str], Iterable[str]] = lambda hook: (),
        install: Callable[[str], str | None] = lambda scheme: None,
        directory: str | None = ".",
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._driver = driver
        self._partial_dir = partial_dir
        self._kind = kind
        self._examples = examples
        self._paths = paths
        self._names = names
        self._short_names = short_names
        self._having = having
        self._install = install
        self._directory = directory
        self.note = note

    def parse(self, text: str) -> Locator:
        """Calls :func:`parse_locator` with the installed fetchers.

        A text that cannot be a name, such as ``HOST:PORT/NAME``, is the address that it means if ``short_names``
        is set.

        :raises UsageError: as :func:`parse_locator`; the hint names the address that the text may mean.
        """
        try:
            if _has_port(text) and self._kind(split_locator(text)[0]) is None:
                raise UsageError(f"{text}: not an image: a name has no port")
            return self._parse(text)
        except UsageError as error:
            if "://" in text or not text:
                raise
            meant = self.short_name(text)
            if meant:
                return meant[0]
            self.hint_address(text, error)
            raise

    def _parse(self, text: str) -> Locator:
        return parse_locator(text, self._kind, self._paths, self._directory)

    def resolve(self, locator: Locator | str, request: FetchRequest) -> RemoteArchive | RemoteLayers:
        """Asks the fetcher of the locator's scheme. If the operation is cancelled while the fetcher does not
        answer, the call is abandoned.

        :raises FetchError: one of its subclasses. :raises PluginNotFoundError: no fetcher serves the scheme.
        :raises PluginError: the fetcher raised an unexpected exception, or returned a value of another type.
        """
        found = self.parse(locator) if isinstance(locator, str) else locator
        local = found.path is not None  # a local file never waits, so it needs no thread that can be abandoned
        try:
            fetcher = self._driver_for(found)
            if local:
                remote = fetcher.resolve(found.text, request)
            else:
                remote = abandoning(lambda: fetcher.resolve(found.text, request))
        except PluginError as error:
            error.prefix(found.text)
            raise
        except FetchError as error:
            if found.name is not None:
                self.hint_address(found.text, error)
                word = split_locator(found.text)[0]
                if word and "." not in word and isinstance(error, FetchNotFoundError):  # or SCHEME:IMAGE
                    none = f"no fetcher of the scheme {word} is installed"
                    error.hint = none if error.hint is None else f"{error.hint}; {none}"
            raise
        if remote.transport not in TRANSPORTS:
            what = f"{remote.transport!r}, not {', '.join(TRANSPORTS)}"
            raise plugin_error(fetcher, f"returned for {found.text} an image with the transport {what}")
        return remote

    @staticmethod
    def signature(remote: RemoteArchive) -> DetachedSignature | None:
        """Reads the detached signature of an archive; None: it has none. As :meth:`resolve`, the call is abandoned
        if the operation is cancelled.

        :raises FetchError: it cannot be read. :raises PluginError: the fetcher failed.
        """
        try:
            if remote.transport == LOCAL:
                return remote.blob.signature()
            return abandoning(remote.blob.signature)
        except PluginError as error:
            error.prefix(remote.locator)
            raise
        except OSError as error:
            raise FetchError(f"cannot read the signature of {remote.locator}: {error}") from error

    def complete_manifest(self, locator: Locator, manifest: ImageManifest, files: ImageFiles) -> ImageManifest:
        """Has the locator's fetcher fill in what only the image's files tell.

        :raises PluginError: the completed manifest is invalid.
        """
        from kurma_core.appc.image import ImageManifest
        from kurma_core.errors import ManifestError

        fetcher = self._driver_for(locator)
        completed = fetcher.complete_manifest(manifest, files) or manifest
        try:
            ImageManifest.parse(completed.to_json())
        except ManifestError as error:
            what = f"returned for {locator.text} an invalid manifest: {error.message}"
            raise plugin_error(fetcher, what) from error
        return completed

    def short_name(self, name: str) -> tuple[Locator, ...]:
        """The addresses that a name means by ``short_names`` of ``kurma.yml``, best first; empty: it is not set,
        or the name is to be discovered.

        :raises PluginError: a fetcher gave a name in return.
        """
        return () if self._short_names is None else self._addresses(name, self._short_names)

    def _addresses(self, name: str, registry: str) -> tuple[Locator, ...]:
        """The answer of the first fetcher that knows addresses of such a name.

        :param registry: see :meth:`~kurma_core.hookspecs.fetcher.FetcherHooks.expand_name`; the fetcher of
            ``SCHEME://HOST`` alone is asked.
        """
        scheme, separator, host = registry.rpartition("://")
        for one in (scheme,) if separator else self._having("expand_name"):
            fetcher = self._driver(one)
            found = tuple(map(self._parse, fetcher.expand_name(name, host)))
            for address in found:
                if address.name is not None:
                    raise plugin_error(fetcher, f"expanded the name {name} to {address.text!r}, which is a name")
            if found:
                return found
        return ()

    def check_short_names(self) -> None:
        """Checks that a fetcher answers for ``short_names``. :raises UsageError: no fetcher does."""
        if self._short_names is not None and not self.short_name("name"):
            raise UsageError(
                f"no fetcher knows short names of {self._short_names}", hint="write HOST, or SCHEME://HOST"
            )

    def hint_address(self, name: str, error: KurmaError) -> None:
        """Adds to the error's hint the address that the name may mean, if a fetcher knows one."""
        with suppress(KurmaError):  # of a fetcher that does not work
            for address in self._addresses(name, "")[:1]:
                host = address.text.partition("://")[2].partition("/")[0]
                if host == name.partition("/")[0].lower():
                    meant = f"if {host} is a registry: {address.text}"
                elif self._short_names is None:
                    meant = (
                        f"did you mean {address.text}? `short_names: {host}` in kurma.yml makes {name} mean that"
                    )
                else:
                    meant = f"did you mean {address.text}?"
                error.hint = meant if error.hint is None else f"{error.hint}; {meant}"

    def destination(self, text: str) -> Locator:
        """Parses the destination of :meth:`push`: an address or, of a name, the address that it means.

        A name without a host needs ``short_names``, so that no image goes to a host that the user has not named.

        :raises UsageError: it is not a destination.
        """
        try:
            found = self._parse(text)
            if found.name is None:
                return found
        except UsageError:
            if "://" in text or not text:
                raise
        meant, host = self.short_name(text), text.partition("/")[0].lower()
        for address in meant or self._addresses(text, ""):
            if meant or address.text.partition("://")[2].partition("/")[0] == host:
                return address
        first, slash, _ = text.partition("/")
        named = slash and (set(first) & {".", ":"} or first == "localhost")
        why = "no registry has such a name (names are in lower case)" if named else "a name without a host"
        error = UsageError(f"{text}: not a destination for an image: {why}")
        self.hint_address(text, error)
        raise error

    def push(self, locator: Locator, image: StoredImage, request: FetchRequest) -> str:
        """Has the destination's fetcher write an image there. :returns: the digest that identifies it there.

        If the operation is cancelled while a server does not answer, the call is abandoned.

        :raises FetchError: the destination refuses. :raises HostError: a file cannot be written.
        :raises UsageError: the fetcher writes no images.
        """
        fetcher = self._driver_for(locator)
        try:
            if self._kind(locator.scheme) == "path":
                return fetcher.push(locator.text, image, request)
            return abandoning(lambda: fetcher.push(locator.text, image, request))
        except PluginError as error:
            error.prefix(locator.text)
            raise
        except OSError as error:
            what = f"cannot write {locator.text}: {(error.strerror or str(error)).lower()}"
            raise HostError(what, path=error.filename, errno=error.errno) from error

    def log_in(self, address: str, user: str, secret: str, request: FetchRequest) -> str:
        """Has the address's fetcher check and keep credentials. :returns: the file that keeps them.

        :param address: ``SCHEME://HOST``; of a host alone, the scheme is that of the only fetcher that logs in.
        :raises UsageError: it is not an address, or several fetchers log in.
        :raises FetchError: the credentials are refused, or the fetcher does not log in.
        """
        locator = self._source(address)
        fetcher = self._driver_for(locator)
        return abandoning(lambda: fetcher.log_in(locator.text, user, secret, request))

    def log_out(self, address: str) -> str:
        """Has the address's fetcher remove its credentials; as :meth:`log_in`."""
        locator = self._source(address)
        return self._driver_for(locator).log_out(locator.text)

    def _source(self, text: str) -> Locator:
        if "://" not in text:
            schemes = tuple(self._having("log_in"))
            if len(schemes) != 1 or not text:
                several = " or ".join(f"{scheme}://{text}" for scheme in schemes if text)
                raise UsageError(
                    f"{text or repr(text)} is not the address of a source",
                    hint=f"write {several or 'SCHEME://HOST'}",
                )
            text = f"{schemes[0]}://{text}"
        locator = self._parse(text)
        if locator.path is not None:
            raise UsageError(f"{text} is not the address of a source", hint="write SCHEME://HOST")
        return locator

    def public_keys(self, name: str, request: FetchRequest) -> tuple[PublicKey, ...]:
        """Fetches the keys that are published for images whose names begin with ``name``. They are not verified.

        :raises FetchError: the keys cannot be fetched, or no fetcher finds keys by name.
        """
        if self._kind(self._names) is None:
            raise FetchError(
                f"{name}: no plugin finds keys by name (fetcher {self._names})",
                hint=self._install(self._names) or "name the key's file or address",
            )
        fetcher = self._driver(self._names)
        return abandoning(lambda: fetcher.public_keys(name, request))

    def _driver_for(self, locator: Locator) -> FetcherHooks:
        """Returns the fetcher of the locator's scheme.

        :raises FetchError: no fetcher serves names. :raises PluginNotFoundError: no fetcher serves the scheme.
        """
        if locator.name is None:
            return self._driver(locator.scheme)
        if self._kind(self._names) is None:
            typed = ", ".join(dict.fromkeys(("./FILE.aci", *self._examples())))
            raise FetchError(
                f"{locator.text}: not in the store, and no plugin finds images by name (fetcher {self._names})",
                hint=self._install(self._names) or f"name a path or an address: {typed}",
                url=locator.text,
            )
        return self._driver(self._names)

    @contextmanager
    def download(
        self,
        blob: RemoteBlobHooks,
        what: str,
        *,
        progress: Progress | None = None,
        keep: bool = True,
    ) -> Iterator[Download]:
        """Reads a blob. The source is not asked before the first ``read``.

        If another process (or thread) is reading the same blob, this waits for it. Then ``Download.waited`` is
        true: the caller should look into the store again before it reads.

        :param what: name of the blob in messages.
        :param keep: keeps a partial file, if the blob can be resumed, and makes waits for the source cancellable;
            not needed for files of this machine.
        :raises FetchError: from here and from ``read``; :raises FetchDigestError: at the last byte.
        :raises Cancelled: from here and from ``read``; the partial file is kept, as after other interruptions.
        """
        partial = None
        if keep and blob.key is not None:
            partial = Partial.lock(self._partial_dir, blob.key, lambda: self._wait_note(what))
        download = Download(blob, what, progress, partial, patient=keep)
        try:
            yield download
        except BaseException as error:
            download.abandon(resumable=_resumable(error))
            raise
        download.close()

    def _wait_note(self, what: str) -> None:
        self.note(f"{what}: waiting for another fetch of the same")


def _resumable(error: BaseException) -> bool:
    """Whether a later attempt may continue from the partial file: yes, unless its bytes are wrong."""
    if isinstance(error, FetchDigestError):
        return False
    return isinstance(error, (FetchError, StoreError)) or not isinstance(error, Exception)
