"""Images: their provenance, their records, rendered trees, and credentials of a fetch."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.models.health import HealthCheck
from kurma_core.schema import Count, JsonValue, Timestamp, Words
from kurma_core.value import field, frozen

#: Levels of trust in an image, the strongest first.
TRUST = ("built", "signed", "digest", "local", "unverified")
#: The ways on which an image's bytes come, as fetchers say them: a file of this machine, plain HTTP, or TLS.
LOCAL, PLAIN, TLS = TRANSPORTS = ("file", "http", "https")
#: The sources that the trust policy knows: an archive that was asked for by its name, the layers of a registry's
#: image, and the transports of all other archives.
NAMED, REGISTRY = "named", "registry"
SOURCES = (NAMED, REGISTRY, *TRANSPORTS)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any
    TrustWord = str
    SourceWord = str
    TransportWord = str
else:
    TrustWord = Words(*TRUST)
    SourceWord = Words(*SOURCES)
    TransportWord = Words(*TRANSPORTS)


@frozen
class Provenance(JsonValue):
    """One fetch or import of an image: its source and the trust in it.

    :param locator: the requested locator.
    :param fetched_at: time of the fetch, with microseconds.
    :param trust: the trust in it then: ``signed``, ``digest`` (content digest over TLS or pinned), ``local``
        (a file of this machine, unverified), ``built`` (made and signed on this machine) or ``unverified`` (checks
        were relaxed).
    :param source: the trust policy that applies: ``named`` (an archive found by its name), ``registry`` (layers),
        or the transport of another archive; null: it was built on this machine.
    :param transport: transport: ``file``, ``http`` or ``https``; null: it was built on this machine.
    :param url: the final address; null: not known.
    :param digest: the verified content digest; null: there was none.
    :param fingerprint: fingerprint of the key whose signature was verified; null: there was none. Of an image that
        was built here (``local``, without a source): of this machine's key for those.
    :param insecure: checks that were relaxed: of ``image``, ``tls``, ``http``, ``pubkey``.
    :param encrypted: whether its archive came encrypted.
    """

    locator: str
    fetched_at: Timestamp
    trust: TrustWord
    source: SourceWord | None = None
    transport: TransportWord | None = None
    url: str | None = None
    digest: str | None = None
    fingerprint: str | None = None
    insecure: tuple[str, ...] = ()
    encrypted: bool = False


@frozen
class Conventions(JsonValue):
    """An image's demands on its executor that differ from the App Container specification.

    :param entrypoint: arguments of a command line follow these words, instead of the app's ``exec``; null: they
        follow ``exec``.
    :param stop_signal: number of the signal that asks the app to end.
    :param make_working_directory: a missing working directory is made.
    :param replace_files: all of the executor's files in ``/etc`` replace those of the image.
    :param fewer_capabilities: the default capabilities are those of container engines, fewer than the
        specification's.
    :param health_check: the image's health check; null: it has none.
    """

    entrypoint: tuple[str, ...] | None = None
    stop_signal: Count = 15
    make_working_directory: bool = False
    replace_files: bool = False
    fewer_capabilities: bool = False
    health_check: HealthCheck | None = None


@frozen
class ImageRecord(JsonValue):
    """One image of the store.

    :param id: ``sha512-`` and 128 hex digits: over the uncompressed tar.
    :param name: name of the image. :param version: null: it has no version. :param labels: by name.
    :param size: bytes of its extracted layers on disk.
    :param layers: keys of the extracted layers, the lowest first (an App Container archive has one).
    :param provenance: each fetch of the image, the oldest first; never empty.
    :param last_used: null: it was never used.
    :param early_id: ``sha256-`` and 64 hex digits over the same tar, as early documents name it; null: it came
        from a registry.
    :param conventions: expectations of the image's format, as its fetcher reports them.
    :param archive_size: bytes of its archive, which the store keeps besides; 0: it keeps none.
    :param managers: names of the programs that manage it: garbage collection keeps it until they give it up.
    :param released: its last manager has given it up while pods used it.
    :param trust: the highest level of trust in its provenance.
    :param fetched_at: time of the last fetch.
    :param names: what callers call it, the last one first: a registry's image as it was asked for, any other by
        its own name and version.
    """

    JSON_NAME = "Image"
    COMPUTED = {"trust": TrustWord, "fetched_at": Timestamp, "names": [str]}  # noqa: RUF012 - of the class

    id: str
    name: str
    version: str | None
    labels: Mapping[str, str]
    size: Count
    layers: tuple[str, ...]
    provenance: tuple[Provenance, ...]
    last_used: Timestamp | None = None
    early_id: str | None = None
    conventions: Conventions = field(default_factory=Conventions)
    archive_size: Count = 0
    managers: tuple[str, ...] = ()
    released: bool = False

    @property
    def trust(self) -> str:
        """The highest level of trust in its provenance."""
        return min((p.trust for p in self.provenance), key=TRUST.index)

    @property
    def fetched_at(self) -> str:
        return self.provenance[-1].fetched_at

    @property
    def names(self) -> tuple[str, ...]:
        """Its names as callers wrote them, the newest first."""
        from kurma_core.appc.template import without_passwords

        own = f"{self.name}:{self.version}" if self.version else self.name
        found = [without_passwords(one.locator) if one.source == REGISTRY else own for one in self.provenance]
        return tuple(dict.fromkeys(reversed(found)))

    @property
    def age_order(self) -> str:
        """Key that sorts images by ``fetched_at``, the oldest first; a time without microseconds sorts as the
        beginning of its second."""
        return self.fetched_at.removesuffix("Z")


@frozen
class FetchCredentials(JsonValue):
    """A caller's credentials for the source of one image, used in one fetch. Empty: not given.

    :param user: name of the user. :param password: password of the user.
    :param identity_token: a token that a registry's token server exchanges for an access token.
    :param registry_token: an access token, sent unchanged.
    :param server: host[:port] that they are for; they are not sent if the image is at another one.
    """

    JSON_NAME = "FetchCredentials"
    PARTIAL = True

    user: str = ""
    password: str = ""
    identity_token: str = ""
    registry_token: str = ""
    server: str = ""

    def __repr__(self) -> str:
        return "FetchCredentials(…)"


@frozen
class RenderedLayer(JsonValue):
    """A read-only directory with one layer of an app's rootfs.

    :param id: its name under a stager's ``/layers``: an image ID, or a digest of the sources of a merged tree.
    :param path: absolute path of the directory on the host.
    """

    id: str
    path: str


@frozen
class RenderedImage:
    """An image ready to be stacked: ``layers`` top first, as in ``appImageOrder``.

    :param manifests: image manifest (as JSON value) by layer ID, for a stager's ``images``.
    :param images: IDs of the image and of all its dependencies.
    """

    id: str
    layers: tuple[RenderedLayer, ...]
    manifests: Mapping[str, Json]
    images: tuple[str, ...] = ()
