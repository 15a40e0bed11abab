"""Fetches or takes an image and puts it into the store: downloads, decrypts, checks trust, commits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from kurma_core.appc.image_name import ImageName
from kurma_core.errors import (
    ArchiveError,
    DecryptionError,
    FetchDigestError,
    FetchError,
    ImageError,
    ImageNotFoundError,
    ManifestError,
    UsageError,
)
from kurma_core.fetching import NAMED, Fetching, Locator, locator_of
from kurma_core.formats.timestamps import timestamp
from kurma_core.hookspecs.fetcher import DetachedSignature, FetchRequest, RemoteArchive, RemoteLayers
from kurma_core.images.locator_cache import Known, KnownImages
from kurma_core.images.trust_policy import Expectation, Judge, Voucher, tell_relaxations
from kurma_core.models.image import ImageRecord, Provenance
from kurma_core.value import frozen

if TYPE_CHECKING:
    from typing import BinaryIO

    from kurma_core.appc.pod import RuntimeImage
    from kurma_core.image_store import ImageStore
    from kurma_core.image_store.archive_stream import Decrypt, Plain
    from kurma_core.journal import Journal
    from kurma_core.models.image import ImageRecord
    from kurma_core.progress import Progress
    from kurma_core.trust import Trust
    from kurma_core.trust.encryption import Passphrases


@frozen
class Acquisition:
    """One run's way of getting images.

    :param insecure: relaxations of this run.
    :param platform: os and arch wanted, as the App Container specification spells them.
    """

    store: ImageStore
    fetching: Fetching
    known: KnownImages
    judge: Judge
    insecure: frozenset[str]
    platform: tuple[str, str]
    note: Callable[[str], None]
    journal: Journal
    decryption: Opener
    progress: Progress | None = None

    def get(
        self,
        locator: Locator,
        pull: str,
        expected: Expectation | None = None,
    ) -> ImageRecord:
        """The image, from the store or from its source (S6).

        ``new`` asks the source only for what is not in the store; a file of this machine is always looked at, for
        that costs nothing. ``always`` asks it each time, and reads nothing where it says that nothing changed.

        :param expected: what it must be, more than the locator says; None: what the locator says.
        :raises FetchError: :raises TrustError: :raises ArchiveError: …
        """
        tell_relaxations(self.insecure, locator.text, self.note)
        known = self.known.get(locator.text, self._platform)
        expected = expected or Expectation.of(locator)
        local = locator.scheme not in (NAMED, "docker", "http", "https")
        if known is not None and not (local and pull != "never"):
            stored = self._stored(known, locator, expected)
            if stored is not None and (pull != "always" or known.fresh(time.time())):
                return stored
        if pull == "never":
            raise ImageNotFoundError(
                f"{locator.text}: not in the store, and nothing is to be fetched",
                hint="fetch it: kurma image fetch " + locator.text,
            )
        return self._fetch(locator, known, expected)

    def take(self, locator: Locator, archive: RemoteArchive) -> ImageRecord:
        """The image in an archive that was handed over: there is no source that could be asked again.

        :raises TrustError: :raises ArchiveError: …
        """
        tell_relaxations(self.insecure, locator.text, self.note)
        return self._archive(locator, archive, Expectation.of(locator))

    def is_known(self, locator: Locator) -> bool:
        """Whether the locator has given an image before."""
        return self.known.get(locator.text, self._platform) is not None

    @property
    def _platform(self) -> str:
        return "/".join(self.platform)

    def _stored(self, known: Known, locator: Locator, expected: Expectation) -> ImageRecord | None:
        """None: it is gone, is not what is expected, or came in with less than is wanted now (S4): then it is
        fetched, and judged, anew."""
        try:
            record = self.store.get(known.image)
        except ImageNotFoundError:
            return None
        return record if expected.fits(record) and self.judge.accepts(record, locator) else None

    def _fetch(self, locator: Locator, known: Known | None, expected: Expectation) -> ImageRecord:
        system, arch = self.platform
        stored = self._stored(known, locator, expected) if known is not None else None
        before = known.key if known is not None and stored is not None else None
        remote = self.fetching.resolve(locator, FetchRequest(system, arch, self.insecure, before))
        key = remote.blob.key if isinstance(remote, RemoteArchive) else remote.digest
        if stored is not None and key is not None and key == before and not self._doubted(stored, remote):
            self._remember(locator, stored, key, _max_age(remote))
            return stored
        if isinstance(remote, RemoteArchive):
            record = self._archive(locator, remote, expected)
        else:
            record = self._layers(remote)
        self._remember(locator, record, key, _max_age(remote))
        self.journal.tell("image", "fetched", record.id, record.name, {"trust": record.provenance[-1].trust})
        return record

    def _doubted(self, stored: ImageRecord, remote: RemoteArchive | RemoteLayers) -> bool:
        return isinstance(remote, RemoteArchive) and self.judge.doubts(stored, remote)

    def _remember(self, locator: Locator, record: ImageRecord, key: str | None, max_age: int) -> None:
        self.known.put(locator.text, self._platform, Known(record.id, key, time.time(), max_age))

    # --- archives ------------------------------------------------------------------------------------------------

    def _archive(self, locator: Locator, remote: RemoteArchive, expected: Expectation) -> ImageRecord:
        from urllib.parse import urlsplit

        what = urlsplit(remote.url).path.rpartition("/")[2] or remote.url
        keep = remote.transport != "file"
        expected.check_announced(remote)
        with self.fetching.download(remote.blob, what, progress=self.progress, keep=keep) as download:
            if download.waited:
                stored = self._fetched_meanwhile(locator, remote.blob.key, expected)
                if stored is not None:
                    return stored
            try:
                with self.store.stage_archive(cast("BinaryIO", download), self.decryption.of(what)) as staged:
                    download.finish()
                    expected.check(remote, staged, self.platform)
                    voucher = self.judge.archive(
                        remote, staged, source="named" if locator.scheme == NAMED else remote.transport
                    )
                    for oddity in staged.oddities:
                        self.note(f"{locator.text}: {oddity}")
                    return staged.commit(self._provenance(remote, voucher, encrypted=staged.encrypted))
            except (ArchiveError, ManifestError) as error:
                error.message = f"{locator.text}: {error.message}"  # what reads it does not know where it is from
                raise

    def _fetched_meanwhile(self, locator: Locator, key: str | None, expected: Expectation) -> ImageRecord | None:
        known = self.known.get(locator.text, self._platform)
        return self._stored(known, locator, expected) if known is not None and known.key == key else None

    # --- layers --------------------------------------------------------------------------------------------------

    def _layers(self, remote: RemoteLayers) -> ImageRecord:
        from kurma_core.images.layer_fetch import fetch_layers
        from kurma_core.images.user_groups import complete_groups

        voucher = self.judge.layers(remote)
        with self.store.holding_layers():
            try:
                keys = fetch_layers(self.store, self.fetching, remote, self.progress)
            except ArchiveError as error:
                error.message = f"{remote.locator}: {error.message}"
                raise
            manifest = complete_groups(remote.manifest, [self.store.layer(key) for key in keys])
            return self.store.add_layered(manifest, keys, self._provenance(remote, voucher))

    def _provenance(
        self, remote: RemoteArchive | RemoteLayers, voucher: Voucher, *, encrypted: bool = False
    ) -> Provenance:
        return Provenance(
            locator=remote.locator,
            fetched_at=timestamp(),
            trust=voucher.trust,
            url=remote.url,
            digest=voucher.digest,
            fingerprint=voucher.fingerprint,
            insecure=tuple(sorted({*self.insecure, *voucher.insecure})),
            encrypted=encrypted,
        )


def _max_age(remote: RemoteArchive | RemoteLayers) -> int:
    return remote.max_age if isinstance(remote, RemoteArchive) else 0


SCHEME = "upload"


class StreamBlob:
    """An open file, read by whoever opens it. :param stream: seekable; it stays open."""

    key = None
    digest = None

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = stream.seek(0, os.SEEK_END)

    def open(self, offset: int = 0) -> BinaryIO:
        again = open(os.dup(self._stream.fileno()), "rb")  # noqa: SIM115 - who asked for it closes it
        again.seek(offset)
        return again


def uploaded(stream: BinaryIO, name: str, signature: bytes | None) -> tuple[Locator, RemoteArchive]:
    """The archive, as fetchers give those that they find. It is judged as a file of this machine is.

    :raises UsageError: that is no name.
    """
    if not name or "/" in name or "\0" in name:
        raise UsageError(f"{name!r} is no name for an archive", hint="give it a file's name: app.aci")
    from urllib.parse import quote

    text = f"{SCHEME}:{quote(os.fsencode(name))}"
    signed = None if signature is None else DetachedSignature(signature, "archive", f"{text}.asc")
    archive = RemoteArchive(text, text, "file", StreamBlob(stream), lambda: signed)
    return Locator(SCHEME, text), archive


def image_of_app(image: RuntimeImage, store: ImageStore, acquisition: Acquisition, pull: str) -> ImageRecord:
    """:param image: with an ID (whole, or the start of an early one) and a name.
    :raises ImageError: the image of that ID has another name, or labels other than those given.
    :raises ImageNotFoundError: the store has none of that ID, and ``pull`` is ``never``.
    :raises FetchError: :raises TrustError: as for an image that somebody asks for by that name.
    """
    assert image.id is not None
    assert image.name is not None
    wanted = ImageName.of(image.name, {label.name: label.value for label in image.labels}, image.id)
    record = store.find_by_id(image.id)
    if record is None:
        return _brought(image.id, wanted, acquisition, pull)
    if not wanted.is_met_by(record.name, record.labels):
        raise ImageError(
            f"the image with the ID {image.id} is {ImageName.of(record.name, record.labels).shown}, "
            f"not {wanted.shown}",
            hint="give the image's own name with its ID, or another ID",
            image=record.id,
        )
    return record


def _brought(image_id: str, wanted: ImageName, acquisition: Acquisition, pull: str) -> ImageRecord:
    try:
        return acquisition.get(locator_of(wanted), pull, Expectation(wanted, image_id))
    except FetchDigestError:
        raise  # it says itself what came instead
    except (FetchError, ImageNotFoundError, UsageError) as error:
        error.message = f"the store holds no image {image_id}; by its name: {error.message}"
        raise


class Opener(Protocol):
    """Says how the archive that people call ``what`` is opened, should it be encrypted."""

    def of(self, what: str) -> Decrypt: ...


class Decryption:
    """By the passphrases that the user gives.

    :param passphrases: None: there are none.
    """

    def __init__(self, trust: Trust, passphrases: Callable[[], Passphrases] | None) -> None:
        self._trust = trust
        self._passphrases = passphrases

    def of(self, what: str) -> Decrypt:
        """Asks once, however often the archive is read."""
        known: list[Plain] = []

        def opened(head: bytes) -> Plain:
            if not known:
                passphrases = _Nobody() if self._passphrases is None else self._passphrases()
                known.append(self._trust.decryption(head, passphrases, what))
            return known[0]

        return opened


class _Nobody:
    attempts = 1

    def get(self, what: str, *, wrong: bool) -> bytes | None:
        return None


class Refusal:
    """Images with host privilege come in without anybody there to give a passphrase, and are judged anew at each
    use, by bytes that anybody may look at."""

    def of(self, what: str) -> Decrypt:
        def opened(head: bytes) -> Plain:
            raise DecryptionError(
                "the archive is encrypted, and an image that runs with host privilege must not be",
                hint="publish it as it is; what it holds is protected by who may read it",
                reason="kind",
            )

        return opened
