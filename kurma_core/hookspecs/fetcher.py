"""The contract of fetchers: a locator becomes an archive or layers that the core can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, Protocol

from kurma_core.value import field, frozen

if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest


class RemoteBlob(Protocol):
    """Bytes somewhere else that can be read from any offset on.

    ``key`` names the content well enough to resume by (a digest, or the URL with its validator); None: not
    resumable. ``size`` in bytes, None when unknown. ``digest`` (``sha256:…``), when set, is checked by the core.
    """

    @property
    def key(self) -> str | None: ...
    @property
    def size(self) -> int | None: ...
    @property
    def digest(self) -> str | None: ...

    def open(self, offset: int = 0) -> BinaryIO:
        """A reader from ``offset`` on. It retries broken connections itself, as far as that is sensible. Its
        ``close`` may be called while another thread waits in its ``read``, to end that: so an operation that is
        cancelled ends (:mod:`kurma_core.cancellation`).

        :raises FetchError: in one of its kinds, from here and from ``read``.
        """
        ...


@frozen
class DetachedSignature:
    """An OpenPGP signature beside an archive.

    :param data: armored or binary.
    :param over: ``archive``: the bytes as shipped (``.aci.asc``); ``tar``: the uncompressed tar (the early
        ``.sig``).
    :param url: where it was found, for people.
    """

    data: bytes
    over: str = "archive"
    url: str | None = None


@frozen
class PublicKey:
    """A public key (or several in one file) that a name's owner publishes.

    :param data: armored or binary, as it came; unverified. :param url: where it was found.
    """

    data: bytes
    url: str


@frozen
class RemoteArchive:
    """An App Container image archive, as shipped.

    :param transport: ``file``, ``http`` or ``https``: decides the trust policy, unless the locator is a name.
    :param signature: the detached signature's reader, called only when one is wanted; returns None when the
        source has none.
    :param max_age: seconds for which the source calls its answer fresh; 0: it must be asked each time.
    """

    locator: str
    url: str
    transport: str
    blob: RemoteBlob
    signature: Callable[[], DetachedSignature | None] = field(default=lambda: None)
    max_age: int = 0


@frozen
class RemoteLayer:
    """One layer of a Docker or OCI image.

    :param diff_id: ``sha256:…`` over the uncompressed tar: what it is stored under, and checked against.
    :param compression: ``""``, ``gzip`` or ``zstd`` as announced; what counts is what the bytes say.
    :param others: the same bytes at other places (mirrors), asked in order where the one before fails or gives
        something else.
    """

    diff_id: str
    blob: RemoteBlob
    compression: str = ""
    others: tuple[RemoteBlob, ...] = ()


@frozen
class RemoteLayers:
    """A Docker or OCI image, resolved for one platform.

    :param manifest: the App Container image manifest that it becomes.
    :param layers: lowest first.
    :param digest: ``sha256:…`` of the registry's manifest: the content digest that vouches for it.
    :param transport: ``https`` (a registry over TLS), ``http`` (an insecure one) or ``file``.
    :param pinned: the digest was given by the user.
    """

    locator: str
    url: str
    transport: str
    manifest: ImageManifest
    layers: tuple[RemoteLayer, ...]
    digest: str
    pinned: bool = False


@frozen
class FetchRequest:
    """:param os: and ``arch``: the platform wanted, in App Container terms.
    :param insecure: relaxations in force for this run: ``image``, ``tls``, ``http``, ``pubkey``.
    :param known: the blob's ``key`` when the locator was last resolved, if what it gave is there still: a fetcher
        may ask its source just whether that has changed. A blob with that key again is not read.
    """

    os: str
    arch: str
    insecure: frozenset[str] = frozenset()
    known: str | None = None


class Fetcher(Protocol):
    """Turns a locator of its scheme into something that the core can read. It stores and verifies nothing.

    ``resolve``, ``RemoteArchive.signature`` and ``RemoteBlob.open`` are called in threads of their own, in the
    operation of who asks. When that is cancelled, what waits inside of ``cancellation.current().waking(…)`` is
    woken; a call that knows nothing of it is left to itself after :data:`kurma_core.cancellation.GRACE` seconds.
    """

    def resolve(self, locator: str, request: FetchRequest) -> RemoteArchive | RemoteLayers:
        """Finds the image. May talk to the network; reads no image bytes.

        :param locator: whole, scheme included (``docker://…``); a bare path comes as ``file:///…``.
        :raises FetchError: in one of its kinds.
        :raises UsageError: the locator is malformed.
        """
        ...


class KeyFinder(Protocol):
    """What the fetcher of names (scheme ``appc``) can do besides: find the keys that a name's owner publishes."""

    def public_keys(self, name: str, request: FetchRequest) -> tuple[PublicKey, ...]:
        """The keys published for images whose names begin with ``name`` (``ac-discovery-pubkeys``).

        :returns: nothing is verified or stored; empty: none are published.
        :raises FetchError: in one of its kinds.
        """
        ...
