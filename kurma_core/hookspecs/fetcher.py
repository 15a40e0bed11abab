"""The contract of fetchers: a locator becomes an archive or layers that the core can read."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kurma_core.hookspecs import Hooks, hookspec
from kurma_core.value import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from kurma_core.appc.image import ImageManifest
    from kurma_core.models.image import Conventions, FetchCredentials

#: Modules of the types of answers.
_WHERE = {"Conventions": "kurma_core.models.image", "ImageManifest": "kurma_core.appc.image"}


@frozen
class DetachedSignature:
    """An OpenPGP signature beside an archive.

    :param data: armored or binary.
    :param over: ``archive``: the bytes as shipped (``.aci.asc``); ``tar``: the uncompressed tar (the early
        ``.sig``).
    :param url: where it was found, for messages.
    """

    data: bytes
    over: str = "archive"
    url: str | None = None


class RemoteBlobHooks(Hooks):
    """Remote bytes that can be read from any offset on: an object of the plugin, with these attributes and hooks.

    The core reads the attributes once.

    :param key: identifies the content, so that a download can be resumed (a digest, or the URL with its
        validator); None: it cannot be resumed.
    :param size: in bytes; None: it is not known.
    :param digest: ``sha256:…``, which the core checks; None: the source gives none.
    """

    key: str | None
    size: int | None
    digest: str | None

    @hookspec(required=True, raises=(OSError,))
    def open(self, offset: int) -> BinaryIO:
        """Opens the bytes. The reader retries broken connections itself, as far as that is sensible. The core may
        call its ``close`` while another thread waits in ``read``: this must end the wait, so that a cancelled
        operation ends (:mod:`kurma_core.cancellation`).

        :called: when the store needs the bytes
        :param offset: where to begin, in bytes.
        :returns: a reader, of any class with ``read`` and ``close``.
        :raises FetchError: one of its subclasses, from here and from ``read``.
        """

    @hookspec(raises=(OSError,))
    def signature(self) -> DetachedSignature | None:
        """Reads the detached signature of an archive.

        :called: only when the trust policy needs a signature
        :returns: the signature; None, as without the hook: the source has none.
        :raises FetchError: one of its subclasses.
        """
        return None


@frozen
class PublicKey:
    """A public key (or several in one file) that a name's owner publishes.

    :param data: armored or binary, as published; unverified. :param url: where it was found, for messages.
    """

    data: bytes
    url: str


@frozen
class RemoteArchive:
    """An App Container image archive, as shipped.

    :param locator: as ``resolve`` got it. :param url: where the archive was found, for messages.
    :param transport: ``file`` (this machine), ``https`` (TLS of any protocol) or ``http`` (none): decides the
        trust policy, unless the locator is a name. The core asks again for a ``file`` at each use; an image that
        came otherwise is used from the store.
    :param blob: the archive's bytes.
    :param max_age: seconds for which the source calls its answer fresh; 0: the core must ask each time.
    """

    locator: str
    url: str
    transport: str
    blob: RemoteBlobHooks
    max_age: int = 0


@frozen
class RemoteLayer:
    """One layer of an image that comes as layers: a tar as the OCI Image Layer Filesystem Changeset has it.

    :param diff_id: ``sha256:…`` over the uncompressed tar: the layer's key in the store; the core checks it.
    :param blob: the layer's bytes.
    :param compression: ``""``, ``gzip`` or ``zstd`` as announced; the core goes by the bytes themselves.
    :param others: the same bytes at other places (mirrors); the core tries them in order when ``blob`` fails or
        does not match its digest.
    """

    diff_id: str
    blob: RemoteBlobHooks
    compression: str = ""
    others: tuple[RemoteBlobHooks, ...] = ()


@frozen
class RemoteLayers:
    """An image that comes as layers, such as from a registry, resolved for one platform.

    :param locator: as ``resolve`` got it. :param url: where the image was found, for messages.
    :param manifest: the image's configuration, converted to an App Container image manifest.
    :param layers: lowest first.
    :param digest: ``sha256:…`` of the registry's manifest: the content digest that the trust policy goes by.
    :param transport: ``https`` (a registry over TLS), ``http`` (an insecure one) or ``file``.
    :param pinned: the user gave the digest.
    :param max_age: seconds for which the source calls its answer fresh; 0: the core must ask each time.
    """

    locator: str
    url: str
    transport: str
    manifest: ImageManifest
    layers: tuple[RemoteLayer, ...]
    digest: str
    pinned: bool = False
    max_age: int = 0


@frozen
class FetchRequest:
    """Arguments of :meth:`FetcherHooks.resolve`.

    :param os: the operating system wanted, in App Container terms (``linux``).
    :param arch: the architecture wanted, in App Container terms (``amd64``).
    :param insecure: checks that are relaxed for this run: ``image``, ``tls``, ``http``, ``pubkey``.
    :param known: the blob's ``key`` of the last time that the locator was resolved, if the store still has that
        image: a fetcher may ask its source only whether the content has changed. If the new blob has the same key,
        the core does not read it.
    :param credentials: of the caller, for this request and the blobs of its answer only; send them to no other
        source. None: the machine's own. A fetcher that cannot use them calls :meth:`refuse_credentials`.
    """

    os: str
    arch: str
    insecure: frozenset[str] = frozenset()
    known: str | None = None
    credentials: FetchCredentials | None = None

    def refuse_credentials(self, locator: str) -> None:
        """Refuses credentials of one fetch, for a fetcher that cannot use them.

        :param locator: of the image, for the error.
        :raises UsageError: the caller has given credentials.
        """
        if self.credentials is not None:
            from kurma_core.errors import UsageError

            raise UsageError(
                f"{locator}: its fetcher cannot use credentials of one fetch",
                hint="keep them in auth.d; see docs/howto/images.md",
            )


class StoredLayer(Protocol):
    """A layer of an image that the store has."""

    def write(self, out: BinaryIO) -> None:
        """Writes the layer: an uncompressed tar in the form of :class:`RemoteLayer`. The bytes are always the same
        for the same layer; they may differ from those that a source shipped, since the store keeps the extracted
        files.

        It moves the progress of the present :class:`kurma_core.cancellation.phase` by each file.

        :param out: gets the bytes.
        :raises ImageError: the store is damaged, or such a tar cannot hold a file of the layer.
        :raises OSError: a file cannot be read, or ``out`` cannot be written.
        """
        ...


@frozen
class StoredImage:
    """An image that the store has, with its dependencies, for :meth:`FetcherHooks.push`.

    :param manifest: its App Container image manifest.
    :param layers: lowest first; together they are its root filesystem.
    """

    manifest: ImageManifest
    layers: tuple[StoredLayer, ...]


class ImageFiles(Protocol):
    """The files of an image that the store has, its layers stacked."""

    def read(self, path: str) -> str:
        """Reads a text file.

        :param path: without a leading ``/``.
        :returns: the text; empty if the file is missing, or is not a regular file without links in its path.
        """
        ...

    def groups_of(self, user: str) -> tuple[str, tuple[int, ...]]:
        """Finds the groups of a user by the image's ``/etc/passwd`` and ``/etc/group``.

        :param user: a name or a number; a path, which stands for its owner, is its own group.
        :returns: the primary group, and the IDs of the supplementary groups.
        """
        ...


class FetcherHooks(Hooks):
    """Resolves a locator of its scheme to an archive or layers that the core can read. It stores and verifies
    nothing.

    The core calls ``resolve``, ``public_keys``, and the hooks of blobs in threads of their own, as part of the
    caller's operation. When the operation is cancelled, waits inside of
    ``cancellation.current().waking(…)`` end; the core abandons other calls after
    :data:`kurma_core.cancellation.GRACE` seconds.

    :raises FetchError: the source failed.
    """

    @hookspec(required=True, raises=(OSError,))
    def resolve(self, locator: str, request: FetchRequest) -> RemoteArchive | RemoteLayers:
        """Finds the image. May talk to the network; reads no image bytes.

        :called: when an image is fetched, or its source is asked for a newer one
        :param locator: ``SCHEME:REST``. The fetcher that ``fetchers.paths`` of ``kurma.yml`` names gets a bare
            path as ``SCHEME:///PATH``, percent-encoded; that of ``fetchers.names`` gets a bare name as
            written.
        :param request: the platform, and the checks that are relaxed.
        :returns: an App Container archive, or the layers of an image.
        :raises FetchError: one of its subclasses.
        :raises UsageError: the locator is malformed.
        """

    @hookspec(raises=(OSError,))
    def public_keys(self, name: str, request: FetchRequest) -> tuple[PublicKey, ...]:
        """Fetches the keys that a name's owner publishes (``ac-discovery-pubkeys``).

        :called: by ``kurma trust add`` without a file, of the fetcher that ``fetchers.names`` of ``kurma.yml``
            names
        :param name: the keys sign images whose names begin with it.
        :param request: the checks that are relaxed.
        :returns: the keys, neither verified nor stored; empty: none are published.
        :raises FetchError: one of its subclasses.
        """
        from kurma_core.errors import FetchError

        raise FetchError(f"{name}: the fetcher of names does not look for keys", hint="name the key's file")

    @hookspec
    def complete_manifest(self, manifest: ImageManifest, files: ImageFiles) -> ImageManifest | None:
        """Fills in what only the image's files tell, such as the group of a user.

        :called: once for each image that this fetcher gave as layers, when all layers are in the store
        :param manifest: as :class:`RemoteLayers` had it.
        :param files: the image's files.
        :returns: a valid manifest; None: ``manifest`` is complete.
        """
        return None

    @hookspec
    def conventions(self, annotations: Mapping[str, str]) -> Conventions:
        """Tells what an image with these annotations expects of its executor. The core keeps the answer with the
        image. If fetchers of two distributions declare the same prefix, the image is refused.

        :called: when an image comes into the store, of the fetcher that declares a prefix of one of its
            annotations (:attr:`.driver.Driver.annotations`), whichever fetcher brought the image
        :param annotations: all of the manifest, by name.
        :returns: where the image differs from the App Container specification.
        :raises ImageError: an annotation has an invalid value.
        """
        from kurma_core.models.image import Conventions

        return Conventions()

    @hookspec
    def expand_name(self, name: str, registry: str) -> tuple[str, ...]:
        """Finds the addresses that a name without a scheme may mean.

        :called: for a name that the store lacks; of the fetcher that ``short_names`` of ``kurma.yml`` names by its
            scheme, else of each until one answers
        :param name: as the user wrote it.
        :param registry: the host of ``short_names``: the core takes the first address that has an image, and its
            trust policy. Answer only for names that lack a host, name that host, or cannot be discovered. Empty:
            the core puts the first address into a hint; answer for every name that may be one of yours.
        :returns: whole locators, scheme included, best first. Empty: the name is none of yours.
        """
        return ()

    @hookspec(raises=(OSError,))
    def push(self, locator: str, image: StoredImage, request: FetchRequest) -> str:
        """Writes an image to the locator, so that ``resolve`` finds it there. A failure, also of the process,
        leaves the locator without an image, or with its image of before.

        :class:`kurma_core.cancellation.phase` shows progress to the user.

        :called: by ``kurma image save`` and ``kurma image push``
        :param locator: as for ``resolve``; the path in one of a ``path`` is absolute.
        :param image: the image to write. :param request: the checks that are relaxed, and credentials.
        :returns: the digest that identifies the image there (``sha256:…``).
        :raises FetchError: the destination does not answer, or refuses.
        :raises UsageError: the locator is malformed.
        :raises OSError: a file cannot be written.
        """
        from kurma_core.errors import UsageError

        raise UsageError(f"{locator}: the fetcher of this scheme only fetches, and cannot write images")

    @hookspec
    def log_in(self, locator: str, user: str, secret: str, request: FetchRequest) -> str:
        """Checks credentials with the source, and keeps them for ``resolve``, in ``context.auth_dir`` or
        elsewhere.

        :called: by ``kurma login``
        :param locator: ``SCHEME://HOST``.
        :param user: the user's name at the source. :param secret: a password or a token; never print it.
        :param request: the checks that are relaxed.
        :returns: the file that keeps them.
        :raises FetchError: they are refused, or the source does not answer.
        """
        from kurma_core.errors import FetchError

        raise FetchError(f"{locator}: the fetcher of this scheme does not log in", url=locator)

    @hookspec
    def log_out(self, locator: str) -> str:
        """Removes the credentials that ``log_in`` keeps.

        :called: by ``kurma logout``
        :param locator: ``SCHEME://HOST``.
        :returns: the file that kept them. :raises FetchError: there are none.
        """
        from kurma_core.errors import FetchError

        raise FetchError(f"{locator}: the fetcher of this scheme does not log in", url=locator)
